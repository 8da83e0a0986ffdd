"""Resizing, by planes of channels; `spatial_lanes` has the kernel for channels that lie side by side. Imports Numba.

Along each axis an element of the result is the weighted sum of a few elements of the source; the gradient has the same
form, with the taps transposed. Of columns and rows those come first that leave less for the others to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu.compiled import arithmetic
from dnnarray._cpu.compiled.dense import Plan, planned
from dnnarray._cpu.compiled.kernel import In1, In2, In3, Integers1, Integers2, Out3, device, kernel
from dnnarray._cpu.compiled.scalar import fma
from dnnarray._cpu.compiled.spatial.lanes import (
    half_sums,
    lanes_plan,
    light_first,
    matrix,
    resize_lanes,
    unread,
    weighted,
)
from dnnarray._cpu.compiled.tile import lanes
from dnnarray._cpu.spatial.resize import memory_order
from dnnarray._problems.spatial_resize import InterpolateProblem, Resize

Array = np.ndarray
_LINES = (
    4  # that wait for their columns: what has just been written cannot yet be read across the bounds of the vectors
)


@device
def _gathered(row: Any, index: Any, weight: Any, first: Any, out: Any) -> Any:
    """out (+)= weight row[index]."""
    if first:
        for q in range(len(out)):
            out[q] = weight[q] * row[index[q]]
    else:
        for q in range(len(out)):
            out[q] = fma(weight[q], row[index[q]], out[q])


@device
def _weighted(row: Any, weight: Any, first: Any, out: Any) -> Any:
    """out (+)= weight row."""
    if first:
        for q in range(len(out)):
            out[q] = weight * row[q]
    else:
        for q in range(len(out)):
            out[q] = fma(weight, row[q], out[q])


@device
def _gathered_pair(row: Any, i: Any, a: Any, j: Any, b: Any, out: Any) -> Any:
    """The sum of two taps of a row in one pass."""
    for q in range(len(out)):
        out[q] = fma(b[q], row[j[q]], a[q] * row[i[q]])


@device
def _doubled(row: Any, left: Any, right: Any, out: Any) -> Any:
    """The inner part of a row with twice the elements: `left` and `right` are the weights of the taps of the two
    elements that come from each.

    The nearer one of two has the larger weight: its product is the one that does not round.
    """
    a, b, c, d = left[2], right[2], left[3], right[3]
    for k in range(len(row) - 2):
        out[2 * k + 2] = fma(b, row[k + 1], a * row[k])
        out[2 * k + 3] = fma(c, row[k + 1], d * row[k + 2])


@device
def _weighted_pair(row: Any, a: Any, other: Any, b: Any, out: Any) -> Any:
    """The sum of two weighted rows in one pass; the product of the larger weight does not round."""
    row, a, other, b = (other, b, row, a) if a > b else (row, a, other, b)
    for q in range(len(out)):
        out[q] = fma(b, other[q], a * row[q])


@device(counted=False)
def _halved(row: Any, halves: Any, weight: Any, out: Any) -> Any:
    """The inner part of a row with half the elements: each tap has one weight for all, and stands as far from one
    element's double."""
    first, item = halves[0], row.itemsize
    half_sums(
        row.dtype.type(0),
        row.ctypes.data,
        halves.ctypes.data + 16,
        weight.ctypes.data,
        len(weight),
        out.ctypes.data + first * item,
        halves[1] - first,
    )


@device
def _gathered_one(row: Any, index: Any, weight: Any, q: Any) -> Any:
    """An element of a row."""
    total = weight[0, q] * row[index[0, q]]
    for k in range(1, len(index)):
        total = fma(weight[k, q], row[index[k, q]], total)
    return total


@device(counted=False)
def _resized_row(row: Any, index: Any, weight: Any, doubles: Any, halves: Any, half_weight: Any, out: Any) -> Any:
    """A row of a plane with its columns resized: twice the elements, half of them, or any number."""
    if doubles:
        _doubled(row, weight[0], weight[1], out)
        for q in (0, 1, len(out) - 2, len(out) - 1):
            out[q] = fma(weight[1, q], row[index[1, q]], weight[0, q] * row[index[0, q]])
    elif len(half_weight):
        _halved(row, halves, half_weight, out)
        for q in range(halves[0]):
            out[q] = _gathered_one(row, index, weight, q)
        for q in range(halves[1], len(out)):
            out[q] = _gathered_one(row, index, weight, q)
    elif len(index) == 2:
        _gathered_pair(row, index[0], weight[0], index[1], weight[1], out)
    else:
        for k in range(len(index)):
            _gathered(row, index[k], weight[k], k == 0, out)


