"""What the plans of pooling share: types, reductions, and how threads share the work over windows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cuda.core.plan import SHORT, TYPES, Config, vector_length
from dnnarray._cuda.pool_geometry import Geometry, divider
from dnnarray._records import frozen
from dnnarray._spec import HALF

INTEGERS = {
    np.dtype(name): text
    for name, text in (
        ("int8", "signed char"), ("int16", "short"), ("int32", "int"), ("int64", "long long"),
        ("uint8", "unsigned char"), ("uint16", "unsigned short"), ("uint32", "unsigned int"), ("uint64", "unsigned long long"),
    )
}  # fmt: skip
POOL_TYPES = TYPES | INTEGERS
POOL_SHORT = SHORT | {dtype: f"{dtype.kind}{8 * dtype.itemsize}" for dtype in INTEGERS}
MAX, INDICES, TAP, MEAN, NORM = range(5)
REDUCTIONS = ("max", "max_indices", "max_tap", "mean", "norm")
RULES = ("max", "max_indices", "mean", "norm")
THREADS = 128
_GRID = 65_535  # rows of blocks; a kernel goes on with the next ones


def columns_of(items: int) -> int:
    """How many of the threads of a block stand along a row; the others take further rows."""
    return 8 if items <= 8 else 32


def row_of_threads(items: int) -> int:
    """How many threads of a block take a row of so many items: part of a warp, or all of one."""
    return max(8, min(32, 1 << (items - 1).bit_length()))


def window_numbers(g: Geometry, items: int, rows: int, vector: int, padded: bool, p: float) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    """The grid, and the launch arguments after the pointers, of the kernels over windows; `items` stand in a row."""
    columns = columns_of(items)
    grid = (-(-items // columns), min(-(-rows // (THREADS // columns)), _GRID), 1)
    inner = g.channels // vector if g.last else 1
    planes = 1 if g.last or g.first else g.channels
    x_strides, y_strides = (_merged(g, s) if g.first else s for s in (g.x_strides, g.y_strides))
    axes = [number for axis in g.axes for number in axis.packed(g.adaptive)]
    return grid, (rows, planes << 32 | inner, *x_strides, *y_strides, *axes, int(padded), p)


def _merged(g: Geometry, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides with batch and channels counted as one axis."""
    return (strides[1] if g.channels > 1 else strides[0], *strides[1:])


@frozen
class StripConfig(Config):
    """Compile-time settings of every kernel that walks down the rows of small windows."""

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
    numbers: tuple[int, ...]
    grid: tuple[int, int, int]


def strips_of(g: Geometry, dtype: np.dtype, aligned: bool, rows: int, outputs: int = 0, widest: int = 16, plain: bool = False,
              norm: bool = False, most: int = 0) -> Strips:  # fmt: skip
    """How threads share the work for small windows, over `rows` rows; over the windows along W that they give, or over the elements of x.

    Of maxima (`plain`) and norms threads walk down other numbers of rows; or `most` where that is given.
    """

    _, h, w = g.axes
    stride, vector = w.stride_used, vector_length(dtype, aligned, g.channels if g.last else w.extent)
    results = min(vector, widest)  # of a thread
    wide = math.gcd(vector, results * stride) if g.first and outputs else results
    shared = -(-h.window // h.stride_used) - (plain and g.first)
    # Windows of a thread along W: those under one vector of x where that is a number, which suits stores to x; or as many as a vector holds.
    narrow = wide // stride if wide % stride == 0 else wide
    group = 1 if g.last else results if outputs else narrow
    piece = wide if g.last else vector_length(dtype, aligned, w.outputs, group)
    inner = g.channels // wide if g.last else 1
    groups, count = -(-(outputs * stride or w.extent) // (group * stride)), -(-rows // h.stride_used)
    most = most or _most_rows(g, dtype, plain, norm, shared > 2)
    steps = _steps(g.outer * groups * inner * count, count, shared, most)
    strips = -(-count // steps)
    total = g.outer * strips * groups * inner
    dividers = [n for divisor in (inner, groups, strips) for n in divider(divisor, total)]
    numbers = (total, *dividers, h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3])
    settings = {
        "element": POOL_TYPES[dtype], "last": g.last, "threads": THREADS, "wide": wide, "group": group, "piece": piece, "steps": steps,
        "window_h": h.window, "stride_h": h.stride_used, "window_w": w.window, "stride_w": stride, "before": w.before,
    }  # fmt: skip
    words = [f"w{h.window}x{w.window}_by_{h.stride_used}x{stride}_at{w.before}", "last" if g.last else "first"]
    words += [f"x{wide}" + (f"g{group}p{piece}" if g.first else ""), f"s{steps}"]
    return Strips(settings, words, numbers, (-(-total // THREADS), 1, 1))


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
