"""What the spatial family shares: images as tables of pixels, scattered sums, blocks, the cubic kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._spec import FLOAT32, HALF, Spec

BLOCK = 1 << 17  # elements that a step works on: the few arrays of a step stay in the cache
_COPY_WORK = 8  # turning the axes of memory round costs as many light operations
_MANY = 256  # terms of a sum in float32
_ONE = np.int32(1)  # a number of another type would be converted for each element
CUBIC = -0.75  # the parameter of the cubic kernel, as PyTorch has it; -0.5 is Keys' own


def channels_last(x: np.ndarray, channels: int) -> np.ndarray:
    """A view with the channels last; `numpy.moveaxis` takes ten times as long to say the same."""
    return x.transpose(*range(channels), *range(channels + 1, x.ndim), channels)


def lies(image: Spec, order: tuple[int, ...]) -> bool:
    """Whether the memory is dense with the axes in this order; where an extent is 1 any stride will do."""
    strides, step = image.strides or image.c_strides, 1
    for axis in reversed(order):
        if image.shape[axis] != 1 and strides[axis] != step:
            return False
        step *= image.shape[axis]
    return True


def table_bytes(spec: Spec, channels: int) -> int:
    """Scratch for an array as a table with the channels last: none where its memory has that order already."""
    order = (*(i for i in range(spec.ndim) if i != channels), channels)
    if spec.axis_order() == order or (spec.strides is None and spec.shape[channels] == 1):
        return 0
    itemsize = FLOAT32.itemsize if spec.dtype in HALF else spec.dtype.itemsize
    return -(-spec.size * itemsize // 16) * 16


def buffer(scratch: np.ndarray | None, start: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory out of the scratch; of its own only where a caller's `out` has strides that the problem could not
    foresee."""
    needed = math.prod(shape) * dtype.itemsize
    if scratch is not None and start + needed <= scratch.size:
        return scratch[start : start + needed].view(dtype).reshape(shape)
    return np.empty(shape, dtype)


def as_table(x: np.ndarray, channels: int, scratch: np.ndarray | None, start: int = 0) -> np.ndarray:
    """The pixels of `x` as rows (pixels, C): a view where the memory allows, else a copy in the scratch."""
    moved = channels_last(x, channels)
    if not moved.flags.c_contiguous:
        copy = buffer(scratch, start, moved.shape, x.dtype)
        threads.run(_copy, len(moved), copy, moved, work=_COPY_WORK * moved.size)
        moved = copy
    return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1])


def _copy(start: int, stop: int, target: np.ndarray, source: np.ndarray) -> None:
    target[start:stop] = source[start:stop]


