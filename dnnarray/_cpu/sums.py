"""Sums over axes of an array in any memory order, at the speed of memory and rounded as little as pairwise sums.

`numpy.add.reduce` adds pairwise only along the innermost axis of memory. Along every other axis it adds one row after
the other, and the rounding errors grow with their number: 2**25 ones in float32 give 2**24. Here the axes are taken in
the order of memory. Rows are summed pairwise, or by dot products where they are short; a sum over rows is made of sums
over runs of `_RUN` rows, and these are added up in the same way."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._records import frozen

_FEW = 8  # terms that may be added one after the other
_SMALL = 4096  # elements, for which sums in float64 take less time than a plan
_SHORT_ROW = 1024  # elements up to which a dot product, in the lanes of vectors, rounds as little as a pairwise sum
_LONG_ROW = 1024  # elements of neighbouring rows that NumPy adds as one
_RUN = 8  # rows that are added one after the other
_BLOCK = 1 << 18  # elements of a block, which stays in the cache between its sums and the sums of these
_CHAIN = 32  # arrays that are added one after the other
_WIDTH = 1 << 13  # columns of a block
_NARROW = 32  # columns, of which arithmetic along rows takes longer than turning them round


@frozen
class _Plan:
    """How an array with certain strides is summed.

    Attributes
    ----------
    order : the axes from the slowest in memory to the fastest, those of extent 1 first; but a kept axis never stands
        right before another one
    merged : the shape in that order, where neighbours that are one stretch of memory, and are both summed or both kept,
        are one axis
    summed : for each axis of `merged` whether it is summed over
    kept : the shape of the result in that order
    back : the permutation that undoes `order`
    direct : `numpy.add.reduce` does as well
    """

    order: tuple[int, ...]
    merged: tuple[int, ...]
    summed: tuple[bool, ...]
    kept: tuple[int, ...]
    back: tuple[int, ...]
    direct: bool


@lru_cache(maxsize=1024)
def _plan(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]) -> _Plan:
    stretches = _stretches(shape, strides, axes)
    # Of two kept stretches with a gap between them the first goes to the front, behind which its sums are taken one by
    # one.
    apart = [s for s, then in pairwise(stretches) if s[0] not in axes and then[0] not in axes]
    stretches = [*apart, *(s for s in stretches if s not in apart)]
    order = (*(i for i, n in enumerate(shape) if n == 1), *(i for s in stretches for i in s))
    terms, size = math.prod(shape[i] for i in axes), math.prod(shape)
    return _Plan(
        order,
        tuple(math.prod(shape[i] for i in s) for s in stretches),
        tuple(s[0] in axes for s in stretches),
        tuple(1 if i in axes else shape[i] for i in order),
        tuple(order.index(i) for i in range(len(shape))),
        size == 0 or not stretches or (terms <= _FEW and size <= _SMALL),
    )


def _stretches(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...]) -> list[list[int]]:
    """The axes of more than one element from the slowest in memory on, together where they are one stretch of memory
    and all summed or all kept."""
    found: list[list[int]] = []
    for i in sorted((i for i, n in enumerate(shape) if n != 1), key=lambda i: (-abs(strides[i]), i)):
        last = found[-1][-1] if found else i
        if found and (last in axes) == (i in axes) and strides[last] == strides[i] * shape[i]:
            found[-1].append(i)
        else:
            found.append([i])
    return found


def total(array: np.ndarray, axes: tuple[int, ...], factor: np.ndarray | None = None) -> np.ndarray:
    """The sum over `axes` (counted from the first, each once), which stay with extent 1, of `array` or of array *
    factor, in their dtype.

    `factor` has the shape of the array, or runs along all of `axes` that are not of extent 1 and perhaps along others.
    """
    if factor is not None:
        rows = _dot_products(array, axes, factor)
        if rows is not None:
            return rows
        array = array * factor
    if not axes:
        return array
    plan = _plan(array.shape, array.strides, axes)
    if plan.direct:
        return np.add.reduce(array, axis=axes, keepdims=True)
    if array.size <= _SMALL:
        return np.add.reduce(array, axis=axes, keepdims=True, dtype=np.float64).astype(array.dtype, copy=False)
    sums, summed = array.transpose(plan.order).reshape(plan.merged), list(plan.summed)
    while True in summed:
        if summed.pop():
            sums = _of_rows(sums)
        else:
            sums = _of_columns(sums)
            summed.pop()
            if summed and not summed[-1]:  # what is kept before and behind the summed axis is one axis now
                sums = sums.reshape(*sums.shape[:-2], sums.shape[-2] * sums.shape[-1])
            else:
                summed.append(False)
    return sums.reshape(plan.kept).transpose(plan.back)


def of_rows(matrix: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The sum of all rows of a matrix, in `out` where it is given."""
    sums = total(matrix, (0,))[0]
    if out is None:
        return sums
    out[...] = sums
    return out


def dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """`numpy.vecdot` of float arrays that broadcast but for their last axis, whose long sums are sums of sums."""
    terms = a.shape[-1]
    if terms <= _SHORT_ROW:
        return np.vecdot(a, b)
    whole = terms // _SHORT_ROW * _SHORT_ROW
    parts = (m[..., :whole].reshape(*m.shape[:-1], whole // _SHORT_ROW, _SHORT_ROW) for m in (a, b))
    sums = _of_rows(np.vecdot(*parts))
    return sums if whole == terms else np.add(sums, np.vecdot(a[..., whole:], b[..., whole:]), out=sums)


def add_exactly(so_far: np.ndarray, rest: np.ndarray, term: np.ndarray) -> None:
    """so_far + rest += term, where `so_far` is that sum rounded and `rest` what is left, both in the dtype; `term` is
    used up (Knuth's two-sum)."""
    new = so_far + term
    of_term = new - so_far
    so_far -= new - of_term
    rest += so_far
    term -= of_term
    rest += term
    so_far[...] = new


class Cascade:
    """A sum of many arrays, or of parts of them, into `out`: they are added to `low`, each followed by `step`, and the
    sums of every `_CHAIN` of them go one level up, and so on. Sums of up to `_CHAIN` terms have one level, which is
    `out` itself."""

    def __init__(self, out: np.ndarray, terms: int) -> None:
        self._levels = [out]
        while terms > _CHAIN:
            self._levels.insert(0, np.zeros_like(out))
            terms = -(-terms // _CHAIN)
        out[...] = 0
        self._added = 0

    @property
    def low(self) -> np.ndarray:
        """What is added to."""
        return self._levels[0]

    def step(self) -> None:
        """After each term."""
        self._added += 1
        if self._added % _CHAIN == 0 and len(self._levels) > 1:
            count = self._added
            for level, above in pairwise(self._levels):
                if count % _CHAIN:
                    break
                above += level
                level[...] = 0
                count //= _CHAIN

    def finish(self) -> None:
        """After the last term."""
        for level, above in pairwise(self._levels):
            above += level


# --- rows -------------------------------------------------------------------------------------------------------------


def _of_rows(a: np.ndarray) -> np.ndarray:
    """The sums along the last axis, the fastest in memory."""
    terms = a.shape[-1]
    if a.strides[-1] != a.itemsize:
        return _each(a, lambda part, out: np.add.reduce(part, axis=-1, out=out))
    if terms <= _SHORT_ROW:
        ones = _ones(terms, a.dtype)
        return _each(a, lambda part, out: np.vecdot(part, ones, out=out))
    whole = terms // _SHORT_ROW * _SHORT_ROW
    sums = _of_rows(_of_rows(a[..., :whole].reshape(*a.shape[:-1], terms // _SHORT_ROW, _SHORT_ROW)))
    return sums if whole == terms else np.add(sums, _of_rows(a[..., whole:]), out=sums)


def _each(a: np.ndarray, sum_up: Any) -> np.ndarray:
    """``sum_up(part, out)`` over an array without its last axis, in parts that are spread over threads where it is
    large."""
    if a.size <= _BLOCK or a.ndim == 1:
        return np.asarray(sum_up(a, None))
    out: np.ndarray = np.empty(a.shape[:-1], a.dtype)
    if a.ndim > 2 and len(a) < 4:
        for part, target in zip(a, out, strict=True):
            target[...] = _each(part, sum_up)
        return out
    step = max(_BLOCK * len(a) // a.size, 1)
    threads.each(sum_up, [(a[i : i + step], out[i : i + step]) for i in range(0, len(a), step)], work=a.size)
    return out


def _dot_products(array: np.ndarray, axes: tuple[int, ...], factor: np.ndarray) -> np.ndarray | None:
    """The sums of array * factor without that product, where the last axes of C-contiguous memory are summed; else
    None."""
    form = _as_rows(array.shape, axes) if array.flags.c_contiguous and factor.flags.c_contiguous else None
    if form is None or factor.size not in (array.size, form[0][1]):
        return None
    (rows, terms), kept = form
    return dot(array.reshape(rows, terms), factor.reshape(-1, terms)).reshape(kept)


@lru_cache(maxsize=1024)
def _as_rows(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, ...]] | None:
    """(rows, terms) and the shape of the result where `axes` are the last ones of more than one element."""
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    real = [i for i, n in enumerate(shape) if n != 1]
    summed = [i for i in real if i in axes]
    terms, rows = math.prod(shape[i] for i in summed), math.prod(kept)
    return ((rows, terms), kept) if rows and terms and summed == real[len(real) - len(summed) :] else None


def _ones(size: int, dtype: np.dtype) -> np.ndarray:
    return _ones_of_power(1 << (size - 1).bit_length(), dtype)[:size]


@lru_cache(maxsize=64)
def _ones_of_power(size: int, dtype: np.dtype) -> np.ndarray:
    ones = np.ones(size, dtype)
    ones.flags.writeable = False
    return ones


# --- columns ----------------------------------------------------------------------------------------------------------


def _of_columns(a: np.ndarray) -> np.ndarray:
    """The sums along the last axis but one."""
    if a.size <= _BLOCK:
        return _of_block(a)
    out = np.empty((*a.shape[:-2], a.shape[-1]), a.dtype)
    _by_blocks(a, out)
    return out


def _by_blocks(a: np.ndarray, out: np.ndarray) -> None:
    """`_of_columns` into `out`: the sums of blocks, spread over threads, and the sums of these."""
    rows, columns = a.shape[-2:]
    if rows < 2 * _RUN:
        np.add.reduce(a, axis=-2, out=out)
    elif a.size <= _BLOCK:
        out[...] = _of_block(a)
    elif a.ndim > 2:
        step = _BLOCK * len(a) // a.size
        parts = [slice(i, i + step) for i in range(0, len(a), step)] if step > 1 else range(len(a))
        threads.each(_by_blocks, [(a[part], out[part]) for part in parts], work=a.size)
    elif columns > _WIDTH:
        strips = [slice(i, i + _WIDTH) for i in range(0, columns, _WIDTH)]
        threads.each(_by_blocks, [(a[:, strip], out[strip]) for strip in strips], work=a.size)
    else:
        step = _BLOCK // columns
        sums = np.empty((-(-rows // step), columns), a.dtype)
        threads.each(_by_blocks, [(a[i * step : (i + 1) * step], sums[i]) for i in range(len(sums))], work=a.size)
        _by_blocks(sums, out)


def _of_block(a: np.ndarray) -> np.ndarray:
    """`_of_columns` of a block: first of long rows made of several rows each, which NumPy adds fastest."""
    *lead, rows, columns = a.shape
    together = _LONG_ROW // columns
    if together < 2 or rows < 2 * together or a.strides[-2:] != (columns * a.itemsize, a.itemsize):
        return _in_runs(a)
    whole = rows // together * together
    head = a[..., :whole, :].reshape(*lead, rows // together, together * columns)
    sums = _of_narrow(_in_runs(head).reshape(*lead, together, columns))
    return sums if whole == rows else np.add(sums, _of_narrow(a[..., whole:, :]), out=sums)


def _of_narrow(a: np.ndarray) -> np.ndarray:
    """`_of_columns` of a few thousand elements: where rows are short, by a copy with the columns turned into rows."""
    if a.shape[-1] > _NARROW:
        return _in_runs(a)
    sums: np.ndarray = np.add.reduce(np.ascontiguousarray(a.swapaxes(-1, -2)), axis=-1)
    return sums


def _in_runs(a: np.ndarray) -> np.ndarray:
    """`_of_columns` by runs of `_RUN` rows, and of their sums in the same way."""
    *lead, rows, columns = a.shape
    count = rows // _RUN
    if count < 2:
        return np.add.reduce(a, axis=-2)
    whole = count * _RUN
    sums = _in_runs(np.add.reduce(a[..., :whole, :].reshape(*lead, count, _RUN, columns), axis=-2))
    return sums if whole == rows else np.add(sums, np.add.reduce(a[..., whole:, :], axis=-2), out=sums)
