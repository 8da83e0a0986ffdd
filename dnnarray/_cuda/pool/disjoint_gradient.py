"""The algorithm ``disjoint_gradient``: maxima over small windows that do not overlap, found again and given their
gradient in one launch."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import In, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import backward_reason, geometry_at, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, THREADS, StripArguments, StripConfig, strips_of
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device


@frozen
class DisjointGradientConfig(StripConfig):
    """Compile-time settings of ``kernels/pool/disjoint_gradient.cu``."""

    magnitude: bool = False
    lends: bool = False


@frozen
class DisjointGradientArguments(StripArguments):
    """What ``kernels/pool/disjoint_gradient.cu`` is called with."""

    grad: In
    x: In
    dx: Out


def _plan(problem: PoolProblem, aligned: bool, g: Geometry) -> Plan:
    dtype, h = problem.inputs[1].dtype, g.axes[1]
    strips = strips_of(g, dtype, aligned, h.extent + h.before)
    symbol = "_".join([f"max_pool_disjoint_gradient_{POOL_SHORT[dtype]}", *strips.words])
    kernel = Kernel("pool/disjoint_gradient.cu", symbol, DisjointGradientConfig(**strips.settings), ("pool/strip",))
    arguments = DisjointGradientArguments(grad=Array(0), x=Array(1), dx=Array(2), **strips.arguments)
    return planned(kernel, strips.grid, THREADS, arguments)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if found := backward_reason(problem):
        return found
    if problem.inputs[2] is not None:
        return "the places of maxima are given"
    g = geometry_at(problem)
    if not g.small or g.whole:
        return "windows are larger than 5 x 5, apart by more than 3, dilated, uneven, or the only one of a plane"
    if any(a.stride_used < a.window for a in g.axes[1:]):
        return "windows overlap"
    return None if g.axes[2].before == 0 else "columns are padded"


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, aligned, g))
