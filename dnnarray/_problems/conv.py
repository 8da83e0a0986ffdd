"""Convolution, its gradients, transposed convolution, unfold and fold: the problems."""
