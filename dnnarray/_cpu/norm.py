"""Normalization: batch, layer, RMS, group, instance, local response, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
