"""The algorithm ``cluster_columns``: neighbouring columns in the shared memory of a cluster of blocks, read once."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.clusters import largest, room, unfit
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.softmax.shared import (
    NOTHING,
    SoftmaxArguments,
    SoftmaxConfig,
    arrays_read,
    extents,
    no_columns,
    operands,
    program,
    settings,
    symbol,
)
from dnnarray._problems.softmax import SoftmaxProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["rejects", "run", "unfit"]
_THREADS = 256
_STATIC = 8 << 10  # bytes of shared memory that the kernel needs for its variables
_SHORT_AXIS = 32  # elements of an axis that a single thread goes over


@frozen
class ClusterColumnsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/cluster_columns.cu``."""

    blocks: int
    columns: int
    threads: int


@frozen
class ClusterColumnsArguments(SoftmaxArguments):
    """What ``kernels/softmax/cluster_columns.cu`` is called with."""

    extent: Extent
    inner: Extent
    count: Extent


class Tile(NamedTuple):
    """The columns of a cluster: vectors side by side; the rows of threads share the axis."""

    blocks: int
    columns: int
    threads: int

    def count(self, extent: int) -> int:
        """Elements of a position for a thread."""
        return blocks_of(extent, self.blocks * (self.threads // self.columns))

    def memory(self, extent: int, arrays: int) -> int:
        """Bytes of shared memory of a block."""
        return self.threads * 16 * self.count(extent) * arrays


def _tile(extent: int, arrays: int, itemsize: int, device: Device) -> Tile | None:
    """A thread per column where the axis is short, else 128 bytes side by side and the smallest cluster of which three
    blocks fit a multiprocessor.

    Where 64 bytes side by side of one array of half types do without a cluster, they are taken: its blocks are busier,
    and would wait longer for each other."""
    side = _THREADS // arrays
    alone = Tile(1, side, side)
    if extent <= _SHORT_AXIS and alone.memory(extent, arrays) <= device.shared_memory:
        return alone
    limit = room(device, 3, _STATIC)
    narrow = Tile(1, 4, _THREADS)
    if (
        itemsize == 2
        and arrays == 1
        and narrow.memory(extent, arrays) <= limit < narrow._replace(columns=8).memory(extent, arrays)
    ):
        return narrow
    tile = Tile(1, 8, _THREADS)
    while tile.blocks < largest(device) and tile.memory(extent, arrays) > limit:
        tile = tile._replace(blocks=2 * tile.blocks)
    return tile if tile.memory(extent, arrays) <= room(device, 1, 2 * _STATIC) else None


def _tile_of(problem: SoftmaxProblem, device: Device) -> Tile | None:
    return _tile(extents(problem)[1], arrays_read(problem), problem.result.dtype.itemsize, device)


def rejects(problem: SoftmaxProblem, device: Device) -> str | None:
    dtype, (_, extent, inner) = problem.result.dtype, extents(problem)
    if reason := no_columns(problem) or unfit(dtype, device):
        return reason
    if inner % (16 // dtype.itemsize):
        return f"{inner} elements, which run faster than axis {problem.axis}, are no whole number of 16-byte vectors"
    if _tile_of(problem, device) is None:
        return f"columns of {extent} elements do not fit the shared memory of the largest cluster"
    return None


def run(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    outer, extent, inner = extents(problem)
    if problem.result.size == 0:
        return NOTHING
    planner, tile = Planner(problem, aligned), _tile_of(problem, device)
    assert tile is not None
    config = ClusterColumnsConfig(*settings(problem), *tile)
    text = f"{tile.blocks}x{tile.columns}x{tile.threads}"
    kernel = Kernel("softmax/cluster_columns.cu", f"{symbol(problem, 'cluster_columns')}_{text}", config)
    blocks = blocks_of(inner, tile.columns * (16 // problem.result.dtype.itemsize)) * outer * tile.blocks
    arguments = ClusterColumnsArguments(*operands(planner), extent=extent, inner=inner, count=tile.count(extent))
    planner.launch(
        kernel, (blocks, 1, 1), tile.threads, arguments, shared_memory=tile.memory(extent, arrays_read(problem))
    )
    return program(problem, planner)
