"""Sampling, resizing, region pooling, shuffles, embedding."""

__all__: list[str] = []
