"""Losses."""

__all__: list[str] = []
