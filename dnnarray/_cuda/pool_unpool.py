"""Unpooling and its gradient."""

from __future__ import annotations

import math

from dnnarray._cuda.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, geometry_of
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_PLACES_LAST, _PLACES_FIRST = 1 << 15, 1 << 17  # places of a plane of which a few blocks hold the marks
_MARKS_LAST, _MARKS_FIRST = 100 << 10, 32 << 10  # bytes for them
_NUMBERED = 0xFFFF  # elements of x that a mark can name


@frozen
class UnpoolConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool.cu``."""

    element: str
    index: str
    stage: int
    threads: int


@frozen
class UnpoolPlanesConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_planes.cu``."""

    element: str
    index: str
    backward: bool
    group: int
    wide: int
    threads: int


def marks_bytes(problem: UnpoolProblem) -> int:
    output = problem.outputs[0]
    assert output is not None
    if _staged(geometry_of(problem.inputs[0], problem.space, problem.layout)):
        return 0
    return -(-4 * output.size // 16) * 16


def _unpool_plan(problem: UnpoolProblem, stage: int, total: int, x: Spec, indices: Spec, pointers: tuple[Array, ...]) -> Plan:
    g = geometry_of(x, problem.space, problem.layout)
    config = UnpoolConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], stage, THREADS)
    symbol = f"max_unpool_{('clear', 'mark', 'fetch', 'backward')[stage]}_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}"
    (_, h, w), (_, p, q) = g.space, g.out_space
    numbers = (total, g.channels, *g.x_strides, *g.y_strides, h << 32 | w, p << 32 | q, math.prod(g.space), math.prod(g.out_space))
    return Plan(Kernel("pool/unpool.cu", symbol, config), (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers))


def _staged(g: Geometry) -> bool:
    """Whether few blocks share a plane, so that each can read all of its indices, and 16 bits number them."""
    return (g.first or g.last) and math.prod(g.out_space) <= (_PLACES_LAST if g.last else _PLACES_FIRST) and math.prod(g.space) < _NUMBERED


def _marks(g: Geometry, x: Spec, device: Device) -> tuple[int, int]:
    """(channels of a block, places of a block) whose marks, of two bytes each, are together in shared memory: whole sectors of y, equal parts."""
    group = max(8, 32 // x.dtype.itemsize) if g.last else 1
    room = min(_MARKS_LAST if g.last else _MARKS_FIRST, device.shared_memory // 2 - 1024) // (2 * group)
    size = math.prod(g.out_space)
    return group, -(-size // -(-size // room) // 16) * 16


def _unpool_planes(g: Geometry, x: Spec, indices: Spec, aligned: bool, marks: tuple[int, int] | None) -> Plan:
    """One launch for a plain memory order; the arrays are x or the gradient, the indices, and the result. Without `marks` the gradient."""
    channels, outer = (g.channels, g.n) if g.last else (1, g.n * g.channels)
    backward, size = marks is None, math.prod(g.out_space)
    group, places = marks or (1, 1)
    wide = 1 if backward else vector_length(x.dtype, aligned, *((channels, group) if g.last else (size,)))
    chunks, groups, threads = -(-size // places), -(-channels // group), THREADS if backward else 512 if g.last else 256
    total = x.size if backward else outer * chunks * groups
    config = UnpoolPlanesConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], backward, group, wide, threads)
    words = [f"max_unpool_{'backward' if backward else 'planes'}_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[indices.dtype]}_g{group}"]
    numbers = (total, channels, math.prod(g.space), size, places, chunks, groups)
    grid = (-(-total // threads) if backward else total, 1, 1)
    pointers = (Array(0), Array(2), Array(3)) if backward else (Array(0), Array(1), Array(2))
    shared = 0 if backward else 2 * group * places
    return Plan(Kernel("pool/unpool_planes.cu", "_".join(words), config), grid, threads, (*pointers, *numbers), shared)


def unpool(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One launch with the marks in shared memory; or three: clear the marks, mark every place with the last element that names it, fetch."""
    (x, indices), y = problem.inputs, problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    if _staged(g):
        return Program((_unpool_planes(g, x, indices, aligned, _marks(g, x, device)),), (g.order, g.order))
    pointers = Array(0), Array(1), Array(2), Array(3)
    stages = [(0, y.size), *([(1, x.size)] if x.size else []), (2, y.size)]
    plans = tuple(_unpool_plan(problem, stage, total, x, indices, pointers) for stage, total in stages)
    return Program(plans, (g.order, g.order))


def unpool_backward(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One launch: each gradient comes from its place."""
    _, x, indices = problem.inputs
    if x.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    if g.first or g.last:
        plan = _unpool_planes(g, x, indices, aligned, None)
    else:
        plan = _unpool_plan(problem, 3, x.size, x, indices, (Array(0), Array(2), Array(3), Array(3)))
    return Program((plan,), (g.order, g.order, g.order))
