"""Cutting an array into blocks that stay in the cache and bound the memory of temporaries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._problems.norm_base import NormProblem

# elements: 512 KB of float32, near a core's share of cache, and long enough that starting NumPy calls costs little
BLOCK = 1 << 17
_RUN = 256  # elements of memory in a row that a cut leaves together, or each row costs more than its data

Box = tuple[Any, ...]
WHOLE: Box = (Ellipsis,)


@lru_cache(maxsize=1024)
def _piece(shape: tuple[int, ...], strides: tuple[int, ...], axes: tuple[int, ...], limit: int) -> tuple[int, ...]:
    """Extents of the pieces when only `axes` are cut, the slowest in memory first, until a piece has `limit`
    elements."""
    piece = list(shape)
    for i in sorted(axes, key=lambda i: -abs(strides[i])):
        others = math.prod(n for j, n in enumerate(piece) if j != i)
        if others * piece[i] <= limit:
            break
        run = math.prod(n for j, n in enumerate(piece) if abs(strides[j]) < abs(strides[i]))
        piece[i] = min(shape[i], max(limit // others, -(-_RUN // run)))
    return tuple(piece)


def boxes(array: np.ndarray, axes: tuple[int, ...], limit: int | None = None) -> Iterator[Box]:
    """Index tuples that cut `array` along `axes` only; one that takes everything where it is small."""
    limit = BLOCK if limit is None else limit
    if array.size <= limit:
        yield WHOLE
        return
    piece = _piece(array.shape, array.strides, axes, limit)
    ranges = ([slice(a, a + p) for a in range(0, n, p)] for n, p in zip(array.shape, piece, strict=True))
    yield from itertools.product(*ranges)


def part(array: Any, box: Box) -> Any:
    """The part of an array inside a box; axes of extent 1 broadcast, None stays None."""
    if array is None or box is WHOLE:
        return array
    return array[tuple(s if n > 1 else slice(None) for s, n in zip(box, array.shape, strict=True))]


def parts(arrays: tuple[Any, ...], box: Box) -> tuple[Any, ...]:
    """`part` of each."""
    return tuple(part(a, box) for a in arrays) if box is not WHOLE else arrays


def stretch(problem: NormProblem, x: np.ndarray) -> int:
    """How many neighbours in memory NumPy's inner loops take at a time in arithmetic with statistics and parameters."""
    return _stretch(x.shape, x.strides, problem.geometry.parameter, problem.geometry.statistic)


@lru_cache(maxsize=1024)
def _stretch(shape: tuple[int, ...], strides: tuple[int, ...], *operands: tuple[int, ...]) -> int:
    run, kind = 1, None
    for i in sorted((i for i, n in enumerate(shape) if n > 1), key=lambda i: abs(strides[i])):
        here = [operand[i] > 1 for operand in operands]
        if kind is not None and here != kind:
            break
        run, kind = run * shape[i], here
    return run
