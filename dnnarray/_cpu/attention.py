"""Attention and what belongs to it, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
