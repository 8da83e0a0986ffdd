"""The algorithm ``separable_channels_last``: means over windows of any kind, first down the columns of x and then along
the rows."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.separable import MOST_IN_FLIGHT
from dnnarray._cuda.pool.shared import (
    MEAN,
    POOL_SHORT,
    POOL_TYPES,
    THREADS,
    Division,
    Reduction,
    Windows,
    forward,
    forward_reason,
    overtaken,
    reduction_of,
    times,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_LANES, _ENOUGH = 8, 264  # vectors of channels of a block, fewer where there would not be so many blocks
_SUMS = 48 << 10  # bytes of shared memory for the sums of columns
_SMALL = 3  # the longest side of a window of which another kernel has all elements under way


@frozen
class SeparableChannelsLastConfig(Config):
    """Compile-time settings of ``kernels/pool/separable_channels_last.cu``."""

    element: str
    adaptive: bool
    wide: int
    flight: int
    threads: int


@frozen
class SeparableChannelsLastArguments(Arguments, restrict=True):
    """What ``kernels/pool/separable_channels_last.cu`` is called with."""

    x: In
    y: Out
    inner: Extent
    lanes: Division
    chunks: Division
    heights: Division
    h: Windows
    w: Windows
    padded: Int


def _lanes(g: Geometry, dtype: np.dtype, aligned: bool) -> tuple[int, int, int]:
    """(channels of a vector, bytes of its sums, vectors of a block), the last 0 where there is no room for a row of
    x."""
    _, h, w = g.axes
    wide = vector_length(dtype, aligned, g.channels)
    inner, size = g.channels // wide, max(dtype.itemsize, 4) * wide
    lanes = min(inner, _LANES, _SUMS // (w.extent * size))
    while lanes > 1 and g.n * h.outputs * -(-inner // lanes) < _ENOUGH:
        lanes //= 2
    return wide, size, lanes


def reason(r: Reduction, device: Device) -> str | None:
    g = r.g
    _, h, w = g.axes
    if r.kind != MEAN:
        return "it sums, and keeps no place"
    if not (g.last and g.flat) or g.whole or g.length == 0 or h.outputs * w.outputs == 0:
        return "windows do not lie over rows and columns of channels-last memory, several in a plane"
    wide, _, lanes = _lanes(g, r.dtype, device.aligned)
    if lanes == 0:
        return "the sums of a row of x take more shared memory than a block has for them"
    return None if g.n * h.outputs * -(-g.channels // wide // lanes) < 1 << 31 else "there would be 2^31 blocks or more"


def _shares_nothing(r: Reduction) -> bool:
    """Whether windows are small, or share no columns and fit into registers by rows."""
    w = r.g.axes[2]
    return w.window <= _SMALL or (not w.uneven and w.stride_used >= w.window and w.window <= MOST_IN_FLIGHT)


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` begin with x and the means."""
    g = r.g
    _, h, w = g.axes
    wide, size, lanes = _lanes(g, r.dtype, aligned)
    inner, vectors = g.channels // wide, w.extent * lanes
    chunks = -(-inner // lanes)
    total = g.n * h.outputs * chunks
    flight = h.window if 8 < h.window <= MOST_IN_FLIGHT else min(h.window, 8)
    config = SeparableChannelsLastConfig(POOL_TYPES[r.dtype], g.adaptive, wide, flight, THREADS)
    words = (
        [f"mean_pool_separable_channels_last_{POOL_SHORT[r.dtype]}x{wide}"] + ["adaptive"] * g.adaptive + [f"f{flight}"]
    )
    arguments = SeparableChannelsLastArguments(
        *arrays[:2],
        inner=inner,
        lanes=division(lanes, vectors),
        chunks=division(chunks, total),
        heights=division(h.outputs, total),
        h=h.numbers(g.adaptive),
        w=w.numbers(g.adaptive),
        padded=int(r.padded),
    )
    kernel = Kernel("pool/separable_channels_last.cu", "_".join(words), config, ("pool/window",))
    return planned(kernel, (total, 1, 1), THREADS, arguments, shared_memory=vectors * size)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def cost(problem: PoolProblem, device: Device) -> Cost:
    return overtaken(problem, device) if _shares_nothing(reduction_of(problem)) else times(problem, 1.0)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
