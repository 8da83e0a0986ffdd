"""Batch, group and instance norm of small arrays: a block or a cluster has a statistic, or those of neighbouring
channels, in registers. How the plans for either share them out."""

from __future__ import annotations

from typing import Any, NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm import channel_slab, channel_tile, folded
from dnnarray._cuda.norm.channel_view import MIXED, View, shares, specs_of, view, view_of
from dnnarray._cuda.norm.shared import is_gradient, orders
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64, Spec

_SMALL, _PIECES = (
    1 << 20,
    1 << 17,
)  # bytes of x, or vectors that each have a line of memory, up to which latency is what counts
_THREADS = 512  # of a block, at the most
_EACH = (
    1,
    2,
    4,
    8,
    16,
)  # vectors of a thread; of groups, where each may have a weight and sums of its own, at most _APART
_APART = 4
_WORD, _WIDEST = (
    4,
    4,
)  # channels last: bytes of the least vector, and neighbours whose statistics a block has at the most
_BLOCKS, _APART_BLOCKS = (
    16,
    128,
)  # blocks that are enough, with narrow vectors; in gradients of few rows of batch indices apart
_LINES, _LARGEST, _AT_ONCE = (
    400,
    8,
    132,
)  # rows that are worth a block of a cluster, its blocks at the most, and of all clusters
_PLACES = 112  # blocks of _THREADS in clusters of _LARGEST, one a multiprocessor, that find a place at once
_MANY, _MOVED, _SECTOR = (
    4096,
    2048,
    32,
)  # rows that three launches take as fast, where a block moves more than so many, longer than so many bytes
# Rows of a block, from which two launches that share them out are faster: batch norm; in clusters, or its gradient;
# that with a residual.
_ALONE_ROWS = 1000, 600, 300
_ALONE = 1024  # rows of single elements of a group in a gradient, at the most
_CLUSTERS_FROM, _GRID_Y = (9, 0), 65_535
_VALUES, _FEW = (
    16,
    8,
)  # of a thread, of each array: at the most, and up to which more threads are not worth their meeting


@frozen
class BlockConfig(Config):
    """Compile-time settings that the kernels have in common."""

    element: str
    activation: str
    group: bool
    last: bool
    vector: int
    vectors: int
    threads: int
    blocks: int


class Share(NamedTuple):
    """How a statistic is spread: elements of a vector, vectors of a thread, threads of it, how many a block has, blocks
    of a cluster."""

    vector: int
    vectors: int
    lanes: int
    rows: int
    blocks: int = 1


def _elements(v: View) -> int:
    """Values behind a statistic."""
    return v.channels // v.groups * v.inner if v.per_batch else v.outer * v.inner


def several(v: View) -> bool:
    """Whether the elements of a vector have statistics of their own: those of neighbouring channels."""
    return v.last and v.groups == v.channels


