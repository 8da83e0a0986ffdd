"""Convolutions and their gradients, and the two operators that take images apart into windows and put them together."""

from __future__ import annotations

import math
from typing import Any

import torch

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import (
    batched,
    channels_last,
    chosen,
    kernel,
    lies_channels_last,
    sizes,
    unbatched,
)

_ARRAYS = ("x", "weight", "bias")


@kernel("convolution")
def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    **fused: Any,
) -> torch.Tensor:
    """PyTorch's convolution; `fused` holds what dnnarray's does besides, which no operator of PyTorch has."""
    options: dict[str, Any] = {
        "stride": sizes(stride),
        "padding": sizes(padding),
        "dilation": sizes(dilation),
        "groups": groups,
        **fused,
    }
    x = _in_common_format(x, weight)
    if transposed:
        return dnn.conv_transpose(x, weight, bias, output_padding=sizes(output_padding), **options)
    return dnn.conv(x, weight, bias, **options)


@kernel("convolution_backward")
def convolution_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    mask: list[bool],
) -> tuple[Any, ...]:
    needs = chosen(_ARRAYS, mask)
    if not needs:
        return None, None, None
    options: dict[str, Any] = {
        "stride": sizes(stride),
        "padding": sizes(padding),
        "dilation": sizes(dilation),
        "groups": groups,
    }
    bias = grad.new_empty(grad.shape[1]) if mask[2] else None  # only its shape matters
    x = _in_common_format(x, weight)
    if transposed:
        found = dnn.conv_transpose_backward(
            grad, x, weight, bias, output_padding=sizes(output_padding), needs=needs, **options
        )
    else:
        found = dnn.conv_backward(grad, x, weight, bias, needs=needs, **options)
    return found.x, found.weight, found.bias


def _in_common_format(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The image in channels-last memory where it or the weight is, else in the default order: PyTorch's results lie
    so. A weight with a window of one place is channels-last by its strides alone."""
    same = x.dim() == weight.dim()
    if not same or not (channels_last(x) or lies_channels_last(weight.shape, weight.stride())):
        return x.contiguous()
    x = x.contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    if lies_channels_last(x.shape, x.stride()):
        return x
    # Either order, by extents of 1, of which PyTorch keeps the strides of the default one.
    channels, space = x.shape[1], x.shape[2:]
    steps = [channels * math.prod(space[i + 1 :]) for i in range(len(space))]
    return x.as_strided(x.shape, (channels * math.prod(space), 1, *steps))


@kernel("im2col")
def im2col(
    x: torch.Tensor, kernel_size: list[int], dilation: list[int], padding: list[int], stride: list[int]
) -> torch.Tensor:
    x, added = batched(x, 2)
    return unbatched(
        dnn.unfold(x, sizes(kernel_size), stride=sizes(stride), padding=sizes(padding), dilation=sizes(dilation)), added
    )


@kernel("col2im")
def col2im(
    x: torch.Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> torch.Tensor:
    x, added = batched(x, 1)
    options = {"stride": sizes(stride), "padding": sizes(padding), "dilation": sizes(dilation)}
    return unbatched(dnn.fold(x, tuple(output_size), sizes(kernel_size), **options), added)
