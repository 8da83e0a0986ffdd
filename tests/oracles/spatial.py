"""Sampling, resizing, region pooling, shuffles, embedding, by definition, in float64."""

from collections.abc import Callable

ORACLES: dict[str, Callable] = {}
