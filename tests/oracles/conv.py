"""Convolution, its gradients, transposed convolution, unfold and fold, by definition, in float64."""

from collections.abc import Callable

ORACLES: dict[str, Callable] = {}
