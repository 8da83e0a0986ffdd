"""The algorithm ``gather_channels_last``: windows of any kind in channels-last memory, fetched once for several columns
of a thread."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, division
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
    worth_taps,
)
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Division, Saved, Windows, overtaken, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_COLUMNS = 4  # that a thread owns


@frozen
class GatherChannelsLastConfig(Config):
    """Compile-time settings of ``kernels/pool/gather_channels_last.cu``."""

    element: str
    saved: str
    rule: int
    adaptive: bool
    columns: int
    wide: int
    threads: int


@frozen
class GatherChannelsLastArguments(Arguments, restrict=True):
    """What ``kernels/pool/gather_channels_last.cu`` is called with."""

    grad: In
    saved: Saved
    dx: Out
    total: Extent
    inner: Division
    groups: Division
    heights: Division
    depths: Division
    d: Windows
    h: Windows
    w: Windows
    padded: Int


def _plan(problem: PoolProblem, aligned: bool, g: Geometry, known: Known) -> Plan:
    """A thread sums for a few columns of a vector of channels."""
    x, rule, (d, h, w) = problem.inputs[1], known.rule, g.axes
    wide = vector_length(x.dtype, aligned, g.channels)
    inner, groups = g.channels // wide, -(-w.extent // _COLUMNS)
    total = g.outer * d.extent * h.extent * groups * inner
    config = GatherChannelsLastConfig(
        POOL_TYPES[x.dtype], POOL_TYPES[known.dtype], rule, g.adaptive, _COLUMNS, wide, THREADS
    )
    words = [f"{RULES[rule]}_pool_gather_channels_last_{POOL_SHORT[x.dtype]}x{wide}"]
    words += [f"by_{POOL_SHORT[known.dtype]}"] * (rule in (BY_TAP, BY_PLACE))
    kernel = Kernel(
        "pool/gather_channels_last.cu", "_".join([*words, *["adaptive"] * g.adaptive]), config, ("pool/window",)
    )
    by_inner, by_group, by_h, by_d = (division(divisor, total) for divisor in (inner, groups, h.extent, d.extent))
    over_d, over_h, over_w = (axis.numbers(g.adaptive) for axis in g.axes)
    arguments = GatherChannelsLastArguments(
        Array(0),
        known.saved,
        dx_of(problem),
        total=total,
        inner=by_inner,
        groups=by_group,
        heights=by_h,
        depths=by_d,
        d=over_d,
        h=over_h,
        w=over_w,
        padded=int(problem.padded),
    )
    return planned(kernel, (-(-total // THREADS), 1, 1), THREADS, arguments)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if (found := backward_reason(problem)) or of_magnitudes(problem):
        return found or "magnitudes take the sign of x"
    g = geometry_at(problem)
    if not g.last or any(a.dilation != 1 for a in g.axes):
        return "memory is not channels-last, or windows are dilated"
    return (
        "taps of small windows have other numbers" if rule_of(problem) == BY_TAP and numbered_by_rows(problem) else None
    )


def workspace(problem: PoolProblem) -> int:
    return 0 if problem.inputs[2] is not None else saved_bytes(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    if worth_taps(problem):
        return overtaken(problem, device)
    scratch = workspace(problem)
    return times(problem, 1.25, launches=1 + (scratch > 0), more=2 * scratch)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, aligned, g, known))
