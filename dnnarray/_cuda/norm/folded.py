"""The algorithm ``folded``: batch norm of medium arrays, channels last, in two launches that overlap: rows folded until
vectors are whole, whatever the number of channels."""

from __future__ import annotations

from dnnarray._cuda.core.plan import Program, vector_length
from dnnarray._cuda.norm import channels
from dnnarray._cuda.norm.channel_view import operands, specs_of, view, view_of
from dnnarray._cuda.norm.folded_apply import folded_apply
from dnnarray._cuda.norm.folded_shared import LARGE, fold_of, vector_of
from dnnarray._cuda.norm.folded_sums import folded_sums
from dnnarray._cuda.norm.shared import UNALIGNED, Arrays, Pointer, is_gradient, orders
from dnnarray._problems.norm_base import NormProblem
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64

_SMALL = 1 << 18  # bytes of x
_WORD = 4  # bytes of a vector of the launches for large arrays
_SHARES = 264  # of a channel that the second launch adds up, at the most: its blocks do that each for themselves
_NUMBERS = 8  # bytes of what a part leaves of a column


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of medium size in such memory, or None; wherever its arrays begin."""
    v, specs = view(problem), specs_of(problem)
    x = specs.x
    if v is None or not v.last or v.per_batch:
        return "only memory in which channels run fastest"
    if x.dtype == FLOAT64 or x.nbytes < _SMALL or v.size >= 1 << 31:
        return f"only float and half types, from {_SMALL:,} bytes on, and fewer than 2^31 elements"
    if x.nbytes > LARGE and vector_length(x.dtype, True, v.channels) * x.dtype.itemsize > _WORD:
        return f"more than {LARGE:,} bytes of channels that are whole vectors"
    if is_gradient(problem) and (specs.mean is None or specs.rstd is None):
        return "a gradient only where the statistics were saved"
    fold = fold_of(v, x)
    if fold.rows < 2 or fold.columns < fold.lanes * vector_of(x) or fold.parts * fold.columns > _SHARES * v.channels:
        return (
            "a single row, rows shorter than a block reads at a time, or so few channels that too many blocks "
            "have a share of each"
        )
    return channels.rejects(problem, device)  # which takes what is not aligned


def rejects(problem: NormProblem, device: Device) -> str | None:
    return fits(problem, device) or (None if device.aligned else UNALIGNED)


def workspace(problem: NormProblem) -> int:
    """Two numbers of each column of each part, or what memory that is not aligned needs."""
    v = view(problem)
    if v is None or not v.size:
        return 0
    fold = fold_of(v, specs_of(problem).x)
    return max(_NUMBERS * fold.columns * fold.parts, channels.workspace(problem))


def cost(problem: NormProblem, device: Device) -> Cost:
    """Everything once from memory, in launches of which the second begins with the first: no slower than one that
    leaves multiprocessors idle."""
    return Cost(problem.flops, problem.bytes, launches=1)


def _program(problem: NormProblem, arrays: Arrays, outputs: tuple[Pointer, ...]) -> Program:
    """Both launches; `outputs` are the arrays that the second writes."""
    x, given, partial = specs_of(problem).x, operands(problem, arrays.inputs), arrays.scratch()
    fold = fold_of(view_of(problem), x)
    plans = (folded_sums(problem, given, partial, fold), folded_apply(problem, given, partial, outputs, fold))
    return Program(plans, orders(problem, x))


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Two launches: sums of x; statistics and result."""
    arrays = Arrays(problem)
    y, mean, rstd, next_mean, next_var = (*arrays.outputs, None, None, None, None)[:5]
    return _program(problem, arrays, (y, None, mean, rstd, next_mean, next_var))


def run_backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """Two launches: sums of the gradient; gradients."""
    arrays = Arrays(problem)
    dx, dweight, dbias, dresidual = (*arrays.outputs, None)[:4]
    return _program(problem, arrays, (dx, dresidual, dweight, dbias, None, None))
