"""Batch norm of half types whose channels fit the registers of a block, read once: images that are no whole vectors, or channels last."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda import norm_slab
from dnnarray._cuda.activation import formula
from dnnarray._cuda.norm_channels import View, inputs, shares, view
from dnnarray._cuda.norm_common import Arguments, blocks_of, divisor, orders, wide
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF

_VECTOR = 8  # elements of 16 bytes
_THREADS = (256, 512)
_VECTORS = (4, 7, 10, 13, 16)  # pieces of a thread
_SHARED = 2  # multiprocessors for each block, at the most
_MOST = 128  # channels of a block
_WALKED = 4  # elements: as large as a vector of an image has to be for blocks with channels in shared memory to walk them as fast


@frozen
class TileConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_tile.cu``."""

    element: str
    activation: str
    residual: bool
    vector: int
    vectors: int
    threads: int


class Tile(NamedTuple):
    """Columns of a block, threads, pieces of a thread."""

    columns: int
    threads: int
    vectors: int


class Columns(NamedTuple):
    """x as pieces of columns, neighbours in memory: how many of each, and columns of a channel."""

    pieces: int
    count: int
    width: int


def _columns(v: View) -> Columns:
    return Columns(v.inner, v.channels, 1) if v.last else Columns(v.outer, v.channels * v.inner, v.inner)


def _tile(c: Columns) -> Tile | None:
    """As few channels as make whole vectors and sectors; None where the largest block does not hold them."""
    columns = c.width
    while columns < c.count and (columns % _VECTOR or columns < 2 * _VECTOR):
        columns *= 2
    columns = min(columns, c.count)
    for threads in _THREADS:
        step = threads * _VECTOR // columns
        vectors = next((n for n in _VECTORS if step and n * step >= c.pieces), None)
        if vectors is not None and columns >= 2 * _VECTOR and columns // c.width <= _MOST:
            return Tile(columns, threads, vectors)
    return None


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of such channels, or None."""
    v, x = view(problem), inputs(problem, problem.inputs, None).x
    if v is None or not 0 < v.size < 1 << 31 or x.dtype not in HALF:
        return "only half types, fewer than 2^31 elements, and not nothing, in memory in which channels lie together"
    if not v.last and v.inner % _WALKED == 0:
        return "channels first only images that are no whole vectors"
    c = _columns(v)
    how = _tile(c)
    if c.count % _VECTOR or how is None:
        return "the channels of a block, with rows that are worth reading, are more than its threads hold in registers"
    if blocks_of(c.count, how.columns) * _SHARED < device.units:
        return "too few blocks for all multiprocessors"
    return norm_slab.fits(problem, device)  # which takes what is not aligned


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    if not aligned:
        return norm_slab.forward(problem, device, aligned)
    v, specs, arguments = view(problem), inputs(problem, problem.inputs, None), Arguments(problem)
    assert v is not None
    c, x, g, curve = _columns(v), specs.x, inputs(problem, arguments.inputs, 0), formula(problem.activation, specs.x.dtype)
    how = _tile(c)
    assert how is not None
    config = TileConfig(TYPES[x.dtype], curve.type, specs.residual is not None, _VECTOR, how.vectors, how.threads)
    kernel = Kernel(
        "norm/channel_tile.cu",
        f"norm_channel_tile_{'residual_' * config.residual}{SHORT[x.dtype]}x{_VECTOR}x{how.vectors}x{how.threads}_{curve.name}",
        config,
        ("activation", "norm"),
    )
    results = (*arguments.outputs, 0, 0, 0, 0)[:5]
    flags = (wide(s, x) for s in (specs.weight, specs.bias, specs.running_mean, specs.running_var))
    sizes = (c.pieces, c.count, how.columns, c.width, divisor(c.width))
    numbers = (*sizes, *shares(problem), float(problem.momentum), float(problem.eps), curve.p, curve.q)
    pointers = (g.x, g.residual, g.weight, g.bias, g.running_mean, g.running_var, *results)
    plan = Plan(kernel, (blocks_of(c.count, how.columns), 1, 1), how.threads, (*pointers, *flags, *numbers))
    return Program((plan,), orders(problem, x))
