"""The algorithm ``rows_backward``: gradients of layer and RMS norm by rows in the registers of blocks that stay; two
further ways for small arrays.

Small arrays have blocks of columns, which read x and grad again for the gradients of the parameters: beside the blocks
of rows in one launch (``rows_backward_with_columns``), or in a second launch that overlaps with the first
(``rows_backward_then_columns``)."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm import rows as in_rows
from dnnarray._cuda.norm.fold import fold
from dnnarray._cuda.norm.layer import (
    extents,
    gradients,
    name_of,
    no_gradient,
    of_parameters,
    operands,
    rows_of,
    specs_of,
    wants_parameters,
)
from dnnarray._cuda.norm.rows import Rows, spread_of
from dnnarray._cuda.norm.shared import (
    AnyTypeOut,
    Arrays,
    Flag,
    Mean,
    Pointer,
    Rstd,
    Weight,
    orders,
    short,
    type_of,
    wide,
)
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_UNITS = 132  # multiprocessors that the blocks of a gradient, which stay, are meant to fill
_SMALL_BYTES, _SMALL_ROWS = 1 << 20, 512  # of x, up to which reading it twice takes less than a second launch
_SMALL_COLUMNS = 16, 32  # of a block of columns; the latter where there are few rows for its threads


@frozen
class RowsBackwardConfig(Config):
    """Compile-time settings of ``kernels/norm/rows_backward.cu``."""

    element: str
    weight: str
    mean: str
    rstd: str
    centred: bool
    add: bool
    parameters: bool
    vector: int
    vectors: int
    lanes: int
    threads: int
    resident: int
    once: bool
    side: int
    behind: bool


@frozen(kw_only=True)
class RowsBackwardArguments(Arguments, restrict=("grad", "grad_sum", "x", "residual", "weight", "dx", "dresidual")):
    """What ``kernels/norm/rows_backward.cu`` is called with: `dweight` and `dbias` are the parts of the blocks, or with
    blocks of columns the results; `found_mean` and `found_rstd` take the statistics for a launch behind this one."""

    grad: In
    grad_sum: In
    x: In
    residual: In
    weight: Weight
    dx: Out
    dresidual: Out
    mean_of: Mean
    rstd_of_row: Rstd
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    found_mean: OutArithmetic
    found_rstd: OutArithmetic
    rows: Extent
    columns: Extent
    eps: Double
    wide_weight: Flag
    wide_bias: Flag


class Blocks(NamedTuple):
    """The blocks of a launch: how many there are, how many are at work on a multiprocessor at once, how many vectors a
    block of columns has beside each other (0: no block is of columns), and whether all blocks are of columns."""

    number: int
    resident: int
    side: int = 0
    behind: bool = False


def rejects(problem: NormProblem, device: Device) -> str | None:
    return in_rows.rejects(problem, device) or no_gradient(problem)


def _resident(how: Rows, problem: NormProblem) -> int:
    """Blocks that are at work on a multiprocessor at once; the kernel gets its registers by it."""
    specs = specs_of(problem)
    words = how.vector * how.vectors * statistics_dtype(specs.x).itemsize // 4
    more = 2 if specs.x.dtype == FLOAT64 else int(specs.residual is not None or (how.vector == 1 and words > 8))
    together = 768 if words <= 8 and how.lanes > 32 else 512  # rows within a warp wait for nobody
    return max((together - 128 * more) // how.threads, 1)


def _staying(how: Rows, problem: NormProblem, rows: int) -> int:
    """Blocks that stay."""
    return min(blocks_of(rows, how.per_block), _UNITS * _resident(how, problem))


def workspace(problem: NormProblem) -> int:
    """The blocks' parts of the gradients of weight and bias; the larger of what aligned and other memory need."""
    specs, found = specs_of(problem), extents(problem)
    if found is None or not wants_parameters(problem):
        return 0
    spreads = (spread_of(problem, found[1], aligned) for aligned in (True, False))
    parts = max((_staying(how, problem, found[0]) for how in spreads if how), default=0)
    return parts * found[1] * statistics_dtype(specs.x).itemsize * sum(s is not None for s in of_parameters(problem))


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x with each block's part of the gradients of the parameters, then the sum of the parts."""
    specs, arrays, (rows, columns) = specs_of(problem), Arrays(problem), rows_of(problem)
    x, how = specs.x, spread_of(problem, columns, aligned)
    assert how is not None
    _, _, dweight, dbias = gradients(problem, arrays)
    blocks = _staying(how, problem, rows)
    size = blocks * columns * statistics_dtype(x).itemsize
    parts = (
        arrays.scratch() if dweight and size else None,
        arrays.scratch(size if dweight else 0) if dbias and size else None,
    )
    plans = []
    if x.size:
        plans.append(_launch(problem, how, Blocks(blocks, _resident(how, problem)), parts))
    if columns and (dweight or dbias):
        parameters, count = (specs.weight, specs.bias), blocks if x.size else 0
        plans.append(fold(x, parts, (dweight, dbias), count, columns, parameters, aligned))
    return Program(tuple(plans), orders(problem, x))


