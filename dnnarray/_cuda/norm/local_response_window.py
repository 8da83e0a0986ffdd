"""The algorithm ``local_response_window``: local response norm and its gradient with the window in registers."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.local_response import inner_of, numbers_of
from dnnarray._cuda.norm.shared import NOTHING, Arrays, is_gradient, orders
from dnnarray._problems.norm import LocalResponseProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_WINDOWS = (3, 5, 7, 9)  # that there are kernels for
_THREADS = 128
_CHANNELS = 4  # that a thread finishes at a time, channels first, at the least
_TINY = 2.0**-100  # a k from which on the sum that is raised to a power is a normal number
_QUARTERS = {0.5: 2, 0.75: 3, 1.0: 4}  # the exponents that roots give
_WALK = 16  # times that it does so, at the most
_STAGES = 3  # steps that a thread has on their way, channels first
_RESIDENT = 1024  # threads that a multiprocessor should have at the least
_FORWARD, _BACKWARD = 4, 2  # elements of a thread, twice as many of half types


@frozen
class LocalResponseWindowConfig(Config):
    """Compile-time settings of ``kernels/norm/local_response_window.cu``."""

    element: str
    gradient: bool
    last: bool
    apart: bool
    window: int
    quarters: int
    tiny: bool
    wide: bool
    vector: int
    stages: int
    threads: int


@frozen(kw_only=True)
class LocalResponseWindowArguments(Arguments, restrict=("grad", "x", "out")):
    """What ``kernels/norm/local_response_window.cu`` is called with; the divisors are 0 where indices are wider than 32
    bits."""

    grad: In
    x: In
    out: Out
    size: Extent
    channels: Extent
    inner: Extent
    steps: Extent
    by_vectors: Extent
    by_parts: Extent
    k: Double
    alpha_size: Double
    beta: Double


def _vector(problem: LocalResponseProblem, aligned: bool) -> int:
    """Elements of a thread: channels last at least a window; else as many as its registers hold the windows of."""
    x, inner = problem.inputs[-1], inner_of(problem)
    if inner == 1:
        return vector_length(x.dtype, True, x.shape[problem.axis])
    most = (
        1
        if x.dtype == FLOAT64
        else (_BACKWARD if is_gradient(problem) else _FORWARD) * (2 if x.dtype.itemsize == 2 else 1)
    )
    return min(vector_length(x.dtype, aligned, inner), most)


def rejects(problem: LocalResponseProblem, device: Device) -> str | None:
    if problem.size not in _WINDOWS:
        return f"there are kernels for windows of {_WINDOWS} channels, not of {problem.size}"
    reach = problem.size - 1 if is_gradient(problem) else problem.before
    if inner_of(problem) == 1 and _vector(problem, True) < reach:
        return f"a window of {problem.size} channels reaches further than the channels that a thread fetches at once"
    return None


def run(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """One launch, forward or backward."""
    arrays, x, inner = Arrays(problem), problem.inputs[-1], inner_of(problem)
    gradient, vector, last = is_gradient(problem), _vector(problem, aligned), inner == 1
    if x.size == 0:
        return NOTHING
    apart, quarters = last and not aligned, _QUARTERS.get(float(problem.beta), 0)
    channels, step = x.shape[problem.axis], max(problem.size - 1, _CHANNELS)
    columns, walk = x.size // channels // vector, _WALK
    while walk > 1 and columns * blocks_of(channels, step * walk) < device.units * _RESIDENT:
        walk //= 2
    parts = blocks_of(channels, step * walk)
    threads = x.size // vector if last else columns * parts
    tiny, wide = problem.k < _TINY or problem.alpha < 0, threads > (1 << 31) - _THREADS
    settings = (gradient, last, apart, problem.size, quarters, tiny, wide, vector, _STAGES, _THREADS)
    name = (
        f"{'backward' if gradient else 'forward'}_{'last' if last else 'first'}_{SHORT[x.dtype]}x{vector}"
        f"_{problem.size}"
    )
    symbol = f"norm_local_response_window_{name}_{quarters}{'_apart' * apart}{'_tiny' * tiny}{'_wide' * wide}"
    kernel = Kernel("norm/local_response_window.cu", symbol, LocalResponseWindowConfig(TYPES[x.dtype], *settings))
    *grad, there = arrays.inputs
    by_vectors, by_parts = (0, 0) if wide else (divisor((channels if last else inner) // vector), divisor(parts))
    k, alpha_size, beta = numbers_of(problem)
    arguments = LocalResponseWindowArguments(
        grad=grad[0] if grad else None,
        x=there,
        out=arrays.outputs[0],
        size=x.size,
        channels=channels,
        inner=inner,
        steps=walk,
        by_vectors=by_vectors,
        by_parts=by_parts,
        k=k,
        alpha_size=alpha_size,
        beta=beta,
    )
    return Program((planned(kernel, (blocks_of(threads, _THREADS), 1, 1), _THREADS, arguments),), orders(problem, x))
