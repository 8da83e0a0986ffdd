"""Dropout, alone and fused: the problems."""
