"""Convolution, its gradients, transposed convolution, unfold and fold, on NumPy arrays."""

from dnnarray._select import Method

ALGORITHMS: dict[str, tuple[Method, ...]] = {}
