"""Layer and RMS norm over rows of any length: a block per row, which reads it twice; sums over the rows for the parameters."""

from __future__ import annotations

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.norm.rows import Operands, extents, fold, operands, pass_on, results, wants_parameters
from dnnarray._cuda.norm.shared import Arguments, discarded, orders, short, type_of, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 512
_SUMS = 256
_BLOCKS = 132 * 8


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


@frozen
class ColumnSumsConfig(Config):
    """Compile-time settings of ``kernels/norm/column_sums.cu``."""

    element: str
    add: bool
    vector: int
    threads: int


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why x has no rows, or too many, or None."""
    found = extents(problem)
    if found is None:
        return "the normalised axes are not the fastest in memory"
    return f"{found[0]:,} rows are more than a grid has blocks" if found[0] >= 1 << 31 else None


def cost(problem: NormProblem, device: Device) -> Cost:
    """x is read twice, and in the gradient a third time for the parameters."""
    gradient = problem.op.endswith("_backward")
    if gradient and _sums_alone(problem):
        return Cost(problem.flops, problem.bytes, launches=2)
    x = operands(problem, problem.inputs, None).x
    more = (4 if gradient else 1) * x.nbytes + discarded(problem)
    return Cost(problem.flops, problem.bytes + more, launches=3 if gradient else 1)


def _sums_alone(problem: NormProblem) -> bool:
    """Whether the gradients of the parameters are all that is wanted, and the statistics were saved as the sums over the rows take them."""
    specs = operands(problem, problem.inputs, None)
    saved = wide(specs.rstd, specs.x) and (wide(specs.mean, specs.x) or not problem.centred)
    return bool(discarded(problem)) and bool(saved) and wants_parameters(problem)


def _rows_step(rows: int, columns: int) -> int:
    """Rows of a part of the sums: enough parts to fill the card, the same for any alignment."""
    tiles = blocks_of(columns, 256)
    return max(blocks_of(rows, max(blocks_of(_BLOCKS, max(tiles, 1)), 1)), 32)


def _layout(problem: NormProblem) -> tuple[int, int, int, int]:
    """Rows, columns, bytes of a statistic of all rows, bytes of a parameter's parts."""
    found = extents(problem)
    assert found is not None
    rows, columns = found
    item = statistics_dtype(operands(problem, problem.inputs, None).x).itemsize
    parts = blocks_of(rows, _rows_step(rows, columns))
    return rows, columns, blocks_of(rows * item, 16) * 16, blocks_of(parts * columns * item, 16) * 16


def workspace(problem: NormProblem) -> int:
    """The statistics, and the parts of the gradients of weight and bias."""
    if extents(problem) is None:
        return 0
    _, _, statistic, share = _layout(problem)
    sums = 2 * statistic + 2 * share if wants_parameters(problem) else 0
    return sums + (0 if _sums_alone(problem) else discarded(problem))


def _plan(problem: NormProblem, aligned: bool, specs: Operands, given: Operands, gradient: bool, results: tuple) -> Plan:
    rows, columns, _, _ = _layout(problem)
    x, add = specs.x, specs.residual is not None
    vector = vector_length(x.dtype, aligned, columns)
    bias = None if gradient else specs.bias
    config = LongRowsConfig(TYPES[x.dtype], type_of(specs.weight, x), type_of(bias, x), problem.centred, add, gradient, vector, _THREADS)
    name = f"{'add_' if add else ''}{'layer' if problem.centred else 'rms'}_norm_long_rows_{'backward_' if gradient else ''}"
    symbol = f"{name}{SHORT[x.dtype]}x{vector}_{short(specs.weight, x)}_{short(bias, x)}"
    kernel = Kernel("norm/long_rows.cu", symbol, config)
    pointers = (given.grad, given.grad_sum, given.x, given.residual, given.weight, 0 if gradient else given.bias, given.mean, given.rstd)
    flags = wide(specs.mean, x), wide(specs.rstd, x)
    return Plan(kernel, (rows, 1, 1), _THREADS, (*pointers, *results, *flags, columns, float(problem.eps)))


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given = operands(problem, arguments.inputs, 0)
    if _layout(problem)[0] == 0:
        return Program(())
    y, *rest = arguments.outputs
    total, mean, rstd = (rest[0], 0, 0) if specs.residual is not None else (0, *rest) if problem.centred else (0, 0, *rest)
    return Program((_plan(problem, aligned, specs, given, False, (y, total, mean, rstd)),), orders(problem, specs.x))


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x, sums over parts of the rows, then their sum."""
    sums_alone = _sums_alone(problem)
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem, beside=not sums_alone)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    if specs.grad is None:
        return pass_on(problem, aligned)
    rows, columns, statistic, share = _layout(problem)
    dx, dresidual, dweight, dbias = results(problem, arguments)
    if x.size == 0:
        empty = (fold(x, 0, 0, dweight, dbias, 0, columns, specs.weight, specs.bias),) if columns and (dweight or dbias) else ()
        return Program(empty, orders(problem, x))
    wanted = wants_parameters(problem)
    mean = arguments.scratch() if wanted and problem.centred else 0
    rstd = arguments.scratch(statistic) if wanted else 0
    plans = [] if sums_alone else [_plan(problem, aligned, specs, given, True, (dx, dresidual, mean, rstd))]
    if sums_alone:
        mean, rstd = given.mean, given.rstd
    if wanted:
        of_weight = arguments.scratch(2 * statistic) if dweight else 0
        of_bias = arguments.scratch(2 * statistic + share) if dbias else 0
        vector, step, add = vector_length(x.dtype, aligned, columns), _rows_step(rows, columns), specs.residual is not None
        config = ColumnSumsConfig(TYPES[x.dtype], add, vector, _SUMS)
        kernel = Kernel("norm/column_sums.cu", f"norm_column_sums_{'add_' if add else ''}{SHORT[x.dtype]}x{vector}", config)
        parts = blocks_of(rows, step)
        grid = (blocks_of(columns // vector, 32) * parts, 1, 1)
        arrays = (given.grad, given.x, given.residual, mean, rstd, of_weight, of_bias)
        plans.append(Plan(kernel, grid, _SUMS, (*arrays, rows, columns, step)))
        plans.append(fold(x, of_weight, of_bias, dweight, dbias, parts, columns, specs.weight, specs.bias, aligned))
    return Program(tuple(plans), orders(problem, x))
