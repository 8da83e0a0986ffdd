"""Gradients of pooling: the sum over windows for each element, by tiles, by whole windows, or in one pass with the maxima."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.pool_cells import cells_plan
from dnnarray._cuda.pool_common import (
    NORM,
    POOL_SHORT,
    POOL_TYPES,
    RULES,
    TAP,
    THREADS,
    StripConfig,
    Strips,
    columns_of,
    strips_of,
    window_numbers,
)
from dnnarray._cuda.pool_geometry import CODES, Geometry, WindowAxis, divider, geometry_of
from dnnarray._cuda.pool_shared import shared_plan, walk_plan
from dnnarray._cuda.pool_slide import slide_plan
from dnnarray._cuda.pool_windows import reduction_plan
from dnnarray._cuda.pool_winners import overlap_much, winners_plan
from dnnarray._cuda.pool_winners_ring import ring_plan
from dnnarray._cuda.pool_winners_runs import runs_plan
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, HALF, Spec

_CODED = 1 << 20  # windows
_FILLED = 2  # vectors that a thread writes of planes that are all alike


@frozen
class GatherConfig(Config):
    """Compile-time settings of ``kernels/pool/gather.cu``."""

    element: str
    saved: str
    rule: int
    magnitude: bool
    small: bool
    adaptive: bool
    cover: int
    vector: int
    columns: int
    rows: int


@frozen
class TilesConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/tiles.cu``."""

    saved: str
    rule: int


@frozen
class SlopesConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/slopes.cu``."""

    exponent: int
    at_once: bool
    blocks: int


@frozen
class WholeGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/whole_gradient.cu``."""

    element: str
    two: bool
    wide: int
    steps: int
    threads: int


@frozen
class PairsConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/pairs.cu``."""


@frozen
class DisjointConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/disjoint.cu``."""

    magnitude: bool = False
    lends: bool = False


@frozen
class CodesConfig(Config):
    """Compile-time settings of ``kernels/pool/codes.cu``."""

    saved: str
    wide: int
    threads: int


@frozen
class SpreadConfig(Config):
    """Compile-time settings of ``kernels/pool/spread.cu``."""

    element: str
    saved: str
    rule: int
    magnitude: bool
    last: bool
    reach: int
    wide: int
    steps: int
    threads: int


def _norm(problem: PoolProblem) -> bool:
    """Whether the problem is of a norm other than the largest magnitude."""
    return problem.op.startswith("lp") and not math.isinf(problem.p)


def _saved_dtype(problem: PoolProblem) -> np.dtype | None:
    """What the first launch of a gradient leaves for the second, None if there is no first: a tap per window, or its norm."""
    x, indices = problem.inputs[1:]
    g = geometry_of(x, problem.axes, problem.layout)
    if indices is not None and _coded(g, indices):
        return np.dtype(np.uint8)
    if "avg" in problem.op or indices is not None or _disjoint(problem, g):
        return None
    if _norm(problem):
        if g.at_once(problem.p) and not g.whole:
            return None
        return FLOAT32 if x.dtype in HALF else x.dtype
    return np.dtype(np.uint8) if math.prod(a.window for a in problem.axes) < CODES else np.dtype(np.int32)


def _coded(g: Geometry, indices: Spec) -> bool:
    """Whether a launch makes taps of places: where these, of 8 bytes, would be read again and again, and there are enough for two launches."""
    return g.last and g.at_once() and not g.whole and g.axes[2].cover() > 2 and indices.size >= _CODED


def _codes(g: Geometry, indices: Spec, aligned: bool, pointers: tuple[Array, ...]) -> Plan:
    """Places of maxima to the numbers of their taps."""
    _, h, w = g.axes
    wide = vector_length(FLOAT32, aligned, g.channels)
    inner, total = g.channels // wide, indices.size // wide
    config = CodesConfig(POOL_TYPES[indices.dtype], wide, THREADS)
    dividers = [n for divisor in (inner, w.outputs, h.outputs) for n in divider(divisor, total)]
    numbers = (total, *dividers, *divider(w.extent, (1 << 31) - 1), *h.packed(), *w.packed())
    kernel = Kernel("pool/codes.cu", f"max_pool_codes_of_{POOL_SHORT[indices.dtype]}x{wide}", config)
    return Plan(kernel, (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers))


