"""The algorithm ``channel_tile``: batch norm of half types whose channels fit the registers of a block, read once:
images that are no whole vectors, or channels last."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm import channel_slab, folded
from dnnarray._cuda.norm.channel_view import View, operands, shares, specs_of, view, view_of
from dnnarray._cuda.norm.shared import UNALIGNED, AnyType, AnyTypeOut, Arrays, Flag, is_gradient, orders, wide_bits
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF

VECTOR = 8  # elements of 16 bytes
_THREADS = (256, 512)
_VECTORS = (4, 7, 10, 13, 16)  # pieces of a thread
_PAIRS = (4, 7)  # of a thread that holds x and grad
_PAIRS_FROM = (10, 0)
_SHARED = 3  # multiprocessors for each block, at the most
_MOST = 128  # channels of a block
# Bytes of x, channels last, for which all blocks of the card are faster, in two launches; of any size with a residual.
_MEDIUM = 1 << 20, 4 << 20
# elements: as large as a vector of an image has to be for blocks with channels in shared memory to walk them as fast
_WALKED = 4


@frozen
class ChannelTileConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_tile.cu``."""

    element: str
    activation: str
    residual: bool
    vector: int
    vectors: int
    threads: int


@frozen(kw_only=True)
class ChannelTileArguments(Arguments, restrict=("x", "residual", "y")):
    """What ``kernels/norm/channel_tile.cu`` is called with; `wide` has a bit for each of weight, bias, running mean and
    variance."""

    x: In
    residual: In
    y: Out
    weight: AnyType
    bias: AnyType
    running_mean: AnyType
    running_var: AnyType
    mean_of: OutArithmetic
    rstd_of: OutArithmetic
    next_mean: AnyTypeOut
    next_var: AnyTypeOut
    wide: Flag
    pieces: Extent
    columns: Extent
    tile: Extent
    width_of: Extent
    width_divisor: Extent
    count: Double
    share: Double
    momentum: Double
    eps: Double
    p: Double
    q: Double


class Tile(NamedTuple):
    """Columns of a block, threads, pieces of a thread."""

    columns: int
    threads: int
    vectors: int


class Columns(NamedTuple):
    """x as pieces of columns, neighbours in memory: how many of each, and columns of a channel."""

    pieces: int
    total: int
    width: int


def columns_of(v: View) -> Columns:
    return Columns(v.inner, v.channels, 1) if v.last else Columns(v.outer, v.channels * v.inner, v.inner)


def tile_of(c: Columns, gradient: bool) -> Tile | None:
    """As few channels as make whole vectors and sectors; None where the largest block does not hold them."""
    columns = c.width
    while columns < c.total and (columns % VECTOR or columns < 2 * VECTOR):
        columns *= 2
    columns = min(columns, c.total)
    for threads in _THREADS:
        step = threads * VECTOR // columns
        vectors = next((n for n in (_PAIRS if gradient else _VECTORS) if step and n * step >= c.pieces), None)
        if vectors is not None and columns >= 2 * VECTOR and columns // c.width <= _MOST:
            return Tile(columns, threads, vectors)
    return None


def rejects(problem: NormProblem, device: Device) -> str | None:
    v, specs = view(problem), specs_of(problem)
    slow = specs.residual is not None or _MEDIUM[0] <= specs.x.nbytes < _MEDIUM[1]
    if v is not None and v.last and slow and folded.fits(problem, device) is None:
        return "rows that all blocks of the card take less time for, in two launches"
    return holds(problem, device) or (None if device.aligned else UNALIGNED)


def holds(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of such channels, or None."""
    v, specs = view(problem), specs_of(problem)
    x = specs.x
    if v is None or not 0 < v.size < 1 << 31 or x.dtype not in HALF:
        return "only half types, fewer than 2^31 elements, and not nothing, in memory in which channels lie together"
    if not v.last and v.inner % _WALKED == 0:
        return "channels first only images that are no whole vectors"
    if is_gradient(problem):
        if specs.mean is None or specs.rstd is None:
            return "only where the statistics were saved"
        if problem.activation is not None or specs.residual is not None:
            return "a gradient without activation and residual: registers are short"
    if specs.residual is not None and (device.capability or (0, 0)) >= _PAIRS_FROM:
        return "a residual: registers are short where the compiler works on pairs of numbers"
    c = columns_of(v)
    how = tile_of(c, is_gradient(problem))
    if c.total % VECTOR or how is None:
        return "the channels of a block, with rows that are worth reading, are more than its threads hold in registers"
    if blocks_of(c.total, how.columns) * _SHARED < device.units:
        return "too few blocks for all multiprocessors"
    return channel_slab.rejects(problem, device)  # which takes what is not aligned


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    specs, arrays, c = specs_of(problem), Arrays(problem), columns_of(view_of(problem))
    x, g, curve, how = (
        specs.x,
        operands(problem, arrays.inputs),
        formula(problem.activation, specs.x.dtype),
        tile_of(c, False),
    )
    assert how is not None
    residual = specs.residual is not None
    config = ChannelTileConfig(TYPES[x.dtype], curve.type, residual, VECTOR, how.vectors, how.threads)
    name = (
        f"norm_channel_tile_{'residual_' * residual}{SHORT[x.dtype]}x{VECTOR}x{how.vectors}x{how.threads}_{curve.name}"
    )
    y, mean, rstd, next_mean, next_var = (*arrays.outputs, None, None, None, None)[:5]
    count, share = shares(problem)
    arguments = ChannelTileArguments(
        x=g.x,
        residual=g.residual,
        y=y,
        weight=g.weight,
        bias=g.bias,
        running_mean=g.running_mean,
        running_var=g.running_var,
        mean_of=mean,
        rstd_of=rstd,
        next_mean=next_mean,
        next_var=next_var,
        wide=wide_bits(x, specs.weight, specs.bias, specs.running_mean, specs.running_var),
        pieces=c.pieces,
        columns=c.total,
        tile=how.columns,
        width_of=c.width,
        width_divisor=divisor(c.width),
        count=count,
        share=share,
        momentum=float(problem.momentum),
        eps=float(problem.eps),
        p=curve.p,
        q=curve.q,
    )
    kernel = Kernel("norm/channel_tile.cu", name, config, ("core/activation",))
    plan = planned(kernel, (blocks_of(c.total, how.columns), 1, 1), how.threads, arguments)
    return Program((plan,), orders(problem, x))
