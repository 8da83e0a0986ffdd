"""Gradients of pooling where windows of any kind are fetched once for many elements: bands in shared memory, or several columns of a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, RULES, THREADS, row_of_threads
from dnnarray._cuda.pool_geometry import Geometry, divider
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64, Spec

_BLOCK = 256  # threads that share a band
_ENOUGH = 264  # blocks that keep a card busy
_SMALL = 16 << 10  # bytes of shared memory up to which a block takes further planes
_LARGE = 76 << 10  # bytes of a band
_COVER = 8  # bytes that say which windows cover a row
_KINDS = 16  # rounds of windows that do not overlap
_COLUMNS = 4  # that a thread owns in channels-last memory
_MET = 6  # windows that the columns of a thread meet
_WALK, _WALKERS = 8, 1 << 16  # rows that a thread walks down where so many threads remain


@frozen
class PlacesConfig(Config):
    """Compile-time settings of ``kernels/pool/places.cu``."""

    element: str
    saved: str
    place: bool
    adaptive: bool
    wide: int
    row: int
    threads: int


@frozen
class SharesConfig(Config):
    """Compile-time settings of ``kernels/pool/shares.cu``."""

    element: str
    adaptive: bool
    wide: int
    row: int
    threads: int


@frozen
class GatherColumnsConfig(Config):
    """Compile-time settings of ``kernels/pool/gather_columns.cu``."""

    element: str
    saved: str
    rule: int
    adaptive: bool
    columns: int
    wide: int
    threads: int


@frozen
class WalkConfig(Config):
    """Compile-time settings of ``kernels/pool/walk.cu``."""

    element: str
    last: bool
    adaptive: bool
    most: int
    wide: int
    threads: int


class Bands(NamedTuple):
    """How blocks share planes: planes of a block, rows of a band, bands of a plane."""

    planes: int
    rows: int
    bands: int


def shared_plan(g: Geometry, x: Spec, saved: np.dtype, rule: int, device: Device, padded: bool, aligned: bool,
                pointers: tuple[Array, ...]) -> Plan | None:  # fmt: skip
    """The gradient of maxima (`rule` 0 and 1: by tap, by place) or means (2); None where these kernels do not know the memory order or the windows."""
    grad, _, third, output = pointers
    room = min(_LARGE, device.shared_memory)
    dense = all(a.dilation == 1 for a in g.axes)
    if g.last and dense and rule < 3:
        return _gather_columns(g, x, saved, rule, padded, aligned, (grad, third, output))
    if g.first and g.flat and rule < 2 and _kinds(g)[0] * _kinds(g)[1] <= _KINDS and g.length < 1 << 31:
        return _places(g, x, saved, rule, room, aligned, (grad, third, output))
    if g.first and g.flat and rule == 2 and dense:
        return _shares(g, x, room, padded, aligned, (grad, output))
    return None


def walk_plan(g: Geometry, x: Spec, padded: bool, aligned: bool, pointers: tuple[Array, ...]) -> Plan | None:
    """The gradient of means where a row lies in at most two rows of windows; None where it may not, or where memory or windows do not suit it."""
    _, h, w = g.axes
    wide = vector_length(x.dtype, aligned, g.channels if g.last else w.extent)
    most = w.met_by(1 if g.last else wide)
    if (
        not g.flat
        or not (g.first or g.last)
        or h.cover() > 2
        or not h.dilation == w.dilation == 1
        or most > _MET
        or h.extent * w.extent >= 1 << 31
    ):
        return None
    if wide * x.dtype.itemsize < 8:
        return None
    inner, groups = (g.channels // wide, w.extent) if g.last else (1, w.extent // wide)
    rows = min(h.extent, _WALK if g.outer * inner * groups * h.extent >= _WALK * _WALKERS else 4)
    strips = -(-h.extent // rows)
    total = g.outer * strips * groups * inner
    config = WalkConfig(POOL_TYPES[x.dtype], g.last, g.adaptive, most, wide, THREADS)
    words = [f"mean_pool_walk_{POOL_SHORT[x.dtype]}x{wide}", "last" if g.last else "first"] + ["adaptive"] * g.adaptive + [f"m{most}"]
    dividers = [n for divisor in (inner, groups, strips) for n in divider(divisor, total)]
    numbers = (total, *dividers, rows, *h.packed(g.adaptive), *w.packed(g.adaptive), int(padded))
    return Plan(Kernel("pool/walk.cu", "_".join(words), config), (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers))


def _width(x: Spec) -> int:
    """Bytes of a sum."""
    return max(x.dtype.itemsize, 4)


def _kinds(g: Geometry) -> tuple[int, int]:
    """Along H and W, how many windows follow each other before one does not overlap the first."""
    return max(g.axes[1].cover(), 1), max(g.axes[2].cover(), 1)


def _fitting(g: Geometry, room: int, size: Callable[[int], int]) -> Bands | None:
    """Bands for which there is room, where one of so many rows takes `size` bytes; None where not even a row fits."""
    height = g.axes[1].extent
    bands = 1
    while size(-(-height // bands)) > room:
        if bands >= height:
            return None
        bands *= 2
    rows = -(-height // bands)
    planes = max(1, min(_SMALL // max(size(height), 1), g.outer // _ENOUGH)) if bands == 1 else 1
    return Bands(planes, rows, -(-height // rows))


def _blocks(g: Geometry, bands: Bands) -> int:
    return -(-g.outer // bands.planes) * bands.bands


def _places(g: Geometry, x: Spec, saved: np.dtype, rule: int, room: int, aligned: bool, pointers: tuple[Array, ...]) -> Plan | None:
    """What a window gets goes to the place of its maximum, in shared memory."""
    _, h, w = g.axes
    kinds, line = _kinds(g), (_width(x) + 4) * w.outputs  # bytes of a row of windows
    bands = _fitting(g, room, lambda rows: _width(x) * rows * w.extent + _windows(g, rows) * line)
    if bands is None:
        return None
    windows = _windows(g, bands.rows)
    wide = vector_length(x.dtype, aligned, bands.rows * w.extent, h.extent * w.extent)
    row = row_of_threads(w.outputs)
    config = PlacesConfig(POOL_TYPES[x.dtype], POOL_TYPES[saved], rule == 1, g.adaptive, wide, row, _BLOCK)
    words = [f"max_pool_places_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[saved]}"] + ["place"] * (rule == 1) + ["adaptive"] * g.adaptive
    taps = divider(w.extent if rule == 1 else w.window, (1 << 31) - 1)
    numbers = (g.outer, *bands, windows, *taps, *kinds, *h.packed(g.adaptive), *w.packed(g.adaptive))
    shared = bands.planes * (_width(x) * bands.rows * w.extent + windows * line) + 32
    kernel = Kernel("pool/places.cu", "_".join([*words, f"r{row}"]), config)
    return Plan(kernel, (_blocks(g, bands), 1, 1), _BLOCK, (*pointers, *numbers), shared)


def _shares(g: Geometry, x: Spec, room: int, padded: bool, aligned: bool, pointers: tuple[Array, ...]) -> Plan | None:
    """Means: sums over windows first along the rows of windows, then down the columns, in shared memory."""
    _, h, w = g.axes
    line = _width(x) * (w.extent + w.outputs)  # bytes of a row of windows
    bands = _fitting(g, room, lambda rows: _windows(g, rows) * line + _COVER * rows)
    if bands is None:
        return None
    wide = 1 if x.dtype == FLOAT64 else vector_length(x.dtype, aligned, w.extent)  # two doubles would spill
    row = row_of_threads(w.extent // wide)
    config = SharesConfig(POOL_TYPES[x.dtype], g.adaptive, wide, row, _BLOCK)
    words = [f"mean_pool_shares_{POOL_SHORT[x.dtype]}x{wide}"] + ["adaptive"] * g.adaptive + [f"r{row}"]
    windows = _windows(g, bands.rows)
    numbers = (g.outer, *bands, windows, *h.packed(g.adaptive), *w.packed(g.adaptive), int(padded))
    kernel = Kernel("pool/shares.cu", "_".join(words), config)
    shared = bands.planes * windows * line + _COVER * bands.rows
    return Plan(kernel, (_blocks(g, bands), 1, 1), _BLOCK, (*pointers, *numbers), shared)


def _windows(g: Geometry, rows: int) -> int:
    """The most rows of windows that look at so many rows of x."""
    h = g.axes[1]
    most = rows * h.outputs // h.extent + 2 if g.adaptive else (rows - 1 + (h.window - 1) * h.dilation) // h.stride + 1
    return max(min(most, h.outputs), 1)


def _gather_columns(g: Geometry, x: Spec, saved: np.dtype, rule: int, padded: bool, aligned: bool, pointers: tuple[Array, ...]) -> Plan:
    """Channels-last: a thread sums for a few columns of a vector of channels."""
    d, h, w = g.axes
    wide = vector_length(x.dtype, aligned, g.channels)
    inner, groups = g.channels // wide, -(-w.extent // _COLUMNS)
    total = g.outer * d.extent * h.extent * groups * inner
    config = GatherColumnsConfig(POOL_TYPES[x.dtype], POOL_TYPES[saved], rule, g.adaptive, _COLUMNS, wide, THREADS)
    words = [f"{RULES[rule]}_pool_gather_columns_{POOL_SHORT[x.dtype]}x{wide}"] + [f"by_{POOL_SHORT[saved]}"] * (rule < 2)
    dividers = [n for divisor in (inner, groups, h.extent, d.extent) for n in divider(divisor, total)]
    axes = [n for axis in g.axes for n in axis.packed(g.adaptive)]
    kernel = Kernel("pool/gather_columns.cu", "_".join([*words, *["adaptive"] * g.adaptive]), config)
    return Plan(kernel, (-(-total // THREADS), 1, 1), THREADS, (*pointers, total, *dividers, *axes, int(padded)))
