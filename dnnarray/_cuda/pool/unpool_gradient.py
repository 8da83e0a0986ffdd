"""The algorithm ``unpool_gradient``: each gradient comes from its place, in channels-first or channels-last memory."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Division, Places
from dnnarray._cuda.pool.unpooling import geometry_at, too_large, unpooled
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_FLIGHT = 4  # elements of a thread


@frozen
class UnpoolGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_gradient.cu``."""

    element: str
    index: str
    flight: int
    threads: int


@frozen
class UnpoolGradientArguments(Arguments, restrict=True):
    """What ``kernels/pool/unpool_gradient.cu`` is called with."""

    grad: In
    indices: Places
    dx: Out
    total: Extent
    channels: Division
    places: Division
    size: Extent


def _plan(g: Geometry, x: Spec, indices: Spec) -> Plan:
    """The launch."""
    config = UnpoolGradientConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], _FLIGHT, THREADS)
    most = x.size + THREADS * _FLIGHT
    channels, places = (division(n, most) for n in (g.channels if g.last else 1, math.prod(g.space)))
    symbol = f"max_unpool_gradient_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}"
    kernel, grid = (
        Kernel("pool/unpool_gradient.cu", symbol, config, ("pool/window",)),
        (-(-x.size // (THREADS * _FLIGHT)), 1, 1),
    )
    arguments = UnpoolGradientArguments(
        Array(0), Array(2), Array(3), total=x.size, channels=channels, places=places, size=math.prod(g.out_space)
    )
    return planned(kernel, grid, THREADS, arguments)


def rejects(problem: UnpoolProblem, device: Device) -> str | None:
    if found := too_large(problem):
        return found
    g = geometry_at(problem)
    return None if g.first or g.last else "memory is neither channels-first nor channels-last"


def run(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    _, x, indices = problem.inputs
    return unpooled(problem, lambda g: (_plan(g, x, indices),))
