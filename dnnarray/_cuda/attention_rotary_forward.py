"""Rotary embedding: plans. A thread turns one vector of pairs, in the order of the memory of x."""

from __future__ import annotations

import math

from dnnarray._cuda.attention_rotary import length, order_of, scattered
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program
from dnnarray._problems.attention_rotary import RotaryProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128
_LONG = 1 << 31  # threads from which on an index is too large for a Divisor


@frozen
class RotaryConfig(Config):
    """Compile-time settings of ``kernels/attention/rotary.cu``."""

    element: str
    cosine: str
    sine: str
    interleaved: bool
    wide: bool
    back: bool
    long: bool
    pairs: int
    threads: int


def workspace(problem: RotaryProblem) -> int:
    """Scratch for a result that is to be brought to another order."""
    return problem.inputs[0].nbytes if scattered(problem) else 0


def rotary(problem: RotaryProblem, device: Device, aligned: bool) -> Program:
    """One launch; where the result lies otherwise than it is written, one that reorders it. Of a gradient, x's, which turns grad back."""
    *turned, cos, sin = problem.inputs
    y, order, count = problem.outputs[0], order_of(problem.inputs[-3]), len(problem.inputs)
    if y is None or not y.size:
        return Program(())
    result, scratch = Array(count), Array(count + 1)
    orders = (*(order,) * len(turned), (0, 1, 2)[: cos.ndim], (0, 1, 2)[: sin.ndim])
    if not scattered(problem):
        return Program((_turn(problem, order, aligned, result),), orders)
    return Program((_turn(problem, order, aligned, scratch), reorder(y, order, scratch, result)), orders)


def alone(problem: RotaryProblem, device: Device) -> str | None:
    """Why a gradient is not x's alone, or None."""
    return "the gradients of the tables, which are sums" if any(problem.outputs[1:]) else None


def _turn(problem: RotaryProblem, order: tuple[int, ...], aligned: bool, target: Array) -> Plan:
    x, cos, _ = problem.inputs[-3:]
    (pairs, wide), width, turning = length(problem, aligned), x.shape[3], cos.shape[-1]
    copied = pairs if not problem.interleaved else 2 * pairs if wide else 1
    items = turning // pairs + (width - 2 * turning) // copied
    threads = x.size // width * items
    long = threads >= _LONG

    def behind(axis: str) -> int:
        """Rows of x from one index of an axis to the next."""
        return math.prod(x.shape[a] for a in order[order.index(problem.layout.index(axis)) + 1 : -1])

    divisors = (items, behind("S"), cos.shape[-2], behind("B"), x.shape[0] if problem.own_tables else 1)
    words = (word for n in divisors for word in (n, 0 if long else divisor(n)))
    count = len(problem.inputs)
    arguments = (Array(0), Array(count - 2), Array(count - 1), target, threads, turning, width, turning // pairs, *words)
    return Plan(_kernel(problem, pairs, wide, long), (-(-threads // _THREADS), 1, 1), _THREADS, arguments)


def _kernel(problem: RotaryProblem, pairs: int, wide: bool, long: bool) -> Kernel:
    x, cos, sin = problem.inputs[-3:]
    element, cosine, sine = (TYPES[s.dtype] for s in (x, cos, sin))
    config = RotaryConfig(element, cosine, sine, problem.interleaved, wide, problem.back, long, pairs, _THREADS)
    words = ["rotary", "back" * problem.back, "interleaved" * problem.interleaved, "narrow" * (not wide), "long" * long]
    tables = "".join(f"_{SHORT[t.dtype]}" for t in (cos, sin)) if {cos.dtype, sin.dtype} != {x.dtype} else ""
    return Kernel("attention/rotary.cu", f"{'_'.join(w for w in words if w)}_{SHORT[x.dtype]}x{pairs}{tables}", config)
