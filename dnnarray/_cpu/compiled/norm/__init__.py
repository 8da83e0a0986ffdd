"""Norms by planes of channels and by columns."""
