"""Pooling, its gradients and its inverse: the problems."""
