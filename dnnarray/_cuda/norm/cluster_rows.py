"""Layer and RMS norm over long rows that a cluster of blocks holds on the chip."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.norm import long_rows, rows
from dnnarray._cuda.norm.rows import extents, fold, of_parameters, operands, pass_on, results, wants_parameters
from dnnarray._cuda.norm.shared import Arguments, orders, short, type_of
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_LEAST = 16384  # columns from which the forward of half types is faster here than in registers; of float beyond
_SHORT, _SHORT_HALF = 1024, 767  # columns up to which the gradient gives a row to a warp or less: of float and of half types
_RIGHT = "only float and half types in whole 16-byte vectors whose rows a cluster holds on the chip"
_UNITS = 132  # multiprocessors that the clusters of a gradient, which stay, are meant to fill
_RESIDENT = 1024  # threads of a multiprocessor, with 64 registers each
_LARGEST = 8  # blocks of a cluster that every card of this kind can place
_CLUSTERS_FROM, _COPIES_FROM = (9, 0), (8, 0)
_LARGE = 1 << 22  # elements from which the barriers that it takes to add up sums on chip are worth it
_STATIC = 4096  # bytes of shared memory that the kernels need besides
_TABLES = 3072  # and that of the gradient where no statistics are to be found
_SPLIT_STAGES = 3  # rows on the chip where the sums of one are under way while others are worked on


@frozen
class ClusterRowsBackwardConfig(Config):
    """Compile-time settings of ``kernels/norm/cluster_rows_backward.cu``."""

    element: str
    weight: str
    mean: str
    rstd: str
    centred: bool
    add: bool
    parameters: bool
    given: bool
    lanes: int
    blocks: int
    fold: int
    threads: int
    vectors: int
    stages: int
    resident: int
    split: bool


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
    """Blocks small enough that several are at work on a multiprocessor; None where the row does not fit into the largest cluster."""
    most = _LARGEST if (device.capability or (0, 0)) >= _CLUSTERS_FROM else 1
    limit = device.shared_memory - 2 * _STATIC
    how = Spread(1, 128 if vectors <= 512 else 256 if vectors <= 1024 else 512)
    while how.blocks < most and how.memory(vectors, arrays) > limit // 3:
        how = how._replace(blocks=2 * how.blocks)
    return how if how.memory(vectors, arrays) <= limit else None


class Share(NamedTuple):
    """How the gradient spreads rows: threads of a row within a warp (0: all of the cluster), blocks of a row, blocks that add up their sums
    before they write them, threads of a block, vectors of 16 bytes of each; groups of rows on the chip; blocks a multiprocessor; whether the sums
    of a row are under way while others are worked on.
    """

    lanes: int
    blocks: int
    fold: int
    threads: int
    vectors: int
    stages: int
    resident: int
    split: bool = False

    @property
    def rows(self) -> int:
        """Rows of a group."""
        return self.threads // self.lanes if self.lanes else 1

    def memory(self, arrays: int, kept: int) -> int:
        """Bytes of shared memory of a block."""
        return (self.stages * arrays + kept) * self.vectors * self.threads * 16


def _share(columns: int, problem: NormProblem, device: Device) -> Share | None:
    """The first way to spread rows that holds them."""
    half = operands(problem, problem.inputs, None).x.dtype.itemsize == 2
    vectors = columns // (8 if half else 4)
    for blocks, threads, most in _ways(device):
        each = blocks_of(vectors, blocks * threads)
        if each * (8 if half else 4) > most:
            continue
        resident = _RESIDENT // threads if most == 8 else 1
        if blocks > 1 and half and _splits(each * threads, problem, device):
            return Share(0, blocks, _fold(blocks, resident, problem, device), threads, each, _SPLIT_STAGES, resident, True)
        wanted = 2 if half else 1
        stages = min(_stages(each * threads, resident, problem, device), wanted)
        if stages > 0:
            return Share(0, blocks, _fold(blocks, resident, problem, device), threads, each, stages, resident)
    return None


def _stages(vectors: int, resident: int, problem: NormProblem, device: Device) -> int:
    """Groups of rows, of so many vectors, that fit a block's shared memory beside the weight."""
    room = (device.shared_memory + 1024) // resident - 1024 - _STATIC
    return (room // (vectors * 16) - _kept(problem)) // _arrays(problem)


def _splits(vectors: int, problem: NormProblem, device: Device) -> bool:
    """Whether a third row of so many vectors fits beside a weight that is not widened, so that nobody need wait for a row's sums."""
    room = device.shared_memory - _TABLES
    return _given(problem) and (_SPLIT_STAGES * _arrays(problem) + _kept(problem, True)) * vectors * 16 <= room


def _ways(device: Device) -> list[tuple[int, int, int]]:
    """(blocks of a cluster, threads of a block, most columns of a thread), best first.

    The sums for eight columns, and what is computed with them, fit 64 registers; those for 32 always fit 128. Sixteen columns fit 64 too where
    mean and rstd are given, but half as many blocks at work then hide less: 10 to 14% slower for rows of 4096 and 8192.
    """
    ways = [(1, threads, 8) for threads in (128, 256, 512, 1024)] + [(1, 512, 32)]
    if (device.capability or (0, 0)) >= _CLUSTERS_FROM:
        ways += [(blocks, 512, 32) for blocks in (2, 4, _LARGEST)]
    return ways


def _warp_share(columns: int, problem: NormProblem, device: Device) -> Share:
    """Short rows of a half type: a row for some lanes of a warp."""
    vectors, threads = columns // 8, 256
    lanes = 8 if vectors <= 8 else 16 if vectors <= 16 else 32
    each = blocks_of(vectors, lanes)
    resident = 3 if each == 1 or (each == 2 and _given(problem)) else 2
    stages = min(_stages(each * threads, resident, problem, device), 3 if each == 1 else 2)
    return Share(lanes, 1, 1, threads, each, max(stages, 1), resident)


def _fold(blocks: int, resident: int, problem: NormProblem, device: Device) -> int:
    """Blocks that add up their sums in shared memory, so that half of them goes through device memory: of one that has not more than another
    beside it on its multiprocessor, since of larger clusters not all are placed at once.
    """
    large = operands(problem, problem.inputs, None).x.size >= _LARGE and (device.capability or (0, 0)) >= _CLUSTERS_FROM
    return 2 if large and blocks == 1 and resident <= 2 and wants_parameters(problem) else 1


def _arrays(problem: NormProblem) -> int:
    """Arrays of which whole rows come to shared memory."""
    return 1 + problem.op.startswith("add_") + problem.op.endswith("_backward")


def _kept(problem: NormProblem, split: bool = False) -> int:
    """How many elements of x a weight, kept as float or (`split`) as it came, takes as much memory as."""
    specs = operands(problem, problem.inputs, None)
    return (specs.weight.dtype.itemsize if split and specs.weight is not None else 4) // specs.x.dtype.itemsize


def _columns(problem: NormProblem, device: Device) -> int:
    """Columns of rows that these kernels could take, else 0."""
    x, found = operands(problem, problem.inputs, None).x, extents(problem)
    if found is None or (device.capability or (0, 0)) < _COPIES_FROM or x.dtype == FLOAT64:
        return 0
    return 0 if found[1] % (16 // x.dtype.itemsize) else found[1]


def _forward(problem: NormProblem, device: Device) -> Spread | None:
    columns, item = _columns(problem, device), operands(problem, problem.inputs, None).x.dtype.itemsize
    return _spread(columns * item // 16, _arrays(problem), device) if columns >= _LEAST + (item == 4) else None


def _backward(problem: NormProblem, device: Device) -> Share | None:
    columns, half = _columns(problem, device), operands(problem, problem.inputs, None).x.dtype.itemsize == 2
    if columns > (_SHORT_HALF if half else _SHORT):
        return _share(columns, problem, device)
    return _warp_share(columns, problem, device) if columns and half else None


def _given(problem: NormProblem) -> bool:
    """Whether mean and rstd, as far as there are any, were saved, so that a gradient need not find them first."""
    specs = operands(problem, problem.inputs, None)
    return not problem.op.endswith("_backward") or (specs.rstd is not None and (specs.mean is not None or not problem.centred))


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the rows cannot be shared out, or None."""
    if extents(problem) is None:
        return "the normalised axes are not the fastest in memory"
    if problem.op.endswith("_backward"):
        return None if _backward(problem, device) else f"{_RIGHT}; float rows from {_SHORT + 1} columns on"
    return None if _forward(problem, device) else f"{_RIGHT}, from {_LEAST} columns on"


def _clusters(share: Share, rows: int) -> int:
    """As many as are at work at once: of larger clusters, a card places 15 of 16. No more than share the rows evenly, or a last round would be few."""
    units = _UNITS if share.blocks <= 2 else _UNITS * 10 // 11
    groups, placed = blocks_of(rows, share.rows * share.fold), units * share.resident // (share.blocks * share.fold)
    return max(blocks_of(groups, blocks_of(groups, placed)), 1) if groups else 1


def _otherwise(problem: NormProblem, device: Device) -> Any:
    """The method for memory that is not aligned to 16 bytes."""
    return rows if rows.fits(problem, device) is None else long_rows


def workspace(problem: NormProblem) -> int:
    """The clusters' shares of the gradients of weight and bias, or what other memory needs."""
    found = extents(problem)
    if found is None or not wants_parameters(problem):
        return 0
    own = min(found[0] * found[1], _UNITS * _RESIDENT * 16) * 4 * sum(s is not None for s in of_parameters(problem))
    return max(own, rows.workspace(problem), long_rows.workspace(problem))


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch: statistics and result."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    if not aligned or x.size == 0:
        return _otherwise(problem, device).forward(problem, device, aligned)
    found, how = extents(problem), _forward(problem, device)
    assert found is not None
    assert how is not None
    rows, columns = found
    y, *rest = arguments.outputs
    add = specs.residual is not None
    total, mean, rstd = (rest[0], 0, 0) if add else (0, *rest) if problem.centred else (0, 0, *rest)
    config = ClusterRowsConfig(TYPES[x.dtype], type_of(specs.weight, x), type_of(specs.bias, x), problem.centred, add, *how)
    name = f"{'add_' if add else ''}{'layer' if problem.centred else 'rms'}_norm_cluster_rows_{SHORT[x.dtype]}_{'x'.join(map(str, how))}"
    kernel = Kernel("norm/cluster_rows.cu", f"{name}_{short(specs.weight, x)}_{short(specs.bias, x)}", config)
    pointers = (given.x, given.residual, given.weight, given.bias, y, total, mean, rstd)
    vectors = columns * x.dtype.itemsize // 16
    launch = (*pointers, columns, how.count(vectors), float(problem.eps))
    grid = (rows * how.blocks, 1, 1)
    return Program((Plan(kernel, grid, how.threads, launch, how.memory(vectors, _arrays(problem))),), orders(problem, x))


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x with each cluster's share of the gradients of the parameters, then the sum of the shares."""
    specs, arguments = operands(problem, problem.inputs, None), Arguments(problem)
    given, x = operands(problem, arguments.inputs, 0), specs.x
    if not aligned or x.size == 0:
        return _otherwise(problem, device).backward(problem, device, aligned)
    if specs.grad is None:
        return pass_on(problem, aligned)
    found, share = extents(problem), _backward(problem, device)
    assert found is not None
    assert share is not None
    rows, columns = found
    dx, dresidual, dweight, dbias = results(problem, arguments)
    add, wanted, clusters = specs.residual is not None, wants_parameters(problem), _clusters(share, rows)
    part = clusters * columns * 4
    of_weight = arguments.scratch() if dweight else 0
    of_bias = arguments.scratch(part if dweight else 0) if dbias else 0
    weight, mean, rstd = (type_of(s, x) for s in (specs.weight, specs.mean, specs.rstd))
    config = ClusterRowsBackwardConfig(TYPES[x.dtype], weight, mean, rstd, problem.centred, add, wanted, _given(problem), *share)
    name = f"{'add_' if add else ''}{'layer' if problem.centred else 'rms'}_norm_cluster_rows_backward_{SHORT[x.dtype]}_{'x'.join(map(str, share[:-1]))}"
    name += "".join(f"_{short(s, x)}" for s in (specs.weight, specs.mean, specs.rstd))
    kernel = Kernel(
        "norm/cluster_rows_backward.cu", f"{name}{'_parameters' * wanted}{'_given' * _given(problem)}{'_split' * share.split}", config
    )
    pointers = (*given.of_gradient, dx, dresidual, of_weight, of_bias)
    launch = (*pointers, rows, columns, float(problem.eps))
    grid = (clusters * share.blocks * share.fold, 1, 1)
    plans = [Plan(kernel, grid, share.threads, launch, share.memory(_arrays(problem), _kept(problem, share.split)))]
    if dweight or dbias:
        plans.append(fold(x, of_weight, of_bias, dweight, dbias, clusters, columns, specs.weight, specs.bias, aligned))
    return Program(tuple(plans), orders(problem, x))
