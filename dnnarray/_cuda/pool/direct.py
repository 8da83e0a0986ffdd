"""The algorithm ``direct``: every window by itself, in any memory order; neighbours meet in the first-level cache."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.separable import MOST_IN_FLIGHT
from dnnarray._cuda.pool.shared import (
    INDICES,
    NORM,
    POOL_TYPES,
    THREADS,
    Indices,
    Reduction,
    Results,
    Steps,
    Windows,
    columns_of,
    forward,
    grid_of,
    times,
    too_large,
    window_numbers,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_BUSY, _LARGE_WINDOW = 1 << 17, 16  # threads that keep a card busy; taps of a window that is worth more of them


@frozen
class DirectConfig(Config):
    """Compile-time settings of ``kernels/pool/direct.cu``."""

    element: str
    result: str
    place: str
    reduction: int
    magnitude: bool
    adaptive: bool
    window: int
    flight: int
    vector: int
    columns: int
    rows: int


@frozen
class DirectArguments(Arguments, restrict=True):
    """What ``kernels/pool/direct.cu`` is called with."""

    x: In
    y: Results
    indices: Indices
    rows: Extent
    planes: Int
    inner: Int
    x_strides: Steps
    y_strides: Steps
    d: Windows
    h: Windows
    w: Windows
    padded: Int
    p: Double


def reason(r: Reduction, device: Device) -> str | None:
    return None


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the results and the places."""
    g = r.g
    _, h, w = g.axes
    flight = w.window if 3 < w.window <= MOST_IN_FLIGHT and r.kind != NORM else 0  # a row of a window
    vector = _vector(r, aligned, _BUSY // 2 if flight else _BUSY) if g.last else 1
    items, rows = w.outputs * (g.channels // vector if g.last else 1), g.outer * g.axes[0].outputs * h.outputs
    widest = max(h.window, w.window)
    window = widest if g.flat and widest <= 3 else 0
    place = "long long" if r.kind == INDICES and g.length >= 1 << 31 else "int"
    columns = columns_of(items)
    config = DirectConfig(
        POOL_TYPES[r.dtype],
        POOL_TYPES[r.result],
        place,
        r.kind,
        r.magnitude,
        g.adaptive,
        window,
        flight,
        vector,
        columns,
        THREADS // columns,
    )
    words = [*r.words("direct", vector), *["magnitude"] * r.magnitude, *["adaptive"] * g.adaptive]
    words += (
        [f"w{window}"] * (window > 0) + [f"f{flight}"] * (flight > 0) + ["wide"] * (place != "int") + [f"b{columns}"]
    )
    arguments = DirectArguments(*arrays, **window_numbers(g, rows, vector, r.padded, r.p))
    return planned(
        Kernel("pool/direct.cu", "_".join(words), config, ("pool/window",)), grid_of(items, rows), THREADS, arguments
    )


def _vector(r: Reduction, aligned: bool, busy: int) -> int:
    """Channels of a thread: fewer where windows are large, and so few that there would not be threads enough to keep a
    card `busy`."""
    g = r.g
    vector, windows = vector_length(r.dtype, aligned, g.channels), g.outer * math.prod(g.out_space)
    while (
        vector > 1
        and vector * r.dtype.itemsize > 4
        and windows * g.channels // vector < busy
        and math.prod(a.window for a in g.axes) >= _LARGE_WINDOW
    ):
        vector //= 2
    return vector


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return too_large(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    return times(problem, 1.5)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
