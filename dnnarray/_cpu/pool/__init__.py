"""Pooling, its gradients and its inverse, on NumPy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.pool import forms as pool_forms
from dnnarray._cpu.pool.norm import norm_windows, norm_windows_gradient
from dnnarray._cpu.pool.windows import (
    argmax_windows,
    blocks,
    gather,
    lowest,
    plan_axes,
    reduce_windows,
    scatter,
    spread_windows,
)
from dnnarray._problems.pool import PoolProblem, UnpoolProblem
from dnnarray._select import Method

Arrays = tuple[np.ndarray, ...]
Block = tuple[slice, slice]
_CALLS = 12  # of NumPy in one block


def _spread(part: Callable[[Block], None], x: np.ndarray) -> None:
    """``part(block)`` for all blocks of images and channels of x, spread over threads."""
    threads.each(part, ((block,) for block in blocks(x)), work=_CALLS * x.size)


def _channels_first(problem: PoolProblem | UnpoolProblem, *arrays: Any) -> list[Any]:
    """Views N C *space of the arrays, None where one is omitted."""
    if problem.layout == "channels_first":
        return list(arrays)
    return [None if a is None else np.moveaxis(a, -1, 1) for a in arrays]


# --- maximum ----------------------------------------------------------------------------------------------------------


def _max(problem: PoolProblem, outputs: Arrays, scratch: Any, x: np.ndarray) -> None:
    plans = plan_axes(problem.axes)
    x, y = _channels_first(problem, x, outputs[0])

    def part(block: Block) -> None:
        reduce_windows(np.maximum, x[block], plans, y[block], lowest(x.dtype))

    _spread(part, x)


def _max_with_indices(problem: PoolProblem, outputs: Arrays, scratch: Any, x: np.ndarray) -> None:
    plans = plan_axes(problem.axes)
    x, y, indices = _channels_first(problem, x, *outputs)

    def part(block: Block) -> None:
        y[block], indices[block] = argmax_windows(x[block], plans)

    _spread(part, x)


def _max_backward(
    problem: PoolProblem, outputs: Arrays, scratch: Any, grad: np.ndarray, x: np.ndarray, indices: Any = None
) -> None:
    plans = plan_axes(problem.axes)
    grad, x, indices, dx = _channels_first(problem, grad, x, indices, outputs[0])

    def part(block: Block) -> None:
        found = argmax_windows(x[block], plans)[1] if indices is None else indices[block]
        scatter(grad[block], found, dx[block], add=True)

    _spread(part, x)


# --- average ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _divisor(axes: tuple[Any, ...], padded: bool, dtype: np.dtype) -> Any:
    """Elements of each window, as PyTorch counts them: a number where all are equal, else an array over *space."""
    counts: np.ndarray = np.ones(())  # float64: exact up to 2^53, and no overflow beyond
    for axis in axes:
        # A window with nothing in it has the sum 0 and gives 0.
        counts = np.multiply.outer(counts, np.maximum(np.array(axis.counts(padded), np.float64), 1))
    if counts.size and (counts == counts.flat[0]).all():
        return float(counts.flat[0])
    return counts.astype(dtype)


def _average(problem: PoolProblem, outputs: Arrays, scratch: Any, x: np.ndarray) -> None:
    plans = plan_axes(problem.axes)
    divisor = _divisor(problem.axes, problem.padded, x.dtype)
    x, y = _channels_first(problem, x, outputs[0])

    def part(block: Block) -> None:
        mean = y[block]
        reduce_windows(np.add, x[block], plans, mean, 0)
        np.divide(mean, divisor, out=mean)

    _spread(part, x)


def _average_backward(problem: PoolProblem, outputs: Arrays, scratch: Any, grad: np.ndarray, x: np.ndarray) -> None:
    plans = plan_axes(problem.axes)
    divisor = _divisor(problem.axes, problem.padded, x.dtype)
    grad, dx = _channels_first(problem, grad, outputs[0])

    def part(block: Block) -> None:
        spread_windows(grad[block] / divisor, plans, dx[block])

    _spread(part, dx)


def _adaptive_average_backward(
    problem: PoolProblem, outputs: Arrays, scratch: Any, grad: np.ndarray, x: np.ndarray
) -> None:
    duals = plan_axes(tuple(a.dual() for a in problem.axes))
    divisor = _divisor(problem.axes, False, x.dtype)
    grad, dx = _channels_first(problem, grad, outputs[0])

    def part(block: Block) -> None:
        reduce_windows(np.add, grad[block] / divisor, duals, dx[block], 0)

    _spread(part, dx)


# --- Lp norm ----------------------------------------------------------------------------------------------------------


def _norm(problem: PoolProblem, outputs: Arrays, scratch: Any, x: np.ndarray) -> None:
    plans = plan_axes(problem.axes)
    x, y = _channels_first(problem, x, outputs[0])

    def part(block: Block) -> None:
        if math.isinf(problem.p):
            reduce_windows(np.maximum, np.abs(x[block]), plans, y[block], 0)
        else:
            y[block] = norm_windows(np.abs(x[block]), plans, problem.p)[-1]

    _spread(part, x)


def _norm_backward(problem: PoolProblem, outputs: Arrays, scratch: Any, grad: np.ndarray, x: np.ndarray) -> None:
    plans = plan_axes(problem.axes)
    grad, x, dx = _channels_first(problem, grad, x, outputs[0])

    def part(block: Block) -> None:
        magnitude, part = np.abs(x[block]), dx[block]
        if math.isinf(problem.p):
            scatter(grad[block], argmax_windows(magnitude, plans)[1], part, add=True)
        else:
            part[...] = norm_windows_gradient(grad[block], magnitude, plans, problem.p)
        np.multiply(part, np.sign(x[block]), out=part)

    _spread(part, x)


# --- the inverse of a maximum -----------------------------------------------------------------------------------------


def _unpool(problem: UnpoolProblem, outputs: Arrays, scratch: Any, x: np.ndarray, indices: np.ndarray) -> None:
    x, indices, y = _channels_first(problem, x, indices, outputs[0])

    def part(block: Block) -> None:
        scatter(x[block], indices[block], y[block], add=False)

    _spread(part, y)


def _unpool_backward(
    problem: UnpoolProblem, outputs: Arrays, scratch: Any, grad: np.ndarray, x: np.ndarray, indices: np.ndarray
) -> None:
    grad, indices, dx = _channels_first(problem, grad, indices, outputs[0])

    def part(block: Block) -> None:
        gather(grad[block], indices[block], dx[block])

    _spread(part, grad)


def _with_compiled(
    entry: Method, driver: str, accepts: Any, module: str = "pool.planes", **attributes: Any
) -> tuple[Method, ...]:
    """NumPy's entry and the compiled one."""
    summary = "compiled: a tap of the window at a time over a row of outputs, over all threads"
    method = compiled.method("taps", module, driver, summary, accepts=accepts, **attributes)
    return replace(entry, cost=compiled.numpy_cost(_CALLS)), method


