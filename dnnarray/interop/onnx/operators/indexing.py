"""Reading and writing by indices."""

from __future__ import annotations

from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._errors import OptionError
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import floating, host, integers, namespace, number, on_host


@operator("Gather")
def gather(node: Node, data: Any, indices: Any) -> Any:
    """Rows of a matrix are an embedding."""
    xp, axis = namespace(data, indices), node.get("axis", 0) % data.ndim
    extent = data.shape[axis]
    if on_host(indices) and indices.size and not (-extent <= indices.min() and indices.max() < extent):
        raise OptionError(
            f"onnx: {node}: indices reach from {indices.min()} to {indices.max()}; expected {-extent} to {extent - 1}."
        )
    if axis == 0 and data.ndim == 2 and floating(data):
        return dnn.embedding(xp.where(indices < 0, indices + extent, indices).astype(indices.dtype), data)
    return data[(slice(None),) * axis + (indices,)]


@operator("GatherElements")
def gather_elements(node: Node, data: Any, indices: Any) -> Any:
    return data[_places(data, indices, node.get("axis", 0) % data.ndim)]


def _places(data: Any, indices: Any, axis: int) -> tuple[Any, ...]:
    """The index of ``data`` that `indices` along an axis are, all other axes in their own places."""
    xp = namespace(data, indices)
    grid = [xp.arange(n).reshape((n,) + (1,) * (indices.ndim - a - 1)) for a, n in enumerate(indices.shape)]
    return tuple(indices if a == axis else g for a, g in enumerate(grid))


@operator("GatherND")
def gather_nd(node: Node, data: Any, indices: Any) -> Any:
    xp, batch = namespace(data, indices), node.get("batch_dims", 0)
    grid = [xp.arange(n).reshape((n,) + (1,) * (indices.ndim - 2 - a)) for a, n in enumerate(indices.shape[:batch])]
    return data[(*grid, *[indices[..., i] for i in range(indices.shape[-1])])]


def _refuses_products(node: Node) -> None:
    if node.place.cuda and node.get("reduction") == "mul":
        raise node.unsupported("CuPy has no scattered products", "Run the model with device='CPU'.")


_REDUCTIONS = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}


def _written(data: Any, index: Any, updates: Any, reduction: str) -> Any:
    xp = namespace(data, updates)
    result = xp.asarray(data, copy=True)
    if reduction == "none":
        result[index] = updates
    else:
        getattr(xp, _REDUCTIONS[reduction]).at(result, index, updates)
    return result


@operator("Scatter", "ScatterElements", refuses=_refuses_products)
def scatter_elements(node: Node, data: Any, indices: Any, updates: Any) -> Any:
    return _written(
        data, _places(data, indices, node.get("axis", 0) % data.ndim), updates, node.get("reduction", "none")
    )


@operator("ScatterND", refuses=_refuses_products)
def scatter_nd(node: Node, data: Any, indices: Any, updates: Any) -> Any:
    index = tuple(indices[..., i] for i in range(indices.shape[-1]))
    return _written(data, index, updates, node.get("reduction", "none"))


@operator("TensorScatter")
def tensor_scatter(node: Node, cache: Any, update: Any, starts: Any = None) -> Any:
    """Steps of a sequence written to a cache, each sequence from its own place on."""
    xp, axis = namespace(cache, update), node.get("axis", -2) % cache.ndim
    first = xp.zeros(cache.shape[0], dtype=np.int64) if starts is None else starts
    steps = first.reshape(-1, 1) + xp.arange(update.shape[axis])
    if node.get("mode", "linear") == "circular":
        steps = steps % cache.shape[axis]
    shape = tuple(n if a in (0, axis) else 1 for a, n in enumerate(update.shape))
    places = xp.broadcast_to(steps.reshape(shape), update.shape)
    return _written(cache, _places(cache, places, axis), update, "none")


@operator("NonZero")
def non_zero(node: Node, x: Any) -> Any:
    xp = namespace(x)
    return xp.stack(xp.nonzero(x if x.ndim else x.reshape(1))[: x.ndim or 1]).astype(np.int64)


@operator("Compress")
def compress(node: Node, x: Any, condition: Any) -> Any:
    axis = node.get("axis")
    x, axis = (x.reshape(-1), 0) if axis is None else (x, axis % x.ndim)
    (places,) = namespace(condition).nonzero(condition)
    return x[(slice(None),) * axis + (places,)]


@operator("OneHot", host=(1,))
def one_hot(node: Node, indices: Any, depth: Any, values: Any) -> Any:
    """An index outside of the depth has no place that is on."""
    xp, count = namespace(indices, values), int(number(depth))
    places = indices.astype(np.int64)[..., None]
    places = xp.where(places < 0, places + count, places)
    hot = xp.where(places == xp.arange(count), values[1], values[0])
    axis = node.get("axis", -1)
    return xp.moveaxis(hot, -1, axis % hot.ndim)


@operator("Unique")
def unique(node: Node, x: Any) -> Any:
    """In ascending order, or in the order in which they first stand."""
    xp, axis = namespace(x), node.get("axis")
    found = xp.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    y, first, inverse, counts = found
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = xp.argsort(first)
        rank = xp.argsort(order)
        y = y[(slice(None),) * (0 if axis is None else axis % x.ndim) + (order,)]
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return y, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@operator("NonMaxSuppression", host=(0, 1, 2, 3, 4))
def non_max_suppression(
    node: Node, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None
) -> Any:
    """On the processor: how many boxes are left depends on the data."""
    count = int(number(most)) if most is not None else 0
    threshold = float(number(overlap)) if overlap is not None else 0.0
    lowest = -np.inf if least is None else float(number(least))
    corners, points = _corners(host(boxes), node.get("center_point_box", 0)), host(scores)
    chosen = [
        (batch, label, box)
        for batch in range(points.shape[0])
        for label in range(points.shape[1])
        for box in _kept(corners[batch], points[batch, label], count, threshold, lowest)
    ]
    return np.asarray(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, centered: int) -> np.ndarray:
    """Boxes as (low, low, high, high)."""
    if centered:
        centre, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.concatenate([centre - half, centre + half], axis=-1)
    first, second = boxes[..., :2], boxes[..., 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _kept(boxes: np.ndarray, scores: np.ndarray, count: int, threshold: float, lowest: float) -> list[int]:
    kept: list[int] = []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=-1)
    for box in np.argsort(-scores, kind="stable"):
        if len(kept) == count or scores[box] <= lowest:
            break
        extent = np.minimum(boxes[kept, 2:], boxes[box, 2:]) - np.maximum(boxes[kept, :2], boxes[box, :2])
        common = np.maximum(extent, 0).prod(axis=-1)
        if (common <= threshold * (areas[kept] + areas[box] - common)).all():
            kept.append(int(box))
    return kept


@operator("ArrayFeatureExtractor", domain="ai.onnx.ml", host=(1,))
def array_feature_extractor(node: Node, x: Any, places: Any) -> Any:
    return x[..., list(integers(places))]