def _vector(v: View, x: Spec, gradient: bool, aligned: bool) -> int:
    """Elements that a thread moves at once: of an image, of the channels of a group, or of as many channels as keep
    blocks few."""
    if not several(v):
        return vector_length(x.dtype, aligned, v.channels // v.groups if v.last else v.inner)
    widest = min(vector_length(x.dtype, aligned, v.channels), _WIDEST)
    statistics, vector = v.channels * (1 if gradient else v.batch), min(_WORD // x.dtype.itemsize, widest)
    enough = _APART_BLOCKS if gradient and v.batch > 1 and v.inner * v.batch <= _LINES else _BLOCKS
    while vector < widest and (statistics > vector * enough or v.size > vector * _PIECES):
        vector *= 2
    return vector


def _vectors(v: View, vector: int) -> tuple[int, int]:
    """Vectors of a block (gradient: of a batch index), and how many of them are neighbours."""
    if v.last:
        each = 1 if several(v) else v.channels // v.groups // vector
        return v.inner * each, each
    return blocks_of(_elements(v), vector), v.inner // vector


def _share(v: View, x: Spec, gradient: bool, aligned: bool, clusters: bool) -> Share | None:
    """As few threads as take few values each; None where the largest block does not hold a statistic (gradient: of
    every batch index)."""
    rows, vector = 1 << (v.batch - 1).bit_length() if gradient else 1, _vector(v, x, gradient, aligned)
    if several(v):
        return _share_of_neighbours(v, vector, rows, clusters)
    vectors, neighbours = _vectors(v, vector)
    if v.last and gradient and vector == 1 and v.outer * v.inner > _ALONE:
        return None
    for most in (_FEW, _VALUES):
        lanes = 32
        while lanes * rows <= _THREADS:
            used = lanes // neighbours * neighbours if v.last else lanes  # so that a thread comes by the same channels
            each = next((n for n in _EACH if n * used >= vectors), 0)
            if 0 < each <= min(max(most // vector, 1), _APART if v.per_batch and not v.last else _EACH[-1]):
                return Share(vector, each, lanes, rows)
            lanes *= 2
    return None


def _share_of_neighbours(v: View, vector: int, rows: int, clusters: bool) -> Share | None:
    """The same where statistics are neighbours. Each vector is a line of memory, 1 ns of its block: a cluster shares
    out many rows."""
    blocks, tiles = 1, v.channels // vector
    if v.batch == 1 and clusters:
        while blocks < _LARGEST and v.inner > blocks * _LINES and 2 * blocks * tiles <= _AT_ONCE:
            blocks *= 2
    lanes = 32
    while lanes * _APART < blocks_of(v.inner, blocks):
        lanes *= 2
    vectors = next(n for n in _EACH if n * lanes * blocks >= v.inner)
    while clusters and rows > 1 and blocks < _LARGEST:  # batch indices apart: a cluster shares out these
        if lanes * rows <= _THREADS and (v.inner * rows <= _LINES or 2 * blocks * tiles > _AT_ONCE):
            break
        rows, blocks = rows // 2, 2 * blocks
    return Share(vector, vectors, lanes, rows, blocks) if lanes * rows <= _THREADS else None


def _fits(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of small statistics, or None; wherever its arrays begin."""
    v, x = view(problem), specs_of(problem).x
    if v is None:
        return MIXED
    if x.dtype == FLOAT64 or v.size == 0 or _large(v, x, is_gradient(problem)):
        return (
            f"only float and half types, up to {_SMALL:,} bytes or {_PIECES:,} vectors of neighbouring channels, "
            "and not nothing"
        )
    if several(v) and is_gradient(problem) and channel_tile.holds(problem, device) is None:
        return "so many channels that blocks with whole sectors of each row fill the card"
    if v.batch > _GRID_Y:
        return f"{v.batch:,} batch indices are more than a grid has in its second axis"
    share = _share(v, x, is_gradient(problem), True, _clusters(device))
    if share is None:
        return f"a statistic of {_elements(v):,} values is more than a block holds in registers"
    if several(v) and (_slow(problem, v, share) or _shared(problem, device, v, share)):
        return f"{v.inner:,} rows of {v.channels} channels take longer than in several launches"
    return channel_slab.rejects(problem, device) if _falls_back(problem, _clusters(device)) else None


def share_of(problem: NormProblem, device: Device, aligned: bool) -> Share:
    """How the statistics of a problem are shared out."""
    found = _share(view_of(problem), specs_of(problem).x, is_gradient(problem), aligned, _clusters(device))
    assert found is not None
    return found


def rejects_of(problem: NormProblem, device: Device, cluster: bool) -> str | None:
    """Why a statistic is not one of a block, or with `cluster` of a cluster of blocks, or None."""
    if reason := _fits(problem, device):
        return reason
    if not device.aligned and _falls_back(problem, _clusters(device)):
        return (
            "an array begins at an address that is no multiple of 16, and vectors of one element are more than a "
            "block holds in registers"
        )
    shared_out = share_of(problem, device, device.aligned).blocks > 1
    if cluster:
        return None if shared_out else "a block by itself has the statistics"
    return "a cluster of blocks shares out the rows" if shared_out else None


def _large(v: View, x: Spec, gradient: bool) -> bool:
    """Whether more counts than latency."""
    return v.size > _PIECES * _vector(v, x, gradient, True) if several(v) else x.nbytes > _SMALL


def _slow(problem: NormProblem, v: View, share: Share) -> bool:
    """Whether blocks have more rows than are worth one launch, or clusters of the largest blocks are more than find a
    place at once."""
    specs, blocks = specs_of(problem), share.blocks * (v.channels // share.vector)
    if is_gradient(problem):
        return share.blocks == _LARGEST and share.lanes * share.rows == _THREADS and blocks > _PLACES
    moved = blocks_of(v.inner, share.blocks) * (2 + (specs.residual is not None))
    return v.inner > _MANY and moved > _MOVED and v.channels * specs.x.dtype.itemsize > _SECTOR


def _shared(problem: NormProblem, device: Device, v: View, share: Share) -> bool:
    """Whether all blocks of the card that share out the rows, in two launches, are faster than blocks with so many rows
    each."""
    specs, gradient = specs_of(problem), is_gradient(problem)
    most = _ALONE_ROWS[2 if gradient and specs.residual is not None else int(gradient or share.blocks > 1)]
    long = v.channels * specs.x.dtype.itemsize > _SECTOR
    return long and blocks_of(v.inner, share.blocks) > most and folded.fits(problem, device) is None


def _clusters(device: Device) -> bool:
    return (device.capability or (0, 0)) >= _CLUSTERS_FROM


def _falls_back(problem: NormProblem, clusters: bool) -> bool:
    """Whether memory that is not aligned is left to others: vectors of one element are too many for registers."""
    v, x = view(problem), specs_of(problem).x
    return v is None or _share(v, x, is_gradient(problem), False, clusters) is None


def workspace(problem: NormProblem) -> int:
    """What memory that is not aligned needs, on any card."""
    return channel_slab.workspace(problem) if _falls_back(problem, False) else 0


def cost(problem: NormProblem, device: Device) -> Cost:
    """Everything once, in one launch."""
    return Cost(problem.flops, problem.bytes, launches=1)


class Launch(NamedTuple):
    """What a launch begins with: the settings that kernels have in common, the end of their names, blocks of a batch
    index, threads, and the fields that records have in common."""

    share: Share
    settings: tuple[Any, ...]
    tail: str
    blocks: int
    threads: int
    arguments: dict[str, Any]


def begun(problem: NormProblem, device: Device, aligned: bool, words: str = "") -> Launch:
    """What forward and gradient have in common."""
    v, x = view_of(problem), specs_of(problem).x
    share, how = share_of(problem, device, aligned), formula(problem.activation, x.dtype)
    threads, group = share.lanes * share.rows, v.per_batch and not several(v)
    settings = (TYPES[x.dtype], how.type, group, v.last, share.vector, share.vectors, threads, share.blocks)
    tail = (
        f"{'group' if group else 'batch'}{'_last' * v.last}{words}_{SHORT[x.dtype]}_{'x'.join(map(str, share))}"
        f"_{how.name}"
    )
    vectors, each = _vectors(v, share.vector)
    members = share.vector if several(v) else v.channels // v.groups  # of a block
    span, pitch = (
        members * (1 if v.last else v.inner),
        v.channels if v.last else v.inner if group else v.channels * v.inner,
    )
    arguments = {
        "vectors": vectors,
        "each": each,
        "each_divisor": divisor(each),
        "pitch": pitch,
        "span": span,
        "members": members,
        "share": shares(problem)[1],
        "eps": float(problem.eps),
        "p": how.p,
        "q": how.q,
    }
    return Launch(share, settings, tail, v.channels // members * share.blocks, threads, arguments)


def launched(
    problem: NormProblem, stem: str, launch: Launch, config: Config, arguments: Arguments, batches: int = 1
) -> Program:
    """The launch of a kernel."""
    kernel = Kernel(f"norm/{stem}.cu", f"norm_{stem}_{launch.tail}", config, ("core/activation",))
    plan = ahead_if_small(planned(kernel, (launch.blocks, batches, 1), launch.threads, arguments))
    return Program((plan,), orders(problem, specs_of(problem).x))
