"""Normalization: batch, layer, RMS, group, instance, local response."""

__all__: list[str] = []
