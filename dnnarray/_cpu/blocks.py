"""Large arrays in blocks that stay in the cache: temporary arrays are bounded, and a chain of NumPy calls reads memory
once."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu.threads import LONG

# elements: long enough to hide the price of a NumPy call, short enough for a few arrays in a core's own cache
BLOCK = 65536


def slabs(shape: tuple[int, ...], limit: int = BLOCK) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array into parts of at most `limit` elements, each a run of elements in C order, in that
    order."""
    inner = math.prod(shape[1:])
    if len(shape) > 1 and inner > limit:
        for i in range(shape[0]):
            for rest in slabs(shape[1:], limit):
                yield (i, *rest)
    elif shape:
        step = max(limit // max(inner, 1), 1)
        for i in range(0, shape[0], step):
            yield (slice(i, i + step),)
    else:
        yield (...,)


def blocks(*arrays: np.ndarray, limit: int = BLOCK) -> Iterator[tuple[np.ndarray, ...]]:
    """Views of the same part of each array, in any order.

    All arrays broadcast to the shape of the first without new axes; parts may still have to be broadcast. Arrays
    without axes come as arrays of one element. Parts have at most `BLOCK` elements, or `limit` where all arrays are
    runs of memory."""
    first = arrays[0]
    if first.size <= BLOCK:
        yield tuple(a.reshape(1) for a in arrays) if first.ndim == 0 else arrays
        return
    arrays = tuple(a if a.shape == first.shape else np.broadcast_to(a, first.shape) for a in arrays)
    if not all(a.flags.c_contiguous for a in arrays):
        # Walk the memory of the first array in its own order: channels-last memory is then as good as any.
        order = sorted(range(first.ndim), key=lambda i: -abs(first.strides[i]))
        arrays = tuple(a.transpose(order) for a in arrays)
    if all(a.flags.c_contiguous for a in arrays):
        yield from _runs([a.reshape(-1) for a in arrays], limit)
        return
    for index in slabs(arrays[0].shape):
        yield tuple(a[index] for a in arrays)


def _runs(arrays: list[np.ndarray], limit: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Parts of flat arrays; longer ones than `BLOCK` as lines, so that `constant` has a row for them."""
    size, lines = arrays[0].size, limit > BLOCK
    step = -(-limit // _LINE) * _LINE if lines else limit
    whole = size // _LINE * _LINE if lines else size
    for start in range(0, whole, step):
        parts = tuple(a[start : min(start + step, whole)] for a in arrays)
        yield tuple(p.reshape(-1, _LINE) for p in parts) if lines else parts
    if whole < size:
        yield tuple(a[whole:] for a in arrays)


def keep(values: np.ndarray, mask: np.ndarray, out: np.ndarray) -> None:
    """out = values where mask, else 0 (also for infinity and NaN); a bit mask is several times faster than
    `numpy.where`."""
    bits = mask.astype(_INTEGER[values.itemsize])
    np.negative(bits, out=bits)
    np.bitwise_and(values.view(bits.dtype), bits, out=out.view(bits.dtype))


def drop(values: np.ndarray, mask: np.ndarray, out: np.ndarray) -> None:
    """out = 0 where mask (also for infinity and NaN), else values."""
    bits = mask.astype(_INTEGER[values.itemsize])
    bits -= 1
    np.bitwise_and(values.view(bits.dtype), bits, out=out.view(bits.dtype))


def select(mask: np.ndarray, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out = a where mask, else b, bit by bit; `out` may be `a` or `b`."""
    bits = mask.astype(_INTEGER[a.itemsize])
    np.negative(bits, out=bits)
    left, right = a.view(bits.dtype), b.view(bits.dtype)
    bits &= left ^ right
    np.bitwise_xor(right, bits, out=out.view(bits.dtype))


class _Rows(threading.local):
    """Blocks of memory, some of `BLOCK` and some of `_LONGEST` elements, that a thread used before and will use again:
    warm, and without the page faults of memory that malloc hands back and forth."""

    def __init__(self) -> None:
        self.free: dict[tuple[np.dtype, int], list[np.ndarray]] = {}


_rows = _Rows()


def borrow(like: np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Memory for a block of this dtype and shape, to be handed back to `give` by the same thread; what is not handed
    back is lost, no more."""
    shape = like.shape if shape is None else shape
    size = math.prod(shape)
    if not _KEPT_FROM <= size <= _LONGEST:
        return np.empty(shape, like.dtype)
    length = BLOCK if size <= BLOCK else _LONGEST
    free = _rows.free.get((like.dtype, length))
    row = free.pop() if free else np.empty(length, like.dtype)
    return row[:size].reshape(shape)


def give(*borrowed: np.ndarray) -> None:
    """Hand blocks back that `borrow` lent."""
    for array in borrowed:
        row = array.base
        if row is not None and row.size in (BLOCK, _LONGEST):
            free = _rows.free.setdefault((row.dtype, row.size), [])
            if len(free) < _KEPT:
                free.append(row)


class _Unbuffered:
    """Ufuncs of this thread work without a buffer inside."""

    def __enter__(self) -> None:
        self._before = np.setbufsize(_NO_BUFFER)  # of this thread, as is `numpy.errstate`

    def __exit__(self, *exception: object) -> None:
        np.setbufsize(self._before)


def long_rows(length: int) -> AbstractContextManager[None]:
    """Arithmetic between arrays and broadcast rows or columns whose inner loops run over `length` elements, all of one
    dtype.

    NumPy copies broadcast operands to its own buffer to make short rows longer, which takes twice as long as the
    arithmetic itself on rows of some hundred elements; with a buffer too small for a row it takes them where they lie.
    Short rows and casts are better off with the buffer."""
    return _NOTHING if length < _LONG_ROW else _Unbuffered()


def constant(value: float, like: np.ndarray) -> Any:
    """The number as an operand beside an array of one axis or more: NumPy's loops for `maximum` and `minimum` are
    several times faster against a row than against one number."""
    row = _row(value, like.dtype)
    return row[: like.shape[-1]] if like.shape[-1] <= BLOCK else row[0]


@lru_cache(maxsize=64)
def _row(value: float, dtype: np.dtype) -> np.ndarray:
    row = np.full(BLOCK, value, dtype)
    row.flags.writeable = False
    return row


_NOTHING = nullcontext()
_LONG_ROW = 384  # elements
_NO_BUFFER = 16  # the least that NumPy takes
# elements: shorter lines go through NumPy's buffer, and a longer constant leaves less of the cache to the data
_LINE = 8192
_LONGEST = LONG + _LINE  # elements of a block: `LONG` in whole lines
_KEPT_FROM = 4096  # elements; smaller blocks come from malloc's own lists
_KEPT = 6  # blocks a thread, dtype and length: what the longest formula needs
_INTEGER: dict[int, Any] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}
