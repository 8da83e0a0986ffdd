"""Local response norm: with the window in registers, or a thread per element and the window from the cache."""

from __future__ import annotations

from math import prod
from typing import Any

from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.norm.shared import Arguments, memory_order, orders
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm import LocalResponseProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64

_THREADS = 256
_WINDOWS = (3, 5, 7, 9)  # that there are kernels for
_WINDOW_THREADS = 128
_CHANNELS = 4  # that a thread finishes at a time, channels first, at the least
_TINY = 2.0**-100  # a k from which on the sum that is raised to a power is a normal number
_QUARTERS = {0.5: 2, 0.75: 3, 1.0: 4}  # the exponents that roots give
_WALK = 16  # times that it does so, at the most
_STAGES = 3  # steps that a thread has on their way, channels first
_RESIDENT = 1024  # threads that a multiprocessor should have at the least
_FORWARD, _BACKWARD = 4, 2  # elements of a thread, twice as many of half types


@frozen
class LocalResponseConfig(Config):
    """Compile-time settings of ``kernels/norm/local_response.cu``."""

    element: str
    stage: int
    threads: int


@frozen
class WindowConfig(Config):
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


def _inner(problem: LocalResponseProblem) -> int:
    """Elements between neighbouring channels in memory."""
    x = problem.inputs[-1]
    order = memory_order(x)
    return prod(x.shape[i] for i in order[order.index(problem.axis) + 1 :])


def _numbers(problem: LocalResponseProblem) -> tuple[float, float, float]:
    return float(problem.k), float(problem.alpha / problem.size), float(problem.beta)


def _plan(problem: LocalResponseProblem, stage: int, pointers: tuple[Any, ...]) -> Plan:
    x = problem.inputs[-1]
    config = LocalResponseConfig(TYPES[x.dtype], stage, _THREADS)
    name = f"local_response_norm_{('forward', 'terms', 'backward')[stage]}_{SHORT[x.dtype]}"
    kernel = Kernel("norm/local_response.cu", name, config)
    numbers = (x.size, x.shape[problem.axis], _inner(problem), problem.before, problem.after)
    return Plan(kernel, (blocks_of(x.size, _THREADS), 1, 1), _THREADS, (*pointers, *numbers, *_numbers(problem)))


def forward(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    arguments, (x,) = Arguments(problem), problem.inputs
    if x.size == 0:
        return Program(())
    return Program((_plan(problem, 0, (0, *arguments.inputs, *arguments.outputs, 0)),), orders(problem, x))


def workspace(problem: LocalResponseProblem) -> int:
    """The terms of the gradient's window."""
    x = problem.inputs[-1]
    return x.size * statistics_dtype(x).itemsize


def cost(problem: LocalResponseProblem, device: Device) -> Cost:
    """The window comes from the cache, and in the gradient the terms go through memory."""
    x = problem.inputs[-1]
    terms = 2 * workspace(problem) if len(problem.inputs) == 2 else 0
    return Cost(problem.flops, problem.bytes + problem.size * x.nbytes // 2 + terms, launches=len(problem.inputs))


def backward(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """The terms, then their sums."""
    arguments, x = Arguments(problem), problem.inputs[-1]
    if x.size == 0:
        return Program(())
    (dx,), terms = arguments.outputs, arguments.scratch()
    plans = (_plan(problem, 1, (*arguments.inputs, 0, terms)), _plan(problem, 2, (*arguments.inputs, dx, terms)))
    return Program(plans, orders(problem, x))


# --- the window in registers ------------------------------------------------------------------------------------------


def _vector(problem: LocalResponseProblem, aligned: bool) -> int:
    """Elements of a thread: channels last at least a window; else as many as its registers hold the windows of."""
    x, inner = problem.inputs[-1], _inner(problem)
    if inner == 1:
        return vector_length(x.dtype, True, x.shape[problem.axis])
    most = 1 if x.dtype == FLOAT64 else (_BACKWARD if len(problem.inputs) == 2 else _FORWARD) * (2 if x.dtype.itemsize == 2 else 1)
    return min(vector_length(x.dtype, aligned, inner), most)


def window_fits(problem: LocalResponseProblem, device: Device) -> str | None:
    """Why no kernel keeps the window in registers, or None."""
    if problem.size not in _WINDOWS:
        return f"there are kernels for windows of {_WINDOWS} channels, not of {problem.size}"
    reach = problem.size - 1 if len(problem.inputs) == 2 else problem.before
    if _inner(problem) == 1 and _vector(problem, True) < reach:
        return f"a window of {problem.size} channels reaches further than the channels that a thread fetches at once"
    return None


def window(problem: LocalResponseProblem, device: Device, aligned: bool) -> Program:
    """One launch, forward or backward."""
    arguments, x, inner = Arguments(problem), problem.inputs[-1], _inner(problem)
    gradient, vector, last = len(problem.inputs) == 2, _vector(problem, aligned), inner == 1
    if x.size == 0:
        return Program(())
    name = f"{'backward' if gradient else 'forward'}_{'last' if last else 'first'}_{SHORT[x.dtype]}x{vector}_{problem.size}"
    apart, quarters = last and not aligned, _QUARTERS.get(float(problem.beta), 0)
    channels, step = x.shape[problem.axis], max(problem.size - 1, _CHANNELS)
    columns, walk = x.size // channels // vector, _WALK
    while walk > 1 and columns * blocks_of(channels, step * walk) < device.units * _RESIDENT:
        walk //= 2
    parts = blocks_of(channels, step * walk)
    threads = x.size // vector if last else columns * parts
    tiny, wide = problem.k < _TINY or problem.alpha < 0, threads > (1 << 31) - _WINDOW_THREADS
    config = WindowConfig(TYPES[x.dtype], gradient, last, apart, problem.size, quarters, tiny, wide, vector, _STAGES, _WINDOW_THREADS)
    symbol = f"norm_local_response_window_{name}_{quarters}{'_apart' * apart}{'_tiny' * tiny}{'_wide' * wide}"
    pointers = (0,) * (not gradient) + (*arguments.inputs, *arguments.outputs)
    divisors = (0, 0) if wide else (divisor((channels if last else inner) // vector), divisor(parts))
    numbers = (x.size, channels, inner, walk, *divisors, *_numbers(problem))
    kernel = Kernel("norm/local_response_window.cu", symbol, config)
    return Program((Plan(kernel, (blocks_of(threads, _WINDOW_THREADS), 1, 1), _WINDOW_THREADS, (*pointers, *numbers)),), orders(problem, x))
