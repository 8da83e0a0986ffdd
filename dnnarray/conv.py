"""Convolution, its gradients, transposed convolution, unfold and fold."""

__all__: list[str] = []
