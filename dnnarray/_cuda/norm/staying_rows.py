"""Layer and RMS norm forward over long rows, by clusters of blocks that stay and keep weight and bias in registers."""

from __future__ import annotations

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.norm import cluster_rows
from dnnarray._cuda.norm.rows import extents, operands
from dnnarray._cuda.norm.shared import Arguments, orders
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT32, FLOAT64

_THREADS, _VECTORS = 512, 8  # of a block; vectors of 16 bytes that each of its threads has of a row at the most
_PLACES = 3  # rows on the chip
_BLOCKS = (4, 8)  # of a cluster
_STATIC = 8192  # bytes of shared memory that the kernel needs besides
_ROWS = 16  # that a cluster takes at the least, before it is worth its while to keep the parameters
_CLUSTERS_FROM = (9, 0)


@frozen
class StayingRowsConfig(Config):
    """Compile-time settings of ``kernels/norm/staying_rows.cu``."""

    element: str
    centred: bool
    add: bool
    blocks: int
    threads: int
    vectors: int


def _blocks(vectors: int) -> int | None:
    """Blocks of the cluster whose threads hold a row of so many vectors of 16 bytes; None where rows are shorter, or longer."""
    room = _THREADS * _VECTORS
    fitting = next((blocks for blocks in _BLOCKS if vectors <= blocks * room), None)
    return fitting if vectors > _BLOCKS[0] // 2 * room else None


def _clusters(blocks: int, device: Device) -> int:
    """As many as a card places at once: 15 of 16."""
    return device.units * 10 // 11 // blocks


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why clusters cannot stay, or are not worth it, or None."""
    specs, found = operands(problem, problem.inputs, None), extents(problem)
    if found is None:
        return "the normalised axes are not the fastest in memory"
    rows, columns = found
    x, item = specs.x, specs.x.dtype.itemsize
    if (device.capability or (0, 0)) < _CLUSTERS_FROM or x.dtype == FLOAT64:
        return "only float and half types, on cards that have clusters"
    if specs.residual is not None and x.dtype != FLOAT32:
        return "a residual only in float"
    if any(s is not None and s.dtype != x.dtype for s in (specs.weight, specs.bias)):
        return "weight or bias of another type than x"
    blocks = _blocks(columns * item // 16)
    if columns * item % 16 or blocks is None:
        return f"no rows of {columns} columns"
    if device.shared_memory < _PLACES * _VECTORS * _THREADS * 16 + _STATIC:
        return "three rows do not fit the shared memory"
    clusters = _clusters(blocks, device)
    if not clusters:
        return f"a card that places no cluster of {blocks} blocks"
    return None if rows >= _ROWS * clusters else f"only {rows} rows"


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    if not aligned:
        return cluster_rows.forward(problem, device, aligned)
    found = extents(problem)
    assert found is not None
    rows, columns = found
    vectors = columns * x.dtype.itemsize // 16
    blocks, add = _blocks(vectors), specs.residual is not None
    assert blocks is not None
    y, *rest = arguments.outputs
    total, mean, rstd = (rest[0], 0, 0) if add else (0, *rest) if problem.centred else (0, 0, *rest)
    each = blocks_of(vectors, blocks * _THREADS)
    config = StayingRowsConfig(TYPES[x.dtype], problem.centred, add, blocks, _THREADS, each)
    name = f"{'add_' if add else ''}{'layer' if problem.centred else 'rms'}_norm_staying_rows_{SHORT[x.dtype]}_{blocks}x{each}"
    kernel = Kernel("norm/staying_rows.cu", name, config)
    pointers = (given.x, given.residual, given.weight, given.bias, y, total, mean, rstd)
    grid = (min(_clusters(blocks, device), rows) * blocks, 1, 1)
    memory = _PLACES * each * _THREADS * 16
    return Program((Plan(kernel, grid, _THREADS, (*pointers, rows, columns, float(problem.eps)), memory),), orders(problem, x))