_MAX = Method("axis_by_axis", _max, "the maximum along one axis after the other")
_MAX_WITH_INDICES = Method(
    "axis_by_axis", _max_with_indices, "the maximum and its place along one axis after the other"
)
_MAX_BACKWARD = Method("scatter", _max_backward, "each gradient goes to the place of its maximum")
_AVERAGE = Method("axis_by_axis", _average, "the sum along one axis after the other, then a division")
_AVERAGE_BACKWARD = Method("axis_by_axis", _average_backward, "each gradient spread along one axis after the other")
_ADAPTIVE_BACKWARD = Method("axis_by_axis", _adaptive_average_backward, "a sum over the windows of each element")

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "max_pool": _with_compiled(_MAX, "max_pool", pool_forms.no_form),
    "max_pool_with_indices": _with_compiled(_MAX_WITH_INDICES, "max_pool_with_indices", pool_forms.no_places),
    "max_pool_backward": _with_compiled(
        _MAX_BACKWARD, "max_pool_backward", pool_forms.no_place_sums, "pool.gradient", looks=True
    ),
    "max_pool_with_indices_backward": _with_compiled(
        _MAX_BACKWARD, "max_pool_backward", pool_forms.no_place_sums, "pool.gradient", looks=True
    ),
    "adaptive_max_pool": (_MAX,),
    "adaptive_max_pool_with_indices": _with_compiled(
        _MAX_WITH_INDICES, "max_pool_with_indices", pool_forms.no_adaptive
    ),
    "adaptive_max_pool_backward": _with_compiled(
        _MAX_BACKWARD, "max_pool_backward", pool_forms.no_adaptive_sums, "pool.gradient", looks=True
    ),
    "adaptive_max_pool_with_indices_backward": _with_compiled(
        _MAX_BACKWARD, "max_pool_backward", pool_forms.no_adaptive_sums, "pool.gradient", looks=True
    ),
    "avg_pool": _with_compiled(_AVERAGE, "avg_pool", pool_forms.no_sums),
    "avg_pool_backward": _with_compiled(_AVERAGE_BACKWARD, "avg_pool_backward", pool_forms.no_sums, "pool.gradient"),
    "adaptive_avg_pool": (_AVERAGE,),
    "adaptive_avg_pool_backward": _with_compiled(
        _ADAPTIVE_BACKWARD, "avg_pool_backward", pool_forms.no_adaptive_sums, "pool.gradient"
    ),
    "lp_pool": (Method("axis_by_axis", _norm, "the norm along one axis of the norms along the other"),),
    "lp_pool_backward": (Method("axis_by_axis", _norm_backward, "the chain rule through the norms along each axis"),),
    "max_unpool": (Method("scatter", _unpool, "each value goes to its place"),),
    "max_unpool_backward": (Method("gather", _unpool_backward, "each gradient comes from its place"),),
}
