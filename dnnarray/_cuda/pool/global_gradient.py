"""The algorithm ``global_gradient``: the mean of whole planes in channels-first memory gives every element of a plane
the same."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.gradient import backward_reason, dx_of, geometry_at, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Division
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_FILLED = 2  # vectors that a thread writes


@frozen
class GlobalGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/global_gradient.cu``."""

    element: str
    two: bool
    wide: int
    steps: int
    threads: int


@frozen
class GlobalGradientArguments(Arguments, restrict=True):
    """What ``kernels/pool/global_gradient.cu`` is called with."""

    grad: In
    dx: Out
    total: Extent
    length: Division
    share: Double


def _plan(g: Geometry, x: Spec, aligned: bool, arrays: tuple[Array, Array]) -> Plan:
    wide = min(vector_length(x.dtype, aligned), 1 << g.length.bit_length() - 1)
    two = g.length % wide != 0
    config = GlobalGradientConfig(POOL_TYPES[x.dtype], two, wide, _FILLED, THREADS)
    symbol = f"mean_pool_global_gradient_{POOL_SHORT[x.dtype]}x{wide}" + "_two" * two
    grid = (-(-x.size // (THREADS * wide * _FILLED)), 1, 1)
    arguments = GlobalGradientArguments(*arrays, total=x.size, length=division(g.length, x.size), share=1 / g.length)
    return ahead_if_small(
        planned(Kernel("pool/global_gradient.cu", symbol, config, ("pool/window",)), grid, THREADS, arguments)
    )


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if reason := backward_reason(problem):
        return reason
    g = geometry_at(problem)
    if not (g.whole and g.first):
        return "a window is not the whole of its plane, or memory is not channels-first"
    return None if g.length < 1 << 30 else "a plane has 2^30 elements or more"


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(g, problem.inputs[1], aligned, (Array(0), dx_of(problem))))
