"""Pooling: plans for windows, for gradients gathered over windows, for whole planes, and for unpooling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.pool_geometry import CODES, Geometry, WindowAxis, geometry_of
from dnnarray._problems.pool import PoolProblem, UnpoolProblem
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT32, HALF, Spec

INTEGERS = {
    np.dtype(name): text
    for name, text in (
        ("int8", "signed char"), ("int16", "short"), ("int32", "int"), ("int64", "long long"),
        ("uint8", "unsigned char"), ("uint16", "unsigned short"), ("uint32", "unsigned int"), ("uint64", "unsigned long long"),
    )
}  # fmt: skip
_TYPES = TYPES | INTEGERS
_SHORT = SHORT | {dtype: f"{dtype.kind}{8 * dtype.itemsize}" for dtype in INTEGERS}
_MAX, _INDICES, _TAP, _MEAN, _NORM = range(5)
_NAMES = ("max", "max_indices", "max_tap", "mean", "norm")
_RULES = ("max", "max_indices", "mean", "norm")
_THREADS = 128
_SHORT_PLANE = 4096  # bytes of a plane that a block reduces together with others
_PLANE = 96 << 10  # bytes of a plane that a block holds in shared memory to pool it
_STAGE = 16 << 10  # bytes of shared memory for several planes
_GRID = 65_535  # rows of blocks; a kernel goes on with the next ones


@dataclass(frozen=True)
class WindowsConfig(Config):
    """Compile-time settings of ``kernels/pool/windows.cu``."""

    element: str
    result: str
    place: str
    reduction: int
    magnitude: bool
    adaptive: bool
    window: int
    vector: int
    columns: int
    rows: int


@dataclass(frozen=True)
class GatherConfig(Config):
    """Compile-time settings of ``kernels/pool/gather.cu``."""

    element: str
    saved: str
    rule: int
    magnitude: bool
    adaptive: bool
    cover: int
    vector: int
    columns: int
    rows: int


@dataclass(frozen=True)
class StripsConfig(Config):
    """Compile-time settings of ``kernels/pool/strips.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    exponent: int
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


@dataclass(frozen=True)
class TilesConfig(Config):
    """Compile-time settings of ``kernels/pool/tiles.cu``."""

    element: str
    saved: str
    rule: int
    exponent: int
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


@dataclass(frozen=True)
class DisjointConfig(Config):
    """Compile-time settings of ``kernels/pool/disjoint.cu``."""

    element: str
    magnitude: bool
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


@dataclass(frozen=True)
class SpreadConfig(Config):
    """Compile-time settings of ``kernels/pool/spread.cu``."""

    element: str
    saved: str
    rule: int
    magnitude: bool
    last: bool
    walking: bool
    wide: int
    steps: int
    threads: int


@dataclass(frozen=True)
class WholeConfig(Config):
    """Compile-time settings of ``kernels/pool/whole.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    along: bool
    vector: int
    lanes: int
    taps: int
    unroll: int


@dataclass(frozen=True)
class PlanesConfig(Config):
    """Compile-time settings of ``kernels/pool/planes.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    wide: int
    lanes: int
    threads: int


@dataclass(frozen=True)
class UnpoolConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool.cu``."""

    element: str
    index: str
    stage: int
    threads: int


@dataclass(frozen=True)
class UnpoolPlanesConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_planes.cu``."""

    element: str
    index: str
    backward: bool
    group: int
    wide: int
    threads: int


# --- forward ----------------------------------------------------------------------------------------------------------


def _columns(items: int) -> int:
    """How many of the threads of a block stand along a row; the others take further rows."""
    return 8 if items <= 8 else 32


