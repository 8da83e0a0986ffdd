"""Maxima over small windows that overlap much, in channels-last memory: rows of x pass through a ring in shared memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.pool_common import INDICES, MAX, POOL_SHORT, POOL_TYPES, REDUCTIONS
from dnnarray._cuda.pool_geometry import Geometry, WindowAxis, divider
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF

_SMALL, _STRIDE = 3, 2  # the longest side of windows, and the strides beyond which, another kernel is as fast
_LINE = 128  # bytes of a block's channels
_ENOUGH, _FEW = 264, 4  # blocks that keep a card busy, rows of windows of each


@frozen
class RingConfig(Config):
    """Compile-time settings of ``kernels/pool/ring.cu``."""

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


class Shape(NamedTuple):
    """What a block has: windows of a thread, groups of rows of the ring, the most threads, how many such blocks run side by side, rows of windows (0: one round of blocks)."""

    across: int
    groups: int
    threads: int
    blocks: int
    rows: int


def _shape(dtype: np.dtype, reduction: int, stride: int) -> Shape:
    if reduction == MAX:
        return Shape(2, 2, 128, 6, 0) if dtype == FLOAT32 and stride == 2 else Shape(2, 3, 128, 5, 0)
    return Shape(1, 4, 128, 5, 6) if dtype == FLOAT32 else Shape(1, 4, 256, 4 if stride == 2 else 3, 7)


def _overlaps(axis: WindowAxis) -> bool:
    return axis.stride_used <= _STRIDE and axis.window > axis.stride_used


def ring_plan(g: Geometry, dtype: np.dtype, reduction: int, aligned: bool, device: Device, pointers: tuple[Array, ...]) -> Plan | None:
    """The maxima, with or without their places; None where memory or windows do not suit, or where there is too little to do."""
    _, h, w = g.axes
    if reduction not in (MAX, INDICES) or dtype not in (*HALF, FLOAT32) or not (g.last and g.small):
        return None
    if (
        not (_overlaps(h) and _overlaps(w))
        or max(h.window, w.window) <= _SMALL
        or vector_length(dtype, aligned, g.channels) * dtype.itemsize < 16
    ):
        return None
    shape = _shape(dtype, reduction, h.stride_used)
    wide = 16 // dtype.itemsize if reduction == MAX else 4  # four positions fill whole sectors
    inner = g.channels // wide
    lanes = min(_LINE // dtype.itemsize // wide, 1 << (inner - 1).bit_length())
    chunks = -(-inner // lanes)
    tile = _tile(w.outputs, shape.across, shape.threads // lanes)
    tiles = -(-w.outputs // tile)
    items = g.n * chunks * tiles
    if 4 * inner < 3 * chunks * lanes or items * h.outputs < _ENOUGH * _FEW:
        return None
    strips = -(-h.outputs // shape.rows) if shape.rows else min(max(device.units * shape.blocks // items, 1), -(-h.outputs // _FEW))
    rows = -(-h.outputs // strips)
    strips = -(-h.outputs // rows)
    total, threads = items * strips, -(-tile // shape.across * lanes // 32) * 32
    shared = shape.groups * h.stride_used * ((tile - 1) * w.stride_used + w.window) * lanes * wide * dtype.itemsize
    if total >= 1 << 31 or shared > device.shared_memory:
        return None
    config = RingConfig(
        POOL_TYPES[dtype], reduction, h.window, h.stride_used, w.window, w.stride_used, wide, lanes, shape.across, shape.groups, threads, shape.blocks
    )  # fmt: skip
    words = f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_l{lanes}a{shape.across}g{shape.groups}t{threads}b{shape.blocks}"
    kernel = Kernel("pool/ring.cu", f"{REDUCTIONS[reduction]}_pool_ring_{POOL_SHORT[dtype]}x{wide}_{words}", config)
    sizes = (g.channels, *divider(chunks, total), tile, *divider(tiles, total), rows, *divider(strips, total))
    axes = (h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3])
    return Plan(kernel, (total, 1, 1), threads, (*pointers, *sizes, *axes), shared)


def _tile(windows: int, across: int, columns: int) -> int:
    """Equal tiles of a row of windows, for up to so many columns of threads."""
    groups = -(-windows // across)
    return -(-groups // -(-groups // columns)) * across
