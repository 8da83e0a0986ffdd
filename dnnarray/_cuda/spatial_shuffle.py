"""Shuffles: plans for one permuted copy."""

from __future__ import annotations

import math

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small
from dnnarray._problems.spatial_shuffle import ShuffleProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import Spec

_THREADS = 128
_LIMIT = 1 << 31
_MOST = 8  # axes that kernels/spatial/move.cu takes
_UNIT = 16  # bytes that a thread moves at once
_MOST_DEALT = 6  # axes that kernels/spatial/deal.cu counts along
_PLACES = (2, 4, 8)  # that it deals out to


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
class DealConfig(Config):
    """Compile-time settings of ``kernels/spatial/deal.cu``."""

    bytes: int
    rank: int
    vector: int
    places: int
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


def _words(walk: _Walk) -> tuple[int, int]:
    """An axis as ``struct Walk`` of walk.cuh takes it: what divides numbers below 2^31 by its extent, and its step."""
    shift = max((walk.extent - 1).bit_length(), 1)
    magic = -(-(1 << (31 + shift)) // walk.extent) if walk.extent > 1 else 0
    return magic << 32 | walk.extent, walk.x << 5 | shift - 1


def move(problem: ShuffleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a permuted copy."""
    x: Spec = problem.inputs[0]
    if x.size == 0:
        return Program(())
    order = _input_order(problem)
    walks, size = _in_units(_walks(problem, order), x.dtype.itemsize, aligned)
    total = x.size * x.dtype.itemsize // size
    vector = max(_UNIT // size, 1) if aligned else 1
    while vector > 1 and total < vector * _THREADS * device.units:  # small arrays: a block for each multiprocessor first
        vector //= 2
    inner, middle, run = _inner(walks, vector)
    rest = (_MOST - len(walks)) * (_Walk(1, 1, 1),)
    words = (word for walk in (*walks[1:], *rest) for word in _words(walk))
    grid = (-(-total // (_THREADS * vector)), 1, 1)
    config = MoveConfig(size, len(walks), vector, inner, middle, run, total < _LIMIT, _THREADS)
    name = f"move_{8 * size}_r{len(walks)}x{vector}_{inner}x{middle}_{run}{'' if config.short else '_long'}"
    arguments: tuple[Array | int, ...] = (Array(0), Array(len(problem.inputs)), total, walks[0].x, *words)
    plan = ahead_if_small(Plan(Kernel("spatial/move.cu", name, config), grid, _THREADS, arguments))
    return Program((plan,), (order,) * len(problem.inputs))


@frozen
class _Deal:
    """How neighbours in x are dealt out: the axes that are counted along, with the last one in vectors, and where in y the places are."""

    counted: tuple[_Walk, ...]
    places: tuple[int, ...]
    size: int
    vector: int

    @property
    def threads(self) -> int:
        return math.prod(walk.extent for walk in self.counted)


def _deal_of(problem: ShuffleProblem) -> _Deal | None:
    """The last axis of y has steps of as many elements of x as other axes have places for; None where there are no such axes."""
    x: Spec = problem.inputs[0]
    walks, size = _in_units(_walks(problem, _input_order(problem)), x.dtype.itemsize, True)
    last, vector, others, places = walks[-1], _UNIT // size, walks[:-1], [0]
    for walk in sorted(others, key=lambda w: w.x):
        if walk.x == len(places) < last.x:
            places = [place + i * walk.y for i in range(walk.extent) for place in places]
            others.remove(walk)
    steps = (*places, *(n for walk in others for n in (walk.x, walk.y)))
    if last.x not in _PLACES or len(places) != last.x or last.extent % vector or any(n % vector for n in steps) or vector == 1:
        return None
    runs = _Walk(last.extent // vector, last.x * vector, vector)
    counted = tuple(walk for walk in (*others, runs) if walk.extent > 1)
    return _Deal(counted or (runs,), tuple(places), size, vector)


def deal(problem: ShuffleProblem, device: Device, aligned: bool) -> Program:
    """One launch: vectors read one behind the other, and written to several places."""
    how = _deal_of(problem) if aligned else None
    if how is None:
        return move(problem, device, aligned)
    short, rank, order = problem.inputs[0].size < _LIMIT, len(how.counted), _input_order(problem)
    config = DealConfig(how.size, rank, how.vector, len(how.places), short, _THREADS)
    name = f"deal_{8 * how.size}_r{rank}x{how.vector}_{len(how.places)}{'' if short else '_long'}"
    rest = (_MOST_DEALT - rank) * (_Walk(1, 1, 1),)
    words = (word for walk in (*how.counted, *rest) for word in (*_words(walk), walk.y))
    places = (*how.places[1:], *(8 - len(how.places)) * (0,))
    arguments: tuple[Array | int, ...] = (Array(0), Array(len(problem.inputs)), how.threads, *words, *places)
    plan = Plan(Kernel("spatial/deal.cu", name, config), (-(-how.threads // _THREADS), 1, 1), _THREADS, arguments)
    return Program((plan,), (order,) * len(problem.inputs))


def _undealt(problem: ShuffleProblem, device: Device) -> str | None:
    x: Spec = problem.inputs[0]
    how = None if x.size == 0 or _unmovable(problem, device) else _deal_of(problem)
    if how is None or len(how.counted) > _MOST_DEALT:
        return "neighbours in memory are not dealt out to whole vectors of two to eight places"
    return "too few elements for a block on each multiprocessor" if how.threads < _THREADS * device.units else None


def _unmovable(problem: ShuffleProblem, device: Device) -> str | None:
    x: Spec = problem.inputs[0]
    if x.dtype.itemsize not in (1, 2, 4, 8, 16):
        return f"elements of {x.dtype.itemsize} bytes"
    walks = _walks(problem, _input_order(problem)) if x.size else []
    if len(walks) >= _MOST:
        return f"{len(walks)} axes that move by themselves, more than {_MOST - 1}"
    return "an axis of 2^31 elements or more" if any(w.extent >= _LIMIT for w in walks) else None


_METHODS = (
    Method("deal", deal, "neighbours read together and dealt out to several places", _undealt),
    Method("move", move, "one permuted copy", _unmovable),
)
ALGORITHMS: dict[str, tuple[Method, ...]] = {
    name + ending: _METHODS for name in ("pixel_shuffle", "pixel_unshuffle", "channel_shuffle") for ending in ("", "_backward")
}
