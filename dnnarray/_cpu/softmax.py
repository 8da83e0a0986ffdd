"""Softmax and its relatives, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
