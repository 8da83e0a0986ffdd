"""Normalization: batch, layer, RMS, group, instance, local response, by definition, in float64."""

from collections.abc import Callable

ORACLES: dict[str, Callable] = {}
