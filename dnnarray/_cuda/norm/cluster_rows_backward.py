"""The algorithm ``cluster_rows_backward``: gradients of layer and RMS norm over rows in the shared memory of clusters
of blocks that stay."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm import long_rows, rows_backward
from dnnarray._cuda.norm.cluster_rows import CLUSTERS_FROM, LARGEST, RIGHT, STATIC, arrays_held, columns_held, not_held
from dnnarray._cuda.norm.fold import fold
from dnnarray._cuda.norm.layer import (
    extents,
    gradients,
    name_of,
    no_gradient,
    of_parameters,
    operands,
    rows_of,
    specs_of,
    wants_parameters,
)
from dnnarray._cuda.norm.shared import Arrays, Mean, Rstd, Weight, orders, short, type_of
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_SHORT, _SHORT_HALF = 1024, 767  # columns up to which a row goes to a warp or less: of float and of half types
_UNITS = 132  # multiprocessors that the clusters, which stay, are meant to fill
_RESIDENT = 1024  # threads of a multiprocessor, with 64 registers each
_LARGE = 1 << 22  # elements from which the barriers that it takes to add up sums on chip are worth it
_TABLES = 3072  # bytes of shared memory that the kernel needs besides where no statistics are to be found
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


@frozen(kw_only=True)
class ClusterRowsBackwardArguments(
    Arguments, restrict=("grad_sum", "weight", "mean_of", "rstd_of_row", "dx", "dresidual")
):
    """What ``kernels/norm/cluster_rows_backward.cu`` is called with; `dweight` and `dbias` are the parts of the
    clusters."""

    grad: In
    grad_sum: In
    x: In
    residual: In
    weight: Weight
    mean_of: Mean
    rstd_of_row: Rstd
    dx: Out
    dresidual: Out
    dweight: OutArithmetic
    dbias: OutArithmetic
    rows: Extent
    columns: Extent
    eps: Double


class Share(NamedTuple):
    """How the gradient spreads rows: threads of a row within a warp (0: all of the cluster), blocks of a row, blocks
    that add up their sums before they write them, threads of a block, vectors of 16 bytes of each; groups of rows on
    the chip; blocks a multiprocessor; whether the sums of a row are under way while others are worked on."""

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
    half = specs_of(problem).x.dtype.itemsize == 2
    vectors = columns // (8 if half else 4)
    for blocks, threads, most in _ways(device):
        each = blocks_of(vectors, blocks * threads)
        if each * (8 if half else 4) > most:
            continue
        resident = _RESIDENT // threads if most == 8 else 1
        if blocks > 1 and half and _splits(each * threads, problem, device):
            return Share(
                0, blocks, _fold(blocks, resident, problem, device), threads, each, _SPLIT_STAGES, resident, True
            )
        wanted = 2 if half else 1
        stages = min(_stages(each * threads, resident, problem, device), wanted)
        if stages > 0:
            return Share(0, blocks, _fold(blocks, resident, problem, device), threads, each, stages, resident)
    return None


def _stages(vectors: int, resident: int, problem: NormProblem, device: Device) -> int:
    """Groups of rows, of so many vectors, that fit a block's shared memory beside the weight."""
    room = (device.shared_memory + 1024) // resident - 1024 - STATIC
    return (room // (vectors * 16) - _kept(problem)) // arrays_held(problem)


def _splits(vectors: int, problem: NormProblem, device: Device) -> bool:
    """Whether a third row of so many vectors fits beside a weight that is not widened, so that nobody need wait for a
    row's sums."""
    room = device.shared_memory - _TABLES
    return _given(problem) and (_SPLIT_STAGES * arrays_held(problem) + _kept(problem, True)) * vectors * 16 <= room


def _ways(device: Device) -> list[tuple[int, int, int]]:
    """(blocks of a cluster, threads of a block, most columns of a thread), best first.

    The sums for eight columns, and what is computed with them, fit 64 registers; those for 32 always fit 128. Sixteen
    columns fit 64 too where mean and rstd are given, but half as many blocks at work then hide less: 10 to 14% slower
    for rows of 4096 and 8192."""
    ways = [(1, threads, 8) for threads in (128, 256, 512, 1024)] + [(1, 512, 32)]
    if (device.capability or (0, 0)) >= CLUSTERS_FROM:
        ways += [(blocks, 512, 32) for blocks in (2, 4, LARGEST)]
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
    """Blocks that add up their sums in shared memory, so that half of them goes through device memory: of one that has
    not more than another beside it on its multiprocessor, since of larger clusters not all are placed at once."""
    large = specs_of(problem).x.size >= _LARGE and (device.capability or (0, 0)) >= CLUSTERS_FROM
    return 2 if large and blocks == 1 and resident <= 2 and wants_parameters(problem) else 1


def _kept(problem: NormProblem, split: bool = False) -> int:
    """How many elements of x a weight, kept as float or (`split`) as it came, takes as much memory as."""
    specs = specs_of(problem)
    return (specs.weight.dtype.itemsize if split and specs.weight is not None else 4) // specs.x.dtype.itemsize


def _share_of(problem: NormProblem, device: Device) -> Share | None:
    columns, half = columns_held(problem, device), specs_of(problem).x.dtype.itemsize == 2
    if columns > (_SHORT_HALF if half else _SHORT):
        return _share(columns, problem, device)
    return _warp_share(columns, problem, device) if columns and half else None


def _given(problem: NormProblem) -> bool:
    """Whether mean and rstd, as far as there are any, were saved, so that a gradient need not find them first."""
    specs = specs_of(problem)
    return specs.rstd is not None and (specs.mean is not None or not problem.centred)


def rejects(problem: NormProblem, device: Device) -> str | None:
    if reason := not_held(problem, device) or no_gradient(problem):
        return reason
    return None if _share_of(problem, device) else f"{RIGHT}; float rows from {_SHORT + 1} columns on"


def _clusters(share: Share, rows: int) -> int:
    """As many as are at work at once: of larger clusters, a card places 15 of 16. No more than share the rows evenly,
    or a last round would be few."""
    units = _UNITS if share.blocks <= 2 else _UNITS * 10 // 11
    groups, placed = blocks_of(rows, share.rows * share.fold), units * share.resident // (share.blocks * share.fold)
    return max(blocks_of(groups, blocks_of(groups, placed)), 1) if groups else 1


def workspace(problem: NormProblem) -> int:
    """The clusters' parts of the gradients of weight and bias, or what is taken for memory that is not aligned."""
    found = extents(problem)
    if found is None or not wants_parameters(problem):
        return 0
    own = min(found[0] * found[1], _UNITS * _RESIDENT * 16) * 4 * sum(s is not None for s in of_parameters(problem))
    return max(own, rows_backward.workspace(problem), long_rows.workspace(problem))


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The gradient of x with each cluster's part of the gradients of the parameters, then the sum of the parts."""
    specs, arrays, (rows, columns) = specs_of(problem), Arrays(problem), rows_of(problem)
    x, given, share = specs.x, operands(problem, arrays.inputs), _share_of(problem, device)
    assert share is not None
    dx, dresidual, dweight, dbias = gradients(problem, arrays)
    wanted, clusters = wants_parameters(problem), _clusters(share, rows)
    size = clusters * columns * 4
    parts = (arrays.scratch() if dweight else None, arrays.scratch(size if dweight else 0) if dbias else None)
    types = (type_of(specs.weight, x), type_of(specs.mean, x), type_of(specs.rstd, x))
    settings: tuple[Any, ...] = (problem.centred, specs.residual is not None, wanted, _given(problem), *share)
    config = ClusterRowsBackwardConfig(TYPES[x.dtype], *types, *settings)
    name = f"{name_of(problem)}_cluster_rows_backward_{SHORT[x.dtype]}_{'x'.join(map(str, share[:-1]))}"
    name += "".join(f"_{short(s, x)}" for s in (specs.weight, specs.mean, specs.rstd))
    name += f"{'_parameters' * wanted}{'_given' * _given(problem)}{'_split' * share.split}"
    arguments = ClusterRowsBackwardArguments(
        grad=given.grad,
        grad_sum=given.grad_sum,
        x=given.x,
        residual=given.residual,
        weight=given.weight,
        mean_of=given.mean,
        rstd_of_row=given.rstd,
        dx=dx,
        dresidual=dresidual,
        dweight=parts[0],
        dbias=parts[1],
        rows=rows,
        columns=columns,
        eps=float(problem.eps),
    )
    kernel, grid = Kernel("norm/cluster_rows_backward.cu", name, config), (clusters * share.blocks * share.fold, 1, 1)
    memory = share.memory(arrays_held(problem), _kept(problem, share.split))
    plans = [planned(kernel, grid, share.threads, arguments, shared_memory=memory)]
    if dweight or dbias:
        plans.append(fold(x, parts, (dweight, dbias), clusters, columns, (specs.weight, specs.bias), aligned))
    return Program(tuple(plans), orders(problem, x))
