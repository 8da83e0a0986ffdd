"""The algorithm ``separable_gradient``: means in channels-first memory; sums over windows along their rows and then
down the columns, in shared memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.bands import THREADS, Bands, bands_of, blocks_of, width_of, windows_of
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.gradient import backward_reason, dx_of, geometry_at, one_launch
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, Windows, row_of_threads, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64, Spec

_COVER = 8  # bytes that say which windows cover a row


@frozen
class SeparableGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/separable_gradient.cu``."""

    element: str
    adaptive: bool
    wide: int
    row: int
    threads: int


@frozen
class SeparableGradientArguments(Arguments, restrict=True):
    """What ``kernels/pool/separable_gradient.cu`` is called with."""

    grad: In
    dx: Out
    outer: Extent
    planes: Extent
    rows: Extent
    bands: Extent
    room: Extent
    h: Windows
    w: Windows
    padded: Int


def _line(g: Geometry, x: Spec) -> int:
    """Bytes of a row of windows."""
    return width_of(x.dtype) * (g.axes[2].extent + g.axes[2].outputs)


def _bands(g: Geometry, x: Spec, device: Device) -> Bands | None:
    line = _line(g, x)
    return bands_of(g, device, lambda rows: windows_of(g, rows) * line + _COVER * rows)


def _plan(problem: PoolProblem, device: Device, aligned: bool, g: Geometry) -> Plan:
    x, (_, h, w) = problem.inputs[1], g.axes
    bands = _bands(g, x, device)
    assert bands is not None  # rejects
    wide = 1 if x.dtype == FLOAT64 else vector_length(x.dtype, aligned, w.extent)  # two doubles would spill
    row, windows = row_of_threads(w.extent // wide), windows_of(g, bands.rows)
    config = SeparableGradientConfig(POOL_TYPES[x.dtype], g.adaptive, wide, row, THREADS)
    words = [f"mean_pool_separable_gradient_{POOL_SHORT[x.dtype]}x{wide}"] + ["adaptive"] * g.adaptive + [f"r{row}"]
    arguments = SeparableGradientArguments(
        Array(0), dx_of(problem), outer=g.outer, planes=bands.planes, rows=bands.rows, bands=bands.bands, room=windows,
        h=h.numbers(g.adaptive), w=w.numbers(g.adaptive), padded=int(problem.padded),
    )  # fmt: skip
    kernel = Kernel("pool/separable_gradient.cu", "_".join(words), config, ("pool/window",))
    shared = bands.planes * windows * _line(g, x) + _COVER * bands.rows
    return planned(kernel, (blocks_of(g, bands), 1, 1), THREADS, arguments, shared_memory=shared)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if found := backward_reason(problem):
        return found
    g = geometry_at(problem)
    if not (g.first and g.flat) or any(a.dilation != 1 for a in g.axes):
        return "windows do not lie over rows and columns of channels-first memory, or are dilated"
    return None if _bands(g, problem.inputs[1], device) else "not even a row fits into shared memory"


def cost(problem: PoolProblem, device: Device) -> Cost:
    return times(problem, 1.25)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: _plan(problem, device, aligned, g))
