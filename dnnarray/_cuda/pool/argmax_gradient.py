"""The algorithm ``argmax_gradient``: maxima over small windows that overlap much, in one launch that finds them again,
or is given where they stand."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.gradient import backward_reason, dx_of, geometry_at, one_launch
from dnnarray._cuda.pool.shared import (
    POOL_SHORT,
    POOL_TYPES,
    THREADS,
    Division,
    Saved,
    StripArguments,
    is_apart,
    is_large,
    partition,
    windows_overlap,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, HALF, INT64, Spec

_THREADS = 1 << 17  # that keep a card busy
_LEAST_ROWS, _MOST_ROWS = 4, 128  # of windows in a strip


@frozen
class ArgmaxGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/argmax_gradient.cu``."""

    element: str
    saved: str
    given: bool
    last: bool
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    before: int
    wide: int
    columns: int
    piece: int
    threads: int
    blocks: int
    ahead: int
    early: bool
    shares: bool


@frozen
class _Settings:
    """How threads share the work, as measured: columns of a thread, the most rows of x that it walks down, the blocks a
    multiprocessor is to hold (0 where that does not matter), the rows that come to the L2 ahead of their turn, and
    whether the next row is asked for before the maxima are sought; whether strips are as high as fills the card by
    whole rounds of these blocks instead."""

    columns: int
    rows: int = 28
    blocks: int = 0
    ahead: int = 0
    early: bool = False
    rounds: bool = False


@frozen
class ArgmaxGradientArguments(StripArguments):
    """What ``kernels/pool/argmax_gradient.cu`` is called with."""

    grad: In
    x: In
    indices: Saved
    dx: Out
    steps: Int
    width: Division


# By the layout, and whether elements are of a half type.
_SOUGHT = {
    ("first", True): _Settings(8, blocks=6, ahead=2), ("last", True): _Settings(6, early=True),
    ("first", False): _Settings(4, ahead=1), ("last", False): _Settings(8, ahead=1),
}  # fmt: skip
_SOUGHT_LARGE = {
    ("first", True): _Settings(8, ahead=2), ("last", True): _Settings(6),
    ("first", False): _Settings(4, ahead=2), ("last", False): _Settings(6),
}  # fmt: skip
_SOUGHT_APART = {("first", True): _Settings(8, ahead=2)}  # windows by 2
_SOUGHT_LARGE_APART = {
    ("first", True): _Settings(8, 57, ahead=2), ("last", True): _Settings(8, blocks=3),
    ("first", False): _Settings(8, 57, ahead=2), ("last", False): _Settings(6, 57, blocks=4, early=True),
}  # fmt: skip
_GIVEN = {
    ("first", True): _Settings(4),
    ("last", True): _Settings(6),
    ("first", False): _Settings(4),
    ("last", False): _Settings(6, blocks=5),
}
_GIVEN_LARGE = _GIVEN | {("last", False): _Settings(6)}
_GIVEN_APART = {("last", True): _Settings(4)}
_GIVEN_LARGE_APART = {
    ("first", True): _Settings(4, ahead=1), ("last", True): _Settings(6, blocks=5, rounds=True),
    ("first", False): _Settings(4, ahead=1), ("last", False): _Settings(6),
}  # fmt: skip
_TABLES = {  # by whether places are given, windows are large, and they are apart by 2
    (False, False, False): _SOUGHT,
    (False, True, False): _SOUGHT_LARGE,
    (False, False, True): _SOUGHT_APART,
    (False, True, True): _SOUGHT_LARGE_APART,
    (True, False, False): _GIVEN,
    (True, True, False): _GIVEN_LARGE,
    (True, False, True): _GIVEN_APART,
    (True, True, True): _GIVEN_LARGE_APART,
}


def many_windows(g: Geometry) -> bool:
    """Whether so many windows lie over an element that one launch is worth it where places are given and windows move
    by one."""
    return g.axes[1].cover() * g.axes[2].cover() >= 6


def overlap(g: Geometry, x: Spec) -> bool:
    """Whether windows overlap, and the type is one that there are kernels for."""
    return windows_overlap(g) and x.dtype in (*HALF, FLOAT32)


def reason(problem: PoolProblem) -> str | None:
    """Why maxima are not found again, or given back, in one launch."""
    if found := backward_reason(problem):
        return found
    g, indices = geometry_at(problem), problem.inputs[2]
    if not overlap(g, problem.inputs[1]):
        return (
            "windows are larger than 5 x 5 or do not overlap along both axes, or elements are not float32, "
            "float16 or bfloat16"
        )
    if indices is not None and not is_apart(g) and not many_windows(g):
        return "fewer than six windows lie over an element, and the places of maxima are given"
    return None


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if found := reason(problem):
        return found
    g, (_, x, indices) = geometry_at(problem), problem.inputs
    if indices is not None and g.axes[2].extent == 1:
        return "rows have one element"
    if _settings(g, x, indices) is None:
        return "there are no settings for windows of this size and stride, whose gradient takes two launches"
    if vector_length(x.dtype, device.aligned, g.channels if g.last else g.axes[2].extent) < (
        wide_of(g, x) if g.last else 4
    ):
        return "elements do not lie side by side in words, or rows in vectors"
    return None


