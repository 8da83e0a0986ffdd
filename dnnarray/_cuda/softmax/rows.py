"""The algorithm ``rows``: each row in the registers of one block, read once."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._cuda.softmax.shared import (
    NOTHING,
    SoftmaxArguments,
    SoftmaxConfig,
    extents,
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

_THREADS = 128  # of a block that holds several rows
_MOST_THREADS = 512  # for one row
_REGISTERS = 32  # elements of each array that a thread holds at the most
_SHORT = 1024  # vectors of a row up to which nothing is faster
_UNEVEN = 2048  # elements of a row from which on loads of less than 16 bytes take longer than to read it twice
_LONG_ROW, _NARROW_LOADS = 1.25, 2.0  # times that such rows take; in shared memory they took 10 to 40% less


@frozen
class RowsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/rows.cu``."""

    lanes: int
    count: int
    vector: int
    threads: int


@frozen
class RowsArguments(SoftmaxArguments, restrict=True):
    """What ``kernels/softmax/rows.cu`` is called with."""

    rows: Extent
    extent: Extent


def _lanes(vectors: int, vector: int) -> tuple[int, int] | None:
    """Threads for a row and vectors for a thread, powers of two; None for rows that are too long."""
    most = min(_REGISTERS // vector, 8)
    for lanes in (1, 2, 4, 8, 16, 32, 128, 256, _MOST_THREADS):
        wanted = 1 if lanes < 8 else min(2, most) if lanes < 32 else min(4, most) if lanes < _MOST_THREADS else most
        if lanes * wanted >= vectors:
            return lanes, min(wanted, 1 << (-(-vectors // lanes) - 1).bit_length())
    return None


def uneven(dtype: np.dtype, extent: int, device: Device) -> bool:
    """Whether rows are long and no whole number of 16-byte vectors, although memory begins at multiples of 16 bytes."""
    return extent > _UNEVEN and vector_length(dtype, device.aligned, extent) < vector_length(dtype, device.aligned)


def short(dtype: np.dtype, extent: int, device: Device) -> bool:
    """Whether rows are best held in registers."""
    return extent <= _SHORT * vector_length(dtype, device.aligned, extent) and not uneven(dtype, extent, device)


def rejects(problem: SoftmaxProblem, device: Device) -> str | None:
    extent = extents(problem)[1]
    if reason := no_rows(problem):
        return reason
    vector = vector_length(problem.result.dtype, device.aligned, extent)
    return (
        None
        if _lanes(extent // vector, vector)
        else f"a row of {extent} elements does not fit the registers of a block"
    )


def cost(problem: SoftmaxProblem, device: Device) -> Cost:
    dtype, extent = problem.result.dtype, extents(problem)[1]
    return times(
        problem, _NARROW_LOADS if uneven(dtype, extent, device) else 1.0 if short(dtype, extent, device) else _LONG_ROW
    )


def run(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    x, (outer, extent, _) = problem.result, extents(problem)
    if x.size == 0:
        return NOTHING
    planner, vector = Planner(problem, aligned), vector_length(x.dtype, aligned, extent)
    shape = _lanes(extent // vector, vector)
    assert shape is not None
    lanes, count = shape
    threads = max(lanes, _THREADS)
    config = RowsConfig(*settings(problem), lanes, count, vector, threads)
    kernel = Kernel("softmax/rows.cu", f"{symbol(problem, 'rows')}x{vector}_{lanes}x{count}", config)
    grid = (blocks_of(outer, threads // lanes), 1, 1)
    arguments = RowsArguments(*operands(planner), rows=outer, extent=extent)
    planner.add(ahead_if_small(planned(kernel, grid, threads, arguments)))
    return program(problem, planner)
