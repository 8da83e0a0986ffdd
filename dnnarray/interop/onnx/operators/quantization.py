"""Numbers of few bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from dnnarray.interop.onnx.operators.casts import cast_like
from dnnarray.interop.onnx.operators.convolution import conv_integer
from dnnarray.interop.onnx.operators.linear import matmul_integer
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import dtype_of, namespace


def _spread(node: Node, parameter: Any, x: Any) -> Any:
    """A scale or a zero point as it broadcasts to x: one for all, one along an axis, or one for each block."""
    xp, axis = namespace(x), node.get("axis", 1)
    if parameter.ndim == 0 or parameter.size == 1:
        return parameter.reshape((1,) * x.ndim)
    axis %= x.ndim
    if block := node.get("block_size", 0):
        spread = xp.repeat(parameter, block, axis=axis)
        return spread[(slice(None),) * axis + (slice(x.shape[axis]),)]
    return parameter.reshape(tuple(-1 if a == axis else 1 for a in range(x.ndim)))


@operator("DequantizeLinear")
def dequantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    values = x.astype(np.float32)
    if zero is not None:
        values = values - _spread(node, zero, x).astype(np.float32)
    code = node.get("output_dtype", 0)
    return (values * _spread(node, scale, x).astype(np.float32)).astype(dtype_of(code) if code else scale.dtype)


@operator("QuantizeLinear")
def quantize(node: Node, x: Any, scale: Any, zero: Any = None) -> Any:
    """Rounded to even, and held within the dtype."""
    xp, code = namespace(x), node.get("output_dtype", 0)
    dtype = zero.dtype if zero is not None else dtype_of(code) if code else np.dtype(np.uint8)
    values = x.astype(np.float32) / _spread(node, scale, x).astype(np.float32)
    if not _whole(dtype):
        return cast_like(node, values, np.empty(0, dtype))
    values = xp.round(values)
    if zero is not None:
        values = values + _spread(node, zero, x).astype(np.float32)
    bounds = ml_dtypes.iinfo(dtype)
    return xp.clip(values, int(bounds.min), int(bounds.max)).astype(np.int32).astype(dtype)


def _whole(dtype: np.dtype) -> bool:
    return "int" in str(dtype)


def _requantized(node: Node, total: Any, scale: Any, y_scale: Any, y_zero: Any) -> Any:
    """Sums of products in the dtype of the result."""
    xp, bounds = namespace(total), ml_dtypes.iinfo(y_zero.dtype)
    values = xp.round(total.astype(np.float64) * (scale / y_scale).astype(np.float64)) + y_zero.astype(np.float64)
    return xp.clip(values, int(bounds.min), int(bounds.max)).astype(y_zero.dtype)


@operator("QLinearMatMul")
def qlinear_matmul(
    node: Node, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    column = a_scale[..., None] if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    return _requantized(node, matmul_integer(node, a, b, a_zero, b_zero), column * b_scale, y_scale, y_zero)


@operator("QLinearConv")
def qlinear_conv(
    node: Node,
    x: Any,
    x_scale: Any,
    x_zero: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    y_scale: Any,
    y_zero: Any,
    bias: Any = None,
) -> Any:
    total = conv_integer(node, x, w, x_zero, w_zero)
    channels = (1, -1) + (1,) * (x.ndim - 2)
    if bias is not None:
        total = total + bias.reshape(channels)
    scale = w_scale.reshape(channels) if w_scale.size > 1 else w_scale
    return _requantized(node, total, x_scale * scale, y_scale, y_zero)
