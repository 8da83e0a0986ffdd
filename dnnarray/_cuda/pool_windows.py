"""Pooling forward: plans for small windows, for planes in shared memory, for whole planes, and for everything else."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.pool_columns import columns_last_plan
from dnnarray._cuda.pool_common import (
    INDICES,
    MAX,
    MEAN,
    NORM,
    POOL_SHORT,
    POOL_TYPES,
    REDUCTIONS,
    TAP,
    THREADS,
    StripConfig,
    columns_of,
    row_of_threads,
    strips_of,
    window_numbers,
)
from dnnarray._cuda.pool_geometry import Geometry, WindowAxis, divider, geometry_of
from dnnarray._cuda.pool_maxima_runs import maxima_runs_plan
from dnnarray._cuda.pool_ring import ring_plan
from dnnarray._cuda.pool_slide import slide_plan
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF

_SHORT_PLANE = 4096  # bytes of a plane that a block reduces together with others
_PLANE = 96 << 10  # bytes of a plane that a block holds in shared memory to pool it
_FEW = 4096  # planes, or windows: threads of a warp share one
_ROW = 4096  # elements of a row that is pooled by columns
_COLUMNS = 48 << 10  # bytes of shared memory for what is left of several rows
_COLUMN_THREADS, _ENOUGH = 256, 264  # of a block that pools by columns; blocks that keep a card busy
_BUSY, _LARGE_WINDOW = 1 << 17, 16  # threads that keep a card busy; taps of a window that is worth more of them
_FLIGHT = 12  # rows of a window that are loaded together
_SHORT = 64  # elements of a plane that few threads add up
_STAGE = 16 << 10  # bytes of shared memory for several planes


@frozen
class WindowsConfig(Config):
    """Compile-time settings of ``kernels/pool/windows.cu``."""

    element: str
    result: str
    place: str
    reduction: int
    magnitude: bool
    adaptive: bool
    window: int
    flight: int
    vector: int
    columns: int
    rows: int


@frozen
class StripsConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/strips.cu``."""

    result: str
    reduction: int
    magnitude: bool
    exponent: int
    lends: bool


@frozen
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


@frozen
class PlanesConfig(Config):
    """Compile-time settings of ``kernels/pool/planes.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    whole: bool
    pairs: bool
    wide: int
    lanes: int
    threads: int


@frozen
class AlignedConfig(Config):
    """Compile-time settings of ``kernels/pool/aligned.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    wide: int
    flight: int
    lanes: int
    own: int
    threads: int


