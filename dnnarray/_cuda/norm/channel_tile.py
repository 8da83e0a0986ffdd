"""Batch norm of half types whose channels fit the registers of a block, read once: images that are no whole vectors, or channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.norm import channel_slab, folded
from dnnarray._cuda.norm.channel_view import View, inputs, shares, view
from dnnarray._cuda.norm.shared import Arguments, orders, wide
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import HALF, Spec

_VECTOR = 8  # elements of 16 bytes
_THREADS = (256, 512)
_VECTORS = (4, 7, 10, 13, 16)  # pieces of a thread
_PAIRS = (4, 7)  # of a thread that holds x and grad
_PAIRS_FROM = (10, 0)
_SHARED = 3  # multiprocessors for each block, at the most
_MOST = 128  # channels of a block
# Bytes of x, channels last, for which all blocks of the card are faster, in two launches; of any size with a residual.
_MEDIUM = 1 << 20, 4 << 20
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


@frozen
class TileBackwardConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_tile_backward.cu``."""

    element: str
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
    total: int
    width: int


def _columns(v: View) -> Columns:
    return Columns(v.inner, v.channels, 1) if v.last else Columns(v.outer, v.channels * v.inner, v.inner)


def _tile(c: Columns, gradient: bool) -> Tile | None:
    """As few channels as make whole vectors and sectors; None where the largest block does not hold them."""
    columns = c.width
    while columns < c.total and (columns % _VECTOR or columns < 2 * _VECTOR):
        columns *= 2
    columns = min(columns, c.total)
    for threads in _THREADS:
        step = threads * _VECTOR // columns
        vectors = next((n for n in (_PAIRS if gradient else _VECTORS) if step and n * step >= c.pieces), None)
        if vectors is not None and columns >= 2 * _VECTOR and columns // c.width <= _MOST:
            return Tile(columns, threads, vectors)
    return None


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of such channels, or not faster so, or None."""
    v, specs = view(problem), inputs(problem, problem.inputs, None)
    slow = specs.residual is not None or _MEDIUM[0] <= specs.x.nbytes < _MEDIUM[1]
    if v is not None and v.last and slow and folded.fits(problem, device) is None:
        return "rows that all blocks of the card take less time for, in two launches"
    return holds(problem, device)


def holds(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of such channels, or None."""
    v, specs = view(problem), inputs(problem, problem.inputs, None)
    x = specs.x
    if v is None or not 0 < v.size < 1 << 31 or x.dtype not in HALF:
        return "only half types, fewer than 2^31 elements, and not nothing, in memory in which channels lie together"
    if not v.last and v.inner % _WALKED == 0:
        return "channels first only images that are no whole vectors"
    if _gradient(problem):
        if specs.mean is None or specs.rstd is None:
            return "only where the statistics were saved"
        if problem.activation is not None or specs.residual is not None:
            return "a gradient without activation and residual: registers are short"
    if specs.residual is not None and (device.capability or (0, 0)) >= _PAIRS_FROM:
        return "a residual: registers are short where the compiler works on pairs of numbers"
    c = _columns(v)
    how = _tile(c, _gradient(problem))
    if c.total % _VECTOR or how is None:
        return "the channels of a block, with rows that are worth reading, are more than its threads hold in registers"
    if blocks_of(c.total, how.columns) * _SHARED < device.units:
        return "too few blocks for all multiprocessors"
    return channel_slab.fits(problem, device)  # which takes what is not aligned


def _gradient(problem: NormProblem) -> bool:
    return problem.op.endswith("_backward")


def _program(
    problem: NormProblem, config: Callable[..., Config], settings: tuple[Any, ...], arguments: tuple[tuple[Any, ...], ...]
) -> Program:
    """The launch; `settings` stand between the element type and the sizes in its configuration, the sizes between the `arguments`, pointers and numbers."""
    v, x, gradient = view(problem), inputs(problem, problem.inputs, None).x, _gradient(problem)
    assert v is not None
    c, curve = _columns(v), formula(problem.activation, x.dtype)
    how = _tile(c, gradient)
    assert how is not None
    stage = f"channel_tile{'_backward' * gradient}"
    name = f"norm_{stage}_{'residual_' * (True in settings)}{SHORT[x.dtype]}x{_VECTOR}x{how.vectors}x{how.threads}_{curve.name}"
    kernel = Kernel(f"norm/{stage}.cu", name, config(TYPES[x.dtype], *settings, _VECTOR, how.vectors, how.threads), ("activation",))
    pointers, numbers = arguments
    launch = (*pointers, c.pieces, c.total, how.columns, c.width, divisor(c.width), *numbers)
    return Program((Plan(kernel, (blocks_of(c.total, how.columns), 1, 1), how.threads, launch),), orders(problem, x))


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    if not aligned:
        return channel_slab.forward(problem, device, aligned)
    specs, arguments = inputs(problem, problem.inputs, None), Arguments(problem)
    g, curve = inputs(problem, arguments.inputs, 0), formula(problem.activation, specs.x.dtype)
    pointers = (g.x, g.residual, g.weight, g.bias, g.running_mean, g.running_var, *(*arguments.outputs, 0, 0, 0, 0)[:5])
    flags = _flags(specs.x, specs.weight, specs.bias, specs.running_mean, specs.running_var)
    numbers = (*shares(problem), float(problem.momentum), float(problem.eps), curve.p, curve.q)
    return _program(problem, TileConfig, (curve.type, specs.residual is not None), ((*pointers, flags), numbers))


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    if not aligned:
        return channel_slab.backward(problem, device, aligned)
    specs, arguments = inputs(problem, problem.inputs, None), Arguments(problem)
    g = inputs(problem, arguments.inputs, 0)
    flags = _flags(specs.x, specs.weight, specs.bias, specs.mean, specs.rstd)
    pointers = (g.grad, g.x, g.weight, g.mean, g.rstd, *(*arguments.outputs, 0)[:3], flags)
    return _program(problem, TileBackwardConfig, (), (pointers, shares(problem)[1:]))


def _flags(x: Spec, *parameters: Spec | None) -> int:
    """A bit for each parameter of the arithmetic dtype."""
    return sum(wide(s, x) << i for i, s in enumerate(parameters))