@device(counted=False)
def _cleared(plane: Any, rows: Any, columns: Any) -> Any:
    """Zeros where there is no tap: infinity times the weight 0 is NaN."""
    for p in rows:
        plane[p, :] = 0
    if len(columns):
        for p in range(len(plane)):
            for q in columns:
                plane[p, q] = 0


@kernel(streams=True)
def _resize(
    start: int,
    stop: int,
    x: In3,
    y: Out3,
    row_index: Integers2,
    row_weight: In2,
    column_index: Integers2,
    column_weight: In2,
    doubles: bool,
    halves: Integers1,
    half_weight: In1,
    rows: Integers1,
    columns: Integers1,
) -> None:
    """Columns first: the plane does not get larger before its rows are summed."""
    wide = np.empty((x.shape[1], y.shape[2]), x.dtype)  # the plane with its rows resized
    for n in range(start, stop):
        _resize_plane(
            x[n], y[n], row_index, row_weight, column_index, column_weight, doubles, halves, half_weight, wide
        )
        _cleared(y[n], rows, columns)


@device(counted=False)
def _resize_plane(
    x: Any,
    y: Any,
    row_index: Any,
    row_weight: Any,
    column_index: Any,
    column_weight: Any,
    doubles: Any,
    halves: Any,
    half_weight: Any,
    wide: Any,
) -> None:
    # rows of the plane, each just before it is wanted: reading, arithmetic and writing take turns at short intervals
    done = 0
    for p in range(y.shape[0]):
        for k in range(len(row_index)):
            while done <= row_index[k, p]:
                _resized_row(x[done], column_index, column_weight, doubles, halves, half_weight, wide[done])
                done += 1
        if len(row_index) == 2:
            _weighted_pair(wide[row_index[0, p]], row_weight[0, p], wide[row_index[1, p]], row_weight[1, p], y[p])
        else:
            for k in range(len(row_index)):
                _weighted(wide[row_index[k, p]], row_weight[k, p], k == 0, y[p])


@kernel(streams=True)
def _resize_rows_first(
    start: int,
    stop: int,
    x: In3,
    y: Out3,
    offsets: Integers2,
    row_weight: In2,
    column_index: Integers2,
    column_weight: In2,
    doubles: bool,
    halves: Integers1,
    half_weight: In1,
    rows: Integers1,
    columns: Integers1,
) -> None:
    """The same where there are fewer rows than before; the taps of a row, in bytes, are next to each other."""
    lines = np.empty((_LINES, x.shape[2]), x.dtype)
    for n in range(start, stop):
        _shrink_plane(x[n], y[n], offsets, row_weight, column_index, column_weight, doubles, halves, half_weight, lines)
        _cleared(y[n], rows, columns)


@device(counted=False)
def _shrink_plane(
    x: Any,
    y: Any,
    offsets: Any,
    row_weight: Any,
    column_index: Any,
    column_weight: Any,
    doubles: Any,
    halves: Any,
    half_weight: Any,
    lines: Any,
) -> None:
    zero, taps = lines.dtype.type(0), offsets.shape[1]
    for begin in range(0, len(y), len(lines)):
        end = min(begin + len(lines), len(y))
        for p in range(begin, end):
            tables = offsets.ctypes.data + p * taps * 8, row_weight.ctypes.data + p * taps * lines.itemsize
            weighted(zero, x.ctypes.data, *tables, taps, lines[p - begin].ctypes.data, 1, lines.shape[1])
        for p in range(begin, end):
            _resized_row(lines[p - begin], column_index, column_weight, doubles, halves, half_weight, y[p])


def _matrix(resize: Resize, transposed: bool, dtype: np.dtype) -> tuple[Array, Array]:
    """(index, weight) of the taps of each target; two of them as they lie, more with the light ones first."""
    index, weight = matrix(resize, transposed, dtype)
    return (index, weight) if len(index) < 3 else light_first(index, weight)


