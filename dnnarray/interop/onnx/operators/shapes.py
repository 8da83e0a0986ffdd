"""Shapes and the order of elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._errors import OptionError, ShapeError
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import integers, namespace, number


def listed(node: Node, name: str, given: Any) -> tuple[int, ...] | None:
    """Integers that are an input in newer operator sets and an attribute in older ones."""
    if given is not None:
        return integers(given)
    found = node.get(name)
    return None if found is None else tuple(found)


@operator("Shape")
def shape(node: Node, x: Any) -> Any:
    """In the memory of the processor, where shapes are used."""
    return np.asarray(x.shape[node.get("start", 0) : node.get("end", x.ndim)], np.int64)


@operator("Size")
def size(node: Node, x: Any) -> Any:
    return np.asarray(math.prod(x.shape), np.int64)


@operator("Identity")
def identity(node: Node, x: Any) -> Any:
    return x


@operator("Reshape", host=(1,))
def reshape(node: Node, x: Any, to: Any = None) -> Any:
    extents = listed(node, "shape", to) or ()
    if not node.get("allowzero", 0):
        extents = tuple(x.shape[i] if n == 0 else n for i, n in enumerate(extents))
    if -1 in extents:
        known = math.prod(n for n in extents if n != -1)
        extents = tuple((math.prod(x.shape) // known if known else 0) if n == -1 else n for n in extents)
    if math.prod(extents) != math.prod(x.shape):
        raise ShapeError(
            f"onnx: {node}: data has shape {tuple(x.shape)}; expected as many elements as the shape {extents} has."
        )
    return namespace(x).reshape(x, extents)


@operator("Transpose")
def transpose(node: Node, x: Any) -> Any:
    return namespace(x).permute_dims(x, tuple(node.get("perm", range(x.ndim)[::-1])))


@operator("Flatten")
def flatten(node: Node, x: Any) -> Any:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@operator("Squeeze", host=(1,))
def squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    chosen = listed(node, "axes", axes)
    if chosen is None:
        chosen = tuple(a for a, n in enumerate(x.shape) if n == 1)
    return namespace(x).squeeze(x, axis=tuple(a % x.ndim for a in chosen))


@operator("Unsqueeze", host=(1,))
def unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    chosen = listed(node, "axes", axes) or ()
    ndim = x.ndim + len(chosen)
    new = {a % ndim for a in chosen}
    kept = iter(x.shape)
    return x.reshape(tuple(1 if a in new else next(kept) for a in range(ndim)))


@operator("Expand", host=(1,))
def expand(node: Node, x: Any, to: Any) -> Any:
    return namespace(x).broadcast_to(x, np.broadcast_shapes(x.shape, integers(to)))


@operator("Tile", host=(1, 2))
def tile(node: Node, x: Any, repeats: Any, axis: Any = None) -> Any:
    """In opset 1, one axis is repeated."""
    counts = integers(repeats)
    if axis is not None:
        counts = tuple(counts[0] if a == int(number(axis)) else 1 for a in range(x.ndim))
    return namespace(x).tile(x, counts)


@operator("Concat")
def concat(node: Node, *inputs: Any) -> Any:
    return namespace(*inputs).concat(list(inputs), axis=node.get("axis", 1))


@operator("Split", host=(1,))
def split(node: Node, x: Any, sizes: Any = None) -> Any:
    """In equal parts, of which the last may be smaller, where no sizes are given."""
    axis, extents = node.get("axis", 0) % x.ndim, listed(node, "split", sizes)
    if extents is None:
        count = node.get("num_outputs", len(node.outputs))
        part = -(-x.shape[axis] // count)
        extents = tuple(max(0, min(part, x.shape[axis] - i * part)) for i in range(count))
    if sum(extents) != x.shape[axis]:
        raise ShapeError(
            f"onnx: {node}: split is {extents}; expected sizes with the sum {x.shape[axis]}, the extent of axis {axis}."
        )
    ends = np.cumsum(extents)
    return tuple(x[(slice(None),) * axis + (slice(int(e) - n, int(e)),)] for n, e in zip(extents, ends, strict=True))


@operator("Slice", host=(1, 2, 3, 4))
def slice_axes(node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    first, last = listed(node, "starts", starts) or (), listed(node, "ends", ends) or ()
    chosen = listed(node, "axes", axes) or tuple(range(len(first)))
    by = (1,) * len(first) if steps is None else integers(steps)
    index = [slice(None)] * x.ndim
    for a, start, end, step in zip(chosen, first, last, by, strict=True):
        end_or_none = None if step < 0 and end < -x.shape[a] else end
        index[a % x.ndim] = slice(start, end_or_none, step)
    return x[tuple(index)]


@operator("Pad", host=(1, 3))
def pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    """Negative pads cut off."""
    xp = namespace(x)
    amounts = listed(node, "pads", pads) or listed(node, "paddings", None) or ()
    chosen = range(x.ndim) if axes is None else [a % x.ndim for a in integers(axes)]
    widths = [(0, 0)] * x.ndim
    for a, before, after in zip(chosen, amounts[: len(amounts) // 2], amounts[len(amounts) // 2 :], strict=True):
        widths[a] = (before, after)
    x = x[tuple(slice(max(0, -b), n - max(0, -e)) for (b, e), n in zip(widths, x.shape, strict=True))]
    widths = [(max(0, b), max(0, e)) for b, e in widths]
    mode = node.get("mode", "constant")
    if mode == "constant":
        fill = node.get("value", 0.0) if value is None else number(value)
        return xp.pad(x, widths, mode="constant", constant_values=fill)
    return xp.pad(x, widths, mode=mode)


@operator("DepthToSpace")
def depth_to_space(node: Node, x: Any) -> Any:
    block = node.get("blocksize")
    if node.get("mode", "DCR") == "CRD":
        return dnn.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    return dnn.pixel_shuffle(_reordered(x, (n, block * block, c // block**2, h, w)), block)


@operator("SpaceToDepth")
def space_to_depth(node: Node, x: Any) -> Any:
    block = node.get("blocksize")
    y = dnn.pixel_unshuffle(x, block)
    if node.get("mode", "DCR") == "CRD":
        return y
    n, c, h, w = y.shape
    return _reordered(y, (n, c // block**2, block * block, h, w))


def _reordered(x: Any, shape: tuple[int, ...]) -> Any:
    """The channels with their two parts, as `shape` gives them, in the other order."""
    return namespace(x).permute_dims(x.reshape(shape), (0, 2, 1, 3, 4)).reshape(x.shape)


@operator("CenterCropPad", host=(1,))
def center_crop_pad(node: Node, x: Any, to: Any) -> Any:
    xp, widths = namespace(x), [(0, 0)] * x.ndim
    for axis, extent in zip(node.get("axes", range(x.ndim)), integers(to), strict=True):
        axis, missing = axis % x.ndim, extent - x.shape[axis]
        if missing >= 0:
            widths[axis] = (missing // 2, missing - missing // 2)
        else:
            start = -missing // 2
            x = x[(slice(None),) * axis + (slice(start, start + extent),)]
    return xp.pad(x, widths)


@operator("ReverseSequence", host=(1,))
def reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    xp, time = namespace(x), node.get("time_axis", 0)  # the batch is the other one of the first two axes
    steps = np.arange(x.shape[time])
    order = np.stack([np.where(steps < n, n - 1 - steps, steps) for n in integers(lengths)], axis=1 if time == 0 else 0)
    return xp.take_along_axis(x, xp.asarray(order).reshape(order.shape + (1,) * (x.ndim - 2)), axis=time)


@operator("Trilu", host=(1,))
def trilu(node: Node, x: Any, k: Any = None) -> Any:
    xp, diagonal = namespace(x), 0 if k is None else int(number(k))
    return (xp.triu if node.get("upper", 1) else xp.tril)(x, k=diagonal)


def spatial_pairs(node: Node, spatial: int, name: str = "pads") -> tuple[tuple[int, int], ...]:
    """The padding of a window operator, (before, after) for each spatial axis."""
    pads = node.get(name) or [0] * (2 * spatial)
    if len(pads) != 2 * spatial:
        raise OptionError(
            f"onnx: {node}: {name} is {pads}; expected {2 * spatial} numbers, for {spatial} spatial axes."
        )
    return tuple(zip(pads[:spatial], pads[spatial:], strict=True))
