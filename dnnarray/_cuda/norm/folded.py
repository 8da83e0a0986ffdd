"""Batch norm of medium arrays, channels last, in two launches that overlap: rows folded until vectors are whole, whatever the number of channels."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.norm import channels
from dnnarray._cuda.norm.channel_view import View, inputs, shares, view
from dnnarray._cuda.norm.shared import Arguments, Pointer, orders, wide
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64, Spec

_SMALL, _LARGE = 1 << 18, 16 << 20  # bytes of x; more only where vectors would be of a word without the folds
_WORD, _BYTES = 4, 16  # of a vector of the launches for large arrays, and here
_MOST_LANES, _SLICES = 16, 132  # vectors of a slice of the columns, at the most; slices of which more are wider ones
_SHARES = 264  # of a channel that the second launch adds up, at the most: its blocks do that each for themselves
_NUMBERS = 8  # bytes of what a part leaves of a column
_VECTORS, _FEW = 4, 2  # of a thread under way; of each of three arrays


@frozen
class FoldedConfig(Config):
    """Compile-time settings of ``kernels/norm/folded_sums.cu`` and ``folded_apply.cu``."""

    element: str
    activation: str
    gradient: bool
    residual: bool
    lanes: int
    vector: int
    vectors: int
    threads: int


class Settings(NamedTuple):
    """Threads of a block, vectors of a slice at the least (half a line of memory, or a line), blocks of the sums and of the last pass."""

    threads: int
    lanes: int
    sums: int
    apply: int


_LITTLE, _MANY, _TALL, _WIDE, _HUGE = (
    Settings(256, 4, 132, 264),
    Settings(256, 4, 264, 264),
    Settings(512, 4, 132, 132),
    Settings(512, 8, 132, 132),
    Settings(512, 4, 264, 528),
)
_FROM_MANY, _FROM_WIDE = 2 << 20, 16 << 20  # bytes of x; bytes times those of an element
_FEW_SHARES = 66  # of a channel, that cost little


def _settings(v: View, x: Spec) -> Settings:
    """As measured: more threads with the size, where that does not bring too many shares of each channel."""
    if x.nbytes > _LARGE:
        return _HUGE
    if x.nbytes < _FROM_MANY:
        return _LITTLE
    how = _WIDE if x.nbytes * x.dtype.itemsize >= _FROM_WIDE else _MANY
    return how if how.sums * how.lanes * _vector(x) <= _FEW_SHARES * v.channels else _TALL


class Fold(NamedTuple):
    """Folded rows: columns of one, how many, columns of the last; threads; lanes of a slice; slices; rows of a part of the sums, of a block of the last pass."""

    columns: int
    rows: int
    left: int
    threads: int
    lanes: int
    slices: int
    part: int
    run: int

    @property
    def parts(self) -> int:
        return blocks_of(self.rows, self.part)


def _fold(v: View, x: Spec) -> Fold:
    vector, how = _vector(x), _settings(v, x)
    columns, lanes = v.channels * vector // gcd(v.channels, vector), how.lanes
    rows = blocks_of(v.size, columns)
    while lanes < _MOST_LANES and blocks_of(columns, lanes * vector) > _SLICES:
        lanes *= 2
    slices, step = blocks_of(columns, lanes * vector), how.threads // lanes

    def each(blocks: int) -> int:
        return max(blocks_of(rows, max(blocks // slices, 1)), min(step, rows))

    return Fold(columns, rows, v.size - (rows - 1) * columns, how.threads, lanes, slices, each(how.sums), each(how.apply))


def _vector(x: Spec) -> int:
    return _BYTES // x.dtype.itemsize


def _gradient(problem: NormProblem) -> bool:
    return problem.op.endswith("_backward")


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of medium size in such memory, or None."""
    v, specs = view(problem), inputs(problem, problem.inputs, None)
    x = specs.x
    if v is None or not v.last or v.per_batch:
        return "only memory in which channels run fastest"
    if x.dtype == FLOAT64 or x.nbytes < _SMALL or v.size >= 1 << 31:
        return f"only float and half types, from {_SMALL:,} bytes on, and fewer than 2^31 elements"
    if x.nbytes > _LARGE and vector_length(x.dtype, True, v.channels) * x.dtype.itemsize > _WORD:
        return f"more than {_LARGE:,} bytes of channels that are whole vectors"
    if _gradient(problem) and (specs.mean is None or specs.rstd is None):
        return "a gradient only where the statistics were saved"
    fold = _fold(v, x)
    if fold.rows < 2 or fold.columns < fold.lanes * _vector(x) or fold.parts * fold.columns > _SHARES * v.channels:
        return "a single row, rows shorter than a block reads at a time, or so few channels that too many blocks have a share of each"
    return channels.fits(problem, device)  # which takes what is not aligned


