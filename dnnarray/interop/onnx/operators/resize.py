"""Resize and Upsample: by `interpolate` where it has the mode, else by a sum of taps along one axis after the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._errors import OptionError
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import floating, host, namespace, widened


@operator("Upsample", host=(1,))
def upsample(node: Node, x: Any, scales: Any = None) -> Any:
    factors = [float(s) for s in (host(scales) if scales is not None else _old_scales(node))]
    corner = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _resize(replace(node, attributes=node.attributes | corner), x, list(range(x.ndim)), factors, None, None)


def _old_scales(node: Node) -> Any:
    """Before opset 7 the scales are attributes, the last two axes' own in opset 1."""
    return node.get("scales") or [1.0, 1.0, node.get("height_scale"), node.get("width_scale")]


@operator("Resize", host=(1, 2, 3))
def resize(node: Node, x: Any, *inputs: Any) -> Any:
    """In opset 10 there are scales alone, and positions count from the corner."""
    if node.opset < 11:
        return upsample(node, x, inputs[0])
    roi, scales, sizes = (*inputs, None, None, None)[:3]
    axes = [a % x.ndim for a in node.get("axes") or range(x.ndim)]
    factors = None if scales is None or not scales.size else [float(s) for s in host(scales)]
    extents = None if sizes is None or not sizes.size else [int(n) for n in host(sizes)]
    if (factors is None) == (extents is None):
        raise OptionError(f"onnx: {node}: expected one of scales and sizes.")
    return _resize(node, x, axes, factors, extents, roi)


def _resize(
    node: Node, x: Any, axes: list[int], factors: list[float] | None, extents: list[int] | None, roi: Any
) -> Any:
    if factors is None:
        assert extents is not None
        factors = [n / x.shape[a] for n, a in zip(extents, axes, strict=True)]
        factors, extents = _kept_aspect(node, x, axes, factors, extents)
    else:
        extents = [math.floor(x.shape[a] * f) for a, f in zip(axes, factors, strict=True)]
    known = _by_interpolate(node, x, axes, factors, extents)
    if known is not None:
        return known
    y = widened(x) if x.dtype.kind in "fV" else x.astype(np.float32 if x.dtype.itemsize < 4 else np.float64)
    for i, axis in enumerate(axes):
        box = (0.0, 1.0) if roi is None or not roi.size else (float(host(roi)[i]), float(host(roi)[len(axes) + i]))
        y = _along(node, y, axis, factors[i], extents[i], box)
    if x.dtype.kind in "iu":
        xp = namespace(y)
        bounds = np.iinfo(x.dtype)
        y = xp.clip(xp.round(y), bounds.min, bounds.max)
    return y.astype(x.dtype)


def _kept_aspect(
    node: Node, x: Any, axes: list[int], factors: list[float], extents: list[int]
) -> tuple[list[float], list[int]]:
    policy = node.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return factors, extents
    factor = min(factors) if policy == "not_larger" else max(factors)
    return [factor] * len(axes), [math.floor(x.shape[a] * factor + 0.5) for a in axes]


def _by_interpolate(node: Node, x: Any, axes: list[int], factors: list[float], extents: list[int]) -> Any:
    """The result where `interpolate` computes the same; else None."""
    changed = [a for a, f, n in zip(axes, factors, extents, strict=True) if f != 1 or n != x.shape[a]]
    if not floating(x) or node.get("antialias", 0) or any(a < 2 for a in changed) or not 3 <= x.ndim <= 5 or not x.size:
        return None
    mode, where = node.get("mode", "nearest"), node.get("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        fits = where == "asymmetric" and node.get("nearest_mode", "round_prefer_floor") == "floor"
    else:
        fits = where == "half_pixel" and (
            mode == "linear" or (node.get("cubic_coeff_a", -0.75) == -0.75 and x.ndim == 4)
        )
        fits = fits and not node.get("exclude_outside", 0)
    if not fits:
        return None
    given = dict(zip(axes, zip(factors, extents, strict=True), strict=True))
    pairs = [given.get(a, (1.0, x.shape[a])) for a in range(2, x.ndim)]
    if any(n < 1 or f != n / x.shape[a] for a, (f, n) in enumerate(pairs, 2)):
        return None
    return dnn.interpolate(x, size=tuple(n for _, n in pairs), mode=mode)


def _along(node: Node, x: Any, axis: int, factor: float, extent: int, box: tuple[float, float]) -> Any:
    """One axis in its new extent: for each output a few inputs, each times its weight."""
    whole = node.get("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    if factor == 1 and extent == x.shape[axis] and not whole:
        return x
    xp = namespace(x)
    positions = _positions(node, x.shape[axis], factor, extent, box)
    places, weights = _taps(node, positions, x.shape[axis], factor)
    shape = tuple(extent if a == axis else 1 for a in range(x.ndim))
    result: Any = 0
    for tap in range(places.shape[1]):
        part = x[(slice(None),) * axis + (xp.asarray(places[:, tap]),)]
        result = result + part * xp.asarray(weights[:, tap].astype(x.dtype)).reshape(shape)
    if whole:
        outside = xp.asarray((positions < 0) | (positions > x.shape[axis] - 1)).reshape(shape)
        result = xp.where(outside, xp.asarray(node.get("extrapolation_value", 0.0), dtype=x.dtype), result)
    return result


def _positions(node: Node, n: int, factor: float, extent: int, box: tuple[float, float]) -> np.ndarray:
    """Where in the input each output lies."""
    i = np.arange(extent)
    exact = n * factor  # of a scale that is given, no whole number
    match node.get("coordinate_transformation_mode", "half_pixel"):
        case "asymmetric":
            return i / factor
        case "align_corners":
            return i * (n - 1) / (exact - 1) if exact > 1 else np.zeros(extent)
        case "pytorch_half_pixel":
            return (i + 0.5) / factor - 0.5 if extent > 1 else np.zeros(extent)
        case "half_pixel_symmetric":
            adjusted = extent / exact
            return n / 2 * (1 - adjusted) + (i + 0.5) / factor - 0.5
        case "tf_half_pixel_for_nn":
            return (i + 0.5) / factor
        case "tf_crop_and_resize":
            start, end = box
            if extent == 1:
                return np.full(1, 0.5 * (start + end) * (n - 1))
            return start * (n - 1) + i * (end - start) * (n - 1) / (extent - 1)
        case _:
            return (i + 0.5) / factor - 0.5


_NEAREST: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda p: np.ceil(p - 0.5),
    "round_prefer_ceil": lambda p: np.floor(p + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _taps(node: Node, positions: np.ndarray, n: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights of each output, (outputs, taps)."""
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        places = _NEAREST[node.get("nearest_mode", "round_prefer_floor")](positions)[:, None]
        return np.clip(places, 0, n - 1).astype(np.int64), np.ones(places.shape)
    reach = 1 if mode == "linear" else 2
    stretch = min(factor, 1.0) if node.get("antialias", 0) else 1.0
    half = math.ceil(reach / stretch)
    places = np.floor(positions)[:, None] + np.arange(1 - half, 1 + half)
    distance = np.abs(places - positions[:, None]) * stretch
    weights = np.maximum(1 - distance, 0) if mode == "linear" else _cubic(distance, node.get("cubic_coeff_a", -0.75))
    if node.get("exclude_outside", 0):
        weights = np.where((places < 0) | (places >= n), 0, weights)
    if node.get("exclude_outside", 0) or stretch < 1:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(places, 0, n - 1).astype(np.int64), weights


def _cubic(d: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))
