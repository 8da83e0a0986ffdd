"""The algorithm ``mean_gradient``: means where a row lies in two rows of windows at the most; threads walk down and
keep what both give."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import backward_reason, dx_of, geometry_at, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Partition, Windows, overtaken, partition, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_MET = 6  # windows that the columns of a thread meet
_WALK, _WALKERS = 8, 1 << 16  # rows that a thread walks down where so many threads remain


@frozen
class MeanGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/mean_gradient.cu``."""

    element: str
    last: bool
    adaptive: bool
    most: int
    wide: int
    threads: int


@frozen
class MeanGradientArguments(Arguments, restrict=True):
    """What ``kernels/pool/mean_gradient.cu`` is called with."""

    grad: In
    dx: Out
    total: Extent
    among: Partition
    rows: Int
    h: Windows
    w: Windows
    padded: Int


def _vector(g: Geometry, dtype: np.dtype, aligned: bool) -> tuple[int, int]:
    """Elements of a thread's vector, and the most windows that its columns meet."""
    wide = vector_length(dtype, aligned, g.channels if g.last else g.axes[2].extent)
    return wide, g.axes[2].met_by(1 if g.last else wide)


def _plan(g: Geometry, dtype: np.dtype, padded: bool, aligned: bool, arrays: tuple[Array, Array]) -> Plan:
    _, h, w = g.axes
    wide, most = _vector(g, dtype, aligned)
    inner, groups = (g.channels // wide, w.extent) if g.last else (1, w.extent // wide)
    rows = min(h.extent, _WALK if g.outer * inner * groups * h.extent >= _WALK * _WALKERS else 4)
    strips = -(-h.extent // rows)
    total = g.outer * strips * groups * inner
    config = MeanGradientConfig(POOL_TYPES[dtype], g.last, g.adaptive, most, wide, THREADS)
    words = [f"mean_pool_mean_gradient_{POOL_SHORT[dtype]}x{wide}", "last" if g.last else "first"]
    words += ["adaptive"] * g.adaptive + [f"m{most}"]
    arguments = MeanGradientArguments(
        *arrays, total=total, among=partition(inner, groups, strips, total), rows=rows,
        h=h.numbers(g.adaptive), w=w.numbers(g.adaptive), padded=int(padded),
    )  # fmt: skip
    kernel = Kernel("pool/mean_gradient.cu", "_".join(words), config, ("pool/strip",))
    return planned(kernel, (-(-total // THREADS), 1, 1), THREADS, arguments)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if reason := backward_reason(problem):
        return reason
    g, dtype = geometry_at(problem), problem.inputs[1].dtype
    _, h, w = g.axes
    if not g.flat or not (g.first or g.last) or not h.dilation == w.dilation == 1:
        return "windows do not lie over two axes of channels-first or channels-last memory, or are dilated"
    if h.cover() > 2:
        return "a row may lie in more than two rows of windows"
    wide, most = _vector(g, dtype, device.aligned)
    if most > _MET:
        return f"the columns of a thread meet more than {_MET} windows"
    if wide * dtype.itemsize < 8:
        return "rows or channels are no whole vectors of 8 bytes or more"
    return None if h.extent * w.extent < 1 << 31 else "a plane has 2^31 elements or more"


def cost(problem: PoolProblem, device: Device) -> Cost:
    g = geometry_at(problem)
    # One window over an element, whole planes and small windows: other kernels read each gradient once, too, and walk
    # less.
    return overtaken(problem, device) if g.whole or g.small or (g.tiled and g.last) else times(problem, 1.0)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    dtype = problem.inputs[1].dtype
    return one_launch(problem, aligned, lambda g: _plan(g, dtype, problem.padded, aligned, (Array(0), dx_of(problem))))