@planned(_resize, _resize_rows_first, resize_lanes)
def interpolate(problem: InterpolateProblem) -> Plan:
    dtype = np.dtype(arithmetic(problem))
    if memory_order(problem) == "lanes":
        run, order = _by_lanes(problem, dtype), (0, *problem.axes, problem.channels)
    else:
        run, order = _by_planes(problem, dtype), (0, problem.channels, *problem.axes)
    return (lambda *arrays: run(arrays[0], arrays[-1])), order


def _extents(problem: InterpolateProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of the space of the source and of the result."""
    source, result = problem.inputs[0].shape, problem.result.shape
    return tuple(source[a] for a in problem.axes), tuple(result[a] for a in problem.axes)


def _by_planes(problem: InterpolateProblem, dtype: np.dtype) -> Callable[[Array, Array], None]:
    matrices = [_matrix(resize, problem.transposed, dtype) for resize in problem.resizes]
    idle = [unread(resize, problem.transposed, dtype) for resize in problem.resizes]
    planes = problem.inputs[0].shape[0] * problem.inputs[0].shape[problem.channels]
    shape, into = ((planes, *_plane(space)) for space in _extents(problem))
    if len(matrices) == 1:
        matrices = [(np.zeros((1, 1), np.int64), np.ones((1, 1), dtype)), *matrices]
        idle = [np.empty(0, np.int64), *idle]
    (row_index, row_weight), columns = matrices
    work = 2 * (math.prod(shape) + math.prod(into)) * len(columns[0])
    kernel, rows = _resize, (row_index, row_weight)
    if into[1] < shape[1]:
        row_index, row_weight = light_first(row_index, row_weight)
        kernel, rows = (
            _resize_rows_first,
            (np.ascontiguousarray(row_index.T) * (shape[2] * dtype.itemsize), np.ascontiguousarray(row_weight.T)),
        )
    constants = (*rows, *columns, _doubles(*columns), *_halves(*columns), *idle)
    return lambda x, y: kernel(planes, x.reshape(shape), y.reshape(into), *constants, work=work)


def _by_lanes(problem: InterpolateProblem, dtype: np.dtype) -> Callable[[Array, Array], None]:
    source, result = problem.inputs[0], problem.result
    plan = lanes_plan(problem.resizes, problem.transposed, dtype, source.shape[0], source.shape[problem.channels])
    work = 2 * (source.size + result.size) * plan.taps
    return lambda x, y: resize_lanes(plan.rows, x.reshape(-1), y.reshape(-1), plan.geo, work=work)


def _doubles(index: Array, weight: Array) -> bool:
    """Whether inside of the row element 2k is made of k - 1 and k, and 2k + 1 of k and k + 1, with the same weights for
    every k."""
    taps, extent = index.shape
    if taps != 2 or extent % 2 or extent < 6:
        return False
    inner = slice(2, extent - 2)
    low = (np.arange(extent) - 1)[inner] // 2
    same = (weight[:, inner].reshape(2, -1, 2) == weight[:, None, 2:4]).all()
    return bool(same and (index[0, inner] == low).all() and (index[1, inner] == low + 1).all())


def _halves(index: Array, weight: Array) -> tuple[Array, Array]:
    """From where to where element k of the row has taps at the same distances from 2 k with the same weights, then how
    many bytes from the row's begin those of the first of them are, and the weights; empty where that is not most of the
    row, or no vector."""
    middle, item = index.shape[1] // 2, weight.itemsize
    distance = index - 2 * np.arange(index.shape[1])
    other = np.flatnonzero(((distance != distance[:, middle, None]) | (weight != weight[:, middle, None])).any(axis=0))
    place = int(np.searchsorted(other, middle))
    first, last = int(other[place - 1]) + 1 if place else 0, int(other[place]) if place < len(other) else index.shape[1]
    if last - first < max(index.shape[1] // 2, lanes(item)):
        return np.empty(0, np.int64), np.empty(0, weight.dtype)
    return np.array((first, last, *(index[:, first] * item)), np.int64), weight[:, first].copy()


def _plane(space: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *space)[-2:]
