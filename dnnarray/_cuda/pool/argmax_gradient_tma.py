"""The algorithm ``argmax_gradient_tma``: maxima over small windows that overlap much, found again, in channels-last
memory; blocks that have all of a row share their windows, and TMA (sm_90) brings their rows."""

from __future__ import annotations

import itertools
import math

from dnnarray._cuda.core.arguments import Arguments, Box, Extent, Int, Out, Unsigned
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program, TensorMap
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.argmax_gradient import ArgmaxGradientConfig, reason, strips_by_rounds, wide_of
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import geometry_at, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, RESERVED, Side, is_apart, is_large, overtaken, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32, HALF, INT32, INT64, Spec

_LANES = 32
_PLAIN = 0  # rows of a box as they are
_BARRIER = 8  # bytes of shared memory of a barrier
_WRITING = 0.85  # of a block's threads, those that write at the least
_BUSY = 0.75  # of the multiprocessors, likewise
_WARPS = (4, 7, 8, 14, 16)  # of a block, side by side along a row


@frozen
class ArgmaxGradientTmaConfig(ArgmaxGradientConfig):
    """Compile-time settings of ``kernels/pool/argmax_gradient_tma.cu``."""

    stages: int


@frozen
class _Settings:
    """How threads share the work, as measured: columns of a thread, boxes of the ring, threads that a multiprocessor
    has registers for, warps of a block, and whether a box gives way before the maxima in it are sought."""

    columns: int
    stages: int
    room: int
    warps: tuple[int, ...] = _WARPS
    early: bool = False


@frozen
class ArgmaxGradientTmaArguments(Arguments, restrict=True):
    """What ``kernels/pool/argmax_gradient_tma.cu`` is called with."""

    dx: Out
    grad_map: Box
    x_map: Box
    channels: Extent
    chunks: Unsigned
    tiles: Unsigned
    strips: Unsigned
    steps: Int
    h: Side
    w: Side


# By whether windows are large, and are apart by 2; by whether elements are of a half type.
_TABLES: dict[tuple[bool, bool], dict[bool, _Settings]] = {
    (False, False): {True: _Settings(8, 3, 624), False: _Settings(4, 3, 1152, (*_WARPS, 28))},
    (True, False): {True: _Settings(8, 2, 512), False: _Settings(8, 3, 544)},
    (False, True): {True: _Settings(8, 2, 744, early=True)},
    (True, True): {True: _Settings(8, 2, 624, early=True), False: _Settings(8, 2, 544, early=True)},
}


@frozen
class _Blocks:
    """How blocks cover a row: with so many warps, of how many columns, and bytes of shared memory."""

    warps: int
    tiles: int
    columns: int
    windows: int
    shared: int


