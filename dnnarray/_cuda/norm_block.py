"""Batch, group and instance norm of small arrays, channels first: a block holds a statistic in its registers, in one launch."""

from __future__ import annotations

from typing import NamedTuple

from dnnarray._cuda import norm_slab
from dnnarray._cuda.activation import formula
from dnnarray._cuda.norm_common import Arguments, Pointer, blocks_of, divisor, orders, wide
from dnnarray._cuda.norm_view import View, inputs, shares, view
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64, Spec

_SMALL = 1 << 20  # bytes of x up to which latency is all that counts
_THREADS = 512  # of a block, at the most
_EACH = (1, 2, 4, 8, 16)  # vectors of a thread; of groups, where each may have a weight and sums of its own, at most _APART
_APART = 4
_VALUES, _FEW = 16, 8  # of a thread, of each array: at the most, and up to which more threads are not worth their meeting


@frozen
class BlockConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_block.cu``."""

    element: str
    activation: str
    group: bool
    vector: int
    vectors: int
    threads: int


@frozen
class BlockBackwardConfig(BlockConfig):
    """Compile-time settings of ``kernels/norm/channel_block_backward.cu``."""

    rows: int


class Share(NamedTuple):
    """How a statistic is spread: elements of a vector, vectors of a thread, threads of a statistic, statistics of a block."""

    vector: int
    vectors: int
    lanes: int
    rows: int


def _elements(v: View) -> int:
    """Values behind a statistic."""
    return v.channels // v.groups * v.inner if v.per_batch else v.outer * v.inner


def _share(v: View, x: Spec, gradient: bool, aligned: bool) -> Share | None:
    """As few threads as take few values each; None where the largest block does not hold a statistic (gradient: that of every batch index)."""
    vector = vector_length(x.dtype, aligned, v.inner)
    vectors = blocks_of(_elements(v), vector)
    rows = 1 << (v.batch - 1).bit_length() if gradient else 1
    for most in (_FEW, _VALUES):
        lanes = 32
        while lanes * rows <= _THREADS:
            each = next((n for n in _EACH if n * lanes >= vectors), 0)
            if 0 < each <= min(max(most // vector, 1), _APART if v.per_batch else _EACH[-1]):
                return Share(vector, each, lanes, rows)
            lanes *= 2
    return None


def fits(problem: NormProblem, device: Device) -> str | None:
    """Why the problem is not one of small statistics, channels first, or None."""
    v, x = view(problem), inputs(problem, problem.inputs, None).x
    if v is None or v.last:
        return "the channels run fastest in memory, or are interleaved with batch and space"
    if x.dtype == FLOAT64 or x.nbytes > _SMALL or v.size == 0:
        return f"only float and half types, up to {_SMALL:,} bytes, and not nothing"
    if _share(v, x, _gradient(problem), True) is None:
        return f"a statistic of {_elements(v):,} values is more than a block holds in registers"
    return norm_slab.fits(problem, device) if _falls_back(problem) else None


def _gradient(problem: NormProblem) -> bool:
    return problem.op.endswith("_backward")


def _falls_back(problem: NormProblem) -> bool:
    """Whether memory that is not aligned is left to `norm_slab`: vectors of one element are too many for registers."""
    v, x = view(problem), inputs(problem, problem.inputs, None).x
    return v is None or _share(v, x, _gradient(problem), False) is None


def workspace(problem: NormProblem) -> int:
    """What memory that is not aligned needs."""
    return norm_slab.workspace(problem) if _falls_back(problem) else 0


def cost(problem: NormProblem, device: Device) -> Cost:
    """Everything once, in one launch."""
    return Cost(problem.flops, problem.bytes, launches=1)


def _plan(
    problem: NormProblem,
    aligned: bool,
    pointers: tuple[Pointer, ...],
    parameters: tuple[Spec | None, ...],
    statistics: tuple[Pointer, ...] = (),
) -> Program:
    """The launch; `pointers` are its arrays, `statistics` the running ones, the types of `parameters` are told to it."""
    found, x, gradient = view(problem), inputs(problem, problem.inputs, None).x, _gradient(problem)
    assert found is not None
    share, how = _share(found, x, gradient, aligned), formula(problem.activation, x.dtype)
    assert share is not None
    group, threads, members = found.per_batch, share.lanes * share.rows, found.channels // found.groups
    settings = (TYPES[x.dtype], how.type, group, share.vector, share.vectors, threads)
    config = BlockBackwardConfig(*settings, share.rows) if gradient else BlockConfig(*settings)
    stage = f"channel_block{'_backward' * gradient}"
    name = f"norm_{stage}_{'group' if group else 'batch'}_{SHORT[x.dtype]}_{'x'.join(map(str, share))}_{how.name}"
    span, pitch = (members * found.inner, found.inner) if group else (found.inner, found.channels * found.inner)
    each, flags = found.inner // share.vector, sum(wide(s, x) << i for i, s in enumerate(parameters))
    sizes = (flags, _elements(found) // share.vector << 32 | each, divisor(each), pitch << 32 | span)
    count, part = shares(problem)
    if gradient:
        numbers: tuple[Pointer | float, ...] = (part, found.batch, float(problem.eps), members)
    else:
        numbers = (part, float(problem.eps), members, *statistics, count, float(problem.momentum))
    grid = (found.groups, 1 if gradient else found.batch, 1)
    kernel = Kernel(f"norm/{stage}.cu", name, config, ("activation", "norm"))
    return Program((ahead_if_small(Plan(kernel, grid, threads, (*pointers, *sizes, *numbers, how.p, how.q))),), orders(problem, x))


def forward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    if not aligned and _falls_back(problem):
        return norm_slab.forward(problem, device, aligned)
    specs, arguments = inputs(problem, problem.inputs, None), Arguments(problem)
    g = inputs(problem, arguments.inputs, 0)
    y, mean, rstd, next_mean, next_var = (*arguments.outputs, 0, 0, 0, 0)[:5]
    parameters = (specs.weight, specs.bias, specs.running_mean, specs.running_var)
    statistics = (g.running_mean, g.running_var, next_mean, next_var)
    return _plan(problem, aligned, (g.x, g.weight, g.bias, y, mean, rstd, g.residual), parameters, statistics)


def backward(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    if not aligned and _falls_back(problem):
        return norm_slab.backward(problem, device, aligned)
    specs, arguments = inputs(problem, problem.inputs, None), Arguments(problem)
    g = inputs(problem, arguments.inputs, 0)
    dx, dweight, dbias, dresidual = (*arguments.outputs, 0)[:4]
    residual = g.residual if problem.activation else 0
    pointers = (g.grad, g.x, g.weight, g.bias, g.mean, g.rstd, dx, dweight, dbias, residual, dresidual)
    return _plan(problem, aligned, pointers, (specs.weight, specs.bias, specs.mean, specs.rstd))
