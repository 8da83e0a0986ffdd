"""Pooling by planes of channels and by pixels."""
