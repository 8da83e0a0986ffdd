"""The algorithm ``long_rows``: rows of any length, read twice by one block; gradients of parameters by sums over the
rows."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.column_sums import column_sums, rows_step
from dnnarray._cuda.norm.fold import fold
from dnnarray._cuda.norm.layer import (
    NO_ROWS,
    extents,
    gradients,
    name_of,
    no_gradient,
    operands,
    results,
    rows_of,
    specs_of,
    wants_parameters,
)
from dnnarray._cuda.norm.shared import (
    NOTHING,
    AnyType,
    Arrays,
    Bias,
    Flag,
    Pointer,
    Weight,
    discarded,
    orders,
    short,
    type_of,
    wide,
)
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 512


@frozen
class LongRowsConfig(Config):
    """Compile-time settings of ``kernels/norm/long_rows.cu``."""

    element: str
    weight: str
    bias: str
    centred: bool
    add: bool
    gradient: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class LongRowsArguments(Arguments, restrict=("grad", "grad_sum", "x", "residual", "weight", "bias", "out")):
    """What ``kernels/norm/long_rows.cu`` is called with: `out` is y or dx, `more` the sum or the gradient of the
    residual."""

    grad: In
    grad_sum: In
    x: In
    residual: In
    weight: Weight
    bias: Bias
    given_mean: AnyType
    given_rstd: AnyType
    out: Out
    more: Out
    mean_of: OutArithmetic
    rstd_of_row: OutArithmetic
    columns: Extent
    eps: Double
    wide_mean: Flag
    wide_rstd: Flag


def rejects(problem: NormProblem, device: Device) -> str | None:
    found = extents(problem)
    if found is None:
        return NO_ROWS
    if found[0] >= 1 << 31:
        return f"{found[0]:,} rows are more than a grid has blocks"
    return no_gradient(problem)


def cost(problem: NormProblem, device: Device) -> Cost:
    """x is read twice, and in the gradient a third time for the parameters."""
    gradient = problem.op.endswith("_backward")
    if gradient and _sums_alone(problem):
        return Cost(problem.flops, problem.bytes, launches=2)
    more = (4 if gradient else 1) * specs_of(problem).x.nbytes + discarded(problem)
    return Cost(problem.flops, problem.bytes + more, launches=3 if gradient else 1)


def _sums_alone(problem: NormProblem) -> bool:
    """Whether the gradients of the parameters are all that is wanted, and the statistics were saved as the sums over
    the rows take them."""
    specs = specs_of(problem)
    saved = wide(specs.rstd, specs.x) and (wide(specs.mean, specs.x) or not problem.centred)
    return bool(discarded(problem)) and bool(saved) and wants_parameters(problem)


def _scratch(problem: NormProblem) -> tuple[int, int]:
    """Bytes of a statistic of all rows, and of the parts of a parameter's gradient."""
    rows, columns = rows_of(problem)
    item = statistics_dtype(specs_of(problem).x).itemsize
    parts = blocks_of(rows, rows_step(rows, columns))
    return blocks_of(rows * item, 16) * 16, blocks_of(parts * columns * item, 16) * 16


def workspace(problem: NormProblem) -> int:
    """The statistics, and the parts of the gradients of weight and bias."""
    if extents(problem) is None:
        return 0
    statistic, part = _scratch(problem)
    sums = 2 * statistic + 2 * part if wants_parameters(problem) else 0
    return sums + (0 if _sums_alone(problem) else discarded(problem))


def _rows(problem: NormProblem, arrays: Arrays, aligned: bool, outputs: tuple[Pointer, ...]) -> Plan:
    """The launch for rows; `outputs` are (out, more, mean, rstd)."""
    specs, given, gradient = specs_of(problem), operands(problem, arrays.inputs), problem.op.endswith("_backward")
    x, (rows, columns), bias = specs.x, rows_of(problem), None if gradient else specs.bias
    vector, types = vector_length(x.dtype, aligned, columns), (type_of(specs.weight, x), type_of(bias, x))
    config = LongRowsConfig(
        TYPES[x.dtype], *types, problem.centred, specs.residual is not None, gradient, vector, _THREADS
    )
    name = f"{name_of(problem)}_long_rows_{'backward_' if gradient else ''}{SHORT[x.dtype]}x{vector}"
    kernel = Kernel("norm/long_rows.cu", f"{name}_{short(specs.weight, x)}_{short(bias, x)}", config)
    out, more, mean, rstd = outputs
    arguments = LongRowsArguments(
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
        columns=columns,
        eps=float(problem.eps),
        wide_mean=wide(specs.mean, x),
        wide_rstd=wide(specs.rstd, x),
    )
    return planned(kernel, (rows, 1, 1), _THREADS, arguments)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    if rows_of(problem)[0] == 0:
        return NOTHING
    arrays = Arrays(problem)
    return Program((_rows(problem, arrays, aligned, results(problem, arrays)),), orders(problem, specs_of(problem).x))


def run_backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x, sums over parts of the rows, then their sum."""
    sums_alone = _sums_alone(problem)
    specs, arrays = specs_of(problem), Arrays(problem, beside=not sums_alone)
    given, x, (rows, columns) = operands(problem, arrays.inputs), specs.x, rows_of(problem)
    dx, dresidual, dweight, dbias = gradients(problem, arrays)
    parameters, wanted = (specs.weight, specs.bias), wants_parameters(problem)
    if x.size == 0:
        empty = columns and (dweight or dbias)
        plans = [fold(x, (None, None), (dweight, dbias), 0, columns, parameters)] if empty else []
        return Program(tuple(plans), orders(problem, x))
    statistic, part = _scratch(problem)
    mean = arrays.scratch() if wanted and problem.centred else None
    rstd = arrays.scratch(statistic) if wanted else None
    plans = [] if sums_alone else [_rows(problem, arrays, aligned, (dx, dresidual, mean, rstd))]
    if wanted:
        statistics = (given.mean, given.rstd) if sums_alone else (mean, rstd)
        parts = (
            arrays.scratch(2 * statistic) if dweight else None,
            arrays.scratch(2 * statistic + part) if dbias else None,
        )
        plans.append(column_sums(problem, given, statistics, parts, aligned))
        plans.append(
            fold(x, parts, (dweight, dbias), blocks_of(rows, rows_step(rows, columns)), columns, parameters, aligned)
        )
    return Program(tuple(plans), orders(problem, x))