@frozen
class ColumnsConfig(Config):
    """Compile-time settings of ``kernels/pool/columns.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    wide: int
    flight: int
    lanes: int
    row: int
    threads: int


def reduction_plan(g: Geometry, device: Device, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
             magnitude: bool = False, padded: bool = False, p: float = 2.0) -> Plan:  # fmt: skip
    """The reduction of each window."""
    if reduction == MEAN and (slide := slide_plan(g, dtype, False, padded, aligned, (pointers[0], pointers[1]))) is not None:
        return slide
    if not magnitude and result == dtype and (ring := ring_plan(g, dtype, reduction, aligned, device, pointers)) is not None:
        return ring
    if reduction == INDICES and not magnitude and (runs := maxima_runs_plan(g, dtype, device, aligned, pointers)) is not None:
        return runs
    if g.at_once(p if reduction == NORM else None) and not g.whole:
        return _strips(g, dtype, result, reduction, aligned, pointers, magnitude, padded, p)
    if reduction != NORM and (sharing := _aligned_windows(g, dtype, aligned)) is not None:
        return _aligned(g, dtype, result, reduction, pointers, magnitude, padded, *sharing)
    if reduction == MEAN and (down := columns_last_plan(g, dtype, padded, aligned, (pointers[0], pointers[1]))) is not None:
        return down
    if reduction != NORM and _by_columns(g, dtype, aligned):
        return _columns(g, dtype, result, reduction, aligned, pointers, magnitude, padded)
    few = g.whole and g.first and g.outer < _FEW  # a warp reduces a short plane in fewer steps than a block that copies it first
    if not few and _fits(g, dtype, device):
        return _planes(g, device, dtype, result, reduction, aligned, pointers, magnitude, padded, p)
    if g.whole and g.length < 1 << 30:
        return _whole(g, dtype, result, reduction, aligned, pointers, magnitude, p)
    flight = g.axes[2].window if 3 < g.axes[2].window <= _FLIGHT and reduction != NORM else 0  # a row of a window
    vector = _vector(g, dtype, aligned, _BUSY // 2 if flight else _BUSY) if g.last else 1
    items, rows = g.axes[2].outputs * (g.channels // vector if g.last else 1), g.outer * g.axes[0].outputs * g.axes[1].outputs
    widest = max(g.axes[1].window, g.axes[2].window)
    window = widest if g.flat and widest <= 3 else 0
    place = "long long" if reduction == INDICES and g.length >= 1 << 31 else "int"
    columns = columns_of(items)
    config = WindowsConfig(
        POOL_TYPES[dtype], POOL_TYPES[result], place, reduction, magnitude, g.adaptive, window, flight, vector, columns, THREADS // columns
    )
    words = [f"{REDUCTIONS[reduction]}_pool_windows_{POOL_SHORT[dtype]}x{vector}"]
    words += [f"to_{POOL_SHORT[result]}"] * (result != dtype) + ["magnitude"] * magnitude + ["adaptive"] * g.adaptive
    words += [f"w{window}"] * (window > 0) + [f"f{flight}"] * (flight > 0) + ["wide"] * (place != "int") + [f"b{columns}"]
    grid, numbers = window_numbers(g, items, rows, vector, padded, p)
    return Plan(Kernel("pool/windows.cu", "_".join(words), config), grid, THREADS, (*pointers, *numbers))


def _vector(g: Geometry, dtype: np.dtype, aligned: bool, busy: int) -> int:
    """Channels of a thread: fewer where windows are large, and so few that there would not be threads enough to keep a card `busy`."""
    vector, windows = vector_length(dtype, aligned, g.channels), g.outer * math.prod(g.out_space)
    while (
        vector > 1
        and vector * dtype.itemsize > 4
        and windows * g.channels // vector < busy
        and math.prod(a.window for a in g.axes) >= _LARGE_WINDOW
    ):
        vector //= 2
    return vector


def _widest(reduction: int) -> int:
    """Results of a thread: four positions of 8 bytes each still fill whole sectors of memory by two stores."""
    return 4 if reduction == INDICES else 16


def _strips(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
            magnitude: bool, padded: bool, p: float) -> Plan:  # fmt: skip
    """The reduction of small windows: a thread walks down the rows of one window or several."""
    _, h, w = g.axes
    strips = strips_of(
        g,
        dtype,
        aligned,
        h.outputs * h.stride_used,
        w.outputs,
        _widest(reduction),
        reduction == MAX,
        reduction == NORM,
        most=2 if reduction in (INDICES, TAP) else 0,
    )
    exponent = int(p) if reduction == NORM else 0
    # Beside two vectors, three single loads take the first-level cache longer than these do; floats and places are bound by instructions.
    lends = g.first and w.window > 3 and dtype in HALF and reduction in (MAX, MEAN)
    config = StripsConfig(
        **strips.settings,
        result=POOL_TYPES[result],
        reduction=reduction,
        magnitude=magnitude and reduction != NORM,
        exponent=exponent,
        lends=lends,
    )
    words = [f"{REDUCTIONS[reduction]}_pool_strips_{POOL_SHORT[dtype]}"]
    words += (
        [f"to_{POOL_SHORT[result]}"] * (result != dtype)
        + ["magnitude"] * config.magnitude
        + [f"l{exponent}"] * (exponent > 0)
        + ["lends"] * lends
        + strips.words
    )
    kernel = Kernel("pool/strips.cu", "_".join(words), config)
    plan = Plan(kernel, strips.grid, THREADS, (*pointers, *strips.numbers, int(padded)))
    return ahead_if_small(plan) if config.steps == 1 and reduction != NORM else plan


def _whole(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
           magnitude: bool, p: float) -> Plan:  # fmt: skip
    """The reduction of each plane to one element."""
    inner = g.channels if g.last else 1
    along = not g.last
    vector = vector_length(dtype, aligned, g.length if along else inner)
    columns = g.outer if along else g.outer * inner // vector
    lanes, taps = _whole_block(columns, g.length // vector if along else g.length, along, dtype)
    unroll = 4 if along or reduction in (INDICES, TAP, NORM) else 8
    config = WholeConfig(POOL_TYPES[dtype], POOL_TYPES[result], reduction, magnitude, along, vector, lanes, taps, unroll)
    words = [f"{REDUCTIONS[reduction]}_pool_whole_{POOL_SHORT[dtype]}x{vector}"]
    words += [f"to_{POOL_SHORT[result]}"] * (result != dtype) + ["magnitude"] * magnitude + ["along"] * along + [f"t{taps}_l{lanes}"]
    grid = (min(-(-columns // lanes), 1 << 30), 1, 1)
    numbers = (columns, g.length, 1 if along else inner // vector, p)
    return ahead_if_small(Plan(Kernel("pool/whole.cu", "_".join(words), config), grid, lanes * taps, (*pointers, *numbers)))


def _whole_block(columns: int, steps: int, along: bool, dtype: np.dtype) -> tuple[int, int]:
    """(columns of a block, threads that share one): enough blocks for the card, then about eight loads a thread."""

    if along:
        return (8 if columns >= 2048 else 2, 32) if steps <= 1024 else (1, 256)
    lanes = next(n for n in (16, 8, 4) if columns >= 256 * n or n == 4)
    taps = 4 if steps <= _SHORT and dtype in HALF else 8
    while taps * 8 < steps and steps > _SHORT and taps * lanes < 512:
        taps *= 2
    return lanes, taps


def _by_columns(g: Geometry, dtype: np.dtype, aligned: bool) -> bool:
    """Whether rows in channels-first memory are whole vectors, and what is left of one fits into shared memory."""
    _, h, w = g.axes
    whole_vectors = vector_length(dtype, aligned, w.extent) * dtype.itemsize >= 8
    return g.first and g.flat and not g.whole and whole_vectors and w.extent <= _ROW and h.outputs * w.outputs > 0


def _aligned_windows(g: Geometry, dtype: np.dtype, aligned: bool) -> tuple[int, int, int] | None:
    """(elements of a vector, lanes that share a window, windows of a vector) where windows stand beside each other and begin and end with vectors."""
    _, _, w = g.axes
    apart = not w.uneven and (w.stride_used, w.dilation, w.before) == (w.window, 1, 0) and w.outputs * w.window <= w.extent
    if not (apart and g.first and g.flat) or g.whole or g.length == 0 or g.axes[1].outputs * w.outputs == 0:
        return None
    wide = vector_length(dtype, aligned, w.extent)
    lanes, own = max(w.window // wide, 1), max(wide // w.window, 1)
    fits = lanes * wide == own * w.window and lanes in (1, 2, 4, 8, 16, 32) and w.outputs % own == 0
    return (wide, lanes, own) if fits and wide * dtype.itemsize >= 8 else None


def _aligned(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, pointers: tuple[Array, ...], magnitude: bool, padded: bool,
             wide: int, lanes: int, own: int) -> Plan:  # fmt: skip
    """The reduction of windows that lie apart along the rows, each thread on its own but for the lanes that share one."""
    _, h, w = g.axes
    vectors = w.outputs * w.window // wide
    total, flight = g.outer * h.outputs * vectors, _flight(h)
    config = AlignedConfig(POOL_TYPES[dtype], POOL_TYPES[result], reduction, magnitude, g.adaptive, wide, flight, lanes, own, THREADS)
    words = [f"{REDUCTIONS[reduction]}_pool_aligned_{POOL_SHORT[dtype]}x{wide}"] + [f"to_{POOL_SHORT[result]}"] * (result != dtype)
    words += ["magnitude"] * magnitude + ["adaptive"] * g.adaptive + [f"l{lanes}o{own}f{flight}"]
    dividers = [n for divisor in (vectors, h.outputs) for n in divider(divisor, total)]
    numbers = (total, *dividers, w.extent, *h.packed(g.adaptive), int(padded))
    return Plan(Kernel("pool/aligned.cu", "_".join(words), config), (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers))


def _flight(h: WindowAxis) -> int:
    """Loads of a thread under way, down a window: all of it where there are registers for that."""
    return h.window if 8 < h.window <= _FLIGHT else 8


def _columns(g: Geometry, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
             magnitude: bool, padded: bool) -> Plan:  # fmt: skip
    """The reduction of windows of any kind, first down the columns and then along the rows."""
    _, h, w = g.axes
    wide, total = vector_length(dtype, aligned, w.extent), g.outer * h.outputs
    vectors, lanes = w.extent // wide, 1 if w.window < 32 else 8 if w.window < 256 else 32
    row = row_of_threads(w.outputs * lanes)
    several = _COLUMN_THREADS // row
    kept = w.extent * (max(dtype.itemsize, 4) + (4 if reduction in (INDICES, TAP) else 0))  # bytes that are left of a row
    rows = max(_COLUMN_THREADS // vectors // several, 1) * several
    rows = max(1, min(rows, total // _ENOUGH, _COLUMNS // kept))
    flight = _flight(h)
    config = ColumnsConfig(
        POOL_TYPES[dtype], POOL_TYPES[result], reduction, magnitude, g.adaptive, wide, flight, lanes, row, _COLUMN_THREADS
    )
    words = [f"{REDUCTIONS[reduction]}_pool_columns_{POOL_SHORT[dtype]}x{wide}"] + [f"to_{POOL_SHORT[result]}"] * (result != dtype)
    words += ["magnitude"] * magnitude + ["adaptive"] * g.adaptive + [f"l{lanes}r{row}"] + [f"f{flight}"] * (flight > 8)
    dividers = [n for divisor, most in ((vectors, rows * vectors), (h.outputs, total)) for n in divider(divisor, most)]
    numbers = (total, rows, *dividers, *h.packed(g.adaptive), *w.packed(g.adaptive), int(padded))
    kernel = Kernel("pool/columns.cu", "_".join(words), config)
    return Plan(kernel, (-(-total // rows), 1, 1), _COLUMN_THREADS, (*pointers, *numbers), rows * kept)


def _fits(g: Geometry, dtype: np.dtype, device: Device) -> bool:
    """Whether planes in channels-first memory are pooled out of shared memory: short ones as a whole, others by windows of any kind."""
    return (
        g.first
        and g.flat
        and g.length * dtype.itemsize <= (_SHORT_PLANE if g.whole else min(_PLANE, device.shared_memory))
        and g.axes[1].outputs * g.axes[2].outputs > 0
    )


def _planes(g: Geometry, device: Device, dtype: np.dtype, result: np.dtype, reduction: int, aligned: bool, pointers: tuple[Array, ...],
            magnitude: bool, padded: bool, p: float) -> Plan:  # fmt: skip
    """The reduction of windows of any kind out of planes in shared memory: a block takes several planes that follow each other."""
    row = WindowAxis(g.length, 1, g.length, g.length)
    h, w = (WindowAxis(1, 1), row) if g.whole else g.axes[1:]
    wide, windows = vector_length(dtype, aligned), h.outputs * w.outputs
    few = g.outer * windows < _FEW
    lanes = next(n for n in (32, 16, 8, 1) if w.window >= (n if few else 8 * n) or n == 8 <= w.window or n == 1)
    short = g.whole and reduction == MEAN and dtype in HALF and not few and w.window < _SHORT
    if short:
        lanes = 1  # a lane adds up a short plane, or two, in fewer steps than eight that must meet
    planes = _planes_of_a_block(g, wide, 128 if short else max(256 // lanes // windows, 1), dtype.itemsize)
    if planes * g.length * dtype.itemsize > device.shared_memory:  # as many as make whole vectors are too large together
        planes, wide = 1, vector_length(dtype, aligned, g.length)
    pairs = short and planes % 2 == 0
    config = PlanesConfig(POOL_TYPES[dtype], POOL_TYPES[result], reduction, magnitude, g.adaptive, g.whole, pairs, wide, lanes, 256)
    words = [f"{REDUCTIONS[reduction]}_pool_planes_{POOL_SHORT[dtype]}x{wide}"] + [f"to_{POOL_SHORT[result]}"] * (result != dtype)
    words += ["magnitude"] * magnitude + ["adaptive"] * g.adaptive + ["whole"] * g.whole + [f"l{lanes}"] + ["pairs"] * pairs
    limit = planes * windows
    numbers = (
        g.outer,
        planes,
        *divider(windows, limit),
        *divider(w.outputs, limit),
        *h.packed(g.adaptive),
        *w.packed(g.adaptive),
        int(padded),
        p,
    )
    grid = (-(-g.outer // planes), 1, 1)
    shared = -(-planes * g.length * dtype.itemsize // 16) * 16
    return Plan(Kernel("pool/planes.cu", "_".join(words), config), grid, 256, (*pointers, *numbers), shared)


def _planes_of_a_block(g: Geometry, wide: int, busy: int, itemsize: int) -> int:
    """How many planes a block takes: as many as keep its threads busy, or more while they are small; whole vectors, and enough blocks."""
    one = g.length * itemsize
    if g.length % wide == 0 and (2 * one > _STAGE or g.outer < _FEW):
        return 1
    fitting = max(_STAGE // one // busy, 1) * busy if busy * one <= 2 * _STAGE else max(_STAGE // one, 1)
    return -(-min(fitting, max(g.outer // 256, 1)) // wide) * wide


def _norm_of(problem: PoolProblem) -> tuple[int, bool]:
    """(reduction, whether of magnitudes) of an operation's forward."""
    if problem.op.startswith("lp"):
        return (MAX if math.isinf(problem.p) else NORM), True
    return (MEAN if "avg" in problem.op else MAX), False


def windows(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    """One launch: every window by itself."""
    x, outputs = problem.inputs[0], [s for s in problem.outputs if s is not None]
    if outputs[0].size == 0:
        return Program(())
    g = geometry_of(x, problem.axes, problem.layout)
    reduction, magnitude = _norm_of(problem)
    pointers = (Array(0), Array(1), Array(len(outputs)))
    if len(outputs) == 2:
        reduction = INDICES
    plan = reduction_plan(g, device, x.dtype, x.dtype, reduction, aligned, pointers, magnitude, problem.padded, problem.p)
    return Program((plan,), (g.order,))
