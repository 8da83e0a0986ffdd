"""The algorithm ``strided``: layer and RMS norm over any axes of any memory, element by element."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.axes import AXES, Axes, walks
from dnnarray._cuda.norm.fold import fold
from dnnarray._cuda.norm.layer import Operands, gradients, no_gradient, operands, results, specs_of, wants_parameters
from dnnarray._cuda.norm.shared import NOTHING, AnyType, Arrays, Flag, Pointer, orders, wide
from dnnarray._cuda.norm.strided_parameters import strided_parameters
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 256


@frozen
class StridedConfig(Config):
    """Compile-time settings of ``kernels/norm/strided.cu``."""

    element: str
    centred: bool
    gradient: bool
    side: int
    threads: int


@frozen(kw_only=True)
class StridedArguments(Arguments):
    """What ``kernels/norm/strided.cu`` is called with: `out` is y or dx, `more` the sum or the gradient of the
    residual."""

    grad: In
    grad_sum: In
    x: In
    residual: In
    weight: AnyType
    bias: AnyType
    given_mean: AnyType
    given_rstd: AnyType
    out: Out
    more: Out
    mean_of: OutArithmetic
    rstd_of_row: OutArithmetic
    wide_weight: Flag
    wide_bias: Flag
    wide_mean: Flag
    wide_rstd: Flag
    eps: Double
    statistics: Extent
    count: Extent
    kept: Axes
    along: Axes


def rejects(problem: NormProblem, device: Device) -> str | None:
    if any(len(w.extents) > AXES for w in walks(problem)):
        return f"the kept or the normalised axes make more than {AXES} separate axes in memory"
    return no_gradient(problem)


def cost(problem: NormProblem, device: Device) -> Cost:
    """Three rounds over the data, element by element."""
    return Cost(problem.flops, 6 * problem.bytes, launches=2)


def workspace(problem: NormProblem) -> int:
    """The statistics, for the gradients of the parameters."""
    if not wants_parameters(problem):
        return 0
    return 2 * walks(problem)[0].size * statistics_dtype(specs_of(problem).x).itemsize


def _launch(problem: NormProblem, given: Operands, outputs: tuple[Pointer, ...]) -> Plan:
    """The launch; `outputs` are (out, more, mean, rstd)."""
    specs, (kept, along), gradient = specs_of(problem), walks(problem), problem.op.endswith("_backward")
    x, side = specs.x, 32 if kept.fastest and kept.size > 1 else 1
    config = StridedConfig(TYPES[x.dtype], problem.centred, gradient, side, _THREADS)
    name = (
        f"{'layer' if problem.centred else 'rms'}_norm_strided_{'backward_' if gradient else ''}{SHORT[x.dtype]}_{side}"
    )
    out, more, mean, rstd = outputs
    arguments = StridedArguments(
        grad=given.grad,
        grad_sum=given.grad_sum,
        x=given.x,
        residual=given.residual,
        weight=given.weight,
        bias=None if gradient else given.bias,
        given_mean=given.mean,
        given_rstd=given.rstd,
        out=out,
        more=more,
        mean_of=mean,
        rstd_of_row=rstd,
        wide_weight=wide(specs.weight, x),
        wide_bias=wide(specs.bias, x),
        wide_mean=wide(specs.mean, x),
        wide_rstd=wide(specs.rstd, x),
        eps=float(problem.eps),
        statistics=kept.size,
        count=along.size,
        kept=kept.axes,
        along=along.axes,
    )
    return planned(
        Kernel("norm/strided.cu", name, config, ("norm/axes",)), (blocks_of(kept.size, side), 1, 1), _THREADS, arguments
    )


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    if walks(problem)[0].size == 0:
        return NOTHING
    arrays = Arrays(problem)
    plan = _launch(problem, operands(problem, arrays.inputs), results(problem, arrays))
    return Program((plan,), orders(problem, specs_of(problem).x))


def run_backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x, then those of the parameters."""
    specs, arrays, (kept, along) = specs_of(problem), Arrays(problem), walks(problem)
    x, given = specs.x, operands(problem, arrays.inputs)
    dx, dresidual, dweight, dbias = gradients(problem, arrays)
    if x.size == 0:
        empty = along.size and (dweight or dbias)
        plans = [fold(x, (None, None), (dweight, dbias), 0, along.size, (specs.weight, specs.bias))] if empty else []
        return Program(tuple(plans), orders(problem, x))
    wanted = wants_parameters(problem)
    mean = arrays.scratch() if wanted and problem.centred else None
    rstd = arrays.scratch(kept.size * statistics_dtype(x).itemsize) if wanted else None
    plans = [_launch(problem, given, (dx, dresidual, mean, rstd))]
    if wanted:
        plans.append(strided_parameters(problem, given, (mean, rstd), (dweight, dbias)))
    return Program(tuple(plans), orders(problem, x))
