"""`interpolate` by a whole factor and its gradient: every weight is a constant of the kernel, and no table is needed."""

from __future__ import annotations

import math

from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.spatial_common import RESIZE_MODES, THREADS, grid_1d, order_of
from dnnarray._problems.spatial_resize import InterpolateProblem, Resize
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF, Spec

_FACTORS = (1, 2, 4)
_WALK, _SHORTEST_WALK = (
    (32, 16),
    4,
)  # rows that a thread walks down: where there is enough to do (alone, in a warp that shares), and at the least
_WALK_ROWS = {2: 2, 4: 1}  # of these that are complete at a time, by factor
_WARP = 32  # threads that read each other's elements where they stand in one row; float32 walks only so
_RESIDENT = 512  # threads that a multiprocessor should have at the least


@frozen
class PolyphaseConfig(Config):
    """Compile-time settings of ``kernels/spatial/resize_polyphase.cu``."""

    element: str
    mode: int
    up: bool
    transposed: bool
    factor_h: int
    factor_w: int
    rows: int
    columns: int
    channels: int
    piece: int
    threads: int


@frozen
class WalkConfig(PolyphaseConfig):
    """Compile-time settings of ``kernels/spatial/resize_walk.cu``."""

    shared: bool


def _factor(resize: Resize) -> int:
    """Target elements per source element; minus the source elements per target element; 0 where neither is a whole number that kernels have."""
    small, large = sorted((resize.source, resize.target))
    factor = large // small
    positions = resize.scale is None or resize.scale == resize.target / resize.source
    if large % small or factor not in _FACTORS or not positions or resize.align_corners or resize.antialias:
        return 0
    if factor == 1 and resize.mode == "cubic":  # its taps of weight 0 are read: an infinity beside an element is NaN
        return 0
    return factor if resize.target >= resize.source else -factor


def _factors(problem: InterpolateProblem) -> tuple[int, int]:
    """Those along H and W, as `_factor` gives them."""
    missing = [1] * (2 - len(problem.resizes))
    h, w = (*missing, *map(_factor, problem.resizes))
    return h, w


def _last(problem: InterpolateProblem, spec: Spec) -> bool | None:
    """Whether the channels are what lies closest together; None where axes lie neither so nor in the order of channels first."""
    order = order_of(spec)
    if order == (0, problem.channels, *problem.axes):
        return False
    return True if order == (0, *problem.axes, problem.channels) else None


def rejects(problem: InterpolateProblem, device: Device) -> str | None:
    """Up to two axes, each by a factor that kernels have, in the same direction."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if len(problem.resizes) > 2:
        return "three spatial axes"
    factors = _factors(problem)
    if 0 in factors or factors == (1, 1) or min(factors) < 0 < max(factors) != 1:
        return f"extents {tuple(r.source for r in problem.resizes)} to {tuple(r.target for r in problem.resizes)}"
    last = _last(problem, x)
    if last is None or last != _last(problem, y) or (last and x.shape[problem.channels] % 2):
        return "channels do not lie before space, nor, in pairs, behind it"
    if last and problem.resizes[0].mode == "cubic" and max(factors) > 2:
        return "more weights than the compiler keeps as constants"
    return "2**31 elements and more" if max(x.size, y.size) >= 1 << 31 else None


def _rows(mode: str, expands: bool, factor: int, x: Spec, last: bool) -> int:
    """Rows of a thread on the side with fewer elements: more where more of what it reads serves several, but no more loops than the compiler
    unrolls, since weights are constants only then."""
    if mode == "cubic":
        return 2 if factor > 2 or (expands and (last or x.dtype not in HALF)) else 4
    return 2 if mode == "linear" else 1


def _walk_length(height: int, columns: int, shared: bool, device: Device) -> int:
    """Rows of the smaller side that a thread walks down, of so many columns of threads: as many as leave the card enough threads."""
    rows = _WALK[shared]
    while rows > _SHORTEST_WALK and columns * blocks_of(height, rows) < device.units * _RESIDENT:
        rows //= 2
    return rows


def _walk(problem: InterpolateProblem, config: WalkConfig, extents: tuple[int, int, int], device: Device) -> Plan:
    """The launch of threads that walk down columns; `extents` are planes, height and groups of columns of the smaller side."""
    planes, height, groups = extents
    length = _walk_length(height, planes * groups, config.shared, device)
    strips = blocks_of(height, length)
    threads = planes * strips * groups
    sizes = (threads, groups, strips, *map(divisor, (groups, strips)), length, height)
    kernel = Kernel("spatial/resize_walk.cu", f"{_name(config, problem.inputs[0], 'walk')}{'_shared' * config.shared}", config)
    return Plan(kernel, grid_1d(threads, config.threads), config.threads, (Array(0), Array(len(problem.inputs)), *sizes))


def polyphase(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for a few rows and columns, for one column of neighbouring channels, or for columns that it walks along."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    factors = _factors(problem)
    up, (factor_h, factor_w) = min(factors) > 0, map(abs, factors)
    small = min(x, y, key=lambda s: s.size)
    height, width = (1, *(small.shape[a] for a in problem.axes))[-2:]
    last, c = _last(problem, x), x.shape[problem.channels]
    wide = vector_length(x.dtype, True)
    channels = vector_length(x.dtype, True, c) if last else 1
    columns = 1 if last else math.gcd(max(wide // factor_w, 1), width)
    mode, piece = problem.resizes[0].mode, wide if aligned else 1
    planes, groups = x.shape[0] if last else x.shape[0] * c, width // columns
    shared = aligned and columns > 1 and groups % _WARP == 0
    walks = problem.transposed and up and factor_h > 1 and mode == "cubic" and not last
    walks = walks and (
        x.dtype in HALF or (x.dtype == FLOAT32 and shared and _walk_length(height, planes * groups, True, device) == _WALK[True])
    )
    most = _rows(mode, up != problem.transposed, max(factor_h, factor_w), x, bool(last))
    rows = _WALK_ROWS[factor_h] if walks else math.gcd(most, height)
    settings = (TYPES[x.dtype], RESIZE_MODES[mode], up, problem.transposed, factor_h, factor_w, rows, columns, channels, piece, THREADS)
    config = PolyphaseConfig(*settings)
    arguments, orders = (Array(0), Array(len(problem.inputs))), (order_of(x), *(None for _ in problem.inputs[1:]))
    if walks:
        walk = WalkConfig(*settings, shared)
        return Program((_walk(problem, walk, (planes, height, groups), device),), orders)
    inner, strips = c // channels if last else 1, height // rows
    threads = planes * strips * groups * inner
    sizes = (threads, inner, groups, strips, *map(divisor, (inner, groups, strips)))
    kernel = Kernel("spatial/resize_polyphase.cu", _name(config, x, "polyphase"), config)
    return Program((Plan(kernel, grid_1d(threads), THREADS, (*arguments, *sizes)),), orders)


def _name(config: PolyphaseConfig, x: Spec, kernel: str) -> str:
    mode = next(name for name, number in RESIZE_MODES.items() if number == config.mode)
    way = f"{'up' if config.up else 'down'}{config.factor_h}x{config.factor_w}{'_transposed' * config.transposed}"
    share = f"{config.rows}x{config.columns}{f'_last_x{config.channels}' if config.channels > 1 else ''}"
    return f"resize_{kernel}_{SHORT[x.dtype]}_{mode}_{way}_{share}{'_plain' * (config.piece == 1)}"
