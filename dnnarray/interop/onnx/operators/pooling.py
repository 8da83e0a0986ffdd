"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray.interop.onnx.operators.convolution import window_padding
from dnnarray.interop.onnx.operators.shapes import spatial_pairs
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import integers, namespace, widened


def _window(node: Node, x: Any) -> dict[str, Any]:
    """The options that all pooling has."""
    spatial = x.ndim - 2
    return {
        "kernel_size": tuple(node.get("kernel_shape")),
        "stride": tuple(node.get("strides") or [1] * spatial),
        "padding": window_padding(node, spatial),
        "dilation": tuple(node.get("dilations") or [1] * spatial),
        "ceil_mode": bool(node.get("ceil_mode", 0)),
    }


@operator("MaxPool")
def max_pool(node: Node, x: Any) -> Any:
    if not node.wants(1):
        return dnn.max_pool(x, **_window(node, x))
    y, places = dnn.max_pool_with_indices(x, **_window(node, x))
    return y, _planes(x) + _ordered(node, places, x.shape[2:])


def _planes(x: Any) -> Any:
    """Where the plane of each image and channel begins, counted over the whole array."""
    xp, extent = namespace(x), math.prod(x.shape[2:])
    return (xp.arange(x.shape[0] * x.shape[1]) * extent).reshape(x.shape[:2] + (1,) * (x.ndim - 2))


def _ordered(node: Node, places: Any, extents: tuple[int, ...]) -> Any:
    """Places counted along the first axis first, where the node asks for that."""
    if not node.get("storage_order", 0):
        return places
    xp, found, step = namespace(places), 0, math.prod(extents)
    strides = [math.prod(extents[:a]) for a in range(len(extents))]
    for extent, stride in zip(extents, strides, strict=True):
        step //= extent
        found = found + xp.floor_divide(places, step) % extent * stride
    return found


@operator("AveragePool")
def average_pool(node: Node, x: Any) -> Any:
    return dnn.avg_pool(x, **_window(node, x), count_include_pad=bool(node.get("count_include_pad", 0)))


@operator("LpPool")
def lp_pool(node: Node, x: Any) -> Any:
    return dnn.lp_pool(x, **_window(node, x), p=node.get("p", 2))


@operator("GlobalAveragePool")
def global_average_pool(node: Node, x: Any) -> Any:
    return dnn.adaptive_avg_pool(x, 1)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, x: Any) -> Any:
    return dnn.adaptive_max_pool(x, 1)


@operator("GlobalLpPool")
def global_lp_pool(node: Node, x: Any) -> Any:
    xp, p = namespace(x), node.get("p", 2)
    sums = xp.sum(xp.abs(widened(x)) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return (sums ** (1 / p)).astype(x.dtype)


@operator("MaxUnpool", host=(2,))
def max_unpool(node: Node, x: Any, indices: Any, output_shape: Any = None) -> Any:
    """Indices count over the array that the windows imply; a larger output has zeros behind it."""
    xp, spatial = namespace(x), x.ndim - 2
    strides, pads = node.get("strides") or [1] * spatial, spatial_pairs(node, spatial)
    window = zip(x.shape[2:], strides, node.get("kernel_shape"), pads, strict=True)
    extents = tuple((n - 1) * s + k - before - after for n, s, k, (before, after) in window)
    places = (indices % math.prod(extents)).astype(np.int64)
    y = dnn.max_unpool(x, places, extents)
    if output_shape is None:
        return y
    widths = [(0, wanted - n) for wanted, n in zip(integers(output_shape), y.shape, strict=True)]
    return xp.pad(y, widths)
