"""The algorithm ``pipelined_rows``: maxima over small windows that overlap much, in channels-last memory; rows of x
pass through a pipeline in shared memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import WindowAxis, division
from dnnarray._cuda.pool.shared import (
    INDICES,
    MAX,
    POOL_SHORT,
    POOL_TYPES,
    REDUCTIONS,
    Division,
    Indices,
    Reduction,
    Side,
    forward,
    forward_reason,
    overtaken,
    reduction_of,
    times,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32, HALF

_SMALL, _STRIDE = 3, 2  # the longest side of windows, and the strides beyond which, another kernel is as fast
_LINE = 128  # bytes of a block's channels
_ENOUGH, _FEW = 264, 4  # blocks that keep a card busy, rows of windows of each


@frozen
class PipelinedRowsConfig(Config):
    """Compile-time settings of ``kernels/pool/pipelined_rows.cu``."""

    element: str
    reduction: int
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    wide: int
    lanes: int
    across: int
    groups: int
    threads: int
    blocks: int


@frozen
class PipelinedRowsArguments(Arguments, restrict=True):
    """What ``kernels/pool/pipelined_rows.cu`` is called with."""

    x: In
    y: Out
    indices: Indices
    channels: Extent
    chunks: Division
    tile: Int
    tiles: Division
    rows: Int
    strips: Division
    h: Side
    w: Side


class Shape(NamedTuple):
    """What a block has: windows of a thread, groups of rows of the pipeline, the most threads, how many such blocks run
    side by side, rows of windows (0: one round of blocks)."""

    across: int
    groups: int
    threads: int
    blocks: int
    rows: int


class Tiles(NamedTuple):
    """How blocks share the work: channels and lanes of a vector, chunks of channels, windows of a tile, tiles of a row,
    rows of a strip, strips."""

    wide: int
    lanes: int
    chunks: int
    tile: int
    tiles: int
    rows: int
    strips: int


def _shape(dtype: np.dtype, kind: int, stride: int) -> Shape:
    if kind == MAX:
        return Shape(2, 2, 128, 6, 0) if dtype == FLOAT32 and stride == 2 else Shape(2, 3, 128, 5, 0)
    return Shape(1, 4, 128, 5, 6) if dtype == FLOAT32 else Shape(1, 4, 256, 4 if stride == 2 else 3, 7)


def _overlaps(axis: WindowAxis) -> bool:
    return axis.stride_used <= _STRIDE and axis.window > axis.stride_used


def _tiles(r: Reduction, shape: Shape, device: Device) -> Tiles:
    g, (_, h, w) = r.g, r.g.axes
    wide = 16 // r.dtype.itemsize if r.kind == MAX else 4  # four positions fill whole sectors
    inner = g.channels // wide
    lanes = min(_LINE // r.dtype.itemsize // wide, 1 << (inner - 1).bit_length())
    chunks = -(-inner // lanes)
    tile = _tile(w.outputs, shape.across, shape.threads // lanes)
    tiles = -(-w.outputs // tile)
    items = g.n * chunks * tiles
    if shape.rows:
        strips = -(-h.outputs // shape.rows)
    else:
        strips = min(max(device.units * shape.blocks // max(items, 1), 1), -(-h.outputs // _FEW))
    rows = -(-h.outputs // strips)
    return Tiles(wide, lanes, chunks, tile, tiles, rows, -(-h.outputs // rows))


def _tile(windows: int, across: int, columns: int) -> int:
    """Equal tiles of a row of windows, for up to so many columns of threads."""
    groups = -(-windows // across)
    return -(-groups // -(-groups // columns)) * across


def _shared(r: Reduction, shape: Shape, t: Tiles) -> int:
    """Bytes of shared memory of a block."""
    _, h, w = r.g.axes
    return (
        shape.groups * h.stride_used * ((t.tile - 1) * w.stride_used + w.window) * t.lanes * t.wide * r.dtype.itemsize
    )


def reason(r: Reduction, device: Device) -> str | None:
    g, (_, h, w) = r.g, r.g.axes
    if r.kind not in (MAX, INDICES) or r.magnitude or r.result != r.dtype or r.dtype not in (*HALF, FLOAT32):
        return "it finds maxima of float32, float16 and bfloat16"
    if not (g.last and g.small and _overlaps(h) and _overlaps(w)):
        return "windows do not overlap along both axes in channels-last memory, or are larger than 5 x 5"
    if max(h.window, w.window) <= _SMALL:
        return f"there are no settings for windows of up to {_SMALL} x {_SMALL}"
    if vector_length(r.dtype, device.aligned, g.channels) * r.dtype.itemsize < 16:
        return "channels are no whole vectors of 16 bytes"
    shape = _shape(r.dtype, r.kind, h.stride_used)
    t = _tiles(r, shape, device)
    if g.n * t.chunks * t.tiles * t.strips >= 1 << 31:
        return "there would be 2^31 blocks or more"
    return (
        None
        if _shared(r, shape, t) <= device.shared_memory
        else "its rows take more shared memory than a block may have"
    )


def _idle(r: Reduction, device: Device) -> bool:
    """Whether many lanes would have no channels, or there would be few blocks."""
    h = r.g.axes[1]
    t = _tiles(r, _shape(r.dtype, r.kind, h.stride_used), device)
    return (
        4 * (r.g.channels // t.wide) < 3 * t.chunks * t.lanes or r.g.n * t.chunks * t.tiles * h.outputs < _ENOUGH * _FEW
    )


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the maxima and the places."""
    g, (_, h, w) = r.g, r.g.axes
    shape = _shape(r.dtype, r.kind, h.stride_used)
    t = _tiles(r, shape, device)
    total, threads = g.n * t.chunks * t.tiles * t.strips, -(-t.tile // shape.across * t.lanes // 32) * 32
    config = PipelinedRowsConfig(
        POOL_TYPES[r.dtype],
        r.kind,
        h.window,
        h.stride_used,
        w.window,
        w.stride_used,
        t.wide,
        t.lanes,
        shape.across,
        shape.groups,
        threads,
        shape.blocks,
    )
    words = (
        f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}"
        f"_l{t.lanes}a{shape.across}g{shape.groups}t{threads}b{shape.blocks}"
    )
    name = f"{REDUCTIONS[r.kind]}_pool_pipelined_rows_{POOL_SHORT[r.dtype]}x{t.wide}_{words}"
    arguments = PipelinedRowsArguments(
        *arrays,
        channels=g.channels,
        chunks=division(t.chunks, total),
        tile=t.tile,
        tiles=division(t.tiles, total),
        rows=t.rows,
        strips=division(t.strips, total),
        h=h.side,
        w=w.side,
    )
    kernel = Kernel("pool/pipelined_rows.cu", name, config, ("pool/window",))
    return planned(kernel, (total, 1, 1), threads, arguments, shared_memory=_shared(r, shape, t))


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def cost(problem: PoolProblem, device: Device) -> Cost:
    return overtaken(problem, device) if _idle(reduction_of(problem), device) else times(problem, 1.0)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
