"""Batch, layer, group and RMS normalization with the statistics that PyTorch's gradients take. Instance normalization
is PyTorch's batch normalization.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import ABOVE_AUTOGRAD, channels_last, chosen, decline, differentiable, kernel

_ARRAYS = ("x", "weight", "bias")


def _statistics_dtype(x: Tensor, weight: Tensor | None) -> torch.dtype:
    """The dtype in which PyTorch keeps statistics: on the processor that of the parameters."""
    if x.is_cuda and x.dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    return x.dtype if weight is None else weight.dtype


def kept(statistics: tuple[Tensor, ...], x: Tensor, weight: Tensor | None) -> tuple[Tensor, ...]:
    """The statistics of a call in the dtype in which PyTorch keeps them."""
    dtype = _statistics_dtype(x, weight)
    return tuple([s if s.dtype is dtype else s.to(dtype) for s in statistics])


def _like_bias(weight: Tensor | None, x: Tensor, wanted: bool, shape: Any) -> Tensor | None:
    """What stands for the bias where its gradient is wanted, which depends on its shape and dtype alone."""
    if not wanted:
        return None
    return x.new_empty(shape) if weight is None else weight


@kernel("native_batch_norm")
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if not training:
        if running_mean is None or running_var is None:
            raise decline("batch_norm: the running statistics are missing")
        y = dnn.batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
        absent = x.new_empty(0, dtype=_statistics_dtype(x, weight))
        return y, absent, torch.empty_like(absent)
    if running_mean is None:
        found = dnn.batch_norm_train(x, weight, bias, momentum=momentum, eps=eps)
    else:
        y, statistics = torch.empty_like(x), running_mean.new_empty(x.shape[1], dtype=_precise(x))
        out = (y, statistics, torch.empty_like(statistics), running_mean, running_var)
        found = dnn.batch_norm_train(x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps, out=out)
    return found.y, *kept((found.mean, found.rstd), x, weight)  # type: ignore[return-value]


def _precise(x: Tensor) -> torch.dtype:
    """The dtype in which dnnarray computes statistics."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


@kernel("native_batch_norm_backward")
def native_batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    training: bool,
    eps: float,
    mask: list[bool],
) -> tuple[Any, ...]:
    if not any(mask):
        return None, None, None
    bias = _like_bias(weight, x, mask[2], x.shape[1])
    needs = chosen(_ARRAYS, mask)
    if training:
        found: Any = dnn.batch_norm_train_backward(
            grad, x, weight, bias, eps=eps, mean=_widened(mean, x), rstd=_widened(rstd, x), needs=needs
        )
    else:
        found = dnn.batch_norm_backward(grad, x, running_mean, running_var, weight, bias, eps=eps, needs=needs)
    return found.x, found.weight, found.bias


def _widened(statistics: Tensor | None, x: Tensor) -> Tensor | None:
    """Statistics in the dtype in which dnnarray takes them."""
    dtype = _precise(x)
    return statistics if statistics is None or statistics.dtype is dtype else statistics.to(dtype)


@kernel("cudnn_batch_norm", devices=("cuda",))
def cudnn_batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return *found, x.new_empty(0, dtype=torch.uint8)


def _native_instead(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Any,
    rstd: Any,
    eps: float,
    _: Tensor,
) -> tuple[Any, ...]:
    """cuDNN's kernel would read what cuDNN's forward keeps, which dnnarray's forward does not make."""
    training = mean is not None and mean.numel() > 0
    arguments = (grad, x, weight, running_mean, running_var, mean, rstd, training, eps, [True, True, True])
    gradients: tuple[Any, ...] = torch.ops.aten.native_batch_norm_backward(*arguments)
    return gradients


@kernel("cudnn_batch_norm_backward", devices=("cuda",), instead=_native_instead)
def cudnn_batch_norm_backward(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    rstd: Tensor | None,
    eps: float,
    reserve: Tensor,
) -> tuple[Any, ...]:
    return native_batch_norm_backward(grad, x, weight, None, None, mean, rstd, True, eps, [True, True, True])


def _last(shape: list[int]) -> Any:
    """The axes of a norm over the last `shape` of a tensor."""
    return -1 if len(shape) == 1 else tuple(range(-len(shape), 0))


def _check_normalized(x: Tensor, shape: list[int]) -> None:
    if not shape or list(x.shape[-len(shape) :]) != list(shape):
        raise decline("layer_norm: normalized_shape is not that of the last axes")


@kernel("native_layer_norm")
def native_layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    _check_normalized(x, shape)
    found = dnn.layer_norm(x.contiguous(), weight, bias, axis=_last(shape), eps=eps, return_stats=True)
    return found.y, *kept((found.mean, found.rstd), x, weight)


@kernel("native_layer_norm_backward")
def native_layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: list[bool],
) -> tuple[Any, ...]:
    if not any(mask):
        return None, None, None
    stand_in = _like_bias(weight, x, mask[2], shape) if bias is None else bias
    found = dnn.layer_norm_backward(
        grad.contiguous(),
        x.contiguous(),
        weight,
        stand_in,
        axis=_last(shape),
        mean=_widened(mean, x),
        rstd=_widened(rstd, x),
        needs=chosen(_ARRAYS, mask),
    )
    return found.x, found.weight, found.bias


@kernel("rms_norm", keys=ABOVE_AUTOGRAD)
def rms_norm(x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    _check_normalized(x, shape)
    return differentiable("rms_norm")(
        x, weight, axis=_last(shape), eps=torch.finfo(x.dtype).eps if eps is None else eps
    )


@kernel("native_group_norm")
def native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    space: int,
    groups: int,
    eps: float,
    activation: str | None = None,
) -> tuple[Tensor, ...]:
    """PyTorch's group normalization, and an activation that no operator of PyTorch has."""
    found = dnn.group_norm(_as_image(x), groups, weight, bias, eps=eps, activation=activation, return_stats=True)
    return found.y.view_as(x), *kept((found.mean, found.rstd), x, weight)


@kernel("native_group_norm_backward")
def native_group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    space: int,
    groups: int,
    mask: list[bool],
) -> tuple[Any, ...]:
    if not any(mask):
        return None, None, None
    found = dnn.group_norm_backward(
        _as_image(grad),
        _as_image(x),
        weight,
        _like_bias(weight, x, mask[2], c),
        num_groups=groups,
        mean=_widened(mean, x),
        rstd=_widened(rstd, x),
        needs=chosen(_ARRAYS, mask),
    )
    return None if found.x is None else found.x.view_as(x), found.weight, found.bias


def _as_image(x: Tensor) -> Tensor:
    """The tensor in an order that PyTorch's group normalization keeps: its own channels-last, else the default one."""
    return x if channels_last(x) is not None else x.contiguous()
