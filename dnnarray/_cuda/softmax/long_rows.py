"""The algorithm ``long_rows``: rows of any length, read twice by one block, as much of them as fits kept in shared
memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent, Int
from dnnarray._cuda.core.plan import Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.softmax.shared import (
    NOTHING,
    SoftmaxArguments,
    SoftmaxConfig,
    arrays_read,
    extents,
    gradient,
    no_rows,
    operands,
    program,
    settings,
    symbol,
    times,
)
from dnnarray._problems.softmax import SoftmaxProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64

_STATIC = 1024  # bytes of shared memory that the kernel needs for its variables
_READ_TWICE = 1.5  # times that two readings and a writing take, relative to one of each


@frozen
class LongRowsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/long_rows.cu``."""

    batch: int
    vector: int
    threads: int


@frozen
class LongRowsArguments(SoftmaxArguments, restrict=True):
    """What ``kernels/softmax/long_rows.cu`` is called with."""

    extent: Extent
    cached: Int


def rejects(problem: SoftmaxProblem, device: Device) -> str | None:
    return no_rows(problem)


def cost(problem: SoftmaxProblem, device: Device) -> Cost:
    return times(problem, _READ_TWICE)


def run(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    x, (outer, extent, _) = problem.result, extents(problem)
    if x.size == 0:
        return NOTHING
    planner, vector, arrays = Planner(problem, aligned), vector_length(x.dtype, aligned), arrays_read(problem)
    width, limit = vector * x.dtype.itemsize, device.shared_memory - _STATIC
    row = extent // vector * width * arrays
    threads = 512 if row <= limit // 2 or x.dtype == FLOAT64 else 1024  # doubles would spill
    cached = max(min(row, limit), 0) // (arrays * width)
    batch = 2 if gradient(problem) or x.dtype.itemsize == 2 else 4
    config = LongRowsConfig(*settings(problem), batch, vector, threads)
    kernel = Kernel("softmax/long_rows.cu", f"{symbol(problem, 'long_rows')}x{vector}_{threads}", config)
    arguments = LongRowsArguments(*operands(planner), extent=extent, cached=cached)
    planner.launch(kernel, (outer, 1, 1), threads, arguments, shared_memory=cached * arrays * width)
    return program(problem, planner)
