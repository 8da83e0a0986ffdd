"""The algorithm ``cluster_rows``: long rows of layer and RMS norm, which a cluster of blocks holds in shared memory."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.layer import NO_ROWS, extents, name_of, operands, results, rows_of, specs_of
from dnnarray._cuda.norm.shared import UNALIGNED, Arrays, Bias, Weight, orders, short, type_of
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_LEAST = 16384  # columns from which the forward of half types is faster here than in registers; of float beyond
RIGHT = "only float and half types in whole 16-byte vectors whose rows a cluster holds on the chip"
LARGEST = 8  # blocks of a cluster that every card of this kind can place
CLUSTERS_FROM, _COPIES_FROM = (9, 0), (8, 0)
STATIC = 4096  # bytes of shared memory that the kernels need besides


@frozen
class ClusterRowsConfig(Config):
    """Compile-time settings of ``kernels/norm/cluster_rows.cu``."""

    element: str
    weight: str
    bias: str
    centred: bool
    add: bool
    blocks: int
    threads: int


@frozen(kw_only=True)
class ClusterRowsArguments(Arguments, restrict=("x", "residual", "weight", "bias", "y", "sum")):
    """What ``kernels/norm/cluster_rows.cu`` is called with; `count` are the vectors of a row for a thread."""

    x: In
    residual: In
    weight: Weight
    bias: Bias
    y: Out
    sum: Out
    mean_of: OutArithmetic
    rstd_of_row: OutArithmetic
    columns: Extent
    count: Extent
    eps: Double


class Spread(NamedTuple):
    """How the forward spreads a row over a cluster: blocks, threads of each."""

    blocks: int
    threads: int

    def count(self, vectors: int) -> int:
        """Vectors of 16 bytes of a row for a thread."""
        return blocks_of(vectors, self.blocks * self.threads)

    def memory(self, vectors: int, arrays: int) -> int:
        """Bytes of shared memory of a block."""
        return self.threads * 16 * self.count(vectors) * arrays


def _spread(vectors: int, arrays: int, device: Device) -> Spread | None:
    """Blocks small enough that several are at work on a multiprocessor; None where the row does not fit into the
    largest cluster."""
    most = LARGEST if (device.capability or (0, 0)) >= CLUSTERS_FROM else 1
    limit = device.shared_memory - 2 * STATIC
    how = Spread(1, 128 if vectors <= 512 else 256 if vectors <= 1024 else 512)
    while how.blocks < most and how.memory(vectors, arrays) > limit // 3:
        how = how._replace(blocks=2 * how.blocks)
    return how if how.memory(vectors, arrays) <= limit else None


def arrays_held(problem: NormProblem) -> int:
    """Arrays of which whole rows come to shared memory."""
    return 1 + problem.op.startswith("add_") + problem.op.endswith("_backward")


def columns_held(problem: NormProblem, device: Device) -> int:
    """Columns of rows that kernels with rows in shared memory could take, else 0."""
    x, found = specs_of(problem).x, extents(problem)
    if found is None or (device.capability or (0, 0)) < _COPIES_FROM or x.dtype == FLOAT64:
        return 0
    return 0 if found[1] % (16 // x.dtype.itemsize) else found[1]


def not_held(problem: NormProblem, device: Device) -> str | None:
    """Why a problem has no rows that could be held, or None."""
    if extents(problem) is None:
        return NO_ROWS
    if specs_of(problem).x.size == 0:
        return "there is nothing to hold"
    return None if device.aligned else UNALIGNED


def _spread_of(problem: NormProblem, device: Device) -> Spread | None:
    columns, item = columns_held(problem, device), specs_of(problem).x.dtype.itemsize
    return _spread(columns * item // 16, arrays_held(problem), device) if columns >= _LEAST + (item == 4) else None


def rejects(problem: NormProblem, device: Device) -> str | None:
    if reason := not_held(problem, device):
        return reason
    return None if _spread_of(problem, device) else f"{RIGHT}, from {_LEAST} columns on"


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arrays, (rows, columns) = specs_of(problem), Arrays(problem), rows_of(problem)
    x, given, how = specs.x, operands(problem, arrays.inputs), _spread_of(problem, device)
    assert how is not None
    types = (type_of(specs.weight, x), type_of(specs.bias, x))
    config = ClusterRowsConfig(TYPES[x.dtype], *types, problem.centred, specs.residual is not None, *how)
    name = f"{name_of(problem)}_cluster_rows_{SHORT[x.dtype]}_{'x'.join(map(str, how))}"
    kernel = Kernel("norm/cluster_rows.cu", f"{name}_{short(specs.weight, x)}_{short(specs.bias, x)}", config)
    y, total, mean, rstd = results(problem, arrays)
    vectors = columns * x.dtype.itemsize // 16
    arguments = ClusterRowsArguments(
        x=given.x,
        residual=given.residual,
        weight=given.weight,
        bias=given.bias,
        y=y,
        sum=total,
        mean_of=mean,
        rstd_of_row=rstd,
        columns=columns,
        count=how.count(vectors),
        eps=float(problem.eps),
    )
    memory = how.memory(vectors, arrays_held(problem))
    plan = planned(kernel, (rows * how.blocks, 1, 1), how.threads, arguments, shared_memory=memory)
    return Program((plan,), orders(problem, x))
