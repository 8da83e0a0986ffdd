"""Maxima of small windows that overlap, with their places, in channels-first memory: blocks that stay fetch long runs of a plane's rows by the copy engine (sm_90)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnarray._cuda.core.plan import Array, Kernel, Plan
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES
from dnnarray._cuda.pool_geometry import Geometry, divider
from dnnarray._cuda.pool_runs import HEAD, LINE, RESERVED, RUN, WARP, RunsConfig, lanes_of, spread_evenly
from dnnarray._cuda.pool_winners import is_apart, is_large, windows_overlap
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32

_BLOCKS = 32  # that a multiprocessor runs at the most
_AT_WORK = 0.8  # of the multiprocessors, those that have a tile, at the least


@frozen
class Settings:
    """How threads share the work, as measured: columns of a thread, threads of a block, the most rows of windows of a strip, tiles of a block under way, and blocks
    of a multiprocessor."""

    columns: int
    threads: int
    rows: int
    stages: int
    blocks: int


_SETTINGS = Settings(4, 128, 7, 1, 8), Settings(8, 64, 7, 1, 8)  # the first that fits


def maxima_runs_plan(g: Geometry, dtype: np.dtype, device: Device, aligned: bool, pointers: tuple[Array, ...]) -> Plan | None:
    """The launch, None where strips are faster: where windows are small for how far they move, and where there are few tiles."""
    suits = device.capability == (9, 0) and aligned and g.first and dtype == FLOAT32
    if not (suits and windows_overlap(g) and is_large(g) and is_apart(g)):
        return None
    plans = (plan_with(s, g, dtype, device, pointers) for s in _SETTINGS)
    plan = next((p for p in plans if p is not None), None)
    return None if plan is None or plan.grid[0] < _AT_WORK * device.units else plan


def plan_with(s: Settings, g: Geometry, dtype: np.dtype, device: Device, pointers: tuple[Array, ...]) -> Plan | None:
    """The launch with these settings."""
    _, h, w = g.axes
    lanes = lanes_of(w.extent // s.columns)
    if not lanes or not spread_evenly(w, s.columns) or w.extent * dtype.itemsize % RUN:
        return None
    threads = min(
        s.threads, -(-lanes * -(-h.outputs // s.rows) // WARP) * WARP
    )  # those of low planes that would have few rows are other blocks'
    s = replace(s, threads=threads, blocks=min(s.blocks * s.threads // threads, _BLOCKS))
    strips = s.threads // lanes
    steps = -(-h.outputs // (strips * -(-h.outputs // (strips * s.rows))))
    count = -(-h.outputs // (strips * steps))
    rows = min((strips * steps - 1) * h.stride_used + h.window, h.extent)
    stage = -(-rows * w.extent * dtype.itemsize // LINE) * LINE
    shared = HEAD + s.stages * stage
    if shared > device.shared_memory:
        return None
    total = g.outer * count
    slots = device.units * min((device.shared_memory + RESERVED) // (shared + RESERVED), s.blocks)
    config = RunsConfig(
        POOL_TYPES[dtype], h.window, h.stride_used, w.window, w.stride_used, w.before, s.columns, lanes, s.threads, s.blocks, s.stages
    )  # fmt: skip
    words = f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}_c{s.columns}l{lanes}t{s.threads}b{s.blocks}s{s.stages}"
    kernel = Kernel("pool/maxima_runs_sm90.cu", f"max_pool_runs_{POOL_SHORT[dtype]}_{words}", config)
    numbers = (total, *divider(count, total), h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3], steps, stage)
    return Plan(kernel, (min(total, slots), 1, 1), s.threads, (*pointers, *numbers), shared)
