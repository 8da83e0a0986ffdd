"""Dropout, alone and fused."""

__all__: list[str] = []
