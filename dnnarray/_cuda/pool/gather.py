"""The algorithm ``gather``: for each element a sum over the windows that cover it, in any memory order."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import (
    BY_PLACE,
    BY_TAP,
    RULES,
    Known,
    dx_of,
    launches,
    numbered_by_rows,
    of_magnitudes,
    saved_bytes,
    worth_taps,
)
from dnnarray._cuda.pool.shared import (
    POOL_SHORT,
    POOL_TYPES,
    THREADS,
    Saved,
    Steps,
    Windows,
    columns_of,
    grid_of,
    overtaken,
    times,
    too_large,
    window_numbers,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device


@frozen
class GatherConfig(Config):
    """Compile-time settings of ``kernels/pool/gather.cu``."""

    element: str
    saved: str
    rule: int
    magnitude: bool
    small: bool
    adaptive: bool
    cover: int
    vector: int
    columns: int
    rows: int


@frozen
class GatherArguments(Arguments, restrict=True):
    """What ``kernels/pool/gather.cu`` is called with."""

    grad: In
    x: In
    saved: Saved
    dx: Out
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


def _plan(problem: PoolProblem, aligned: bool, g: Geometry, known: Known) -> Plan:
    x, magnitude, rule = problem.inputs[1], of_magnitudes(problem), known.rule
    d, h, w = g.axes
    vector = vector_length(x.dtype, aligned, g.channels) if g.last else 1
    items, rows = w.extent * (g.channels // vector if g.last else 1), g.outer * d.extent * h.extent
    most = max(h.cover(), w.cover())
    cover = most if g.flat and most <= (2 if rule == BY_PLACE else 3) else 0
    columns, small = columns_of(items), rule == BY_TAP and numbered_by_rows(problem)
    config = GatherConfig(
        POOL_TYPES[x.dtype],
        POOL_TYPES[known.dtype],
        rule,
        magnitude,
        small,
        g.adaptive,
        cover,
        vector,
        columns,
        THREADS // columns,
    )
    words = [f"{RULES[rule]}_pool_gather_{POOL_SHORT[x.dtype]}x{vector}"]
    words += (
        [f"by_{POOL_SHORT[known.dtype]}"] * (rule in (BY_TAP, BY_PLACE)) + ["magnitude"] * magnitude + ["small"] * small
    )
    words += ["adaptive"] * g.adaptive + [f"c{cover}"] * (cover > 0) + [f"b{columns}"]
    arguments = GatherArguments(
        Array(0), Array(1), known.saved, dx_of(problem), **window_numbers(g, rows, vector, problem.padded, problem.p)
    )
    return planned(
        Kernel("pool/gather.cu", "_".join(words), config, ("pool/window",)), grid_of(items, rows), THREADS, arguments
    )


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return too_large(problem)


def workspace(problem: PoolProblem) -> int:
    return 0 if problem.inputs[2] is not None else saved_bytes(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    if worth_taps(problem):
        return overtaken(problem, device)
    return times(problem, 2.0, launches=1 + (workspace(problem) > 0), more=2 * workspace(problem))


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, aligned, g, known))