def _settings(g: Geometry, x: Spec, indices: Spec | None) -> _Settings | None:
    """None where two launches are faster."""
    return _TABLES[indices is not None, is_large(g), is_apart(g)].get(("last" if g.last else "first", x.dtype in HALF))


def _plan(problem: PoolProblem, device: Device, aligned: bool, g: Geometry) -> Plan:
    (_, x, indices), (_, h, w) = problem.inputs, g.axes
    settings = _settings(g, x, indices)
    assert settings is not None  # rejects
    columns, wide = _columns(g, x, settings.columns, aligned), wide_of(g, x)
    piece = 1 if g.last else vector_length(x.dtype, aligned, w.outputs, columns // w.stride_used)
    blocks = settings.blocks if g.last or piece == columns // w.stride_used else 0  # smaller pieces take more registers
    if indices is None and h.window == 2 and (w.window > 2 or x.dtype == FLOAT32):
        blocks = 1  # what the compiler aims at by itself costs spills
    saved = INT64 if indices is None else indices.dtype  # nothing is read where none are given
    config = ArgmaxGradientConfig(
        POOL_TYPES[x.dtype],
        POOL_TYPES[saved],
        indices is not None,
        g.last,
        h.window,
        h.stride_used,
        w.window,
        w.stride_used,
        w.before,
        wide,
        columns,
        piece,
        THREADS,
        blocks,
        settings.ahead,
        settings.early,
        False,
    )
    words = [f"max_pool_argmax_gradient_{POOL_SHORT[x.dtype]}"] + (
        [] if indices is None else [f"by_{POOL_SHORT[saved]}"]
    )
    words += [
        f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}",
        "last" if g.last else "first",
        f"x{wide}c{columns}p{piece}b{blocks}a{settings.ahead}" + "_early" * settings.early,
    ]
    inner, groups, rows = (
        g.channels // wide if g.last else 1,
        -(-w.extent // columns),
        -(-(h.extent + h.before) // h.stride_used),
    )
    columns_of_all = g.outer * inner * groups
    if settings.rounds:
        steps = -(
            -rows // strips_by_rounds(columns_of_all / THREADS, rows, h.cover() - 1, device.units * settings.blocks)
        )
    else:
        steps = _steps(columns_of_all, rows, settings.rows // h.stride_used)
    strips = -(-rows // steps)
    total = g.outer * strips * groups * inner
    arguments = ArgmaxGradientArguments(
        grad=Array(0), x=Array(1), indices=Array(2), dx=dx_of(problem), total=total,
        among=partition(inner, groups, strips, total), h=h.side, w=w.side, steps=steps,
        width=division(w.extent, h.extent * w.extent),
    )  # fmt: skip
    kernel, shared = (
        Kernel("pool/argmax_gradient.cu", "_".join(words), config, ("pool/strip",)),
        _sums(g, columns, indices is not None) * wide * 4 * THREADS,
    )
    return planned(kernel, (-(-total // THREADS), 1, 1), THREADS, arguments, shared_memory=shared)


def wide_of(g: Geometry, x: Spec) -> int:
    """Channels of a thread: those in a word."""
    return 4 // x.dtype.itemsize if g.last else 1


def _columns(g: Geometry, x: Spec, wanted: int, aligned: bool) -> int:
    """Columns of a thread: whole vectors along rows."""
    width = g.axes[2].extent
    return wanted if g.last or width % wanted == 0 else vector_length(x.dtype, aligned, width)


def _sums(g: Geometry, columns: int, given: bool) -> int:
    """Sums of a thread, for a channel: as many rows as a window has, of its columns and of what stands elsewhere: where
    maxima are sought, to each side."""
    return g.axes[1].window * (columns + (1 if given else 2))


def strips_by_rounds(blocks: float, rows: int, lost: int, slots: int) -> int:
    """Of how many strips a plane is: those with the shortest time where so many blocks run at once, and each strip does
    some rows more than it writes."""
    fewest = -(-rows // _MOST_ROWS)
    return min(
        range(fewest, max(rows // _LEAST_ROWS, fewest) + 1),
        key=lambda n: math.ceil(blocks * n / slots) * (-(-rows // n) + lost),
    )


def _steps(columns: int, rows: int, most: int) -> int:
    """Rows of windows of a strip: equal strips, and where threads are few, short ones."""
    strips = max(-(-rows // most), min(-(-_THREADS // columns), -(-rows // 4)))
    return -(-rows // strips)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, device, aligned, g))
