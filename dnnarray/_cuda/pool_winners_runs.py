"""The gradient of maxima over small windows that overlap, in channels-first memory: blocks that stay fetch long runs of a plane's rows, or all of it, by the copy
engine (sm_90). The maxima are sought, or it is given where they stand."""

from __future__ import annotations

from dataclasses import asdict, replace

from dnnarray._cuda.core.plan import Array, Kernel, Plan
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES
from dnnarray._cuda.pool_geometry import Geometry, WindowAxis, divider
from dnnarray._cuda.pool_runs import HEAD, LANES, LINE, RESERVED, RUN, WARP, RunsConfig, lanes_of, spread_evenly
from dnnarray._cuda.pool_winners import is_apart, is_large, many_windows, overlap
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF, Spec

_FEW = 4  # rows of x of a strip, below which too many are read twice
_ROWS = 4096  # of a plane, at the most: what numbers NaN are told apart by
_LEAST = 7 << 10  # bytes of a tile, below which its start takes too long


@frozen
class WinnersRunsConfig(RunsConfig):
    """Compile-time settings of ``kernels/pool/winners_runs_sm90.cu``."""

    turns: bool


@frozen
class WinnersRunsGivenConfig(WinnersRunsConfig):
    """Compile-time settings of ``kernels/pool/winners_runs_given_sm90.cu``."""

    saved: str


@frozen
class Settings:
    """How threads share the work, as measured: columns of a thread, threads of a block, the most rows of x of a strip, tiles of a block under way, and blocks of
    a multiprocessor; whether the loop is unrolled until rows are in the same registers again."""

    columns: int
    threads: int
    rows: int
    stages: int
    blocks: int
    turns: bool = False


# By whether windows are large, and are apart by 2; by whether elements are of a half type.
_SOUGHT: dict[tuple[bool, bool], dict[bool, Settings]] = {
    (False, False): {True: Settings(8, 128, 14, 2, 2, turns=True), False: Settings(4, 64, 14, 1, 8)},
    (True, False): {False: Settings(4, 128, 28, 1, 2)},
    (False, True): {True: Settings(8, 96, 20, 1, 6), False: Settings(4, 128, 16, 1, 5)},
    (True, True): {True: Settings(8, 128, 14, 2, 2, turns=True), False: Settings(4, 64, 14, 2, 4)},
}
_GIVEN: dict[tuple[bool, bool], dict[bool, Settings]] = {
    (False, False): {True: Settings(4, 64, 7, 1, 12), False: Settings(4, 64, 14, 1, 10)},
    (True, False): {False: Settings(4, 64, 14, 1, 10)},
    (True, True): {True: Settings(4, 128, 14, 2, 4), False: Settings(4, 96, 19, 1, 6)},
}


def runs_plan(
    g: Geometry, x: Spec, indices: Spec | None, device: Device, aligned: bool, pointers: tuple[Array, Array, Array]
) -> Plan | None:
    """The launch, None where another is better. `pointers` are of the gradient, of x or the places, and of the result."""
    if device.capability != (9, 0) or not (aligned and g.first and overlap(g, x)):
        return None
    if indices is not None and not is_apart(g) and not many_windows(g):
        return None
    s = _settings(g, x, indices)
    return None if s is None else plan_with(s, g, x, indices, device, pointers)


def _settings(g: Geometry, x: Spec, indices: Spec | None) -> Settings | None:
    """None where others are faster."""
    s = (_SOUGHT if indices is None else _GIVEN).get((is_large(g), is_apart(g)), {}).get(x.dtype in HALF)
    more = is_apart(g) and not is_large(g) and max(a.window for a in g.axes[1:]) > 3  # registers than three rows and columns take
    return replace(s, blocks=s.blocks - 1) if s is not None and more else s


@frozen
class _Tiles:
    """How a plane is cut: lanes of a row, rows of windows of a strip, tiles, and bytes of a tile's rows of x (or places), of all of it, and of the block."""

    lanes: int
    steps: int
    count: int
    room: int
    stage: int
    shared: int


