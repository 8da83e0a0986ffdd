"""The algorithm ``local_response``: local response norm by a thread for each element, with the window from the cache;
the gradient in two launches."""

from __future__ import annotations

from math import prod

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.shared import NOTHING, Arrays, Pointer, is_gradient, orders
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm import LocalResponseProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_THREADS = 256


@frozen
class LocalResponseConfig(Config):
    """Compile-time settings of ``kernels/norm/local_response.cu``."""

    element: str
    stage: int
    threads: int


@frozen(kw_only=True)
class LocalResponseArguments(Arguments, restrict=("grad", "x", "out")):
    """What ``kernels/norm/local_response.cu`` is called with: `terms` are written by stage 1 and read by stage 2."""

    grad: In
    x: In
    out: Out
    terms: OutArithmetic
    size: Extent
    channels: Extent
    inner: Extent
    before: Extent
    after: Extent
    k: Double
    alpha_size: Double
    beta: Double


def inner_of(problem: LocalResponseProblem) -> int:
    """Elements between neighbouring channels in memory."""
    x = problem.inputs[-1]
    order = order_of(x)
    return prod(x.shape[i] for i in order[order.index(problem.axis) + 1 :])


def numbers_of(problem: LocalResponseProblem) -> tuple[float, float, float]:
    return float(problem.k), float(problem.alpha / problem.size), float(problem.beta)


def _stage(problem: LocalResponseProblem, stage: int, arrays: Arrays, out: Pointer, terms: Pointer) -> Plan:
    x, (*grad, there) = problem.inputs[-1], arrays.inputs
    name = f"local_response_norm_{('forward', 'terms', 'backward')[stage]}_{SHORT[x.dtype]}"
    kernel = Kernel("norm/local_response.cu", name, LocalResponseConfig(TYPES[x.dtype], stage, _THREADS))
    k, alpha_size, beta = numbers_of(problem)
    arguments = LocalResponseArguments(
        grad=grad[0] if grad else None,
        x=there,
        out=out,
        terms=terms,
        size=x.size,
        channels=x.shape[problem.axis],
        inner=inner_of(problem),
        before=problem.before,
        after=problem.after,
        k=k,
        alpha_size=alpha_size,
        beta=beta,
    )
    return planned(kernel, (blocks_of(x.size, _THREADS), 1, 1), _THREADS, arguments)


def run(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    arrays, (x,) = Arrays(problem), problem.inputs
    if x.size == 0:
        return NOTHING
    return Program((_stage(problem, 0, arrays, arrays.outputs[0], None),), orders(problem, x))


def workspace(problem: LocalResponseProblem) -> int:
    """The terms of the gradient's window."""
    x = problem.inputs[-1]
    return x.size * statistics_dtype(x).itemsize


def cost(problem: LocalResponseProblem, device: Device) -> Cost:
    """The window comes from the cache, and in the gradient the terms go through memory."""
    x = problem.inputs[-1]
    terms = 2 * workspace(problem) if is_gradient(problem) else 0
    return Cost(problem.flops, problem.bytes + problem.size * x.nbytes // 2 + terms, launches=len(problem.inputs))


def run_backward(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """The terms, then their sums."""
    arrays, x = Arrays(problem), problem.inputs[-1]
    if x.size == 0:
        return NOTHING
    (dx,), terms = arrays.outputs, arrays.scratch()
    return Program((_stage(problem, 1, arrays, None, terms), _stage(problem, 2, arrays, dx, terms)), orders(problem, x))
