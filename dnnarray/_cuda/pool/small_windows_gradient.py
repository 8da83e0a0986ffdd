"""The algorithm ``small_windows_gradient``: windows of up to 5 x 5 in registers, by threads that sum for the tiles
under a window or several."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import In, Int, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program, ahead_if_small
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
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
    taps_bytes,
    worth_taps,
)
from dnnarray._cuda.pool.shared import (
    POOL_SHORT,
    POOL_TYPES,
    THREADS,
    Saved,
    StripArguments,
    StripConfig,
    overtaken,
    strips_of,
    times,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device


@frozen
class SmallWindowsGradientConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/small_windows_gradient.cu``."""

    saved: str
    rule: int


@frozen
class SmallWindowsGradientArguments(StripArguments):
    """What ``kernels/pool/small_windows_gradient.cu`` is called with."""

    grad: In
    saved: Saved
    dx: Out
    padded: Int


def _plan(problem: PoolProblem, aligned: bool, g: Geometry, known: Known) -> Plan:
    dtype, rule, h = problem.inputs[1].dtype, known.rule, g.axes[1]
    strips = strips_of(g, dtype, aligned, h.extent + h.before)
    config = SmallWindowsGradientConfig(**strips.settings, saved=POOL_TYPES[known.dtype], rule=rule)
    words = [f"{RULES[rule]}_pool_small_windows_gradient_{POOL_SHORT[dtype]}"]
    words += [f"by_{POOL_SHORT[known.dtype]}"] * (rule in (BY_TAP, BY_PLACE)) + strips.words
    kernel = Kernel("pool/small_windows_gradient.cu", "_".join(words), config, ("pool/strip",))
    arguments = SmallWindowsGradientArguments(
        grad=Array(0), saved=known.saved, dx=dx_of(problem), **strips.arguments, padded=int(problem.padded)
    )
    plan = planned(kernel, strips.grid, THREADS, arguments)
    return ahead_if_small(plan) if config.steps == 1 else plan


def reason(problem: PoolProblem) -> str | None:
    """Why a kernel that numbers the taps of small windows does not do a problem."""
    if (found := backward_reason(problem)) or of_magnitudes(problem):
        return found or "magnitudes take the sign of x"
    if not geometry_at(problem).at_once():
        return "windows are larger than 5 x 5, apart by more than 3, dilated or uneven"
    return (
        None if numbered_by_rows(problem) or rule_of(problem) != BY_TAP else "taps of whole planes have other numbers"
    )


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if found := reason(problem):
        return found
    g = geometry_at(problem)
    if rule_of(problem) == BY_PLACE and g.last and max(a.window for a in g.axes) > 3:
        return "there are no registers for the places of windows of more than 3 x 3 in channels-last memory"
    return None


def workspace(problem: PoolProblem) -> int:
    return 0 if problem.inputs[2] is not None else saved_bytes(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    if worth_taps(problem):
        return overtaken(problem, device)
    scratch = workspace(problem)
    return times(problem, 1.1, launches=1 + (scratch > 0), more=2 * scratch)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, aligned, g, known))


# --- places that are given become taps first --------------------------------------------------------------------------


def taps_rejects(problem: PoolProblem, device: Device) -> str | None:
    return reason(problem) or no_taps(problem)


def no_taps(problem: PoolProblem) -> str | None:
    """Why places are not made into taps."""
    if problem.inputs[2] is None:
        return "no places are given"
    return (
        None
        if geometry_at(problem).last and numbered_by_rows(problem)
        else "windows are whole planes, or memory is not channels-last"
    )


def taps_cost(problem: PoolProblem, device: Device) -> Cost:
    """It pays where threads would read places, of 8 bytes each, again and again."""
    return (
        times(problem, 1.1, launches=2, more=2 * taps_bytes(problem))
        if worth_taps(problem)
        else overtaken(problem, device)
    )


def run_by_taps(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, aligned, g, known), taps=True)
