"""Reductions over axes, sorting, and norms of the kind that no operation of dnnarray is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import integers, namespace, number, widened


def reduction(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The operator `name` by a function of the namespace, the array, ``axis`` and ``keepdims``.

    The axes are an attribute before opset 18, of `ReduceSum` before 13.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(node: Node, x: Any, axes: Any = None) -> Any:
            chosen = integers(axes) if axes is not None else tuple(node.get("axes") or ())
            if not chosen and node.get("noop_with_empty_axes", 0):
                axis: Any = ()
            else:
                axis = tuple(a % x.ndim for a in chosen) or None
            found = function(namespace(x), widened(x), axis=axis, keepdims=bool(node.get("keepdims", 1)))
            return found.astype(x.dtype)

        operator(name, host=(1,))(run)
        return function

    return decorate


def _sum(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


reduction("ReduceSum")(_sum)


@reduction("ReduceMean")
def _mean(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return x if axis == () else xp.mean(x, axis=axis, keepdims=keepdims)


@reduction("ReduceProd")
def _prod(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return xp.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


@reduction("ReduceL1")
def _l1(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _sum(xp, xp.abs(x), axis, keepdims)


@reduction("ReduceL2")
def _l2(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return xp.sqrt(_sum(xp, x * x, axis, keepdims))


@reduction("ReduceSumSquare")
def _sum_square(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _sum(xp, x * x, axis, keepdims)


@reduction("ReduceLogSum")
def _log_sum(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return xp.log(_sum(xp, x, axis, keepdims))


@reduction("ReduceLogSumExp")
def _log_sum_exp(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    if not x.size:
        return xp.log(_sum(xp, x, axis, keepdims))
    wide = x if x.dtype.kind == "f" else x.astype(np.float64)
    most = xp.max(wide, axis=axis, keepdims=True)
    most = xp.where(xp.isfinite(most), most, xp.zeros_like(most))
    found = xp.log(_sum(xp, xp.exp(wide - most), axis, True)) + most
    return found if keepdims else found.reshape(_sum(xp, x, axis, False).shape)


@reduction("ReduceMax")
def _max(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _extreme(xp, xp.max, x, axis, keepdims, low=True)


@reduction("ReduceMin")
def _min(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    return _extreme(xp, xp.min, x, axis, keepdims, low=False)


def _extreme(xp: Any, function: Callable[..., Any], x: Any, axis: Any, keepdims: bool, low: bool) -> Any:
    """Over no elements, what every element of the dtype is beyond."""
    axes = range(x.ndim) if axis is None else axis
    if all(x.shape[a] for a in axes):
        return function(x, axis=axis, keepdims=keepdims)
    if x.dtype.kind == "f":
        value: Any = -math.inf if low else math.inf
    else:
        value = (not low) if x.dtype.kind == "b" else getattr(np.iinfo(x.dtype), "min" if low else "max")
    shape = [1 if a in axes else n for a, n in enumerate(x.shape) if keepdims or a not in axes]
    return xp.full(tuple(shape), value, dtype=x.dtype)


@operator("ArgMax", "ArgMin")
def arg_extreme(node: Node, x: Any) -> Any:
    xp, axis = namespace(x), node.get("axis", 0)
    function = xp.argmax if node.op == "ArgMax" else xp.argmin
    keepdims = bool(node.get("keepdims", 1))
    if not node.get("select_last_index", 0):
        return function(x, axis=axis, keepdims=keepdims).astype(np.int64)
    return (x.shape[axis] - 1 - function(xp.flip(x, axis=axis), axis=axis, keepdims=keepdims)).astype(np.int64)


@operator("CumSum", "CumProd", host=(1,))
def cumulative(node: Node, x: Any, axis: Any) -> Any:
    xp, axis = namespace(x), int(number(axis)) % x.ndim
    adds = node.op == "CumSum"
    reverse, exclusive = node.get("reverse", 0), node.get("exclusive", 0)
    wide = widened(xp.flip(x, axis=axis) if reverse else x)
    if exclusive:
        shape = tuple(min(n, 1) if a == axis else n for a, n in enumerate(x.shape))
        first = (xp.zeros if adds else xp.ones)(shape, dtype=wide.dtype)
        wide = xp.concat([first, wide[(slice(None),) * axis + (slice(None, -1),)]], axis=axis)
    found = (xp.cumsum if adds else xp.cumprod)(wide, axis=axis, dtype=wide.dtype).astype(x.dtype)
    return xp.flip(found, axis=axis) if reverse else found


@operator("TopK", host=(1,))
def top_k(node: Node, x: Any, k: Any = None) -> Any:
    """Of equal elements, the ones that stand first. `k` is an attribute before opset 10."""
    xp, axis = namespace(x), node.get("axis", -1) % x.ndim
    count = node.get("k") if k is None else int(number(k))
    if node.get("largest", 1):
        order = xp.flip(x.shape[axis] - 1 - xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True), axis=axis)
    else:
        order = xp.argsort(x, axis=axis, stable=True)
    order = order[(slice(None),) * axis + (slice(count),)]
    return xp.take_along_axis(x, order, axis=axis), order.astype(np.int64)


@operator("LpNormalization")
def lp_normalization(node: Node, x: Any) -> Any:
    """A vector of norm 0 stays 0."""
    xp, axis = namespace(x), node.get("axis", -1)
    wide = widened(x)
    norm = (
        xp.sum(xp.abs(wide), axis=axis, keepdims=True)
        if node.get("p", 2) == 1
        else xp.sqrt(xp.sum(wide * wide, axis=axis, keepdims=True))
    )
    return xp.where(norm == 0, xp.zeros_like(wide), wide / xp.where(norm == 0, xp.ones_like(norm), norm)).astype(
        x.dtype
    )
