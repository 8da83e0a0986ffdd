"""The algorithm ``bulk_argmax``: maxima of small windows that overlap, with their places, in channels-first memory;
blocks that stay fetch long runs of a plane's rows by TMA (sm_90)."""

from __future__ import annotations

from dataclasses import replace

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.bulk import HEAD, LINE, RUN, WARP, BulkConfig, lanes_of, spread_evenly
from dnnarray._cuda.pool.geometry import division
from dnnarray._cuda.pool.shared import (
    INDICES,
    POOL_SHORT,
    POOL_TYPES,
    RESERVED,
    Division,
    Indices,
    Reduction,
    Side,
    forward,
    forward_reason,
    is_apart,
    is_large,
    overtaken,
    reduction_of,
    times,
    windows_overlap,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32

_BLOCKS = 32  # that a multiprocessor runs at the most
_AT_WORK = 0.8  # of the multiprocessors, those that have a tile, at the least


@frozen
class Settings:
    """How threads share the work, as measured: columns of a thread, threads of a block, the most rows of windows of a
    strip, tiles of a block under way, and blocks of a multiprocessor."""

    columns: int
    threads: int
    rows: int
    stages: int
    blocks: int


@frozen
class BulkArgmaxArguments(Arguments, restrict=True):
    """What ``kernels/pool/bulk_argmax.cu`` is called with."""

    x: In
    y: Out
    indices: Indices
    total: Extent
    tiles: Division
    steps: Int
    stage: Int
    h: Side
    w: Side


_SETTINGS = Settings(4, 128, 7, 1, 8), Settings(8, 64, 7, 1, 8)  # the first that fits


@frozen
class Tiles:
    """How planes are cut: the settings that fit, lanes of a row, rows of windows of a strip, tiles of a plane and of
    all, bytes of a tile, blocks."""

    settings: Settings
    lanes: int
    steps: int
    count: int
    total: int
    stage: int
    blocks: int

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return HEAD + self.settings.stages * self.stage


def _tiles(s: Settings, r: Reduction, device: Device) -> Tiles | None:
    """How planes are cut with these settings, None where they do not fit."""
    g, (_, h, w) = r.g, r.g.axes
    lanes = lanes_of(w.extent // s.columns)
    if not lanes or not spread_evenly(w, s.columns) or w.extent * r.dtype.itemsize % RUN:
        return None
    # Threads of low planes that would have few rows are other blocks'.
    threads = min(s.threads, -(-lanes * -(-h.outputs // s.rows) // WARP) * WARP)
    s = replace(s, threads=threads, blocks=min(s.blocks * s.threads // threads, _BLOCKS))
    strips = s.threads // lanes
    steps = -(-h.outputs // (strips * -(-h.outputs // (strips * s.rows))))
    count = -(-h.outputs // (strips * steps))
    rows = min((strips * steps - 1) * h.stride_used + h.window, h.extent)
    stage = -(-rows * w.extent * r.dtype.itemsize // LINE) * LINE
    shared = HEAD + s.stages * stage
    if shared > device.shared_memory:
        return None
    total = g.outer * count
    slots = device.units * min((device.shared_memory + RESERVED) // (shared + RESERVED), s.blocks)
    return Tiles(s, lanes, steps, count, total, stage, min(total, slots))


def _fitting(r: Reduction, device: Device) -> Tiles | None:
    return next((t for s in _SETTINGS if (t := _tiles(s, r, device)) is not None), None)


def reason(r: Reduction, device: Device) -> str | None:
    g = r.g
    if device.capability != (9, 0):
        return "it needs an sm_90 GPU"
    if r.kind != INDICES or r.magnitude or r.dtype != FLOAT32 or not device.aligned:
        return "it finds places of maxima of float32 in memory at multiples of 16 bytes"
    if not (g.first and windows_overlap(g)):
        return "windows are larger than 5 x 5 or do not overlap, or memory is not channels-first"
    if not (is_large(g) and is_apart(g)):
        return "there are no settings but for windows of 5 that move by 2"
    return None if _fitting(r, device) else "rows are no whole vectors, or leave lanes idle"


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the maxima and the places."""
    t = _fitting(r, device)
    assert t is not None  # reason
    s, (_, h, w) = t.settings, r.g.axes
    config = BulkConfig(
        POOL_TYPES[r.dtype],
        h.window,
        h.stride_used,
        w.window,
        w.stride_used,
        w.before,
        s.columns,
        t.lanes,
        s.threads,
        s.blocks,
        s.stages,
    )
    words = (
        f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}"
        f"_c{s.columns}l{t.lanes}t{s.threads}b{s.blocks}s{s.stages}"
    )
    kernel = Kernel(
        "pool/bulk_argmax.cu", f"max_pool_bulk_argmax_{POOL_SHORT[r.dtype]}_{words}", config, ("pool/window",)
    )
    tiles = division(t.count, t.total)
    arguments = BulkArgmaxArguments(
        *arrays, total=t.total, tiles=tiles, steps=t.steps, stage=t.stage, h=h.side, w=w.side
    )
    return planned(kernel, (t.blocks, 1, 1), s.threads, arguments, shared_memory=t.shared)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def cost(problem: PoolProblem, device: Device) -> Cost:
    t = _fitting(reduction_of(problem), device)
    return overtaken(problem, device) if t is None or t.blocks < _AT_WORK * device.units else times(problem, 1.0)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