def workspace(problem: NormProblem) -> int:
    """Two numbers of each column of each part, or what memory that is not aligned needs."""
    v = view(problem)
    if v is None or not v.size:
        return 0
    fold = _fold(v, inputs(problem, problem.inputs, None).x)
    return max(_NUMBERS * fold.columns * fold.parts, channels.workspace(problem))


def cost(problem: NormProblem, device: Device) -> Cost:
    """Everything once from memory, in launches of which the second begins with the first: no slower than one that leaves multiprocessors idle."""
    return Cost(problem.flops, problem.bytes, launches=1)


def _program(
    problem: NormProblem, given: tuple[Pointer, ...], outputs: tuple[Pointer, ...], parameters: tuple[Spec | None, ...]
) -> Program:
    """Both launches; `given` are the arrays that both may read, `outputs` those that the second writes."""
    v, specs, gradient = view(problem), inputs(problem, problem.inputs, None), _gradient(problem)
    assert v is not None
    x, curve, partial = specs.x, formula(problem.activation, specs.x.dtype), Arguments(problem).scratch()
    vector = _vector(x)
    fold = _fold(v, x)
    residual = specs.residual is not None and (problem.activation is not None or not gradient)
    flags = sum(wide(s, x) << i for i, s in enumerate(parameters))
    sizes = (flags, fold.columns << 32 | v.channels, fold.rows << 32 | fold.left, fold.parts << 32 | fold.part)
    count, part = shares(problem)

    def kernel(stage: str, plain: bool) -> Kernel:
        how = formula(None, x.dtype) if plain else curve
        vectors = _FEW if residual and gradient else _VECTORS
        config = FoldedConfig(TYPES[x.dtype], how.type, gradient, residual and not plain, fold.lanes, vector, vectors, fold.threads)
        words = f"{'backward_' * gradient}{'residual_' * config.residual}"
        name = f"norm_folded_{stage}_{words}{SHORT[x.dtype]}x{vectors}x{fold.lanes}x{fold.threads}_{how.name}"
        return Kernel(f"norm/folded_{stage}.cu", name, config, ("activation",))

    sums = (*given, partial, *sizes, curve.p, curve.q)
    numbers = (*sizes, fold.run, count, part, float(problem.momentum), float(problem.eps), curve.p, curve.q)
    first = Plan(kernel("sums", not gradient), (fold.slices, fold.parts, 1), fold.threads, sums)
    grid = (fold.slices, blocks_of(fold.rows, fold.run), 1)
    second = Plan(kernel("apply", False), grid, fold.threads, (*given, partial, *outputs, *numbers), early=True)
    return Program((first, second), orders(problem, x))


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Two launches: sums of x; statistics and result."""
    if not aligned:
        return channels.forward(problem, device, aligned)
    specs, arguments = inputs(problem, problem.inputs, None), Arguments(problem)
    g = inputs(problem, arguments.inputs, 0)
    y, mean, rstd, next_mean, next_var = (*arguments.outputs, 0, 0, 0, 0)[:5]
    parameters = (specs.weight, specs.bias, specs.running_mean, specs.running_var)
    given = (g.x, 0, g.residual, g.weight, g.bias, g.running_mean, g.running_var)
    return _program(problem, given, (y, 0, mean, rstd, next_mean, next_var), parameters)


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Two launches: sums of the gradient; gradients."""
    if not aligned:
        return channels.backward(problem, device, aligned)
    specs, arguments = inputs(problem, problem.inputs, None), Arguments(problem)
    g = inputs(problem, arguments.inputs, 0)
    dx, dweight, dbias, dresidual = (*arguments.outputs, 0)[:4]
    given = (g.x, g.grad, g.residual if problem.activation else 0, g.weight, g.bias, g.mean, g.rstd)
    return _program(problem, given, (dx, dresidual, dweight, dbias, 0, 0), (specs.weight, specs.bias, specs.mean, specs.rstd))
