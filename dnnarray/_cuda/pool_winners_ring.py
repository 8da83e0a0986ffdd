"""The gradient of maxima over small windows that overlap much, in channels-last memory, where they are sought: blocks that have all of a row share their windows,
and the copy engine (TMA, sm_90) brings their rows."""

from __future__ import annotations

import itertools
import math

from dnnarray._cuda.core.plan import Array, Kernel, Plan, TensorMap
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES
from dnnarray._cuda.pool_geometry import Geometry
from dnnarray._cuda.pool_winners import WinnersConfig, is_apart, is_large, overlap, strips_by_rounds, wide_of
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF, INT32, INT64, Spec

_LANES = 32
_PLAIN = 0  # rows of a box as they are
_BARRIER, _RESERVED = 8, 1024  # bytes of shared memory: of a barrier, and that a block takes beside its own
_WRITING = 0.85  # of a block's threads, those that write at the least
_BUSY = 0.75  # of the multiprocessors, likewise
_WARPS = (4, 7, 8, 14, 16)  # of a block, side by side along a row


@frozen
class WinnersRingConfig(WinnersConfig):
    """Compile-time settings of ``kernels/pool/winners_ring_sm90.cu``."""

    stages: int


@frozen
class _Settings:
    """How threads share the work, as measured: columns of a thread, boxes of the ring, threads that a multiprocessor has registers for, warps of a block, and
    whether a box gives way before the maxima in it are sought."""

    columns: int
    stages: int
    room: int
    warps: tuple[int, ...] = _WARPS
    early: bool = False


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
    """Numbers of a row of sums, as by `without_carry` of ``winners_rows.cuh``."""
    return next(n for n in itertools.count(sums) if all(r * n % 256 + seen <= 256 for r in range(rows)))


def _blocks(g: Geometry, x: Spec, s: _Settings, warps: int) -> _Blocks:
    _, h, w = g.axes
    beside, wide = w.window - w.stride_used, wide_of(g, x)
    columns, windows, seen = warps * s.columns + beside, warps * s.columns // w.stride_used, s.columns + beside
    sums = h.window * _line(columns, seen, h.window) * wide * 4
    box = (h.stride_used * columns + windows) * wide * x.dtype.itemsize
    return _Blocks(
        warps, _tiles(-(-w.extent // s.columns), warps), columns, windows, _LANES * (sums + s.stages * box) + s.stages * _BARRIER
    )


def _chosen(g: Geometry, x: Spec, s: _Settings, device: Device) -> _Blocks | None:
    """Those with the fewest threads that fit into shared memory, None where too many threads would write nothing."""
    chunk, needed = _LANES * wide_of(g, x), -(-g.axes[2].extent // s.columns)
    if g.channels < _WRITING * -(-g.channels // chunk) * chunk:
        return None
    warps = sorted((n for n in s.warps if needed >= _WRITING * n * _tiles(needed, n)), key=lambda n: n * _tiles(needed, n))
    return next((b for n in warps if (b := _blocks(g, x, s, n)).shared <= device.shared_memory), None)


def ring_plan(g: Geometry, x: Spec, device: Device, aligned: bool, pointers: tuple[Array, Array, Array]) -> Plan | None:
    """The launch, None where another is better. `pointers` are of the gradient, x and the result."""
    _, h, w = g.axes
    if device.capability != (9, 0) or not (aligned and g.last and overlap(g, x)):
        return None
    s = _TABLES.get((is_large(g), is_apart(g)), {}).get(x.dtype in HALF)
    if s is None or g.channels * x.dtype.itemsize % 16 or w.before > w.window - w.stride_used:
        return None
    half = s.columns // w.stride_used // 2  # of a thread's windows; those of one half must not reach where the neighbour's other half does
    if (half - 1) * w.stride_used + w.window > s.columns or (half + 1) * w.stride_used < w.window:
        return None
    if (b := _chosen(g, x, s, device)) is None:
        return None
    chunks, rows = -(-g.channels // (_LANES * wide_of(g, x))), -(-(h.extent + h.before) // h.stride_used)
    slots = device.units * max(min((device.shared_memory + _RESERVED) // (b.shared + _RESERVED), s.room // (b.warps * _LANES)), 1)
    base = g.n * b.tiles * chunks
    steps = -(-rows // strips_by_rounds(base, rows, 2 * h.cover(), slots))
    strips = -(-rows // steps)
    if base * strips < _BUSY * device.units:
        return None
    numbers = (g.channels, chunks, b.tiles, strips, h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3], steps)
    arguments: tuple[Array | TensorMap | int, ...] = (*_maps(g, x, b, pointers), pointers[2], *numbers)
    return Plan(_kernel(g, x, s, b), (base * strips, 1, 1), b.warps * _LANES, arguments, b.shared)


def _maps(g: Geometry, x: Spec, b: _Blocks, pointers: tuple[Array, Array, Array]) -> list[TensorMap]:
    """Of the gradient and of x; float32 by its bits, since what is moved as float32 is rounded."""
    _, h, w = g.axes
    dtype, chunk, itemsize = INT32 if x.dtype == FLOAT32 else x.dtype, _LANES * wide_of(g, x), x.dtype.itemsize
    maps = []
    for pointer, width, height, box in (
        (pointers[0], w.outputs, h.outputs, (b.windows, 1)),
        (pointers[1], w.extent, h.extent, (b.columns, h.stride_used)),
    ):
        shape = (g.channels, width, height, g.n, 1)
        strides = tuple(math.prod(shape[: i + 1]) * itemsize for i in range(4))
        maps.append(TensorMap(pointer, dtype, shape, strides, (chunk, *box, 1, 1), row=_PLAIN))
    return maps


def _kernel(g: Geometry, x: Spec, s: _Settings, b: _Blocks) -> Kernel:
    _, h, w = g.axes
    config = WinnersRingConfig(
        POOL_TYPES[x.dtype], POOL_TYPES[INT64], False, True, h.window, h.stride_used, w.window, w.stride_used, w.before, wide_of(g, x),
        s.columns, 1, b.warps * _LANES, 1, 0, s.early, True, s.stages,
    )  # fmt: skip
    windows = f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}"
    name = f"max_pool_winners_ring_{POOL_SHORT[x.dtype]}_{windows}_c{s.columns}w{b.warps}s{s.stages}" + "_early" * s.early
    return Kernel("pool/winners_ring_sm90.cu", name, config)