def _fitted(s: Settings, w: WindowAxis, rows: int, wider: bool) -> Settings:
    """The settings for planes of so many rows: more columns where lanes would not do, and of threads that would have no rows other blocks', whose tiles are then small
    enough that more blocks do instead of a second tile."""
    columns = s.columns if w.extent <= s.columns * LANES[-1] or not wider else 2 * s.columns
    strips = -(-rows // s.rows)
    threads = min(s.threads, -(-lanes_of(w.extent // columns) * strips // WARP) * WARP)
    stages = s.stages if threads == s.threads else 1
    return replace(s, columns=columns, threads=threads, stages=stages, blocks=s.blocks * s.stages // stages * s.threads // max(threads, 1))


def _cut(s: Settings) -> Settings | None:
    """The settings with tiles half as high, None where they are low. Which rows lie in a tile does not change the order of any sum."""
    if s.threads > WARP and s.threads // 2 % WARP == 0:
        return replace(s, threads=s.threads // 2, blocks=2 * s.blocks)
    return replace(s, rows=s.rows // 2) if s.rows >= 2 * _FEW else None


def _lines(rows: int, width: int, itemsize: int) -> int:
    """Bytes of shared memory for a run that may begin and end within a piece of 16."""
    return -(-(rows * width * itemsize + 2 * RUN) // LINE) * LINE


def _tiles(s: Settings, g: Geometry, x: Spec, indices: Spec | None) -> _Tiles | None:
    _, h, w = g.axes
    lanes = lanes_of(w.extent // s.columns)
    if lanes == 0:
        return None
    strips, more = s.threads // lanes, (h.window - 1) // h.stride_used
    rows = -(-(h.extent + h.before) // h.stride_used) - h.before // h.stride_used  # of windows, below which rows of x are written
    steps = -(-rows // (strips * -(-rows // (strips * (s.rows // h.stride_used)))))
    windows = min(strips * steps + more, h.outputs)
    if indices is None:
        room = _lines(min((strips * steps + more - 1) * h.stride_used + h.window, h.extent), w.extent, x.dtype.itemsize)
        sums = 0
    else:
        room = _lines(windows, w.outputs, indices.dtype.itemsize)
        sums = (h.window * (s.columns + w.window - w.stride_used) + 1) * s.threads * 4
    stage = room + _lines(windows, w.outputs, x.dtype.itemsize)
    return _Tiles(lanes, steps, -(-rows // (strips * steps)), room, stage, HEAD + sums + s.stages * stage)


def plan_with(s: Settings, g: Geometry, x: Spec, indices: Spec | None, device: Device, pointers: tuple[Array, Array, Array]) -> Plan | None:
    """The launch with these settings."""
    _, h, w = g.axes
    s = _fitted(s, w, h.extent, indices is None)
    source, width, height = (x, w.extent, h.extent) if indices is None else (indices, w.outputs, h.outputs)
    planes = (h.outputs * w.outputs * x.dtype.itemsize, height * width * source.dtype.itemsize)
    if not spread_evenly(w, s.columns) or h.extent > _ROWS or any(n % RUN for n in planes) or w.extent * x.dtype.itemsize % RUN:
        return None
    if (t := _tiles(s, g, x, indices)) is None or t.stage < _LEAST or t.shared > device.shared_memory:
        return None
    while g.outer * t.count < (slots := _slots(s, t, device)) and (cut := _cut(s)) is not None:
        s, t = cut, _tiles(cut, g, x, indices) or t
    total = g.outer * t.count
    numbers: tuple[int, ...] = (
        total,
        *divider(t.count, total),
        h.packed()[0],
        h.packed()[3],
        w.packed()[0],
        w.packed()[3],
        t.steps,
        t.room << 32 | t.stage,
    )
    if indices is not None:
        numbers = (*numbers, *divider(w.extent, h.extent * w.extent))
    return Plan(_kernel(s, g, x, indices, t.lanes), (min(total, slots), 1, 1), s.threads, (*pointers, *numbers), t.shared)


def _slots(s: Settings, t: _Tiles, device: Device) -> int:
    """Blocks that run at once."""
    return device.units * min((device.shared_memory + RESERVED) // (t.shared + RESERVED), s.blocks)


def _kernel(s: Settings, g: Geometry, x: Spec, indices: Spec | None, lanes: int) -> Kernel:
    _, h, w = g.axes
    config = WinnersRunsConfig(
        POOL_TYPES[x.dtype], h.window, h.stride_used, w.window, w.stride_used, w.before, s.columns, lanes, s.threads, s.blocks, s.stages, s.turns
    )  # fmt: skip
    words = [
        f"max_pool_winners_runs_{POOL_SHORT[x.dtype]}",
        f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}",
        f"c{s.columns}l{lanes}t{s.threads}b{s.blocks}s{s.stages}" + "_turns" * s.turns,
    ]
    if indices is None:
        return Kernel("pool/winners_runs_sm90.cu", "_".join(words), config)
    words.insert(1, f"by_{POOL_SHORT[indices.dtype]}")
    given = WinnersRunsGivenConfig(**asdict(config), saved=POOL_TYPES[indices.dtype])
    return Kernel("pool/winners_runs_given_sm90.cu", "_".join(words), given)
