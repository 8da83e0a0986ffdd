"""What pooling by bulk copies of a plane's rows shares: the settings of its kernels, and how the lanes of a warp share
a row (sm_90)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnnarray._cuda.core.arguments import Arguments, Extent, Int
from dnnarray._cuda.core.plan import Config
from dnnarray._cuda.pool.geometry import Geometry, WindowAxis, division
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, RESERVED, Division, Side, is_apart, is_large
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF, Spec

HEAD, LINE, RUN = (
    128,
    128,
    16,
)  # bytes of shared memory before the tiles, and what parts of tiles and runs are multiples of
LANES, WARP = (4, 8, 16, 32), 32  # that may have a row
BUSY = 0.8  # of the lanes, those that have columns, at the least
_FEW = 4  # rows of x of a strip, below which too many are read twice
_ROWS = 4096  # of a plane, at the most: what numbers NaN are told apart by
_LEAST = 7 << 10  # bytes of a tile, below which its start takes too long


@frozen
class BulkConfig(Config):
    """Compile-time settings of the kernels."""

    element: str
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    before: int
    columns: int
    lanes: int
    threads: int
    blocks: int
    stages: int


def lanes_of(groups: int) -> int:
    """Lanes of a row of so many groups of columns, 0 where too many would be idle."""
    lanes = next((n for n in LANES if n >= groups), 0)
    return lanes if groups >= BUSY * lanes else 0


def spread_evenly(w: WindowAxis, columns: int) -> bool:
    """Whether each thread has as many windows as columns of x, and only neighbours look at its columns."""
    return w.extent % columns == 0 and w.outputs * w.stride_used == w.extent and w.before <= w.window - w.stride_used


# --- gradients --------------------------------------------------------------------------------------------------------


@frozen
class GradientConfig(BulkConfig):
    """Compile-time settings of the kernels of gradients."""

    turns: bool


@frozen
class GradientArguments(Arguments, restrict=True):
    """The numbers of the kernels of gradients: how many tiles there are, and of a plane, rows of windows of a strip,
    bytes of a stage, both axes."""

    total: Extent
    tiles: Division
    steps: Int
    room: Int
    stage: Int
    h: Side
    w: Side


@frozen
class Settings:
    """How threads share the work, as measured: columns of a thread, threads of a block, the most rows of x of a strip,
    tiles of a block under way, and blocks of a multiprocessor; whether the loop is unrolled until rows are in the same
    registers again."""

    columns: int
    threads: int
    rows: int
    stages: int
    blocks: int
    turns: bool = False


Table = dict[
    tuple[bool, bool], dict[bool, Settings]
]  # by whether windows are large, and are apart by 2; by whether elements are of a half type


def settings_of(table: Table, g: Geometry, x: Spec) -> Settings | None:
    """The settings for a gradient, None where others are faster."""
    s = table.get((is_large(g), is_apart(g)), {}).get(x.dtype in HALF)
    # registers than three rows and columns take
    more = is_apart(g) and not is_large(g) and max(a.window for a in g.axes[1:]) > 3
    return replace(s, blocks=s.blocks - 1) if s is not None and more else s


@frozen
class Tiles:
    """How a plane is cut: lanes of a row, rows of windows of a strip, tiles, and bytes of a tile's rows of x (or
    places), of all of it, and of the block."""

    lanes: int
    steps: int
    count: int
    room: int
    stage: int
    shared: int


def _fitted(s: Settings, w: WindowAxis, rows: int, wider: bool) -> Settings:
    """The settings for planes of so many rows: more columns where lanes would not do, and of threads that would have no
    rows other blocks', whose tiles are then small enough that more blocks do instead of a second tile."""
    columns = s.columns if w.extent <= s.columns * LANES[-1] or not wider else 2 * s.columns
    strips = -(-rows // s.rows)
    threads = min(s.threads, -(-lanes_of(w.extent // columns) * strips // WARP) * WARP)
    stages = s.stages if threads == s.threads else 1
    return replace(
        s,
        columns=columns,
        threads=threads,
        stages=stages,
        blocks=s.blocks * s.stages // stages * s.threads // max(threads, 1),
    )


def _cut(s: Settings) -> Settings | None:
    """The settings with tiles half as high, None where they are low. Which rows lie in a tile does not change the order
    of any sum."""
    if s.threads > WARP and s.threads // 2 % WARP == 0:
        return replace(s, threads=s.threads // 2, blocks=2 * s.blocks)
    return replace(s, rows=s.rows // 2) if s.rows >= 2 * _FEW else None


def _lines(rows: int, width: int, itemsize: int) -> int:
    """Bytes of shared memory for a run that may begin and end within a piece of 16."""
    return -(-(rows * width * itemsize + 2 * RUN) // LINE) * LINE


def _tiles(s: Settings, g: Geometry, x: Spec, indices: Spec | None) -> Tiles | None:
    _, h, w = g.axes
    lanes = lanes_of(w.extent // s.columns)
    if lanes == 0:
        return None
    strips, more = s.threads // lanes, (h.window - 1) // h.stride_used
    # of windows, below which rows of x are written
    rows = -(-(h.extent + h.before) // h.stride_used) - h.before // h.stride_used
    steps = -(-rows // (strips * -(-rows // (strips * (s.rows // h.stride_used)))))
    windows = min(strips * steps + more, h.outputs)
    if indices is None:
        room = _lines(min((strips * steps + more - 1) * h.stride_used + h.window, h.extent), w.extent, x.dtype.itemsize)
        sums = 0
    else:
        room = _lines(windows, w.outputs, indices.dtype.itemsize)
        sums = (h.window * (s.columns + w.window - w.stride_used) + 1) * s.threads * 4
    stage = room + _lines(windows, w.outputs, x.dtype.itemsize)
    return Tiles(lanes, steps, -(-rows // (strips * steps)), room, stage, HEAD + sums + s.stages * stage)


@frozen
class Cut:
    """How planes are cut: with these settings, into these tiles, all of them, and blocks that run at once."""

    settings: Settings
    tiles: Tiles
    total: int
    blocks: int


def cut_of(table: Table, g: Geometry, x: Spec, indices: Spec | None, device: Device) -> Cut | None:
    """How planes are cut for a gradient, None where they do not fit."""
    _, h, w = g.axes
    s = settings_of(table, g, x)
    if s is None:
        return None
    s = _fitted(s, w, h.extent, indices is None)
    source, width, height = (x, w.extent, h.extent) if indices is None else (indices, w.outputs, h.outputs)
    planes = (h.outputs * w.outputs * x.dtype.itemsize, height * width * source.dtype.itemsize)
    if (
        not spread_evenly(w, s.columns)
        or h.extent > _ROWS
        or any(n % RUN for n in planes)
        or w.extent * x.dtype.itemsize % RUN
    ):
        return None
    if (t := _tiles(s, g, x, indices)) is None or t.stage < _LEAST or t.shared > device.shared_memory:
        return None
    while g.outer * t.count < (slots := _slots(s, t, device)) and (lower := _cut(s)) is not None:
        s, t = lower, _tiles(lower, g, x, indices) or t
    return Cut(s, t, g.outer * t.count, min(g.outer * t.count, slots))


def _slots(s: Settings, t: Tiles, device: Device) -> int:
    """Blocks that run at once."""
    return device.units * min((device.shared_memory + RESERVED) // (t.shared + RESERVED), s.blocks)


def config_of(g: Geometry, x: Spec, cut: Cut) -> GradientConfig:
    """The settings that the kernels of gradients have in common."""
    (_, h, w), s = g.axes, cut.settings
    return GradientConfig(
        POOL_TYPES[x.dtype],
        h.window,
        h.stride_used,
        w.window,
        w.stride_used,
        w.before,
        s.columns,
        cut.tiles.lanes,
        s.threads,
        s.blocks,
        s.stages,
        s.turns,
    )


def arguments_of(g: Geometry, cut: Cut) -> dict[str, Any]:
    """The fields of `GradientArguments`."""
    (_, h, w), t = g.axes, cut.tiles
    return {
        "total": cut.total,
        "tiles": division(t.count, cut.total),
        "steps": t.steps,
        "room": t.room,
        "stage": t.stage,
        "h": h.side,
        "w": w.side,
    }


def words_of(algorithm: str, g: Geometry, x: Spec, cut: Cut) -> list[str]:
    """A kernel's name."""
    (_, h, w), s = g.axes, cut.settings
    return [
        f"max_pool_{algorithm}_{POOL_SHORT[x.dtype]}",
        f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}",
        f"c{s.columns}l{cut.tiles.lanes}t{s.threads}b{s.blocks}s{s.stages}" + "_turns" * s.turns,
    ]
