"""The algorithm ``channels``: sums per channel, coefficients per channel, one pass that applies them; in both memory
layouts.

Forward: sums of x, ``channel_finish``, ``channel_apply``. Gradient: the same statistics where they were not saved, sums
of the gradient, ``channel_finish_backward``, ``channel_apply``. Given statistics leave the first sums out."""

from __future__ import annotations

from dnnarray._cuda.core.plan import Plan, Program
from dnnarray._cuda.norm.channel_apply import channel_apply
from dnnarray._cuda.norm.channel_finish import channel_finish
from dnnarray._cuda.norm.channel_finish_backward import channel_finish_backward
from dnnarray._cuda.norm.channel_launches import COEFFICIENTS, SHARES, Launches, passes, settles, split, sums_up
from dnnarray._cuda.norm.channel_sums import channel_sums
from dnnarray._cuda.norm.channel_view import MIXED, specs_of, view
from dnnarray._cuda.norm.shared import NOTHING, discarded, is_gradient, orders
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._select import Cost, Device


def rejects(problem: NormProblem, device: Device) -> str | None:
    v = view(problem)
    if v is None:
        return MIXED
    specs = specs_of(problem)
    blocks = split(v, specs.x, specs.grad is not None).parts * (
        1 if v.last else v.channels
    )  # of the sums, at the least
    return f"{blocks:,} blocks are more than a grid has" if blocks >= 1 << 31 else None


def workspace(problem: NormProblem) -> int:
    """The results of the parts and the coefficients."""
    v = view(problem)
    if v is None or v.channels == 0:
        return 0
    specs = specs_of(problem)
    partial, x = split(v, specs.x, specs.grad is not None).parts * v.channels * SHARES, specs.x
    unwanted = discarded(problem) if specs.grad is not None and passes(problem) else 0
    return unwanted + max(2 * partial + 2 * COEFFICIENTS * v.instances * statistics_dtype(x).itemsize, 16)


def cost(problem: NormProblem, device: Device) -> Cost:
    """x is read twice (in the gradient, grad too, where sums are followed by a pass)."""
    if not is_gradient(problem):
        return Cost(problem.flops, problem.bytes + specs_of(problem).x.nbytes, launches=3)
    again = sums_up(problem) and passes(problem)
    return Cost(
        problem.flops, problem.bytes + (2 * specs_of(problem).x.nbytes if again else 0), launches=5 if again else 4
    )


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Sums, coefficients, result."""
    c = Launches(problem, aligned)
    v, (y, *results) = c.view, c.arrays.outputs
    if v.size == 0 and not (v.statistics and any(results)):
        return NOTHING
    found, plans = v.size > 0, list[Plan]()
    if found:
        plans.append(channel_sums(c, False))
    if v.statistics:
        plans.append(channel_finish(c, found, tuple(results)))
    if v.size:
        plans.append(channel_apply(c, False, y))
    return Program(tuple(plans), orders(problem, c.x))


def run_backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The forward's statistics, sums of the gradient, coefficients, gradients; of these what is wanted takes."""
    c = Launches(problem, aligned)
    v, specs, in_order = c.view, c.specs, orders(problem, c.x)
    if v.channels == 0:
        return NOTHING
    dx, *results = c.arrays.outputs
    fixed = specs.variance is not None
    dmean, dvariance = (results.pop(0), results.pop(0)) if fixed else (None, None)
    dweight, dbias, dresidual = (*results, None)[:3]
    gradients = (dweight, dbias, dmean, dvariance)
    if not v.size:
        first = [channel_finish(c, False)] if v.statistics else []
        return Program((*first, channel_finish_backward(c, gradients)), in_order)
    found = not fixed and (specs.mean is None or specs.rstd is None)
    both = found and problem.activation is None
    plans = [channel_sums(c, both, both)] if found else []
    plans += [] if c.direct else [channel_finish(c, found)]
    settled, more = (dresidual, None) if settles(problem) else (None, dresidual)
    plans += [] if both or not sums_up(problem) else [channel_sums(c, True, more=settled)]
    plans += [channel_finish_backward(c, gradients, both)]
    plans += [channel_apply(c, True, dx, more, settled=settled)] if passes(problem) else []
    return Program(tuple(plans), in_order)