def _disjoint(problem: PoolProblem, g: Geometry) -> bool:
    """Whether one launch finds the maxima and spreads the gradient: small windows that do not overlap."""
    apart = all(a.stride_used >= a.window for a in g.axes[1:])
    return "max" in problem.op and problem.inputs[2] is None and g.small and not g.whole and apart and g.axes[2].before == 0


def _in_one_pass(g: Geometry, problem: PoolProblem, device: Device, aligned: bool) -> Plan | None:
    """One launch that finds the maxima, or takes their places, and sums for each element: small windows of which many lie over an element."""
    _, x, indices = problem.inputs
    if not problem.op.startswith(("max", "adaptive_max")):
        return None
    pointers = (Array(0), Array(1), Array(2), Array(2 if indices is None else 3))
    ring = ring_plan(g, x, device, aligned, (pointers[0], pointers[1], pointers[3])) if indices is None else None
    runs = runs_plan(g, x, indices, device, aligned, (pointers[0], pointers[1] if indices is None else pointers[2], pointers[3]))
    return ring or runs or (winners_plan(g, x, indices, device, aligned, pointers) if overlap_much(g, x, indices, aligned) else None)


def saved_bytes(problem: PoolProblem) -> int:
    """Scratch for what is saved of each window."""
    dtype = _saved_dtype(problem)
    return 0 if dtype is None else -(-problem.inputs[0].size * dtype.itemsize // 16) * 16


def gather(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    """A launch that saves where each maximum stands (or each norm), unless it is given; one that sums over windows for each element."""
    grad, x, indices = problem.inputs
    if x.size == 0:
        return Program(())
    g, given = geometry_of(x, problem.axes, problem.layout), 2 if indices is None else 3
    if grad.size == 0:  # an output extent of 0: no window has a gradient
        return Program((zero(Array(given), x.nbytes, aligned),), (g.order,) * given)
    if _disjoint(problem, g):
        return Program((_disjoint_plan(g, x.dtype, aligned),), (g.order, g.order))
    if _norm(problem) and g.at_once(problem.p) and not g.whole:
        return Program((_slopes(g, problem, aligned),), (g.order, g.order))
    if (plan := _in_one_pass(g, problem, device, aligned)) is not None:
        return Program((plan,), (g.order,) * given)
    output, scratch, saved = Array(given), Array(given + 1), _saved_dtype(problem)
    norm, magnitude = _norm(problem), problem.op.startswith("lp")
    plans = []
    if saved is not None and indices is not None:
        plans.append(_codes(g, indices, aligned, (Array(2), scratch)))
    elif saved is not None:
        reduction = NORM if norm else TAP
        plans.append(reduction_plan(g, device, x.dtype, saved, reduction, aligned, (Array(1), scratch, scratch), magnitude, p=problem.p))
    if saved is not None:
        rule, third = (3 if norm else 0), scratch
    elif indices is not None:
        rule, third, saved = 1, Array(2), indices.dtype
    else:
        rule, third, saved = 2, output, np.dtype(np.uint8)  # nothing is read
    plans.append(_gather(g, problem, device, x, saved, rule, magnitude, aligned, (Array(0), Array(1), third, output)))
    return Program(tuple(plans), (g.order,) * given)


def _gather(g: Geometry, problem: PoolProblem, device: Device, x: Spec, saved: np.dtype, rule: int, magnitude: bool, aligned: bool,
            pointers: tuple[Array, ...]) -> Plan:  # fmt: skip
    walks = rule == 2 and not (g.whole or g.small or (g.tiled and g.last))
    if rule == 2 and g.whole and g.first and g.length < 1 << 30:
        return _whole_gradient(g, x, aligned, (pointers[0], pointers[3]))
    slide = slide_plan(g, x.dtype, True, problem.padded, aligned, (pointers[0], pointers[3])) if rule == 2 else None
    if slide is not None:
        return slide
    walk = walk_plan(g, x, problem.padded, aligned, (pointers[0], pointers[3])) if walks else None
    if walk is not None:
        return walk
    if (g.whole or (g.tiled and not g.small)) and g.length < 1 << 30:
        return _spread(g, problem, x, saved, rule, magnitude, aligned, pointers)
    positions = rule == 1 and g.last and max(a.window for a in g.axes) > 3  # of 8 bytes, more than there are registers for
    if g.at_once() and not magnitude and not positions:
        return _tiles(g, problem, x, saved, rule, aligned, pointers)
    shared = shared_plan(g, x, saved, rule, device, problem.padded, aligned, pointers) if not magnitude else None
    if shared is not None:
        return shared
    vector = vector_length(x.dtype, aligned, g.channels) if g.last else 1
    items, rows = g.axes[2].extent * (g.channels // vector if g.last else 1), g.outer * g.axes[0].extent * g.axes[1].extent
    most = max(g.axes[1].cover(), g.axes[2].cover())
    cover = most if g.flat and most <= (2 if rule == 1 else 3) else 0
    columns, small = columns_of(items), rule == 0 and g.at_once()  # taps of small windows have numbers of their own
    config = GatherConfig(
        POOL_TYPES[x.dtype], POOL_TYPES[saved], rule, magnitude, small, g.adaptive, cover, vector, columns, THREADS // columns
    )
    words = [f"{RULES[rule]}_pool_gather_{POOL_SHORT[x.dtype]}x{vector}"]
    words += [f"by_{POOL_SHORT[saved]}"] * (rule < 2) + ["magnitude"] * magnitude + ["small"] * small + ["adaptive"] * g.adaptive
    words += [f"c{cover}"] * (cover > 0) + [f"b{columns}"]
    grid, numbers = window_numbers(g, items, rows, vector, problem.padded, problem.p)
    return Plan(Kernel("pool/gather.cu", "_".join(words), config), grid, THREADS, (*pointers, *numbers))


def _whole_gradient(g: Geometry, x: Spec, aligned: bool, pointers: tuple[Array, ...]) -> Plan:
    """The same for means of whole planes in channels-first memory."""
    wide = min(vector_length(x.dtype, aligned), 1 << g.length.bit_length() - 1)
    two = g.length % wide != 0
    config = WholeGradientConfig(POOL_TYPES[x.dtype], two, wide, _FILLED, THREADS)
    symbol = f"mean_pool_whole_gradient_{POOL_SHORT[x.dtype]}x{wide}" + "_two" * two
    grid = (-(-x.size // (THREADS * wide * _FILLED)), 1, 1)
    numbers = (x.size, *divider(g.length, x.size), 1 / g.length)
    return ahead_if_small(Plan(Kernel("pool/whole_gradient.cu", symbol, config), grid, THREADS, (*pointers, *numbers)))


def _spread(g: Geometry, problem: PoolProblem, x: Spec, saved: np.dtype, rule: int, magnitude: bool, aligned: bool,
            pointers: tuple[Array, ...]) -> Plan:  # fmt: skip
    """The same for windows that tile the planes, or whole planes, which count as one row: a thread writes a vector of what they get."""
    row = WindowAxis(g.length, 1, g.length, g.length)
    h, w = (WindowAxis(1, 1), row) if g.whole else g.axes[1:]
    wide = vector_length(x.dtype, aligned, *[g.channels] * g.last)
    steps = 4 if g.last and x.size >= 1 << 22 else 1
    if g.whole and not g.last:
        wide = min(wide, 1 << g.length.bit_length() - 1)
    # What a vector along memory meets: one window, at most two planes, or anything.
    reach = 0 if g.last or w.stride_used % wide == w.extent % wide == 0 else 1 if g.whole else 2
    config = SpreadConfig(POOL_TYPES[x.dtype], POOL_TYPES[saved], rule, magnitude, g.last, reach, wide, steps, THREADS)
    words = (
        [f"{RULES[rule]}_pool_spread_{POOL_SHORT[x.dtype]}x{wide}"] + [f"by_{POOL_SHORT[saved]}"] * (rule < 2) + ["magnitude"] * magnitude
    )
    words += [f"last_s{steps}" if g.last else f"first_r{reach}"]
    inner, widths = (g.channels // wide, -(-w.extent // steps)) if g.last else (1, w.extent)
    total = g.outer * h.extent * widths * inner if g.last else x.size
    dividers = [n for divisor in (h.extent, widths, inner) for n in divider(divisor, total)]
    tilings = [n for a in (h, w) for n in (*divider(a.stride_used, 0), a.packed()[0], a.extent + a.after * problem.padded)]
    grid = (-(-total // (THREADS if g.last else THREADS * wide)), 1, 1)
    kernel = Kernel("pool/spread.cu", "_".join(words), config)
    plan = Plan(kernel, grid, THREADS, (*pointers, total, *dividers, *tilings, problem.p))
    return ahead_if_small(plan) if steps == 1 else plan


def _pairs(x: Spec, strips: Strips, pointers: tuple[Array, ...]) -> Plan:
    """The same for maxima of halves in channels-last memory, two at once; more than 3 x 3 windows over an element take too many registers."""
    symbol = "_".join([f"max_pool_pairs_{POOL_SHORT[x.dtype]}", *strips.words])
    grad, _, saved, output = pointers
    return Plan(
        Kernel("pool/pairs.cu", symbol, PairsConfig(**strips.settings)), strips.grid, THREADS, (grad, saved, output, *strips.numbers)
    )


def _slopes(g: Geometry, problem: PoolProblem, aligned: bool) -> Plan:
    """The gradient of a norm over small windows, in one launch."""
    dtype, exponent = problem.inputs[1].dtype, int(problem.p)
    if g.last:
        return cells_plan(g, dtype, exponent, aligned, (Array(0), Array(1), Array(2)))
    blocks, at_once, most = _slopes_of(g, dtype)
    strips = strips_of(g, dtype, aligned, g.axes[1].extent + g.axes[1].before, most=most)
    config = SlopesConfig(**strips.settings, exponent=exponent, at_once=at_once, blocks=blocks)
    words = [f"norm_pool_slopes_{POOL_SHORT[dtype]}_l{exponent}", *strips.words] + ["at_once"] * at_once
    kernel = Kernel("pool/slopes.cu", "_".join([*words, f"b{blocks}"]), config)
    return Plan(kernel, strips.grid, THREADS, (Array(0), Array(1), Array(2), *strips.numbers))


def _slopes_of(g: Geometry, dtype: np.dtype) -> tuple[int, bool, int]:
    """Of a norm's gradient: blocks that registers are kept for, whether a thread asks for all it reads at once, the rows it walks (0: by the common rule)."""
    if dtype == FLOAT64:
        return 2, False, 0
    if any(a.stride_used != 2 for a in g.axes[1:]):  # more sums than registers
        return (3, False, 4) if dtype == BFLOAT16 else (4, False, 0)
    if dtype == FLOAT16:
        return 8, False, 0
    return (4, True, 3) if dtype == BFLOAT16 else (6, True, 0)


def _disjoint_plan(g: Geometry, dtype: np.dtype, aligned: bool) -> Plan:
    """Maxima found and their gradient spread in one pass."""
    strips = strips_of(g, dtype, aligned, g.axes[1].extent + g.axes[1].before)
    symbol = "_".join([f"max_pool_disjoint_{POOL_SHORT[dtype]}", *strips.words])
    kernel = Kernel("pool/disjoint.cu", symbol, DisjointConfig(**strips.settings))
    return Plan(kernel, strips.grid, THREADS, (Array(0), Array(1), Array(2), *strips.numbers))


def _tiles(g: Geometry, problem: PoolProblem, x: Spec, saved: np.dtype, rule: int, aligned: bool, pointers: tuple[Array, ...]) -> Plan:
    """The same for small windows: a thread sums for tiles under a window or several."""
    grad, _, third, output = pointers
    strips = strips_of(g, x.dtype, aligned, g.axes[1].extent + g.axes[1].before)
    if rule == 0 and x.dtype in HALF and g.last and max(g.axes[1].cover(), g.axes[2].cover()) <= 3 and strips.settings["wide"] % 4 == 0:
        return _pairs(x, strips, pointers)
    config = TilesConfig(**strips.settings, saved=POOL_TYPES[saved], rule=rule)
    words = [f"{RULES[rule]}_pool_tiles_{POOL_SHORT[x.dtype]}"] + [f"by_{POOL_SHORT[saved]}"] * (rule < 2) + strips.words
    kernel = Kernel("pool/tiles.cu", "_".join(words), config)
    plan = Plan(kernel, strips.grid, THREADS, (grad, third, output, *strips.numbers, int(problem.padded)))
    return ahead_if_small(plan) if config.steps == 1 else plan
