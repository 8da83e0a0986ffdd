"""The algorithm ``resize_polyphase``: a whole factor, forward or backward; every weight is a constant of the kernel,
and no table is needed."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.shared import RESIZE_MODES, THREADS, order_of
from dnnarray._problems.spatial_resize import InterpolateProblem, Resize
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF, Spec

_FACTORS = (1, 2, 4)
WALK, _SHORTEST_WALK = (
    (32, 16),
    4,
)  # rows that a thread walks down: where there is enough to do (alone, in a warp that shares), and at the least
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
class ResizePolyphaseArguments(Arguments, restrict=True):
    """What ``kernels/spatial/resize_polyphase.cu`` is called with."""

    x: In
    y: Out
    threads: Extent
    inner: Extent
    groups: Extent
    strips: Extent
    inner_divisor: Extent
    groups_divisor: Extent
    strips_divisor: Extent


def _factor(resize: Resize) -> int:
    """Target elements per source element; minus the source elements per target element; 0 where neither is a whole
    number that kernels have."""
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
    """Whether the channels are what lies closest together; None where axes lie neither so nor in the order of channels
    first."""
    order = order_of(spec)
    if order == (0, problem.channels, *problem.axes):
        return False
    return True if order == (0, *problem.axes, problem.channels) else None


def no_factors(problem: InterpolateProblem, device: Device) -> str | None:
    """Why the axes are not up to two, each by a factor that kernels have, in the same direction; or None."""
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
    """Rows of a thread on the side with fewer elements: more where more of what it reads serves several, but no more
    loops than the compiler unrolls, since weights are constants only then."""
    if mode == "cubic":
        return 2 if factor > 2 or (expands and (last or x.dtype not in HALF)) else 4
    return 2 if mode == "linear" else 1


def named(config: PolyphaseConfig, x: Spec, kernel: str) -> str:
    mode = next(name for name, number in RESIZE_MODES.items() if number == config.mode)
    way = f"{'up' if config.up else 'down'}{config.factor_h}x{config.factor_w}{'_transposed' * config.transposed}"
    share = f"{config.rows}x{config.columns}{f'_last_x{config.channels}' if config.channels > 1 else ''}"
    return f"resize_{kernel}_{SHORT[x.dtype]}_{mode}_{way}_{share}{'_plain' * (config.piece == 1)}"


@frozen
class Share:
    """How the smaller side is shared out: the settings of the kernel but for its rows, planes, height, groups of
    columns, vectors of channels."""

    config: PolyphaseConfig
    planes: int
    height: int
    groups: int
    inner: int

    @property
    def shared(self) -> bool:
        """Whether warps that stand in one row may read each other's elements."""
        return self.config.piece > 1 and self.config.columns > 1 and self.groups % _WARP == 0


def share_of(problem: InterpolateProblem, aligned: bool) -> Share:
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    factors = _factors(problem)
    up, (factor_h, factor_w) = min(factors) > 0, map(abs, factors)
    small = min(x, y, key=lambda s: s.size)
    height, width = (1, *(small.shape[a] for a in problem.axes))[-2:]
    last, c, mode = _last(problem, x), x.shape[problem.channels], problem.resizes[0].mode
    wide = vector_length(x.dtype, True)
    channels = vector_length(x.dtype, True, c) if last else 1
    columns = 1 if last else math.gcd(max(wide // factor_w, 1), width)
    rows = math.gcd(_rows(mode, up != problem.transposed, max(factor_h, factor_w), x, bool(last)), height)
    piece = wide if aligned else 1
    settings = (
        TYPES[x.dtype],
        RESIZE_MODES[mode],
        up,
        problem.transposed,
        factor_h,
        factor_w,
        rows,
        columns,
        channels,
        piece,
        THREADS,
    )
    planes, inner = (x.shape[0], c // channels) if last else (x.shape[0] * c, 1)
    return Share(PolyphaseConfig(*settings), planes, height, width // columns, inner)


def orders(problem: InterpolateProblem) -> tuple[tuple[int, ...] | None, ...]:
    return (order_of(problem.inputs[0]), *(None for _ in problem.inputs[1:]))


def walks(problem: InterpolateProblem, device: Device) -> bool:
    """Whether threads that walk down columns take less: of a gradient whose rows serve several results, with enough
    threads."""
    share, x = share_of(problem, device.aligned), problem.inputs[0]
    reused = problem.transposed and share.config.up and share.config.factor_h > 1 and problem.resizes[0].mode == "cubic"
    if not reused or share.config.channels > 1 or _last(problem, x):
        return False
    longest = share.shared and walk_length(share.height, share.planes * share.groups, True, device) == WALK[True]
    return x.dtype in HALF or (x.dtype == FLOAT32 and longest)


def walk_length(height: int, columns: int, shared: bool, device: Device) -> int:
    """Rows of the smaller side that a thread walks down, of so many columns of threads: as many as leave the card
    enough threads."""
    rows = WALK[shared]
    while rows > _SHORTEST_WALK and columns * blocks_of(height, rows) < device.units * _RESIDENT:
        rows //= 2
    return rows


def rejects(problem: InterpolateProblem, device: Device) -> str | None:
    if reason := no_factors(problem, device):
        return reason
    y = problem.outputs[0]
    return "threads walk down the columns: resize_walk" if y is not None and y.size and walks(problem, device) else None


def run(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    """A thread for a few rows and columns, or for one column of neighbouring channels."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    planner, share = Planner(problem, aligned), share_of(problem, aligned)
    strips = share.height // share.config.rows
    threads = share.planes * strips * share.groups * share.inner
    arguments = ResizePolyphaseArguments(
        planner.inputs[0], planner.outputs[0], threads=threads, inner=share.inner, groups=share.groups, strips=strips,
        inner_divisor=divisor(share.inner), groups_divisor=divisor(share.groups), strips_divisor=divisor(strips),
    )  # fmt: skip
    kernel = Kernel("spatial/resize_polyphase.cu", named(share.config, x, "polyphase"), share.config)
    planner.launch(kernel, (blocks_of(threads, THREADS), 1, 1), THREADS, arguments)
    return planner.program(orders(problem))