def _numbers(g: Geometry, items: int, rows: int, vector: int, padded: bool, p: float) -> tuple[tuple[int, int, int], tuple[Any, ...]]:
    """The grid, and the launch arguments after the pointers, of the kernels over windows; `items` stand in a row."""
    columns = _columns(items)
    grid = (-(-items // columns), min(-(-rows // (_THREADS // columns)), _GRID), 1)
    inner = g.channels // vector if g.last else 1
    planes = 1 if g.last or g.first else g.channels
    x_strides, y_strides = (_merged(g, s) if g.first else s for s in (g.x_strides, g.y_strides))
    axes = [number for axis in g.axes for number in axis.packed()]
    return grid, (rows, planes << 32 | inner, *x_strides, *y_strides, *axes, int(padded), p)


def _merged(g: Geometry, strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides with batch and channels counted as one axis."""
    return (strides[1] if g.channels > 1 else strides[0], *strides[1:])


def _windows(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
             magnitude: bool = False, padded: bool = False, p: float = 2.0) -> Plan:  # fmt: skip
    """The reduction of each window."""
    if g.small and not g.whole and (reduction != _NORM or p in (1.0, 2.0)):
        return _strips(g, dtype, result, reduction, aligned, pointers, magnitude, padded, p)
    if _fits(g, dtype):
        return _planes(g, dtype, result, reduction, aligned, pointers, magnitude, padded, p)
    if g.whole and g.length < 1 << 30:
        return _whole(g, dtype, result, reduction, aligned, pointers, magnitude, p)
    vector = vector_length(dtype, aligned, g.channels) if g.last else 1
    items, rows = g.axes[2].outputs * (g.channels // vector if g.last else 1), g.outer * g.axes[0].outputs * g.axes[1].outputs
    widest = max(g.axes[1].window, g.axes[2].window)
    window = widest if g.flat and widest <= 3 else 0
    place = "long long" if reduction == _INDICES and g.length >= 1 << 31 else "int"
    columns = _columns(items)
    config = WindowsConfig(
        _TYPES[dtype], _TYPES[result], place, reduction, magnitude, g.adaptive, window, vector, columns, _THREADS // columns
    )
    words = [f"{_NAMES[reduction]}_pool_windows_{_SHORT[dtype]}x{vector}"]
    words += [f"to_{_SHORT[result]}"] * (result != dtype) + ["magnitude"] * magnitude + ["adaptive"] * g.adaptive
    words += [f"w{window}"] * (window > 0) + ["wide"] * (place != "int") + [f"b{columns}"]
    grid, numbers = _numbers(g, items, rows, vector, padded, p)
    return Plan(Kernel("pool/windows.cu", "_".join(words), config), grid, _THREADS, (*pointers, *numbers))


@dataclass(frozen=True)
class _Strips:
    """What the kernels that walk down the rows have in common."""

    settings: tuple[Any, ...]
    words: list[str]
    numbers: tuple[int, ...]
    grid: tuple[int, int, int]


def _divider(divisor: int, largest: int) -> tuple[int, int]:
    """The two launch arguments by which kernels divide numbers up to `largest` (``Divider`` in ``window.cuh``)."""
    shift = max((divisor - 1).bit_length() - 1, 0)
    magic = 0 if largest >= 1 << 31 or divisor == 1 else -(-(1 << 32 + shift) // divisor)
    return divisor << 32 | shift, magic


def _strips_of(g: Geometry, dtype: np.dtype, aligned: bool, rows: int, outputs: int = 0, widest: int = 16, plain: bool = False) -> _Strips:
    """How threads share the work for small windows, over `rows` rows; over the windows along W that they give, or over the elements of x."""
    import os

    _, h, w = g.axes
    stride, wide = w.stride_used, min(vector_length(dtype, aligned, g.channels if g.last else w.extent), widest)
    shared = h.window > h.stride_used and not (plain and g.first)
    # Windows of a thread along W: those under one vector of x where that is a number, which suits stores to x; or as many as a vector holds.
    narrow = wide // stride if wide % stride == 0 else wide
    group = 1 if g.last else narrow if not outputs or os.environ.get("POOL_NARROW") == "1" else wide
    piece = wide if g.last else vector_length(dtype, aligned, w.outputs, group)
    inner = g.channels // wide if g.last else 1
    groups, count = -(-(outputs * stride or w.extent) // (group * stride)), -(-rows // h.stride_used)
    steps = _steps(g.outer * groups * inner * count, count, shared)
    strips = -(-count // steps)
    total = g.outer * strips * groups * inner
    dividers = [n for divisor in (inner, groups, strips) for n in _divider(divisor, total)]
    numbers = (total, *dividers, h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3])
    settings = (g.last, h.window, h.stride_used, w.window, stride, w.before, wide, group, piece, steps, _THREADS)
    words = [f"w{h.window}x{w.window}_by_{h.stride_used}x{stride}_at{w.before}", "last" if g.last else "first"]
    words += [f"x{wide}" + (f"g{group}p{piece}" if g.first else ""), f"s{steps}"]
    return _Strips(settings, words, numbers, (-(-total // _THREADS), 1, 1))


def _steps(items: int, count: int, shared: bool) -> int:
    """How many rows a thread walks down: two where windows share rows and enough threads remain."""
    import os

    if "POOL_STEPS" in os.environ:
        return int(os.environ["POOL_STEPS"])
    return 2 if shared and items >= 1 << 20 and count >= 2 else 1


def _widest(reduction: int) -> int:
    """Results of a thread: four positions of 8 bytes each still fill whole sectors of memory by two stores."""
    return 4 if reduction == _INDICES else 16


def _strips(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
            magnitude: bool, padded: bool, p: float) -> Plan:  # fmt: skip
    """The reduction of small windows: a thread walks down the rows of one window or several."""
    _, h, w = g.axes
    strips = _strips_of(g, dtype, aligned, h.outputs * h.stride_used, w.outputs, _widest(reduction), reduction == _MAX)
    exponent = int(p) if reduction == _NORM else 0
    config = StripsConfig(_TYPES[dtype], _TYPES[result], reduction, magnitude and reduction != _NORM, exponent, *strips.settings)
    words = [f"{_NAMES[reduction]}_pool_strips_{_SHORT[dtype]}"]
    words += [f"to_{_SHORT[result]}"] * (result != dtype) + ["magnitude"] * config.magnitude + [f"l{exponent}"] * (exponent > 0) + strips.words
    return Plan(Kernel("pool/strips.cu", "_".join(words), config), strips.grid, _THREADS, (*pointers, *strips.numbers, int(padded)))


def _whole(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
           magnitude: bool, p: float) -> Plan:  # fmt: skip
    """The reduction of each plane to one element."""
    inner = g.channels if g.last else 1
    along = not g.last
    vector = vector_length(dtype, aligned, g.length if along else inner)
    columns = g.outer if along else g.outer * inner // vector
    lanes, taps = _whole_block(columns, g.length // vector if along else g.length, along)
    unroll = 4 if along or reduction == _NORM else 8
    config = WholeConfig(_TYPES[dtype], _TYPES[result], reduction, magnitude, along, vector, lanes, taps, unroll)
    words = [f"{_NAMES[reduction]}_pool_whole_{_SHORT[dtype]}x{vector}"]
    words += [f"to_{_SHORT[result]}"] * (result != dtype) + ["magnitude"] * magnitude + ["along"] * along + [f"t{taps}_l{lanes}"]
    grid = (min(-(-columns // lanes), 1 << 30), 1, 1)
    numbers = (columns, g.length, 1 if along else inner // vector, p)
    return Plan(Kernel("pool/whole.cu", "_".join(words), config), grid, lanes * taps, (*pointers, *numbers))


def _whole_block(columns: int, steps: int, along: bool) -> tuple[int, int]:
    """(columns of a block, threads that share one): enough blocks for the card, then about eight loads a thread."""
    import os

    if along:
        return (8, 32) if steps <= 1024 else (1, 256)
    if "POOL_LANES" in os.environ:
        return int(os.environ["POOL_LANES"]), int(os.environ["POOL_TAPS"])
    lanes = next(n for n in (32, 16, 8, 4) if columns >= 256 * n or n == 4)
    taps = 8
    while taps * 8 < steps and taps * lanes < 512:
        taps *= 2
    return lanes, taps


def _fits(g: Geometry, dtype: np.dtype) -> bool:
    """Whether planes in channels-first memory are pooled out of shared memory: short ones as a whole, others by windows of any kind."""
    return g.first and g.flat and g.length * dtype.itemsize <= (_SHORT_PLANE if g.whole else _PLANE) and g.axes[1].outputs * g.axes[2].outputs > 0


def _planes(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
            magnitude: bool, padded: bool, p: float) -> Plan:  # fmt: skip
    """The reduction of windows of any kind out of planes in shared memory: a block takes several planes that follow each other."""
    row = WindowAxis(g.length, 1, g.length, g.length)
    h, w = (WindowAxis(1, 1), row) if g.whole else g.axes[1:]
    wide, windows = vector_length(dtype, aligned), h.outputs * w.outputs
    lanes = next(n for n in (32, 16, 8, 4, 1) if w.window >= 8 * n or n == 1 or 8 >= n >= 4 and w.window >= n)
    group = max(wide, 256 // lanes // windows)
    group += -group % wide
    planes = max(_STAGE // (g.length * dtype.itemsize * group), 1) * group
    if planes > wide and planes * g.length * dtype.itemsize > 2 * _STAGE:
        planes = max(_STAGE // (g.length * dtype.itemsize) // wide, 1) * wide
    if g.length % wide == 0 and g.length * dtype.itemsize * 2 > _STAGE:
        planes = 1
    config = PlanesConfig(_TYPES[dtype], _TYPES[result], reduction, magnitude, g.adaptive, wide, lanes, 256)
    words = [f"{_NAMES[reduction]}_pool_planes_{_SHORT[dtype]}x{wide}"] + [f"to_{_SHORT[result]}"] * (result != dtype)
    words += ["magnitude"] * magnitude + ["adaptive"] * g.adaptive + [f"l{lanes}"]
    limit = planes * windows
    numbers = (g.outer, planes, *_divider(windows, limit), *_divider(w.outputs, limit), *h.packed(), *w.packed(), int(padded), p)
    grid = (-(-g.outer // planes), 1, 1)
    shared = -(-planes * g.length * dtype.itemsize // 16) * 16
    return Plan(Kernel("pool/planes.cu", "_".join(words), config), grid, 256, (*pointers, *numbers), shared)


def _norm_of(problem: PoolProblem) -> tuple[int, bool]:
    """(reduction, whether of magnitudes) of an operation's forward."""
    if problem.op.startswith("lp"):
        return (_MAX if math.isinf(problem.p) else _NORM), True
    return (_MEAN if "avg" in problem.op else _MAX), False


def windows(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    """One launch: every window by itself."""
    x, outputs = problem.inputs[0], [s for s in problem.outputs if s is not None]
    if outputs[0].size == 0:
        return Program(())
    g = geometry_of(x, problem.axes, problem.layout)
    reduction, magnitude = _norm_of(problem)
    pointers = (Array(0), Array(1), Array(len(outputs)))
    if len(outputs) == 2:
        reduction = _INDICES
    plan = _windows(g, x.dtype, x.dtype, reduction, aligned, pointers, magnitude, problem.padded, problem.p)
    return Program((plan,), (g.order,))


# --- gradients --------------------------------------------------------------------------------------------------------


def _saved_dtype(problem: PoolProblem) -> np.dtype | None:
    """What the first launch of a gradient leaves for the second, None if there is no first: a tap per window, or its norm."""
    x = problem.inputs[1]
    if "avg" in problem.op or problem.inputs[2] is not None or _disjoint(problem, geometry_of(x, problem.axes, problem.layout)):
        return None
    if problem.op.startswith("lp") and not math.isinf(problem.p):
        return FLOAT32 if x.dtype in HALF else x.dtype
    return np.dtype(np.uint8) if math.prod(a.window for a in problem.axes) < CODES else np.dtype(np.int32)


def _disjoint(problem: PoolProblem, g: Geometry) -> bool:
    """Whether one launch finds the maxima and spreads the gradient: small windows that do not overlap."""
    apart = all(a.stride_used >= a.window for a in g.axes[1:])
    return "max" in problem.op and problem.inputs[2] is None and g.small and not g.whole and apart and g.axes[2].before == 0


def saved_bytes(problem: PoolProblem) -> int:
    """Scratch for what is saved of each window."""
    dtype = _saved_dtype(problem)
    return 0 if dtype is None else -(-problem.inputs[0].size * dtype.itemsize // 16) * 16


def gather(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    """A launch that saves where each maximum stands (or each norm), unless it is given; one that sums over windows for each element."""
    grad, x, indices = problem.inputs
    if x.size == 0:
        return Program(())
    g = geometry_of(x, problem.axes, problem.layout)
    if _disjoint(problem, g):
        return Program((_disjoint_plan(g, x.dtype, aligned),), (g.order, g.order))
    given = 2 if indices is None else 3
    output, scratch, saved = Array(given), Array(given + 1), _saved_dtype(problem)
    norm, magnitude = problem.op.startswith("lp") and not math.isinf(problem.p), problem.op.startswith("lp")
    plans = []
    if saved is not None and grad.size:
        reduction = _NORM if norm else _TAP
        plans.append(_windows(g, x.dtype, saved, reduction, aligned, (Array(1), scratch, scratch), magnitude, p=problem.p))
    if saved is not None:
        rule, third = (3 if norm else 0), scratch
    elif indices is not None:
        rule, third, saved = 1, Array(2), indices.dtype
    else:
        rule, third, saved = 2, output, np.dtype(np.uint8)  # nothing is read
    plans.append(_gather(g, problem, x, saved, rule, magnitude, aligned, (Array(0), Array(1), third, output)))
    return Program(tuple(plans), (g.order,) * given)


def _gather(g: Geometry, problem: PoolProblem, x: Spec, saved: np.dtype, rule: int, magnitude: bool, aligned: bool,
            pointers: tuple[Array, ...]) -> Plan:  # fmt: skip
    if (g.whole or g.tiled and not g.small) and g.length < 1 << 30:
        return _spread(g, problem, x, saved, rule, magnitude, aligned, pointers)
    if g.small and (not magnitude or rule == 3 and problem.p in (1.0, 2.0)):
        return _tiles(g, problem, x, saved, rule, aligned, pointers)
    vector = vector_length(x.dtype, aligned, g.channels) if g.last else 1
    items, rows = g.axes[2].extent * (g.channels // vector if g.last else 1), g.outer * g.axes[0].extent * g.axes[1].extent
    most = max(g.axes[1].cover(), g.axes[2].cover())
    cover = most if g.flat and most <= (2 if rule == 1 else 3) else 0
    columns = _columns(items)
    config = GatherConfig(_TYPES[x.dtype], _TYPES[saved], rule, magnitude, g.adaptive, cover, vector, columns, _THREADS // columns)
    words = [f"{_RULES[rule]}_pool_gather_{_SHORT[x.dtype]}x{vector}"]
    words += [f"by_{_SHORT[saved]}"] * (rule < 2) + ["magnitude"] * magnitude + ["adaptive"] * g.adaptive
    words += [f"c{cover}"] * (cover > 0) + [f"b{columns}"]
    grid, numbers = _numbers(g, items, rows, vector, problem.padded, problem.p)
    return Plan(Kernel("pool/gather.cu", "_".join(words), config), grid, _THREADS, (*pointers, *numbers))


def _spread(g: Geometry, problem: PoolProblem, x: Spec, saved: np.dtype, rule: int, magnitude: bool, aligned: bool,
            pointers: tuple[Array, ...]) -> Plan:  # fmt: skip
    """The same for windows that tile the planes, or whole planes, which count as one row: a thread writes a vector of what they get."""
    row = WindowAxis(g.length, 1, g.length, g.length)
    h, w = (WindowAxis(1, 1), row) if g.whole else g.axes[1:]
    wide = vector_length(x.dtype, aligned, *[g.channels] * g.last)
    steps = 4 if g.last and x.size >= 1 << 22 else 1
    walking = not g.last and w.extent % wide > 0
    config = SpreadConfig(_TYPES[x.dtype], _TYPES[saved], rule, magnitude, g.last, walking, wide, steps, _THREADS)
    words = [f"{_RULES[rule]}_pool_spread_{_SHORT[x.dtype]}x{wide}"] + [f"by_{_SHORT[saved]}"] * (rule < 2) + ["magnitude"] * magnitude
    words += [f"last_s{steps}" if g.last else "walking" if walking else "first"]
    inner, widths = (g.channels // wide, -(-w.extent // steps)) if g.last else (1, w.extent)
    total = g.outer * h.extent * widths * inner if g.last else x.size
    dividers = [n for divisor in (h.extent, widths, inner) for n in _divider(divisor, total)]
    tilings = [n for a in (h, w) for n in (*_divider(a.stride_used, 0), a.packed()[0], a.extent + a.after * problem.padded)]
    grid = (-(-total // (_THREADS if g.last else _THREADS * wide)), 1, 1)
    return Plan(Kernel("pool/spread.cu", "_".join(words), config), grid, _THREADS, (*pointers, total, *dividers, *tilings, problem.p))


def _disjoint_plan(g: Geometry, dtype: np.dtype, aligned: bool) -> Plan:
    """Maxima found and their gradient spread in one pass."""
    strips = _strips_of(g, dtype, aligned, g.axes[1].extent + g.axes[1].before)
    config = DisjointConfig(_TYPES[dtype], False, *strips.settings)
    symbol = "_".join([f"max_pool_disjoint_{_SHORT[dtype]}", *strips.words])
    return Plan(Kernel("pool/disjoint.cu", symbol, config), strips.grid, _THREADS, (Array(0), Array(1), Array(2), *strips.numbers))


def _tiles(g: Geometry, problem: PoolProblem, x: Spec, saved: np.dtype, rule: int, aligned: bool, pointers: tuple[Array, ...]) -> Plan:
    """The same for small windows: a thread sums for tiles under a window or several."""
    strips = _strips_of(g, x.dtype, aligned, g.axes[1].extent + g.axes[1].before)
    exponent = int(problem.p) if rule == 3 else 0
    config = TilesConfig(_TYPES[x.dtype], _TYPES[saved], rule, exponent, *strips.settings)
    words = [f"{_RULES[rule]}_pool_tiles_{_SHORT[x.dtype]}"] + [f"l{exponent}"] * (exponent > 0)
    words += [f"by_{_SHORT[saved]}"] * (rule < 2) + strips.words
    arguments = (*pointers, *strips.numbers, int(problem.padded))
    return Plan(Kernel("pool/tiles.cu", "_".join(words), config), strips.grid, _THREADS, arguments)


# --- unpooling --------------------------------------------------------------------------------------------------------


def _marks_bytes(problem: UnpoolProblem) -> int:
    output = problem.outputs[0]
    assert output is not None
    if _staged(geometry_of(problem.inputs[0], problem.space, problem.layout)):
        return 0
    return -(-4 * output.size // 16) * 16


def _unpool_plan(problem: UnpoolProblem, stage: int, total: int, x: Spec, indices: Spec, pointers: tuple[Array, ...]) -> Plan:
    g = geometry_of(x, problem.space, problem.layout)
    config = UnpoolConfig(_TYPES[x.dtype], _TYPES[indices.dtype], stage, _THREADS)
    symbol = f"max_unpool_{('clear', 'mark', 'fetch', 'backward')[stage]}_{_SHORT[x.dtype]}_by_{_SHORT[indices.dtype]}"
    (_, h, w), (_, p, q) = g.space, g.out_space
    numbers = (total, g.channels, *g.x_strides, *g.y_strides, h << 32 | w, p << 32 | q, math.prod(g.space), math.prod(g.out_space))
    return Plan(Kernel("pool/unpool.cu", symbol, config), (-(-total // _THREADS), 1, 1), _THREADS, (*pointers, *numbers))


def _marks(g: Geometry) -> tuple[int, int]:
    """(channels of a block, places of a block) whose marks are together in shared memory."""
    return (8, 2048) if g.last else (1, 8192)


def _staged(g: Geometry) -> bool:
    """Whether few blocks share a plane, so that each can read all of its indices."""
    return (g.first or g.last) and math.prod(g.out_space) <= 16 * _marks(g)[1] and math.prod(g.space) < 1 << 24


def _unpool_planes(g: Geometry, x: Spec, indices: Spec, aligned: bool, backward: bool) -> Plan:
    """One launch for a plain memory order; the arrays are x or the gradient, the indices, and the result."""
    channels, outer = (g.channels, g.n) if g.last else (1, g.n * g.channels)
    (group, places), size = _marks(g), math.prod(g.out_space)
    wide = 1 if backward else vector_length(x.dtype, aligned, *((channels, group) if g.last else (size,)))
    chunks, groups, threads = -(-size // places), -(-channels // group), _THREADS if backward else 512 if g.last else 256
    total = x.size if backward else outer * chunks * groups
    config = UnpoolPlanesConfig(_TYPES[x.dtype], _TYPES[indices.dtype], backward, group, wide, threads)
    words = [f"max_unpool_{'backward' if backward else 'planes'}_{_SHORT[x.dtype]}x{wide}_by_{_SHORT[indices.dtype]}_g{group}"]
    numbers = (total, channels, math.prod(g.space), size, places, chunks, groups)
    grid = (-(-total // threads) if backward else total, 1, 1)
    pointers = (Array(0), Array(2), Array(3)) if backward else (Array(0), Array(1), Array(2))
    shared = 0 if backward else 4 * group * min(places, size)
    return Plan(Kernel("pool/unpool_planes.cu", "_".join(words), config), grid, threads, (*pointers, *numbers), shared)


def unpool(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One launch with the marks in shared memory; or three: clear the marks, mark every place with the last element that names it, fetch."""
    (x, indices), y = problem.inputs, problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    if _staged(g):
        return Program((_unpool_planes(g, x, indices, aligned, False),), (g.order, g.order))
    pointers = Array(0), Array(1), Array(2), Array(3)
    stages = [(0, y.size), *([(1, x.size)] if x.size else []), (2, y.size)]
    plans = tuple(_unpool_plan(problem, stage, total, x, indices, pointers) for stage, total in stages)
    return Program(plans, (g.order, g.order))


def unpool_backward(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One launch: each gradient comes from its place."""
    _, x, indices = problem.inputs
    if x.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    if g.first or g.last:
        plan = _unpool_planes(g, x, indices, aligned, True)
    else:
        plan = _unpool_plan(problem, 3, x.size, x, indices, (Array(0), Array(2), Array(3), Array(3)))
    return Program((plan,), (g.order, g.order, g.order))


# --- table ------------------------------------------------------------------------------------------------------------


def _too_large(problem: PoolProblem, device: Device) -> str | None:
    x = problem.inputs[1 if problem.op.endswith("_backward") else 0]
    if x.size == 0:
        return None
    g = geometry_of(x, problem.axes, problem.layout)
    if g.channels >= 1 << 31 or any(a.reach >= 1 << 30 for a in g.axes):
        return "a padded extent or a window reaches 2^30 elements"
    if problem.op.endswith("_backward") and math.prod(a.window for a in g.axes) >= 1 << 31:
        return "a window has 2^31 taps or more"
    return None


def _too_large_plane(problem: UnpoolProblem, device: Device) -> str | None:
    x = problem.inputs[-2]
    g = geometry_of(x, problem.space, problem.layout)
    if max(math.prod(g.space), math.prod(g.out_space), g.channels) >= 1 << 31:
        return "a plane has 2^31 elements or more"
    return None


_WINDOWS = (Method("windows", windows, "every window by itself, neighbours through the cache", _too_large),)
_GATHER = (Method("gather", gather, "for each element a sum over the windows that cover it", _too_large, saved_bytes),)
_MAXIMA = [f"{prefix}max_pool{suffix}" for prefix in ("", "adaptive_") for suffix in ("", "_with_indices")]
_FORWARDS = [*_MAXIMA, "avg_pool", "adaptive_avg_pool", "lp_pool"]

ALGORITHMS: dict[str, tuple[Method, ...]] = {
    **dict.fromkeys(_FORWARDS, _WINDOWS),
    **dict.fromkeys([f"{op}_backward" for op in _FORWARDS], _GATHER),
    "max_unpool": (Method("ordered", unpool, "the last element that names a place goes there", _too_large_plane, _marks_bytes),),
    "max_unpool_backward": (Method("gather", unpool_backward, "each gradient comes from its place", _too_large_plane),),
}
