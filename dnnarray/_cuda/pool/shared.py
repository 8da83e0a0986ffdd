"""What the plans of pooling share: what a launch reduces windows to, how threads share small windows, preconditions and
costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, Nested, Pointer
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Array, Config, Plan, Program, vector_length
from dnnarray._cuda.pool.geometry import Geometry, division, geometry_of
from dnnarray._problems.base import remembered
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import HALF

POOL_TYPES = TYPES | INTEGERS
POOL_SHORT = SHORT | {dtype: f"{dtype.kind}{8 * dtype.itemsize}" for dtype in INTEGERS}
MAX, INDICES, TAP, MEAN, NORM = range(5)
REDUCTIONS = ("max", "max_indices", "max_tap", "mean", "norm")
THREADS = 128
RESERVED = 1024  # bytes of shared memory that a block takes beside its own
_GRID = 65_535  # rows of blocks; a kernel goes on with the next ones

# Structs of numbers in ``kernels/pool/window.cuh``; the numbers are those of `division`, of `WindowAxis.numbers` and
# `WindowAxis.side`, and steps in memory.
Division = Annotated[Sequence[int], Nested("dnnarray::Divider", "3I")]
Windows = Annotated[Sequence[int], Nested("dnnarray::Axis<Config::kAdaptive>", "7I")]
PlainWindows = Annotated[Sequence[int], Nested("dnnarray::Axis<false>", "7I")]
Side = Annotated[Sequence[int], Nested("dnnarray::Side", "4I")]
Steps = Annotated[Sequence[int], Nested("dnnarray::Strides", "5q")]
Partition = Annotated[
    Sequence[int], Nested("dnnarray::Partition", "9I")
]  # in ``kernels/pool/strip.cuh``: three divisions

Places = Annotated[Array | None, Pointer("Config::Index", True)]
Indices = Annotated[Array | None, Pointer("long long", False)]
Results = Annotated[Array | None, Pointer("Config::Result", False)]
CodesOut = Annotated[Array | None, Pointer("unsigned char", False)]
Codes = Annotated[Array | None, Pointer("unsigned char", True)]
Saved = Annotated[Array | None, Pointer("Config::Saved", True)]


# --- reductions -------------------------------------------------------------------------------------------------------


@frozen
class Reduction:
    """What a launch reduces each window of x to: the maximum, its place or tap, the mean or the norm, of elements or of
    their magnitudes.

    `result` is the dtype of what is written: that of x, or of what a gradient keeps of each window.
    """

    g: Geometry
    dtype: np.dtype
    result: np.dtype
    kind: int
    magnitude: bool = False
    padded: bool = False
    p: float = 2.0

    @property
    def places(self) -> bool:
        """Whether it is sought where the maximum stands."""
        return self.kind in (INDICES, TAP)

    def words(self, algorithm: str, vector: int = 0) -> list[str]:
        """The beginning of a kernel's name."""
        name = f"{REDUCTIONS[self.kind]}_pool_{algorithm}_{POOL_SHORT[self.dtype]}" + f"x{vector}" * (vector > 0)
        return [name, *[f"to_{POOL_SHORT[self.result]}"] * (self.result != self.dtype)]


@remembered
def reduction_of(problem: PoolProblem) -> Reduction:
    """The reduction of a forward."""
    x, lp = problem.inputs[0], problem.op.startswith("lp")
    kind = NORM if lp and not math.isinf(problem.p) else MEAN if "avg" in problem.op else MAX
    if len([spec for spec in problem.outputs if spec is not None]) == 2:
        kind = INDICES
    return Reduction(
        geometry_of(x, problem.axes, problem.layout), x.dtype, x.dtype, kind, lp, problem.padded, problem.p
    )


ReductionPlan = Callable[[Reduction, Device, bool, tuple[Array, Array, Array]], Plan]


def forward(problem: PoolProblem, device: Device, aligned: bool, plan: ReductionPlan) -> Program:
    """One launch, by the plan of an algorithm for x, y and indices."""
    outputs = [spec for spec in problem.outputs if spec is not None]
    if outputs[0].size == 0:
        return Program(())
    r = reduction_of(problem)
    return Program((plan(r, device, aligned, (Array(0), Array(1), Array(len(outputs)))),), (r.g.order,))


