"""Attention and what belongs to it."""

__all__: list[str] = []
