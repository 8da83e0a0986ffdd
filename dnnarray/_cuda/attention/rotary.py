"""The algorithm ``rotary``: a thread turns one vector of pairs, in the order of the memory of x."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.attention.pairs import LONG, copied, length, order_of, scattered, types
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, Pointer
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, Array, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._problems.attention_rotary import RotaryProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128
Cosines = Annotated[Array | None, Pointer("Config::Cosine", True)]
Sines = Annotated[Array | None, Pointer("Config::Sine", True)]


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


@frozen(kw_only=True)
class RotaryArguments(Arguments, restrict=True):
    """What ``kernels/attention/rotary.cu`` is called with; `by_*` are the divisors of the numbers after which they are
    named."""

    x: In
    cosines: Cosines
    sines: Sines
    y: Out
    threads: Extent
    pairs: Extent
    width: Extent
    turning: Extent
    items: Extent
    by_items: Extent
    after_s: Extent
    by_after_s: Extent
    sequence: Extent
    by_sequence: Extent
    after_b: Extent
    by_after_b: Extent
    batch: Extent
    by_batch: Extent


def rejects(problem: RotaryProblem, device: Device) -> str | None:
    return "the gradients of the tables, which are sums" if problem.back and any(problem.outputs[1:]) else None


def workspace(problem: RotaryProblem) -> int:
    """Scratch for a result that is to be brought to another order."""
    return problem.inputs[0].nbytes if scattered(problem) else 0


def run(problem: RotaryProblem, device: Device, aligned: bool) -> Program:
    """One launch; where the result lies otherwise than it is written, one that reorders it. Of a gradient, x's, which
    turns grad back."""
    *turned, cos, sin = problem.inputs
    y, order = problem.outputs[0], order_of(problem.inputs[-3])
    if y is None or not y.size:
        return Program(())
    planner = Planner(problem, aligned)
    result = planner.outputs[0]
    target = planner.take(y.dtype, y.size).array if scattered(problem) else result
    planner.add(_turn(problem, order, planner, target))
    if scattered(problem):
        planner.add(reorder(y, order, target, result))
    return planner.program((*(order,) * len(turned), (0, 1, 2)[: cos.ndim], (0, 1, 2)[: sin.ndim]))


def _turn(problem: RotaryProblem, order: tuple[int, ...], planner: Planner, target: Array) -> Plan:
    x, cos, _ = problem.inputs[-3:]
    (pairs, wide), width, turning = length(problem, planner.aligned), x.shape[3], cos.shape[-1]
    items = turning // pairs + (width - 2 * turning) // copied(problem, planner.aligned)
    threads = x.size // width * items
    long = threads >= LONG

    def behind(axis: str) -> int:
        """Rows of x from one index of an axis to the next."""
        return math.prod(x.shape[a] for a in order[order.index(problem.layout.index(axis)) + 1 : -1])

    batch = x.shape[0] if problem.own_tables else 1
    divisors = {
        "items": items,
        "after_s": behind("S"),
        "sequence": cos.shape[-2],
        "after_b": behind("B"),
        "batch": batch,
    }
    magic = {f"by_{name}": 0 if long else divisor(n) for name, n in divisors.items()}
    source, *_, cosines, sines = planner.inputs
    arguments = RotaryArguments(
        x=source,
        cosines=cosines,
        sines=sines,
        y=target,
        threads=threads,
        pairs=turning,
        width=width,
        turning=turning // pairs,
        **divisors,
        **magic,
    )
    return planned(_kernel(problem, pairs, wide, long), (blocks_of(threads, _THREADS), 1, 1), _THREADS, arguments)


def _kernel(problem: RotaryProblem, pairs: int, wide: bool, long: bool) -> Kernel:
    x, cos, sin = problem.inputs[-3:]
    config = RotaryConfig(*types(problem), problem.interleaved, wide, problem.back, long, pairs, _THREADS)
    words = ["rotary", "back" * problem.back, "interleaved" * problem.interleaved, "narrow" * (not wide), "long" * long]
    tables = "".join(f"_{SHORT[t.dtype]}" for t in (cos, sin)) if {cos.dtype, sin.dtype} != {x.dtype} else ""
    return Kernel("attention/rotary.cu", f"{'_'.join(w for w in words if w)}_{SHORT[x.dtype]}x{pairs}{tables}", config)
