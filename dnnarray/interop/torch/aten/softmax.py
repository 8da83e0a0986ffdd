"""Softmax and log-softmax."""

from __future__ import annotations

import torch
from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import channels_last, decline, kernel


def _in_order(x: Tensor) -> Tensor:
    """PyTorch's result is in channels-last memory or in the default order."""
    return x if x.is_contiguous() or (x.dim() in (4, 5) and channels_last(x) is not None) else x.contiguous()


def _check(x: Tensor, half_to_float: bool) -> None:
    if half_to_float:
        raise decline("softmax: half input with float32 output")
    if x.dim() == 0:
        raise decline("softmax: a tensor without axes")


@kernel("_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    _check(x, half_to_float)
    return dnn.softmax(_in_order(x), axis=dim)


@kernel("_log_softmax")
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    _check(x, half_to_float)
    return dnn.log_softmax(_in_order(x), axis=dim)


@kernel("_softmax_backward_data")
def softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    _check(y, input_dtype is not y.dtype)
    return dnn.softmax_backward(grad, y, axis=dim, y=y)


@kernel("_log_softmax_backward_data")
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    _check(y, input_dtype is not y.dtype)
    return dnn.log_softmax_backward(grad, y, axis=dim, y=y)
