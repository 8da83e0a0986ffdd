"""The algorithm ``tiling_gradient``: windows that tile the planes without a gap, or are whole planes; each element
takes its part of one window."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, WindowAxis, division
from dnnarray._cuda.pool.gradient import (
    BY_PLACE,
    BY_TAP,
    RULES,
    Known,
    backward_reason,
    dx_of,
    geometry_at,
    launches,
    numbered_by_rows,
    of_magnitudes,
    rule_of,
    saved_bytes,
)
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Division, Saved, overtaken, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device


@frozen
class TilingGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/tiling_gradient.cu``."""

    element: str
    saved: str
    rule: int
    magnitude: bool
    last: bool
    reach: int
    wide: int
    steps: int
    threads: int


@frozen
class TilingGradientArguments(Arguments, restrict=True):
    """What ``kernels/pool/tiling_gradient.cu`` is called with."""

    grad: In
    x: In
    saved: Saved
    dx: Out
    total: Extent
    heights: Division
    widths: Division
    inner: Division
    h_window: Division
    h_extent: Int
    h_outputs: Int
    h_counted: Int
    w_window: Division
    w_extent: Int
    w_outputs: Int
    w_counted: Int
    p: Double


def _plan(problem: PoolProblem, aligned: bool, g: Geometry, known: Known) -> Plan:
    """Whole planes count as one row: a thread writes a vector of what they get."""
    x, rule, magnitude = problem.inputs[1], known.rule, of_magnitudes(problem)
    row = WindowAxis(g.length, 1, g.length, g.length)
    h, w = (WindowAxis(1, 1), row) if g.whole else g.axes[1:]
    wide = vector_length(x.dtype, aligned, *[g.channels] * g.last)
    steps = 4 if g.last and x.size >= 1 << 22 else 1
    if g.whole and not g.last:
        wide = min(wide, 1 << g.length.bit_length() - 1)
    # What a vector along memory meets: one window, at most two planes, or anything.
    reach = 0 if g.last or w.stride_used % wide == w.extent % wide == 0 else 1 if g.whole else 2
    config = TilingGradientConfig(
        POOL_TYPES[x.dtype], POOL_TYPES[known.dtype], rule, magnitude, g.last, reach, wide, steps, THREADS
    )
    words = [f"{RULES[rule]}_pool_tiling_gradient_{POOL_SHORT[x.dtype]}x{wide}"]
    words += [f"by_{POOL_SHORT[known.dtype]}"] * (rule in (BY_TAP, BY_PLACE)) + ["magnitude"] * magnitude
    words += [f"last_s{steps}" if g.last else f"first_r{reach}"]
    inner, widths = (g.channels // wide, -(-w.extent // steps)) if g.last else (1, w.extent)
    total = g.outer * h.extent * widths * inner if g.last else x.size
    by_h, by_w, by_inner = (division(divisor, total) for divisor in (h.extent, widths, inner))
    tilings: dict[str, int] = {}
    for name, axis in (("h", h), ("w", w)):
        counted = axis.extent + axis.after * problem.padded
        tilings |= {f"{name}_extent": axis.extent, f"{name}_outputs": axis.outputs, f"{name}_counted": counted}
    windows = division(h.stride_used, 0), division(w.stride_used, 0)
    grid = (-(-total // (THREADS if g.last else THREADS * wide)), 1, 1)
    kernel = Kernel("pool/tiling_gradient.cu", "_".join(words), config, ("pool/window",))
    arguments = TilingGradientArguments(
        Array(0),
        Array(1),
        known.saved,
        dx_of(problem),
        total=total,
        heights=by_h,
        widths=by_w,
        inner=by_inner,
        h_window=windows[0],
        w_window=windows[1],
        **tilings,
        p=problem.p,
    )
    plan = planned(kernel, grid, THREADS, arguments)
    return ahead_if_small(plan) if steps == 1 else plan


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if reason := backward_reason(problem):
        return reason
    g = geometry_at(problem)
    if not (g.whole or g.tiled):
        return "windows do not tile the planes of channels-first or channels-last memory"
    if rule_of(problem) == BY_TAP and numbered_by_rows(problem):
        return "taps of small windows have other numbers"
    return None if g.length < 1 << 30 else "a plane has 2^30 elements or more"


def workspace(problem: PoolProblem) -> int:
    return 0 if problem.inputs[2] is not None else saved_bytes(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    g, scratch = geometry_at(problem), workspace(problem)
    if g.small and not g.whole:  # windows that a thread has in registers
        return overtaken(problem, device)
    return times(problem, 1.0, launches=1 + (scratch > 0), more=2 * scratch)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, aligned, g, known))
