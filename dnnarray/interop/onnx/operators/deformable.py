"""Deformable convolution: each element of the window looks at a place that is moved by an offset of its own."""

from __future__ import annotations

from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray.interop.onnx.operators.shapes import spatial_pairs
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace


@operator("DeformConv")
def deform_conv(node: Node, x: Any, weight: Any, offset: Any, bias: Any = None, mask: Any = None) -> Any:
    """For each element of the window, the image sampled at the moved places, times the element's weights."""
    if x.ndim != 4:
        raise node.unsupported(f"an image of {x.ndim - 2} spatial axes is not supported", "Only two spatial axes are.")
    xp, groups = namespace(x, weight), node.get("offset_group", 1)
    taps = weight.shape[2] * weight.shape[3]
    moved = offset.reshape(x.shape[0], groups, taps, 2, *offset.shape[2:])
    shares = None if mask is None else mask.reshape(x.shape[0], groups, taps, *mask.shape[2:], 1)
    images = xp.permute_dims(x, (0, 2, 3, 1)).reshape(*x.shape[:1], *x.shape[2:], groups, -1)
    weights = xp.permute_dims(weight, (0, 2, 3, 1))
    y: Any = None
    for tap in range(taps):
        row, column = divmod(tap, weight.shape[3])
        parts = [
            _sampled(xp, images[:, :, :, g], *_places(node, xp, moved[:, g, tap], (row, column))) for g in range(groups)
        ]
        parts = parts if shares is None else [p * shares[:, g, tap] for g, p in enumerate(parts)]
        element = weights[:, row : row + 1, column : column + 1]
        seen = xp.concat(parts, axis=-1)
        y = dnn.conv(
            seen, element, None if tap else bias, residual=y, groups=node.get("group", 1), layout="channels_last"
        )
    return xp.permute_dims(y, (0, 3, 1, 2))


def _places(node: Node, xp: Any, moved: Any, tap: tuple[int, int]) -> list[Any]:
    """The rows and the columns that one element of the window looks at, for each output."""
    strides, dilations, pads = node.get("strides") or [1, 1], node.get("dilations") or [1, 1], spatial_pairs(node, 2)
    found = []
    for axis, (stride, dilation, (before, _)) in enumerate(zip(strides, dilations, pads, strict=True)):
        start = xp.arange(moved.shape[2 + axis], dtype=moved.dtype) * stride - before + tap[axis] * dilation
        found.append(moved[:, axis] + (start if axis else start[:, None]))
    return found


def _sampled(xp: Any, images: Any, rows: Any, columns: Any) -> Any:
    """Between the pixels of images (N, H, W, C) linearly, with zeros around them."""
    batch = xp.arange(images.shape[0]).reshape(-1, 1, 1)
    total: Any = 0
    for step in ((0, 0), (0, 1), (1, 0), (1, 1)):
        share: Any = 1
        places = []
        for where, by, extent in zip((rows, columns), step, images.shape[1:3], strict=True):
            place = xp.floor(where) + by
            share = share * (1 - xp.abs(where - place)) * ((place >= 0) & (place < extent))
            places.append(xp.clip(place, 0, extent - 1).astype(np.int64))
        total = total + images[batch, places[0], places[1]] * share[..., None].astype(images.dtype)
    return total