def forward_reason(
    problem: PoolProblem, device: Device, reason: Callable[[Reduction, Device], str | None]
) -> str | None:
    """Why an algorithm does not do a forward, where `reason` says that of a reduction."""
    if problem.outputs[0] is None or problem.outputs[0].size == 0:
        return "there are no windows"
    return too_large(problem) or reason(reduction_of(problem), device)


# --- preconditions and costs ------------------------------------------------------------------------------------------


@remembered
def too_large(problem: PoolProblem) -> str | None:
    """Why no kernel does a problem: its numbers are too large for 32 bits."""
    backward = problem.op.endswith("_backward")
    x = problem.inputs[1 if backward else 0]
    if x.size == 0:
        return None
    g = geometry_of(x, problem.axes, problem.layout)
    if g.channels >= 1 << 31 or any(a.reach >= 1 << 30 for a in g.axes):
        return "a padded extent or a window reaches 2^30 elements"
    if backward and math.prod(a.window for a in g.axes) >= 1 << 31:
        return "a window has 2^31 taps or more"
    return None


def times(problem: PoolProblem, factor: float, launches: int = 1, more: int = 0) -> Cost:
    """The cost of launches that take so many times what it takes to read and write each array once, and `more`
    bytes."""
    return Cost(factor * problem.flops, factor * (problem.bytes + more), launches=launches)


def overtaken(problem: PoolProblem, device: Device) -> Cost:
    """The cost where blocks or lanes would be idle or memory would be read again and again: above that of all other
    algorithms of the family.

    It is that of reading everything several times, and of the time that several launches take.
    """
    waiting = 4 * device.launch * device.bandwidth
    return Cost(8 * problem.flops, 8 * problem.bytes + waiting)


# --- how threads share windows ----------------------------------------------------------------------------------------


def columns_of(items: int) -> int:
    """How many of the threads of a block stand along a row; the others take further rows."""
    return 8 if items <= 8 else 32


def row_of_threads(items: int) -> int:
    """How many threads of a block take a row of so many items: part of a warp, or all of one."""
    return max(8, min(32, 1 << (items - 1).bit_length()))


def partition(inner: int, groups: int, strips: int, total: int) -> tuple[int, ...]:
    """The members of ``Partition`` in ``pool/strip.cuh``: `total` threads are vectors of channels, then groups along W,
    then strips along H, then planes."""
    return *division(inner, total), *division(groups, total), *division(strips, total)


