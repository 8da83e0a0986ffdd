"""Unpooling and its gradient."""

from __future__ import annotations

import math

from dnnarray._cuda.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, divider, geometry_of
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_PLACES_LAST, _PLACES_FIRST = 1 << 15, 1 << 17  # places of a plane of which a few blocks hold the marks
_MARKS_LAST, _MARKS_FIRST = 100 << 10, 32 << 10  # bytes for them
_FLIGHT = 4  # elements of a thread of the gradient
_NUMBERED = 0xFFFF  # elements of x that a mark can name
_NEAR, _NEAR_THREADS = 52 << 10, 256  # bytes of shared memory of a block that looks nearby, of which four run side by side; its threads


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
    repairs: bool
    group: int
    wide: int
    threads: int


@frozen
class UnpoolGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_gradient.cu``."""

    element: str
    index: str
    flight: int
    threads: int


@frozen
class UnpoolNearConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_near.cu``."""

    element: str
    index: str
    group: int
    wide: int
    threads: int


def marks_bytes(problem: UnpoolProblem) -> int:
    output = problem.outputs[0]
    assert output is not None
    g = geometry_of(problem.inputs[0], problem.space, problem.layout)
    if _staged(g):
        rows = _near_rows(g, problem.inputs[0])
        return 0 if rows is None else -(-4 * _near_blocks(g, problem.inputs[0], rows) // 16) * 16
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


def _group(g: Geometry, x: Spec) -> int:
    """Channels of a block: whole sectors of y."""
    return max(8, 32 // x.dtype.itemsize) if g.last else 1


def _near_rows(g: Geometry, x: Spec) -> int | None:
    """Rows of y of a block that looks for what names them among the rows of x nearby; None where that saves nothing."""
    if not (g.last and g.flat) or 0 in (*g.space, *g.out_space):
        return None
    height, width = g.out_space[1:]
    most = min(_NEAR // (2 * x.dtype.itemsize * _group(g, x) * width), height)
    if most == 0:
        return None
    rows = -(-height // -(-height // most))
    return rows if rows == height or rows * g.space[1] >= 2 * height else None


def _near_blocks(g: Geometry, x: Spec, rows: int) -> int:
    return g.n * -(-g.channels // _group(g, x)) * -(-g.out_space[1] // rows)


def _near(g: Geometry, x: Spec, indices: Spec, aligned: bool, rows: int, device: Device) -> tuple[Plan, Plan]:
    """Two launches: blocks that look nearby, and the planes again where that was not enough."""
    (_, height, width), (_, y_height, y_width), group = g.space, g.out_space, _group(g, x)
    wide, chunks, groups = vector_length(x.dtype, aligned, g.channels, group), -(-y_height // rows), -(-g.channels // group)
    config = UnpoolNearConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], group, wide, _NEAR_THREADS)
    symbol = f"max_unpool_near_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[indices.dtype]}_g{group}"
    numbers = (g.channels, height << 32 | y_height, width << 32 | y_width, rows, *divider(y_height, y_height * height), chunks, groups)
    shared = 2 * x.dtype.itemsize * group * rows * y_width
    pointers = Array(0), Array(1), Array(2), Array(3)
    near = Plan(Kernel("pool/unpool_near.cu", symbol, config), (g.n * groups * chunks, 1, 1), _NEAR_THREADS, (*pointers, *numbers), shared)
    return near, _unpool_planes(g, x, indices, aligned, _marks(g, x, device), chunks)


def _marks(g: Geometry, x: Spec, device: Device) -> tuple[int, int]:
    """(channels of a block, places of a block) whose marks, of two bytes each, are together in shared memory: whole sectors of y, equal parts."""
    group = _group(g, x)
    room = min(_MARKS_LAST if g.last else _MARKS_FIRST, device.shared_memory // 2 - 1024) // (2 * group)
    size = math.prod(g.out_space)
    return group, -(-size // -(-size // room) // 16) * 16


def _unpool_planes(g: Geometry, x: Spec, indices: Spec, aligned: bool, marks: tuple[int, int], parts: int = 0) -> Plan:
    """One launch for a plain memory order; with `parts`, what that many blocks that looked nearby could not do, for each group of channels."""
    (group, places), size = marks, math.prod(g.out_space)
    channels, outer = (g.channels, g.n) if g.last else (1, g.n * g.channels)
    wide = vector_length(x.dtype, aligned, *((channels, group) if g.last else (size,)))
    chunks, groups, threads = -(-size // places), -(-channels // group), 512 if g.last else 256
    config = UnpoolPlanesConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], parts > 0, group, wide, threads)
    symbol = f"max_unpool_{'repairs' if parts else 'planes'}_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[indices.dtype]}_g{group}"
    numbers = (channels, math.prod(g.space), size, places, chunks, groups, Array(3 if parts else 2), parts)
    grid = (outer * groups * (1 if parts else chunks), 1, 1)
    kernel = Kernel("pool/unpool_planes.cu", symbol, config)
    return Plan(kernel, grid, threads, (Array(0), Array(1), Array(2), *numbers), 2 * group * places)


def _gradient(g: Geometry, x: Spec, indices: Spec) -> Plan:
    """The gradient for a plain memory order."""
    config = UnpoolGradientConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], _FLIGHT, THREADS)
    dividers = [n for divisor in (g.channels if g.last else 1, math.prod(g.space)) for n in divider(divisor, x.size + THREADS * _FLIGHT)]
    kernel = Kernel("pool/unpool_gradient.cu", f"max_unpool_gradient_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}", config)
    pointers, grid = (Array(0), Array(2), Array(3)), (-(-x.size // (THREADS * _FLIGHT)), 1, 1)
    return Plan(kernel, grid, THREADS, (*pointers, x.size, *dividers, math.prod(g.out_space)))


def unpool(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One or two launches with the marks in shared memory; or three: clear the marks, mark every place with the last element that names it, fetch."""
    (x, indices), y = problem.inputs, problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    rows = _near_rows(g, x) if _staged(g) and x.size else None
    if rows is not None:
        return Program(_near(g, x, indices, aligned, rows, device), (g.order, g.order))
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
        plan = _gradient(g, x, indices)
    else:
        plan = _unpool_plan(problem, 3, x.size, x, indices, (Array(0), Array(2), Array(3), Array(3)))
    return Program((plan,), (g.order, g.order, g.order))