def _launch(
    problem: NormProblem,
    how: Rows,
    blocks: Blocks,
    parameters: tuple[Pointer, Pointer],
    found: tuple[Pointer, Pointer] = (None, None),
) -> Plan:
    """A launch; `parameters` take the parts of the gradients of the parameters, or with blocks of columns these
    gradients, `found` the statistics, which blocks of columns behind such a launch take from there."""
    specs, arrays, side = specs_of(problem), Arrays(problem), blocks.side
    given, x, (rows, columns) = operands(problem, arrays.inputs), specs.x, rows_of(problem)
    if blocks.behind:
        specs, given, found = (
            specs._replace(mean=None, rstd=None),
            given._replace(mean=found[0], rstd=found[1]),
            (None, None),
        )
    dx, dresidual, _, _ = gradients(problem, arrays)
    add, shares = specs.residual is not None, bool(parameters[0] or parameters[1]) and not side
    # a weight in double is more than registers hold
    alone = blocks.number * how.per_block >= rows and x.dtype != FLOAT64
    once = side > 0 or alone
    types = (type_of(specs.weight, x), type_of(specs.mean, x), type_of(specs.rstd, x))
    settings: tuple[Any, ...] = (
        problem.centred,
        add,
        shares,
        *how,
        how.threads,
        blocks.resident,
        once,
        side,
        blocks.behind,
    )
    config = RowsBackwardConfig(TYPES[x.dtype], *types, *settings)
    words = {
        "parameters": shares,
        "once": once,
        f"columns{side}": side > 0,
        "behind": blocks.behind,
        "found": any(found),
    }
    name = f"{name_of(problem)}_rows_backward_{SHORT[x.dtype]}{how.text}"
    name = "_".join(
        [name, *(short(s, x) for s in (specs.weight, specs.mean, specs.rstd)), *(w for w, on in words.items() if on)]
    )
    arguments = RowsBackwardArguments(
        grad=given.grad,
        grad_sum=given.grad_sum,
        x=given.x,
        residual=given.residual,
        weight=given.weight,
        dx=dx,
        dresidual=dresidual,
        mean_of=given.mean,
        rstd_of_row=given.rstd,
        dweight=parameters[0],
        dbias=parameters[1],
        found_mean=found[0],
        found_rstd=found[1],
        rows=rows,
        columns=columns,
        eps=float(problem.eps),
        wide_weight=wide(specs.weight, x),
        wide_bias=wide(specs.bias, x),
    )
    kernel = Kernel("norm/rows_backward.cu", name, config)
    return planned(kernel, (blocks.number, 1, 1), how.threads, arguments, early=blocks.behind)


# --- small arrays -----------------------------------------------------------------------------------------------------


def _saved(problem: NormProblem) -> bool:
    """Whether the forward's statistics are among the inputs."""
    specs = specs_of(problem)
    return specs.rstd is not None and not (problem.centred and specs.mean is None)


def _not_small(problem: NormProblem, device: Device) -> str | None:
    """Why the array is not one whose second reading takes less than what it saves, or None."""
    specs, found = specs_of(problem), extents(problem)
    if not wants_parameters(problem):
        return "only for the gradients of parameters"
    if found is None or specs.x.nbytes > _SMALL_BYTES or found[0] > _SMALL_ROWS or not specs.x.size:
        return f"only up to {_SMALL_ROWS} rows and {_SMALL_BYTES:,} bytes, and not nothing"
    return in_rows.rejects(problem, device)


def rejects_with_columns(problem: NormProblem, device: Device) -> str | None:
    return _not_small(problem, device) if _saved(problem) else "only where the statistics were saved"


def rejects_then_columns(problem: NormProblem, device: Device) -> str | None:
    return "only where the statistics were not saved" if _saved(problem) else _not_small(problem, device)


def _columns(problem: NormProblem, aligned: bool) -> tuple[Rows, int, int, int]:
    """How rows are spread, blocks of rows, blocks of columns, and the vectors of these beside each other."""
    rows, columns = rows_of(problem)
    how = spread_of(problem, columns, aligned)
    assert how is not None
    few, many = (n // how.vector for n in _SMALL_COLUMNS)
    side = few if how.threads // few <= rows else many
    return how, blocks_of(rows, how.per_block), blocks_of(columns, how.vector * side), side


def run_with_columns(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: blocks of rows for the gradient of x, beside them blocks of columns for those of the parameters."""
    how, rows, columns, side = _columns(problem, aligned)
    plan = _launch(problem, how, Blocks(rows + columns, 1, side), gradients(problem, Arrays(problem))[2:])
    return Program((plan,), orders(problem, specs_of(problem).x))


def workspace_then_columns(problem: NormProblem) -> int:
    """The statistics of the rows."""
    found = extents(problem)
    return 2 * found[0] * statistics_dtype(specs_of(problem).x).itemsize if found else 0


def run_then_columns(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Blocks of rows, which find the statistics; blocks of columns, which fetch all else that they need meanwhile."""
    how, rows, columns, side = _columns(problem, aligned)
    arrays, x = Arrays(problem), specs_of(problem).x
    found = (arrays.scratch(), arrays.scratch(workspace_then_columns(problem) // 2))
    first = _launch(problem, how, Blocks(rows, 1), (None, None), found)
    second = _launch(problem, how, Blocks(columns, 1, side, behind=True), gradients(problem, arrays)[2:], found)
    return Program((first, second), orders(problem, x))