def grid_of(items: int, rows: int) -> tuple[int, int, int]:
    """The blocks of the kernels that take each window, or each element, by itself; `items` stand in a row."""
    columns = columns_of(items)
    return -(-items // columns), min(-(-rows // (THREADS // columns)), _GRID), 1


def window_numbers(g: Geometry, rows: int, vector: int, padded: bool, p: float) -> dict[str, Any]:
    """What the kernels that take each window, or each element, by itself are called with beside their arrays."""
    x_strides, y_strides = (_merged(g, s) if g.first else s for s in (g.x_strides, g.y_strides))
    d, h, w = (axis.numbers(g.adaptive) for axis in g.axes)
    planes, inner = 1 if g.last or g.first else g.channels, g.channels // vector if g.last else 1
    return {
        "rows": rows,
        "planes": planes,
        "inner": inner,
        "x_strides": x_strides,
        "y_strides": y_strides,
        "d": d,
        "h": h,
        "w": w,
        "padded": int(padded),
        "p": p,
    }


def _merged(g: Geometry, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides with batch and channels counted as one axis."""
    return (strides[1] if g.channels > 1 else strides[0], *strides[1:])


@frozen
class StripArguments(Arguments, restrict=True):
    """The numbers of every kernel whose threads walk down the rows of small windows: how many threads there are, how
    they share the work, both axes."""

    total: Extent
    among: Partition
    h: Side
    w: Side


@frozen
class StripConfig(Config):
    """Compile-time settings of every kernel whose threads walk down the rows of small windows."""

    element: str
    last: bool
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    before: int
    wide: int
    group: int
    piece: int
    steps: int
    threads: int


@frozen
class Strips:
    """What the kernels that walk down the rows have in common."""

    settings: dict[str, Any]  # by the names of StripConfig
    words: list[str]
    arguments: dict[str, Any]  # by the names of StripArguments
    grid: tuple[int, int, int]


def strips_of(
    g: Geometry,
    dtype: np.dtype,
    aligned: bool,
    rows: int,
    outputs: int = 0,
    widest: int = 16,
    plain: bool = False,
    norm: bool = False,
    most: int = 0,
) -> Strips:
    """How threads share the work for small windows, over `rows` rows; over the windows along W that they give, or over
    the elements of x.

    Of maxima (`plain`) and norms threads walk down other numbers of rows; or `most` where that is given.
    """

    _, h, w = g.axes
    stride, vector = w.stride_used, vector_length(dtype, aligned, g.channels if g.last else w.extent)
    results = min(vector, widest)  # of a thread
    wide = math.gcd(vector, results * stride) if g.first and outputs else results
    shared = -(-h.window // h.stride_used) - (plain and g.first)
    # Windows of a thread along W: those under one vector of x where that is a number, which suits stores to x; or as
    # many as a vector holds.
    narrow = wide // stride if wide % stride == 0 else wide
    group = 1 if g.last else results if outputs else narrow
    piece = wide if g.last else vector_length(dtype, aligned, w.outputs, group)
    inner = g.channels // wide if g.last else 1
    groups, count = -(-(outputs * stride or w.extent) // (group * stride)), -(-rows // h.stride_used)
    most = most or _most_rows(g, dtype, plain, norm, shared > 2)
    steps = _steps(g.outer * groups * inner * count, count, shared, most)
    strips = -(-count // steps)
    total = g.outer * strips * groups * inner
    settings = {
        "element": POOL_TYPES[dtype],
        "last": g.last,
        "threads": THREADS,
        "wide": wide,
        "group": group,
        "piece": piece,
        "steps": steps,
        "window_h": h.window,
        "stride_h": h.stride_used,
        "window_w": w.window,
        "stride_w": stride,
        "before": w.before,
    }
    words = [f"w{h.window}x{w.window}_by_{h.stride_used}x{stride}_at{w.before}", "last" if g.last else "first"]
    words += [f"x{wide}" + (f"g{group}p{piece}" if g.first else ""), f"s{steps}"]
    arguments = {"total": total, "among": partition(inner, groups, strips, total), "h": h.side, "w": w.side}
    return Strips(settings, words, arguments, (-(-total // THREADS), 1, 1))


def _most_rows(g: Geometry, dtype: np.dtype, plain: bool, norm: bool, much: bool) -> int:
    """How many rows a thread may walk down: fewer where more would take too many registers, or bring nothing."""
    large = g.axes[2].window > 3
    if g.first and plain:
        return 2 if not large else 1 if dtype in HALF else 4
    return 2 if norm or (g.last and large) or not much else 4


def _steps(items: int, count: int, shared: int, most: int) -> int:
    """How many rows a thread walks down: one, or `most` where windows share rows and enough threads remain."""
    if shared < 2 or items < 1 << 20 or count < 2:
        return 1
    return most if count >= most else 2


# --- windows that overlap ---------------------------------------------------------------------------------------------


def is_apart(g: Geometry) -> bool:
    """Whether windows move by more than one."""
    return max(a.stride_used for a in g.axes[1:]) > 1


def is_large(g: Geometry) -> bool:
    """Whether windows are large for how far they move."""
    return max(a.window for a in g.axes[1:]) > (4 if is_apart(g) else 3)


def windows_overlap(g: Geometry) -> bool:
    """Whether windows are small, several lie over an element along each axis, and none leaves a gap."""
    return (
        g.at_once() and not g.whole and not any(a.stride_used > min(a.window, 2) or a.cover() < 2 for a in g.axes[1:])
    )
