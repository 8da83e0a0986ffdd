"""A permuted copy as axes that threads walk along."""

from __future__ import annotations

import math

from dnnarray._problems.spatial_shuffle import ShuffleProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

THREADS = 128
LIMIT = 1 << 31
UNIT = 16  # bytes that a thread moves at once


@frozen
class Walk:
    """One axis of a permuted copy: its extent, and the elements of x and of y between neighbours."""

    extent: int
    x: int
    y: int


def _split_strides(shape: tuple[int, ...], strides: tuple[int, ...], parts: tuple[int, ...]) -> dict[int, int]:
    """The stride of each part of split axes that is longer than 1, by its place in `parts`."""
    found, left = {}, [i for i, n in enumerate(parts) if n > 1]
    for extent, stride in zip(shape, strides, strict=True):
        taken, product = [], 1
        while product < extent:
            taken.append(left.pop(0))
            product *= parts[taken[-1]]
        for i in reversed(taken):
            found[i] = stride
            stride *= parts[i]
    return found


def _packed(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a dense array with its axes in this order."""
    return tuple(math.prod(shape[j] for j in order[order.index(i) + 1 :]) for i in range(len(shape)))


def walks_of(problem: ShuffleProblem, order: tuple[int, ...]) -> list[Walk]:
    """The axes of the copy from the slowest of y to the fastest; neighbours that stay together are one axis."""
    x, y, move = problem.inputs[0], problem.outputs[0], problem.move
    assert y is not None
    x_strides = _split_strides(x.shape, _packed(x.shape, order), move.source)
    y_strides = _split_strides(y.shape, y.strides or y.c_strides, move.target)
    walks = [Walk(move.source[s], x_strides[s], y_strides[t]) for t, s in enumerate(move.permutation) if t in y_strides]
    walks.sort(key=lambda w: -w.y)
    merged: list[Walk] = []
    for walk in walks:
        before = merged[-1] if merged else None
        if before is not None and before.x == walk.x * walk.extent and before.extent * walk.extent < LIMIT:
            merged[-1] = Walk(before.extent * walk.extent, walk.x, walk.y)
        else:
            merged.append(walk)
    return merged or [Walk(1, 1, 1)]


def in_units(walks: list[Walk], itemsize: int, aligned: bool) -> tuple[list[Walk], int]:
    """The same copy in larger elements, where runs of them stay together; and their bytes."""
    if itemsize == UNIT and not aligned:
        return [*(Walk(w.extent, 2 * w.x, 2 * w.y) for w in walks), Walk(2, 1, 1)], itemsize // 2
    last, size = walks[-1], itemsize
    while (
        aligned and size < UNIT and last.x == 1 and all(n % 2 == 0 for n in (last.extent, *(w.x for w in walks[:-1])))
    ):
        walks = [Walk(w.extent, w.x // 2, w.y // 2) for w in walks[:-1]] + [Walk(last.extent // 2, 1, 1)]
        last, size = walks[-1], size * 2
    return [w for w in walks if w.extent > 1] or walks[-1:], size


def input_order(problem: ShuffleProblem) -> tuple[int, ...]:
    x: Spec = problem.inputs[-1]
    return x.axis_order() or tuple(range(x.ndim))


def words_of(walk: Walk) -> tuple[int, int]:
    """An axis as ``struct Walk`` of walk.cuh takes it: what divides numbers below 2^31 by its extent, and its step."""
    shift = max((walk.extent - 1).bit_length(), 1)
    magic = -(-(1 << (31 + shift)) // walk.extent) if walk.extent > 1 else 0
    return magic << 32 | walk.extent, walk.x << 5 | shift - 1
