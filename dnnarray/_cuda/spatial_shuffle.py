"""Shuffles: plans for one permuted copy."""

from __future__ import annotations

import math

from dnnarray._cuda.plan import Array, Config, Kernel, Plan, Program
from dnnarray._problems.spatial_shuffle import ShuffleProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import Spec

_THREADS = 128
_LIMIT = 1 << 31
_MOST = 8  # axes that kernels/spatial/move.cu takes
_UNIT = 16  # bytes that a thread moves at once


@frozen
class MoveConfig(Config):
    """Compile-time settings of ``kernels/spatial/move.cu``."""

    bytes: int
    rank: int
    vector: int
    inner: int
    middle: int
    run: int
    short: bool
    threads: int


@frozen
class _Walk:
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


def _walks(problem: ShuffleProblem, order: tuple[int, ...]) -> list[_Walk]:
    """The axes of the copy from the slowest of y to the fastest; neighbours that stay together are one axis."""
    x, y, move = problem.inputs[0], problem.outputs[0], problem.move
    assert y is not None
    x_strides = _split_strides(x.shape, _packed(x.shape, order), move.source)
    y_strides = _split_strides(y.shape, y.strides or y.c_strides, move.target)
    walks = [_Walk(move.source[s], x_strides[s], y_strides[t]) for t, s in enumerate(move.permutation) if t in y_strides]
    walks.sort(key=lambda w: -w.y)
    merged: list[_Walk] = []
    for walk in walks:
        before = merged[-1] if merged else None
        if before is not None and before.x == walk.x * walk.extent and before.extent * walk.extent < _LIMIT:
            merged[-1] = _Walk(before.extent * walk.extent, walk.x, walk.y)
        else:
            merged.append(walk)
    return merged or [_Walk(1, 1, 1)]


def _in_units(walks: list[_Walk], itemsize: int, aligned: bool) -> tuple[list[_Walk], int]:
    """The same copy in larger elements, where runs of them stay together; and their bytes."""
    if itemsize == _UNIT and not aligned:
        return [*(_Walk(w.extent, 2 * w.x, 2 * w.y) for w in walks), _Walk(2, 1, 1)], itemsize // 2
    last, size = walks[-1], itemsize
    while aligned and size < _UNIT and last.x == 1 and all(n % 2 == 0 for n in (last.extent, *(w.x for w in walks[:-1]))):
        walks = [_Walk(w.extent, w.x // 2, w.y // 2) for w in walks[:-1]] + [_Walk(last.extent // 2, 1, 1)]
        last, size = walks[-1], size * 2
    return [w for w in walks if w.extent > 1] or walks[-1:], size


def _input_order(problem: ShuffleProblem) -> tuple[int, ...]:
    x: Spec = problem.inputs[-1]
    return x.axis_order() or tuple(range(x.ndim))


def _inner(walks: list[_Walk], vector: int) -> tuple[int, int, int]:
    """How many elements of a vector follow one another along the last axis (0 where they may cross into others) and along the axis before it (1
    where the rest does), and along the axis of the rest, how many lie beside each other in x."""
    if walks[-1].extent % vector == 0:
        return vector, 1, 1
    inner, middle, outer = walks[-1].extent, 1, walks[:-1]
    if len(outer) > 1 and outer[-1].extent < vector // inner:
        middle, outer = outer[-1].extent, outer[:-1]
    if not outer or vector % (inner * middle) or outer[-1].extent % (vector // (inner * middle)):
        return 0, 1, 1
    run = vector // (inner * middle)
    together = outer[-1].x == 1 and all(w.x % run == 0 for w in walks if w is not outer[-1])
    return inner, middle, run if together else 1


def _magic(extent: int) -> int:
    """What divides numbers below 2^31 by the extent: see kernels/spatial/move.cu."""
    shift = max((extent - 1).bit_length(), 1)
    return -(-(1 << (31 + shift)) // extent) + ((shift - 1) << 32) if extent > 1 else 0


def move(problem: ShuffleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a permuted copy."""
    x: Spec = problem.inputs[0]
    if x.size == 0:
        return Program(())
    order = _input_order(problem)
    walks, size = _in_units(_walks(problem, order), x.dtype.itemsize, aligned)
    vector = max(_UNIT // size, 1) if aligned else 1
    inner, middle, run = _inner(walks, vector)
    total, rest = x.size * x.dtype.itemsize // size, (_MOST - len(walks)) * (1,)
    extents, steps = (*(w.extent for w in walks), *rest), (*(w.x for w in walks), *rest)
    grid = (-(-total // (_THREADS * vector)), 1, 1)
    config = MoveConfig(size, len(walks), vector, inner, middle, run, total < _LIMIT, _THREADS)
    name = f"move_{8 * size}_r{len(walks)}x{vector}_{inner}x{middle}_{run}{'' if config.short else '_long'}"
    arguments: tuple[Array | int, ...] = (Array(0), Array(len(problem.inputs)), total, *extents, *steps, *(_magic(n) for n in extents[1:]))
    plan = Plan(Kernel("spatial/move.cu", name, config), grid, _THREADS, arguments)
    return Program((plan,), (order,) * len(problem.inputs))


def _unmovable(problem: ShuffleProblem, device: Device) -> str | None:
    x: Spec = problem.inputs[0]
    if x.dtype.itemsize not in (1, 2, 4, 8, 16):
        return f"elements of {x.dtype.itemsize} bytes"
    walks = _walks(problem, _input_order(problem)) if x.size else []
    if len(walks) >= _MOST:
        return f"{len(walks)} axes that move by themselves, more than {_MOST - 1}"
    return "an axis of 2^31 elements or more" if any(w.extent >= _LIMIT for w in walks) else None


_MOVE = (Method("move", move, "one permuted copy", _unmovable),)
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    name + ending: _MOVE for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle") for ending in ("", "_backward")
}
