"""Pooling, its gradients and its inverse, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