class SumTable:
    """Zeros like an output, as a table to add rows to; `finish` puts the sums into the output.

    Rounding errors of a sum in float32 grow with its terms: a row that many are added to continues in float64, in a
    table of such rows."""

    def __init__(self, out: np.ndarray, channels: int, scratch: np.ndarray | None, start: int = 0) -> None:
        self._moved = channels_last(out, channels)
        shape = self._moved.shape
        self._own = self._moved if self._moved.flags.c_contiguous else buffer(scratch, start, shape, out.dtype)
        self._own[...] = 0
        self.table = self._own.reshape(math.prod(shape[:-1]), shape[-1])
        self._flat = self.table.reshape(-1)
        self._columns = np.arange(shape[-1])
        self._added = np.zeros(
            len(self.table) if out.dtype == np.float32 else 0, np.int32
        )  # to each row, as long as they are few
        self._place = np.empty(
            0, np.int32
        )  # of each row among those that go on in float64, -1 for the others; empty while there are none
        self._sums = np.empty((0, shape[-1]))  # theirs

    def add(self, rows: np.ndarray, values: np.ndarray) -> None:
        """table[rows[i]] += values[i], repeated rows summed. Over one axis `ufunc.at` is several times faster than over
        two."""
        many = self._long_sums(rows)
        if many is not None:
            self._continue(rows[many, None], self._columns, values[many])
            rows, values = rows[~many], values[~many]
        if len(self._columns) == 1:
            np.add.at(self._flat, rows, values.reshape(-1))
        else:
            np.add.at(self._flat, (rows[:, None] * len(self._columns) + self._columns).reshape(-1), values.reshape(-1))

    def add_elements(self, flat: np.ndarray, values: np.ndarray) -> None:
        """The same for single elements, by their flat index."""
        flat, values = flat.reshape(-1), values.reshape(-1)
        rows = flat // max(len(self._columns), 1)
        many = self._long_sums(rows)
        if many is not None:
            self._continue(rows[many], flat[many] - rows[many] * len(self._columns), values[many])
            flat, values = flat[~many], values[~many]
        np.add.at(self._flat, flat, values)

    def _long_sums(self, rows: np.ndarray) -> np.ndarray | None:
        """Which of the rows that are to be added to go on in float64; None where none does."""
        if not self._added.size:
            return None
        np.add.at(self._added, rows, _ONE)
        many = self._added[rows] > _MANY
        if not many.any():
            return None
        self._added[rows[many]] = _MANY + 1  # more could follow than an int32 counts
        return many

    def _continue(self, rows: np.ndarray, columns: np.ndarray, values: np.ndarray) -> None:
        """The sums of `rows`, `columns` += values, in float64; the three broadcast to the shape of the values."""
        if not self._place.size:
            self._place = np.full(len(self.table), -1, np.int32)
        new = np.unique(rows[self._place[rows] < 0])
        if new.size:
            self._place[new] = len(self._sums) + np.arange(new.size)
            self._sums = np.concatenate([self._sums, np.zeros((new.size, self._sums.shape[1]))])
        places = self._place[rows] * np.intp(self._sums.shape[1]) + columns
        np.add.at(self._sums.reshape(-1), places.reshape(-1), values.reshape(-1).astype(np.float64))

    @property
    def columns(self) -> np.ndarray:
        return self._columns

    def finish(self) -> None:
        many = np.flatnonzero(self._place >= 0)
        self.table[many] += self._sums[self._place[many]]
        if self._own is not self._moved:
            self._moved[...] = self._own


def blocks(first: int, second: int, per_item: int, times: int = 1) -> Iterator[tuple[slice, slice]]:
    """Slices over two leading axes, each pair about `BLOCK` elements (or so many times more) when an item of both has
    `per_item`."""
    items = max(times * BLOCK // max(per_item, 1), 1)
    step = max(items // max(second, 1), 1)
    inner = -(-second // -(-second // items)) if step == 1 and second else second  # runs of nearly the same length
    for i in range(0, first, step):
        for j in range(0, second, max(inner, 1)):
            yield slice(i, min(i + step, first)), slice(j, min(j + inner, second))


def cubic_near(t: Any, a: float) -> Any:
    """The cubic convolution kernel at distance `t` of [0, 1]."""
    return ((a + 2) * t - (a + 3)) * t * t + 1


def cubic_far(t: Any, a: float) -> Any:
    """The cubic convolution kernel at distance `t` of [1, 2]."""
    return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a


def cubic_weights(t: np.ndarray, a: float = CUBIC) -> tuple[np.ndarray, ...]:
    """Weights of the taps -1, 0, 1, 2 around a place `t` past tap 0."""
    return cubic_far(t + 1, a), cubic_near(t, a), cubic_near(1 - t, a), cubic_far(2 - t, a)


def cubic_slopes(t: np.ndarray, a: float = CUBIC) -> tuple[np.ndarray, ...]:
    """Derivatives of `cubic_weights` by `t`."""

    def near(d: np.ndarray) -> np.ndarray:
        return (3 * (a + 2) * d - 2 * (a + 3)) * d

    def far(d: np.ndarray) -> np.ndarray:
        return (3 * a * d - 10 * a) * d + 8 * a

    return far(t + 1), near(t), -near(1 - t), -far(2 - t)
