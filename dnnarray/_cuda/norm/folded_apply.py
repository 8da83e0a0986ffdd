"""The second launch of the algorithm ``folded``: statistics, or their gradients, and the result."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Double, InArithmetic, Int, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Array, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_view import Inputs, shares
from dnnarray._cuda.norm.folded_shared import Fold, FoldedArguments, arguments_of, kernel
from dnnarray._cuda.norm.shared import AnyTypeOut, Pointer
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen


@frozen(kw_only=True)
class FoldedApplyArguments(FoldedArguments):
    """What ``kernels/norm/folded_apply.cu`` is called with: `out` is y or dx, `more` the gradient of the residual,
    `first` and `second` mean and rstd, or the gradients of weight and bias."""

    partial: InArithmetic
    out: Out
    more: Out
    first: AnyTypeOut
    second: AnyTypeOut
    next_mean: AnyTypeOut
    next_var: AnyTypeOut
    run: Int
    count: Double
    share: Double
    momentum: Double
    eps: Double


def folded_apply(problem: NormProblem, given: Inputs, partial: Array, outputs: tuple[Pointer, ...], fold: Fold) -> Plan:
    """The launch; `outputs` are (out, more, first, second, next_mean, next_var)."""
    out, more, first, second, next_mean, next_var = outputs
    count, share = shares(problem)
    arguments = FoldedApplyArguments(
        **arguments_of(problem, given, fold),
        partial=partial,
        out=out,
        more=more,
        first=first,
        second=second,
        next_mean=next_mean,
        next_var=next_var,
        run=fold.run,
        count=count,
        share=share,
        momentum=float(problem.momentum),
        eps=float(problem.eps),
    )
    made, grid = kernel(problem, "folded_apply", fold, plain=False), (fold.slices, blocks_of(fold.rows, fold.run), 1)
    return planned(made, grid, fold.threads, arguments, early=True)
