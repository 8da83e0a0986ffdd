"""The first launch of the algorithm ``folded``: sums of parts of the folded rows."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import OutArithmetic
from dnnarray._cuda.core.plan import Array, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_view import Inputs
from dnnarray._cuda.norm.folded_shared import Fold, FoldedArguments, arguments_of, kernel
from dnnarray._cuda.norm.shared import is_gradient
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen


@frozen(kw_only=True)
class FoldedSumsArguments(FoldedArguments):
    """What ``kernels/norm/folded_sums.cu`` is called with."""

    partial: OutArithmetic


def folded_sums(problem: NormProblem, given: Inputs, partial: Array, fold: Fold) -> Plan:
    arguments = FoldedSumsArguments(**arguments_of(problem, given, fold), partial=partial)
    made = kernel(problem, "folded_sums", fold, plain=not is_gradient(problem))
    return planned(made, (fold.slices, fold.parts, 1), fold.threads, arguments)
