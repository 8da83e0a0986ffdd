"""Sampling, resizing, region pooling, shuffles, embedding, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
