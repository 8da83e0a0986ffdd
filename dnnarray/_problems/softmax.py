"""Softmax and its relatives: the problems."""
