"""Attention and what belongs to it: the problems."""
