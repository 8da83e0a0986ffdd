"""The algorithm ``cluster_rows``: each row in the shared memory of a cluster of blocks, read once."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.clusters import RowShare, smallest_share, unfit
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.softmax.rows import short
from dnnarray._cuda.softmax.shared import (
    NOTHING,
    SoftmaxArguments,
    SoftmaxConfig,
    arrays_read,
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

__all__ = ["cost", "rejects", "run", "unfit"]
_MOST_BLOCKS = 2**31 - 1  # of a grid
_SHORT_ROW = 1.25  # times that a row takes which leaves most of a block's threads idle


@frozen
class ClusterRowsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/cluster_rows.cu``."""

    blocks: int
    threads: int


@frozen
class ClusterRowsArguments(SoftmaxArguments):
    """What ``kernels/softmax/cluster_rows.cu`` is called with."""

    extent: Extent
    count: Extent


def _share(problem: SoftmaxProblem, device: Device) -> tuple[RowShare | None, int]:
    """How a row is shared, and its vectors."""
    vectors = extents(problem)[1] // (16 // problem.result.dtype.itemsize)
    return smallest_share(vectors, arrays_read(problem), device), vectors


def rejects(problem: SoftmaxProblem, device: Device) -> str | None:
    if reason := no_rows(problem) or unfit(problem.result.dtype, device):
        return reason
    outer, extent, _ = extents(problem)
    share, _ = _share(problem, device)
    if share is None:
        return f"a row of {extent} elements does not fit the shared memory of the largest cluster"
    return f"{outer} rows need more blocks than a grid has" if outer * share.blocks > _MOST_BLOCKS else None


def cost(problem: SoftmaxProblem, device: Device) -> Cost:
    return times(problem, _SHORT_ROW if short(problem.result.dtype, extents(problem)[1], device) else 1.0)


def run(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    outer, extent, _ = extents(problem)
    if problem.result.size == 0:
        return NOTHING
    planner, (share, vectors) = Planner(problem, aligned), _share(problem, device)
    assert share is not None
    config = ClusterRowsConfig(*settings(problem), *share)
    kernel = Kernel(
        "softmax/cluster_rows.cu", f"{symbol(problem, 'cluster_rows')}_{share.blocks}x{share.threads}", config
    )
    arguments = ClusterRowsArguments(*operands(planner), extent=extent, count=share.count(vectors))
    memory = share.memory(vectors, arrays_read(problem))
    planner.launch(kernel, (outer * share.blocks, 1, 1), share.threads, arguments, shared_memory=memory)
    return program(problem, planner)
