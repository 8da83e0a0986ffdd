"""Convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._errors import ShapeError
from dnnarray.interop.onnx.operators.shapes import spatial_pairs
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import integers, namespace

_AUTO = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}


def window_padding(node: Node, spatial: int) -> Any:
    """What dnnarray calls ``padding``, of the attributes `pads` and `auto_pad`."""
    return _AUTO.get(node.get("auto_pad", "NOTSET")) or spatial_pairs(node, spatial)


def _per_axis(node: Node, name: str, spatial: int) -> tuple[int, ...]:
    return tuple(node.get(name) or [1] * spatial)


def _checked(node: Node, x: Any, weight: Any) -> int:
    """The number of spatial axes."""
    kernel = node.get("kernel_shape")
    if kernel and tuple(kernel) != tuple(weight.shape[2:]):
        raise ShapeError(
            f"onnx: {node}: kernel_shape is {kernel}; expected {list(weight.shape[2:])}, the extents of the "
            "weight's window."
        )
    return x.ndim - 2


@operator("Conv")
def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    spatial = _checked(node, x, weight)
    stride, dilation = (_per_axis(node, n, spatial) for n in ("strides", "dilations"))
    return dnn.conv(
        x,
        weight,
        bias,
        stride=stride,
        dilation=dilation,
        padding=window_padding(node, spatial),
        groups=node.get("group", 1),
    )


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    spatial = _checked(node, x, weight)
    stride, dilation = (_per_axis(node, n, spatial) for n in ("strides", "dilations"))
    extra = list(node.get("output_padding") or [0] * spatial)
    padding = list(spatial_pairs(node, spatial)) if node.get("pads") else [(0, 0)] * spatial
    wanted, auto = node.get("output_shape"), node.get("auto_pad", "NOTSET")
    if wanted is None and auto.startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if wanted is not None:
        for i, extent in enumerate(wanted[-spatial:]):
            total = stride[i] * (x.shape[2 + i] - 1) + extra[i] + (weight.shape[2 + i] - 1) * dilation[i] + 1 - extent
            less = max(total, 0) // 2
            padding[i] = (less, max(total, 0) - less) if auto == "SAME_UPPER" else (max(total, 0) - less, less)
            extra[i] += max(-total, 0)
    return dnn.conv_transpose(
        x,
        weight,
        bias,
        stride=stride,
        dilation=dilation,
        padding=tuple(padding),
        output_padding=tuple(extra),
        groups=node.get("group", 1),
    )


@operator("CausalConvWithState")
def causal_conv(node: Node, x: Any, weight: Any, bias: Any = None, past: Any = None) -> Any:
    """A window for each channel over the preceding steps; the last of these are the state for the next call."""
    xp, reach = namespace(x, weight), weight.shape[-1] - 1
    before = xp.zeros((*x.shape[:2], reach), dtype=x.dtype) if past is None else past
    joined = xp.concat([before, x], axis=-1)
    activation = {"none": None, "silu": "silu", "swish": "silu"}[node.get("activation", "none")]
    y = dnn.conv(joined, weight, bias, groups=x.shape[1], activation=activation)
    return y, joined[..., joined.shape[-1] - reach :]


@operator("ConvInteger")
def conv_integer(node: Node, x: Any, weight: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """By float64, in which sums of products of bytes are exact."""
    left, right = x.astype(np.float64), weight.astype(np.float64)
    if x_zero is not None:
        left = left - x_zero.astype(np.float64)
    if w_zero is not None:
        zero = w_zero.astype(np.float64)
        right = right - (zero.reshape((-1,) + (1,) * (weight.ndim - 1)) if zero.size > 1 else zero)
    return conv(node, left, right).astype(np.int32)


@operator("Col2Im", host=(1, 2))
def col2im(node: Node, x: Any, image: Any, block: Any) -> Any:
    extents, window = integers(image), integers(block)
    spatial = len(extents)
    stride, dilation = (_per_axis(node, n, spatial) for n in ("strides", "dilations"))
    return dnn.fold(x, extents, window, stride=stride, padding=spatial_pairs(node, spatial), dilation=dilation)
