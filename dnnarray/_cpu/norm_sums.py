"""Sums over axes of a block, by the fastest way that its memory allows."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._problems.norm_base import Geometry

_SHORT_ROW = 32  # elements; the sums of shorter ones cost more calls than they save
_LONG_ROW = 2048  # elements; longer ones gain nothing
_RUN = 8  # rows, and sums of rows, that are added up by themselves: sums of sums are more exact than one long one


def total(array: np.ndarray, axes: tuple[int, ...], factor: np.ndarray | None = None) -> np.ndarray:
    """The sum over `axes`, which stay with extent 1, of `array` or of array * factor.

    `factor` has the shape of the array, or runs along all of `axes` that are not of extent 1 and perhaps along others.
    """
    if not axes:
        return array if factor is None else array * factor
    if not array.flags.c_contiguous:
        return _in_memory_order(array, axes, factor)
    form = _matrix(array.shape, axes)
    if form is None:
        return np.add.reduce(array if factor is None else array * factor, axis=axes, keepdims=True)
    by_rows, shape, kept = form
    if not by_rows:
        return _of_columns((array if factor is None else array * factor).reshape(shape)).reshape(kept)
    if factor is None:
        second = _ones(shape[1], array.dtype)
    elif factor.shape == array.shape:
        second = factor.reshape(shape)
    elif factor.size == shape[1]:
        second = factor.reshape(-1)
    else:
        array, second = array * factor, _ones(shape[1], array.dtype)
    # Dot products are several times faster than NumPy's sum of short rows, and over a block about as accurate.
    return np.vecdot(array.reshape(shape), second).reshape(kept)


def _in_memory_order(array: np.ndarray, axes: tuple[int, ...], factor: np.ndarray | None) -> np.ndarray:
    """`total` of an array whose axes stand in another order in memory, or with gaps."""
    order = sorted(range(array.ndim), key=lambda i: (-array.strides[i], i))
    moved = array.transpose(order)
    if not moved.flags.c_contiguous:
        return _of_dense_ends(array, axes, factor)
    factor = None if factor is None else factor.transpose(order)
    sums = total(moved, tuple(sorted(order.index(i) for i in axes)), factor)
    return sums.transpose([order.index(i) for i in range(array.ndim)])


def _of_dense_ends(array: np.ndarray, axes: tuple[int, ...], factor: np.ndarray | None) -> np.ndarray:
    """`total` of a part of an array whose last axes still lie together: these first, as rows."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(array.shape))
    ends = _dense_ends(array.shape, array.strides, axes)
    if not ends or (factor is not None and factor.shape != array.shape):
        return np.add.reduce(array if factor is None else array * factor, axis=axes, keepdims=True)
    form = (*array.shape[:-ends], -1)
    rows = array.reshape(form)
    sums = np.vecdot(rows, _ones(rows.shape[-1], array.dtype) if factor is None else factor.reshape(form))
    return np.add.reduce(sums, axis=tuple(i for i in axes if i < sums.ndim)).reshape(kept)


@lru_cache(maxsize=1024)
def _dense_ends(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """How many of the last axes lie together in memory and are among `axes`; none where a row of them would be short."""
    count, expected = 0, strides[-1]
    for i in range(len(shape) - 1, -1, -1):
        if i not in axes or strides[i] != expected:
            break
        count, expected = count + 1, expected * shape[i]
    return count if expected >= _SHORT_ROW * strides[-1] > 0 else 0


def of_rows(matrix: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The sum of all rows: in runs of them, and of their sums in the same way."""
    count = len(matrix) // _RUN
    if count < 2:
        return np.add.reduce(matrix, axis=0, out=out)
    runs = np.add.reduce(matrix[: count * _RUN].reshape(count, _RUN, *matrix.shape[1:]), axis=1)
    sums = of_rows(runs, out)
    return sums if count * _RUN == len(matrix) else np.add(sums, np.add.reduce(matrix[count * _RUN :], axis=0), out=out)


def _of_columns(matrix: np.ndarray) -> np.ndarray:
    """The sum of each column: first of long rows made of several rows each, which NumPy adds fastest and which also round less."""
    rows, columns = matrix.shape
    together = max(1, min(rows, _LONG_ROW // columns))
    count = rows // together
    head = matrix[: count * together].reshape(count, together * columns)
    sums = np.add.reduce(of_rows(head).reshape(together, columns), axis=0)
    return sums if count * together == rows else sums + np.add.reduce(matrix[count * together :], axis=0)


@lru_cache(maxsize=1024)
def _matrix(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[bool, tuple[int, int], tuple[int, ...]] | None:
    """A sum over `axes` of contiguous memory as one along the rows or the columns of a matrix, or None where it is neither.

    Returns whether it is along the rows, the shape of the matrix, and the shape of the result.
    """
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    real = [i for i, n in enumerate(shape) if n != 1]
    summed = [i for i in real if i in axes]
    columns, reduced = math.prod(kept), math.prod(shape[i] for i in summed)
    if not columns or not reduced:
        return None
    if summed == real[len(real) - len(summed) :]:
        return True, (columns, reduced), kept
    return (False, (reduced, columns), kept) if summed == real[: len(summed)] else None


def _ones(size: int, dtype: np.dtype) -> np.ndarray:
    return _ones_of_power(1 << (size - 1).bit_length(), dtype)[:size]


@lru_cache(maxsize=64)
def _ones_of_power(size: int, dtype: np.dtype) -> np.ndarray:
    ones = np.ones(size, dtype)
    ones.flags.writeable = False
    return ones


def over_statistics(geometry: Geometry, array: np.ndarray, factor: np.ndarray | None = None) -> np.ndarray:
    """The sum of array * factor behind each statistic, the axes that go together in memory first."""
    if not geometry.fine:
        return total(array, geometry.within, factor)
    return total(total(array, geometry.fine, factor), geometry.within)


def spread(geometry: Geometry, statistic: Any, shape: tuple[int, ...]) -> Any:
    """A statistic of a block of `shape`, repeated for each parameter where a few channels share one.

    Arithmetic with it then runs along all channels; in channels-last memory it would run along those of one group, in short steps.
    """
    if statistic is None or not (geometry.folds and geometry.within):
        return statistic
    return np.broadcast_to(statistic, tuple(1 if i in geometry.fine else n for i, n in enumerate(shape))).copy()


def add(so_far: Any, term: Any) -> Any:
    """so_far + term, where None is the sum of nothing."""
    return term if so_far is None else so_far + term


def move(result: Any, running: Any, now: Any, momentum: float, factor: float) -> None:
    """result = (1 - momentum) * running + momentum * factor * now."""
    if result is not None:
        result[...] = running if momentum == 0 else (1 - momentum) * running + (momentum * factor) * now
