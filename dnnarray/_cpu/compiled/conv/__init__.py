"""Convolution and its gradients."""
