"""Softmax and its relatives."""

__all__: list[str] = []