def _tiles(needed: int, warps: int) -> int:
    """Blocks of a row, which overlap by a warp at each end where there are several."""
    return 1 if needed <= warps else -(-needed // (warps - 2))


def _line(sums: int, seen: int, rows: int) -> int:
    """Numbers of a row of sums, as by `without_carry` of ``argmax_rows.cuh``."""
    return next(n for n in itertools.count(sums) if all(r * n % 256 + seen <= 256 for r in range(rows)))


def _blocks(g: Geometry, x: Spec, s: _Settings, warps: int) -> _Blocks:
    _, h, w = g.axes
    beside, wide = w.window - w.stride_used, wide_of(g, x)
    columns, windows, seen = warps * s.columns + beside, warps * s.columns // w.stride_used, s.columns + beside
    sums = h.window * _line(columns, seen, h.window) * wide * 4
    box = (h.stride_used * columns + windows) * wide * x.dtype.itemsize
    return _Blocks(
        warps,
        _tiles(-(-w.extent // s.columns), warps),
        columns,
        windows,
        _LANES * (sums + s.stages * box) + s.stages * _BARRIER,
    )


def _chosen(g: Geometry, x: Spec, s: _Settings, device: Device) -> _Blocks | None:
    """Those with the fewest threads that fit into shared memory, None where too many threads would write nothing."""
    chunk, needed = _LANES * wide_of(g, x), -(-g.axes[2].extent // s.columns)
    if g.channels < _WRITING * -(-g.channels // chunk) * chunk:
        return None
    warps = sorted(
        (n for n in s.warps if needed >= _WRITING * n * _tiles(needed, n)), key=lambda n: n * _tiles(needed, n)
    )
    return next((b for n in warps if (b := _blocks(g, x, s, n)).shared <= device.shared_memory), None)


def _settings(g: Geometry, x: Spec) -> _Settings | None:
    return _TABLES.get((is_large(g), is_apart(g)), {}).get(x.dtype in HALF)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if device.capability != (9, 0) or not device.aligned:
        return "it needs an sm_90 GPU, and memory at multiples of 16 bytes"
    if problem.inputs[2] is not None:
        return "the places of maxima are given"
    if found := reason(problem):
        return found
    g, x = geometry_at(problem), problem.inputs[1]
    w = g.axes[2]
    if not g.last or g.channels * x.dtype.itemsize % 16 or w.before > w.window - w.stride_used:
        return (
            "memory is not channels-last in vectors of 16 bytes, or a window lies in the padding but for less "
            "than a stride"
        )
    if (s := _settings(g, x)) is None:
        return "there are no settings for windows of this size and stride"
    # of a thread's windows; those of one half must not reach where the neighbour's other half does
    half = s.columns // w.stride_used // 2
    if (half - 1) * w.stride_used + w.window > s.columns or (half + 1) * w.stride_used < w.window:
        return "windows reach too far along a row for the columns of a thread"
    return (
        None
        if _chosen(g, x, s, device)
        else "too many threads would write nothing, or a row does not fit into shared memory"
    )


def _strips(g: Geometry, x: Spec, s: _Settings, b: _Blocks, device: Device) -> tuple[int, int, int]:
    """(blocks of a strip, rows of windows of a strip, strips)."""
    h = g.axes[1]
    chunks, rows = -(-g.channels // (_LANES * wide_of(g, x))), -(-(h.extent + h.before) // h.stride_used)
    slots = device.units * max(
        min((device.shared_memory + RESERVED) // (b.shared + RESERVED), s.room // (b.warps * _LANES)), 1
    )
    base = g.n * b.tiles * chunks
    steps = -(-rows // strips_by_rounds(base, rows, 2 * h.cover(), slots))
    return base, steps, -(-rows // steps)


def _plan(problem: PoolProblem, device: Device, g: Geometry) -> Plan:
    x, (_, h, w) = problem.inputs[1], g.axes
    s = _settings(g, x)
    b = None if s is None else _chosen(g, x, s, device)
    assert s is not None  # rejects
    assert b is not None
    base, steps, strips = _strips(g, x, s, b, device)
    chunks = -(-g.channels // (_LANES * wide_of(g, x)))
    grad_map, x_map = _maps(g, x, b, (Array(0), Array(1)))
    arguments = ArgmaxGradientTmaArguments(
        Array(2),
        grad_map,
        x_map,
        channels=g.channels,
        chunks=chunks,
        tiles=b.tiles,
        strips=strips,
        steps=steps,
        h=h.side,
        w=w.side,
    )
    return planned(_kernel(g, x, s, b), (base * strips, 1, 1), b.warps * _LANES, arguments, shared_memory=b.shared)


def cost(problem: PoolProblem, device: Device) -> Cost:
    g, x = geometry_at(problem), problem.inputs[1]
    s = _settings(g, x)
    b = None if s is None else _chosen(g, x, s, device)
    if s is None or b is None:
        return overtaken(problem, device)
    base, _, strips = _strips(g, x, s, b, device)
    return overtaken(problem, device) if base * strips < _BUSY * device.units else times(problem, 1.0)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, device, g))


def _maps(g: Geometry, x: Spec, b: _Blocks, arrays: tuple[Array, Array]) -> list[TensorMap]:
    """Of the gradient and of x; float32 by its bits, since what is moved as float32 is rounded."""
    _, h, w = g.axes
    dtype, chunk, itemsize = INT32 if x.dtype == FLOAT32 else x.dtype, _LANES * wide_of(g, x), x.dtype.itemsize
    maps = []
    for pointer, width, height, box in (
        (arrays[0], w.outputs, h.outputs, (b.windows, 1)),
        (arrays[1], w.extent, h.extent, (b.columns, h.stride_used)),
    ):
        shape = (g.channels, width, height, g.n, 1)
        strides = tuple(math.prod(shape[: i + 1]) * itemsize for i in range(4))
        maps.append(TensorMap(pointer, dtype, shape, strides, (chunk, *box, 1, 1), row=_PLAIN))
    return maps


def _kernel(g: Geometry, x: Spec, s: _Settings, b: _Blocks) -> Kernel:
    _, h, w = g.axes
    config = ArgmaxGradientTmaConfig(
        POOL_TYPES[x.dtype],
        POOL_TYPES[INT64],
        False,
        True,
        h.window,
        h.stride_used,
        w.window,
        w.stride_used,
        w.before,
        wide_of(g, x),
        s.columns,
        1,
        b.warps * _LANES,
        1,
        0,
        s.early,
        True,
        s.stages,
    )
    windows = f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}"
    name = (
        f"max_pool_argmax_gradient_tma_{POOL_SHORT[x.dtype]}_{windows}_c{s.columns}w{b.warps}s{s.stages}"
        + "_early" * s.early
    )
    return Kernel("pool/argmax_gradient_tma.cu", name, config, ("ptx/tma", "pool/window"))
