"""Gradients of layer and RMS norm of small arrays: blocks of columns read x and grad again for the gradients of the parameters."""

from __future__ import annotations

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.norm.rows import Blocks, Rows, extents, fits, gradient, operands, results, spread_of, wants_parameters
from dnnarray._cuda.norm.shared import Arguments, orders
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._select import Device

_APART_BYTES, _APART_ROWS = 1 << 20, 512  # of x, up to which reading it twice takes less than a second launch
_APART_COLUMNS = 16, 32  # of a block of columns; the latter where there are few rows for its threads


def _saved(problem: NormProblem) -> bool:
    """Whether the forward's statistics are among the inputs."""
    specs = operands(problem, problem.inputs, None)
    return specs.rstd is not None and not (problem.centred and specs.mean is None)


def _small(problem: NormProblem, device: Device) -> str | None:
    """Why the array is not one whose second reading takes less than what it saves, or None."""
    specs, found = operands(problem, problem.inputs, None), extents(problem)
    if not wants_parameters(problem):
        return "only for the gradients of parameters"
    if found is None or specs.x.nbytes > _APART_BYTES or found[0] > _APART_ROWS or not specs.x.size:
        return f"only up to {_APART_ROWS} rows and {_APART_BYTES:,} bytes, and not nothing"
    return fits(problem, device)


def apart_fits(problem: NormProblem, device: Device) -> str | None:
    """Why the array is not a small one whose statistics were saved, or None."""
    return _small(problem, device) if _saved(problem) else "only where the statistics were saved"


def behind_fits(problem: NormProblem, device: Device) -> str | None:
    """Why the array is not a small one whose statistics were not saved, or None."""
    return "only where the statistics were not saved" if _saved(problem) else _small(problem, device)


def _columns(problem: NormProblem, aligned: bool) -> tuple[Rows, int, int, int]:
    """How rows are spread, blocks of rows, blocks of columns, and the vectors of these beside each other."""
    found = extents(problem)
    assert found is not None
    rows, columns = found
    how = spread_of(problem, columns, aligned)
    assert how is not None
    few, many = (n // how.vector for n in _APART_COLUMNS)
    side = few if how.threads // few <= rows else many
    return how, blocks_of(rows, how.per_block), blocks_of(columns, how.vector * side), side


def apart(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: blocks of rows for the gradient of x, beside them blocks of columns for those of the parameters."""
    how, rows, columns, side = _columns(problem, aligned)
    plan = gradient(problem, how, Blocks(rows + columns, 1, side), results(problem, Arguments(problem))[2:])
    return Program((plan,), orders(problem, operands(problem, problem.inputs, None).x))


def behind_workspace(problem: NormProblem) -> int:
    """The statistics of the rows."""
    found = extents(problem)
    return 2 * found[0] * statistics_dtype(operands(problem, problem.inputs, None).x).itemsize if found else 0


def behind(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Blocks of rows, which find the statistics; blocks of columns, which fetch all else that they need meanwhile."""
    how, rows, columns, side = _columns(problem, aligned)
    arguments, x = Arguments(problem), operands(problem, problem.inputs, None).x
    found = (arguments.scratch(), arguments.scratch(behind_workspace(problem) // 2))
    first = gradient(problem, how, Blocks(rows, 1), (0, 0), found)
    second = gradient(problem, how, Blocks(columns, 1, side, behind=True), results(problem, arguments)[2:], found)
    return Program((first, second), orders(problem, x))
