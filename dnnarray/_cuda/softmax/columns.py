"""The algorithm ``columns``: neighbouring columns of any length, read twice by one block."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.softmax.shared import (
    NOTHING,
    SoftmaxArguments,
    SoftmaxConfig,
    extents,
    no_columns,
    operands,
    program,
    settings,
    symbol,
    times,
)
from dnnarray._problems.softmax import SoftmaxProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 256
# elements side by side for a thread: each has statistics of its own, and more would leave no registers for loads in
# flight
_VECTOR = 4
_BATCH = 4  # elements of a column that a thread loads before it uses the first
_READ_TWICE = 1.5  # times that two readings and a writing take, relative to one of each


@frozen
class ColumnsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/columns.cu``."""

    columns: int
    batch: int
    vector: int
    threads: int


@frozen
class ColumnsArguments(SoftmaxArguments, restrict=True):
    """What ``kernels/softmax/columns.cu`` is called with."""

    extent: Extent
    inner: Extent


def rejects(problem: SoftmaxProblem, device: Device) -> str | None:
    return no_columns(problem)


def cost(problem: SoftmaxProblem, device: Device) -> Cost:
    return times(problem, _READ_TWICE)


def run(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    x, (outer, extent, inner) = problem.result, extents(problem)
    if x.size == 0:
        return NOTHING
    planner, vector = Planner(problem, aligned), min(vector_length(x.dtype, aligned, inner), _VECTOR)
    side_by_side = min(16, 1 << (-(-inner // vector) - 1).bit_length())
    config = ColumnsConfig(*settings(problem), side_by_side, _BATCH, vector, _THREADS)
    kernel = Kernel("softmax/columns.cu", f"{symbol(problem, 'columns')}x{vector}_{side_by_side}", config)
    grid = (blocks_of(inner, side_by_side * vector) * outer, 1, 1)
    planner.launch(kernel, grid, _THREADS, ColumnsArguments(*operands(planner), extent=extent, inner=inner))
    return program(problem, planner)
