"""Unfold and fold on NumPy arrays: one strided copy, or addition, for each tap of the window."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from dnnarray._cpu.conv.blocks import at, image_view
from dnnarray._cpu.sums import Cascade
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._problems.conv_unfold import UnfoldProblem
from dnnarray._select import Cost, Device, Method

_Index = Any  # a tuple of slices and integers


def _meeting(g: Geometry, tap: int, axis: int) -> tuple[slice, slice]:
    """The outputs whose tap lies inside the image along an axis, and where it lies."""
    stride, offset = g.stride[axis], tap * g.dilation[axis] - g.before[axis]
    first = max(-(offset // stride), 0)
    last = min((g.space[axis] - 1 - offset) // stride + 1, g.out[axis])
    if last <= first:
        return slice(0), slice(0)
    return slice(first, last), slice(first * stride + offset, (last - 1) * stride + offset + 1, stride)


def _taps(g: Geometry) -> Iterator[tuple[tuple[int, ...], _Index, _Index]]:
    """Each tap with the outputs it serves and the pixels it reads."""
    for tap in product(*map(range, g.window)):
        meetings = [_meeting(g, t, axis) for axis, t in enumerate(tap)]
        yield tap, tuple(m[0] for m in meetings), tuple(m[1] for m in meetings)


def _tap_index(tap: tuple[int, ...], outputs: _Index) -> _Index:
    """One tap and some outputs in a `_column_view`."""
    return (slice(None), slice(None), *tap, *outputs)


def _column_view(columns: np.ndarray, g: Geometry, layout: str) -> np.ndarray:
    """Columns as (N, C, T, R, S, O, P, Q), a view."""
    if layout == "channels_first":
        return columns.reshape(g.n, g.c, *g.window, *g.out)
    return columns.reshape(g.n, *g.out, *g.window, g.c).transpose(0, 7, 4, 5, 6, 1, 2, 3)


def _gather(problem: UnfoldProblem, x: np.ndarray, columns: np.ndarray) -> None:
    g = problem.geometry
    image = image_view(x, problem.layout, 1)[:, 0]
    target = _column_view(columns, g, problem.layout)
    if any(g.before) or any(r > n for r, n in zip(g.reach(g.out), g.space, strict=True)):
        target[...] = 0
    for tap, outputs, pixels in _taps(g):
        target[_tap_index(tap, outputs)] = image[at(pixels)]


def _sum_up(problem: UnfoldProblem, columns: np.ndarray, x: np.ndarray) -> None:
    g = problem.geometry
    image = image_view(x, problem.layout, 1)[:, 0]
    source = _column_view(columns, g, problem.layout)
    sums = Cascade(image, g.taps)
    for tap, outputs, pixels in _taps(g):
        target = sums.low[at(pixels)]
        np.add(target, source[_tap_index(tap, outputs)], out=target)
        sums.step()
    sums.finish()


def _unfold(problem: UnfoldProblem, outputs: Any, scratch: Any, x: np.ndarray) -> None:
    _gather(problem, x, outputs[0])


def _unfold_backward(problem: UnfoldProblem, outputs: Any, scratch: Any, grad: np.ndarray, x: np.ndarray) -> None:
    _sum_up(problem, grad, outputs[0])


def _fold(problem: UnfoldProblem, outputs: Any, scratch: Any, x: np.ndarray) -> None:
    _sum_up(problem, x, outputs[0])


def _fold_backward(problem: UnfoldProblem, outputs: Any, scratch: Any, grad: np.ndarray, x: np.ndarray) -> None:
    _gather(problem, grad, outputs[0])


def _cost(problem: UnfoldProblem, device: Device) -> Cost:
    return Cost(0, problem.bytes, 1.0, 3 * problem.geometry.taps)


_GATHER = "a strided copy for each tap of the window"
_SUM = "a strided addition for each tap of the window"
ALGORITHMS = {
    "unfold": (Method("taps", _unfold, _GATHER, cost=_cost, native=True),),
    "unfold_backward": (Method("taps", _unfold_backward, _SUM, cost=_cost),),
    "fold": (Method("taps", _fold, _SUM, cost=_cost),),
    "fold_backward": (Method("taps", _fold_backward, _GATHER, cost=_cost, native=True),),
}
