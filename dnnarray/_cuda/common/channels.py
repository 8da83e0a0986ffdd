"""An array as outer x channels x inner, for one parameter per channel: sums over all but the channel, and orders of
axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent
from dnnarray._cuda.core.extents import divisor, order_of
from dnnarray._cuda.core.plan import vector_length
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64, Spec

THREADS = 128
_BLOCKS = 4096  # of a reduction: several for every place on a large card
_ITEMS = 4  # vectors that a thread adds up at the least, before a sum is split over more blocks
_ROWS = 8  # the same, of rows in a column
_IMAGE = 4096  # elements of a channel up to which each may have a sum of its own
_AXES = 5  # of struct Strided
_LONG = 1 << 31  # elements from which on an index is too large for a Divisor
_LINE = 256  # bytes that parts of the scratch memory start at multiples of

UNIFORM, CONTIGUOUS, WALKING, LONG_INDEX = 0, 1, 2, 4  # enum Channel


@frozen
class View:
    """A dense array as outer x channels x inner in memory."""

    outer: int
    channels: int
    inner: int

    @property
    def size(self) -> int:
        return self.outer * self.channels * self.inner

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """How many elements, and the arguments of DNNARRAY_CHANNELS."""
        by_channels, by_inner = (divisor(n) if self.size < _LONG else 0 for n in (self.channels, self.inner))
        return self.size, self.channels, by_channels, self.inner, by_inner


def view(shape: Sequence[int], order: Sequence[int], kept: Sequence[int]) -> View | None:
    """The array with the axes `kept` as its channels, or None where other axes stand between them in memory."""
    places = [i for i, axis in enumerate(order) if axis in kept and shape[axis] != 1]
    if not places:
        return View(1, 1, math.prod(shape))
    first, last = places[0], places[-1]
    if any(shape[order[i]] != 1 for i in range(first, last) if i not in places):
        return None
    extents = [shape[axis] for axis in order]
    return View(math.prod(extents[:first]), math.prod(extents[first : last + 1]), math.prod(extents[last + 1 :]))


def channel_mode(v: View, vector: int) -> int:
    """How the channel runs along a vector of elements."""
    long = LONG_INDEX if v.size >= _LONG else 0
    if v.channels == 1 or v.inner % vector == 0:
        return UNIFORM | long
    return (CONTIGUOUS if v.inner == 1 and v.channels % vector == 0 else WALKING) | long


# --- orders of axes ---------------------------------------------------------------------------------------------------


def lies(spec: Spec, order: Sequence[int]) -> bool:
    """Whether a dense array has its axes in this order; axes of extent 1 may stand anywhere."""
    found = order_of(spec)
    return found == order or spec.size == 0 or _significant(spec.shape, found) == _significant(spec.shape, order)


def _significant(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    return [axis for axis in order if shape[axis] != 1]


def strided(shape: Sequence[int], seen: Sequence[int], lying: Sequence[int]) -> tuple[int, ...] | None:
    """The arguments of `struct Strided` for an array counted in the order `seen` that lies in the order `lying`; None
    for too many axes."""
    strides, step = {}, 1
    for axis in reversed(lying):
        strides[axis] = step
        step *= max(shape[axis], 1)
    merged: list[tuple[int, int]] = []
    for axis in _significant(shape, seen):
        n, s = shape[axis], strides[axis]
        if merged and merged[-1][1] == n * s:
            merged[-1] = merged[-1][0] * n, s
        else:
            merged.append((n, s))
    if len(merged) > _AXES:
        return None
    full = [(1, 0)] * (_AXES - len(merged)) + merged
    return (*(n for n, _ in full[1:]), *(s for _, s in full))


NOWHERE = (1, 1, 1, 1, 0, 0, 0, 0, 0)  # the arguments of a `struct Strided` that is not used


def too_scattered(shape: Sequence[int], seen: Sequence[int], lying: Sequence[int]) -> str | None:
    """Why these orders cannot be brought together, or None."""
    if strided(shape, seen, lying) is not None:
        return None
    return (
        f"its arrays' axes lie in memory in orders too different, {tuple(seen)} and {tuple(lying)}; copy one of "
        "them with ascontiguousarray"
    )


# --- sums over all but the channel ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SumsArguments(Arguments):
    """What kernels that sum over all but the channel have in common: the extents of the array in memory, and the parts
    that each channel is summed in."""

    outer: Extent
    channels: Extent
    inner: Extent
    splits: Extent


@frozen
class Sums:
    """How the two stages of the sums are launched; `columns` is 0 where rows of one channel are summed."""

    view: View
    vector: int
    columns: int
    splits: int
    blocks: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The extents that the first stage is called with."""
        return self.view.outer, self.view.channels, self.view.inner, self.splits

    @property
    def arguments(self) -> dict[str, Any]:
        """The fields of `SumsArguments`."""
        return dict(zip(("outer", "channels", "inner", "splits"), self.sizes, strict=True))

    @property
    def parts(self) -> int:
        """Partial sums of each channel."""
        return self.splits * self.view.inner if self.columns else self.splits

    @property
    def name(self) -> str:
        return f"columns{self.columns}" if self.columns else "rows"


def sums(v: View, dtype: np.dtype, aligned: bool, blocks: int = _BLOCKS) -> Sums:
    """The launches for an array seen as `v`, of so many blocks at the most where channels are fewer.

    Columns for channels that run fastest, and for small odd images: there a row is no whole number of vectors, but all
    rows together are."""
    if v.channels == 1:
        v = View(1, 1, v.size)
    blocks = min(blocks, _BLOCKS)
    width, vector = v.channels * v.inner, vector_length(dtype, aligned, v.inner)
    wider = vector_length(dtype, aligned, width)
    if v.channels > 1 and (v.inner == 1 or (wider > vector and v.inner <= _IMAGE and v.outer >= _ROWS)):
        vectors = width // wider
        columns = min(32, 1 << (vectors - 1).bit_length())
        tiles = -(-vectors // columns)
        splits = max(1, min(blocks // tiles, -(-v.outer // (THREADS // columns * _ROWS))))
        return Sums(v, wider, columns, splits, tiles * splits)
    items = v.outer * v.inner // vector
    splits = max(1, min(-(-blocks // max(v.channels, 1)), -(-items // (THREADS * _ITEMS))))
    return Sums(v, vector, 0, splits, v.channels * splits)


def partial_bytes(v: View, dtype: np.dtype) -> int:
    """The scratch memory of the first stage, a whole number of lines."""
    width = 8 if dtype == FLOAT64 else 4
    return max(whole_lines(width * s.view.channels * s.parts) for s in (sums(v, dtype, True), sums(v, dtype, False)))


def whole_lines(size: int) -> int:
    return -(-size // _LINE) * _LINE
