"""Pooling, its gradients and its inverse."""

__all__: list[str] = []
