"""Sums over the rows for the gradients of weight and bias, part by part."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.layer import Operands, rows_of, specs_of
from dnnarray._cuda.norm.shared import Pointer
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen

_THREADS = 256
_BLOCKS = 132 * 8
_TILE = 256  # columns of a block
_LEAST = 32  # rows of a part


@frozen
class ColumnSumsConfig(Config):
    """Compile-time settings of ``kernels/norm/column_sums.cu``."""

    element: str
    add: bool
    vector: int
    threads: int


@frozen
class ColumnSumsArguments(Arguments, restrict=True):
    """What ``kernels/norm/column_sums.cu`` is called with; `mean` is absent in an RMS norm, the results where they are
    not wanted."""

    grad: In
    x: In
    residual: In
    mean: InArithmetic
    rstd: InArithmetic
    dweight: OutArithmetic
    dbias: OutArithmetic
    rows: Extent
    columns: Extent
    rows_step: Extent


def rows_step(rows: int, columns: int) -> int:
    """Rows of a part of the sums: enough parts to fill the card, the same for any alignment."""
    tiles = blocks_of(columns, _TILE)
    return max(blocks_of(rows, max(blocks_of(_BLOCKS, max(tiles, 1)), 1)), _LEAST)


def column_sums(
    problem: NormProblem,
    given: Operands,
    statistics: tuple[Pointer, Pointer],
    parts: tuple[Pointer, Pointer],
    aligned: bool,
) -> Plan:
    """The launch that takes mean and rstd of the rows and writes the parts of the gradients of weight and bias."""
    x, add, (rows, columns) = specs_of(problem).x, given.residual is not None, rows_of(problem)
    vector, step = vector_length(x.dtype, aligned, columns), rows_step(rows, columns)
    config = ColumnSumsConfig(TYPES[x.dtype], add, vector, _THREADS)
    kernel = Kernel("norm/column_sums.cu", f"norm_column_sums_{'add_' if add else ''}{SHORT[x.dtype]}x{vector}", config)
    grid = (blocks_of(columns // vector, 32) * blocks_of(rows, step), 1, 1)
    arguments = ColumnSumsArguments(given.grad, given.x, given.residual, *statistics, *parts, rows, columns, step)
    return planned(kernel, grid, _THREADS, arguments)
