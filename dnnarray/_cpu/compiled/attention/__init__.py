"""Attention by the matrix micro-kernel and by the matrix unit."""
