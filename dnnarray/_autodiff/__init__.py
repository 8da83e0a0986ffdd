"""Automatic differentiation of functions of dnnarray calls and array arithmetic, on plain arrays."""

from dnnarray._autodiff.transform import checkpoint, grad, stop_gradient, value_and_grad

__all__ = ["checkpoint", "grad", "stop_gradient", "value_and_grad"]
