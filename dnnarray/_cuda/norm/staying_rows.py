"""The algorithm ``staying_rows``: long rows of layer and RMS norm, by clusters of blocks that stay and keep weight and
bias in registers."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.layer import NO_ROWS, extents, name_of, operands, results, rows_of, specs_of
from dnnarray._cuda.norm.shared import UNALIGNED, Arrays, orders
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


@frozen(kw_only=True)
class StayingRowsArguments(Arguments, restrict=("x", "residual", "weight", "bias", "y", "sum")):
    """What ``kernels/norm/staying_rows.cu`` is called with."""

    x: In
    residual: In
    weight: In
    bias: In
    y: Out
    sum: Out
    mean_of: OutArithmetic
    rstd_of_row: OutArithmetic
    rows: Extent
    columns: Extent
    eps: Double


def _blocks(vectors: int) -> int | None:
    """Blocks of the cluster whose threads hold a row of so many vectors of 16 bytes; None where rows are shorter, or
    longer."""
    room = _THREADS * _VECTORS
    fitting = next((blocks for blocks in _BLOCKS if vectors <= blocks * room), None)
    return fitting if vectors > _BLOCKS[0] // 2 * room else None


def _clusters(blocks: int, device: Device) -> int:
    """As many as a card places at once: 15 of 16."""
    return device.units * 10 // 11 // blocks


def rejects(problem: NormProblem, device: Device) -> str | None:
    specs, found = specs_of(problem), extents(problem)
    if found is None:
        return NO_ROWS
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
    if rows < _ROWS * clusters:
        return f"only {rows} rows"
    return None if device.aligned else UNALIGNED


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arrays, (rows, columns) = specs_of(problem), Arrays(problem), rows_of(problem)
    x, given = specs.x, operands(problem, arrays.inputs)
    vectors = columns * x.dtype.itemsize // 16
    blocks = _blocks(vectors)
    assert blocks is not None
    each = blocks_of(vectors, blocks * _THREADS)
    config = StayingRowsConfig(TYPES[x.dtype], problem.centred, specs.residual is not None, blocks, _THREADS, each)
    kernel = Kernel("norm/staying_rows.cu", f"{name_of(problem)}_staying_rows_{SHORT[x.dtype]}_{blocks}x{each}", config)
    y, total, mean, rstd = results(problem, arrays)
    arguments = StayingRowsArguments(
        x=given.x,
        residual=given.residual,
        weight=given.weight,
        bias=given.bias,
        y=y,
        sum=total,
        mean_of=mean,
        rstd_of_row=rstd,
        rows=rows,
        columns=columns,
        eps=float(problem.eps),
    )
    grid = (min(_clusters(blocks, device), rows) * blocks, 1, 1)
    plan = planned(kernel, grid, _THREADS, arguments, shared_memory=_PLACES * each * _THREADS * 16)
    return Program((plan,), orders(problem, x))
