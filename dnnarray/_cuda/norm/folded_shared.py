"""What the launches of the algorithm ``folded`` share: how rows are folded, settings and arguments."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, In, Int
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel
from dnnarray._cuda.norm.channel_view import Inputs, View, specs_of
from dnnarray._cuda.norm.shared import AnyType, Flag, is_gradient, wide_bits
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

LARGE = 16 << 20  # bytes of x; more only where vectors would be of a word without the folds
_BYTES = 16  # of a vector
_MOST_LANES, _SLICES = 16, 132  # vectors of a slice of the columns, at the most; slices of which more are wider ones
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


@frozen(kw_only=True)
class FoldedArguments(Arguments):
    """What both kernels are called with; `wide` has a bit for each of weight, bias, mean and rstd (forward: running
    mean and variance)."""

    x: In
    grad: In
    residual: In
    weight: AnyType
    bias: AnyType
    mean_of: AnyType
    rstd_of: AnyType
    wide: Flag
    columns: Int
    channels: Int
    rows: Int
    left: Int
    parts: Int
    part: Int
    p: Double
    q: Double


class Settings(NamedTuple):
    """Threads of a block, vectors of a slice at the least (half a line of memory, or a line), blocks of the sums and of
    the last pass."""

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
    if x.nbytes > LARGE:
        return _HUGE
    if x.nbytes < _FROM_MANY:
        return _LITTLE
    how = _WIDE if x.nbytes * x.dtype.itemsize >= _FROM_WIDE else _MANY
    return how if how.sums * how.lanes * vector_of(x) <= _FEW_SHARES * v.channels else _TALL


class Fold(NamedTuple):
    """Folded rows: columns of one, how many, columns of the last; threads; lanes of a slice; slices; rows of a part of
    the sums, of a block of the last pass."""

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


def fold_of(v: View, x: Spec) -> Fold:
    vector, how = vector_of(x), _settings(v, x)
    columns, lanes = v.channels * vector // gcd(v.channels, vector), how.lanes
    rows = blocks_of(v.size, columns)
    while lanes < _MOST_LANES and blocks_of(columns, lanes * vector) > _SLICES:
        lanes *= 2
    slices, step = blocks_of(columns, lanes * vector), how.threads // lanes

    def each(blocks: int) -> int:
        return max(blocks_of(rows, max(blocks // slices, 1)), min(step, rows))

    return Fold(
        columns, rows, v.size - (rows - 1) * columns, how.threads, lanes, slices, each(how.sums), each(how.apply)
    )


def vector_of(x: Spec) -> int:
    return _BYTES // x.dtype.itemsize


def kernel(problem: NormProblem, stem: str, fold: Fold, plain: bool) -> Kernel:
    """The kernel of a launch; `plain` leaves out what only the activation takes."""
    specs, gradient = specs_of(problem), is_gradient(problem)
    x, how = specs.x, formula(None if plain else problem.activation, specs.x.dtype)
    residual = specs.residual is not None and (problem.activation is not None or not gradient)
    vectors = _FEW if residual and gradient else _VECTORS
    config = FoldedConfig(
        TYPES[x.dtype], how.type, gradient, residual and not plain, fold.lanes, vector_of(x), vectors, fold.threads
    )
    words = f"{'backward_' * gradient}{'residual_' * config.residual}"
    name = f"norm_{stem}_{words}{SHORT[x.dtype]}x{vectors}x{fold.lanes}x{fold.threads}_{how.name}"
    return Kernel(f"norm/{stem}.cu", name, config, ("core/activation",))


def arguments_of(problem: NormProblem, given: Inputs, fold: Fold) -> dict[str, Any]:
    """The fields of `FoldedArguments`."""
    specs, curve = specs_of(problem), formula(problem.activation, specs_of(problem).x.dtype)
    if is_gradient(problem):
        residual, types = given.residual if problem.activation else None, (specs.mean, specs.rstd)
        statistics = (given.mean, given.rstd)
    else:
        residual, types = given.residual, (specs.running_mean, specs.running_var)
        statistics = (given.running_mean, given.running_var)
    return {
        "x": given.x,
        "grad": given.grad,
        "residual": residual,
        "weight": given.weight,
        "bias": given.bias,
        "mean_of": statistics[0],
        "rstd_of": statistics[1],
        "wide": wide_bits(specs.x, specs.weight, specs.bias, *types),
        "columns": fold.columns,
        "channels": specs.x.shape[problem.geometry.kept[-1]],
        "rows": fold.rows,
        "left": fold.left,
        "parts": fold.parts,
        "part": fold.part,
        "p": curve.p,
        "q": curve.q,
    }
