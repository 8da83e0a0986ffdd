"""The algorithm ``shared_scatter``: maxima in channels-first memory; what a window gets goes to the place of its
maximum, in shared memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.bands import THREADS, Bands, bands_of, blocks_of, width_of, windows_of
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.gradient import (
    BY_PLACE,
    BY_TAP,
    Known,
    backward_reason,
    dx_of,
    geometry_at,
    launches,
    numbered_by_rows,
    of_magnitudes,
    rule_of,
    saved_bytes,
)
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, Division, Saved, Windows, row_of_threads, times
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_KINDS = 16  # rounds of windows that do not overlap


@frozen
class SharedScatterConfig(Config):
    """Compile-time settings of ``kernels/pool/shared_scatter.cu``."""

    element: str
    saved: str
    place: bool
    adaptive: bool
    wide: int
    row: int
    threads: int


@frozen
class SharedScatterArguments(Arguments, restrict=True):
    """What ``kernels/pool/shared_scatter.cu`` is called with."""

    grad: In
    saved: Saved
    dx: Out
    outer: Extent
    planes: Extent
    rows: Extent
    bands: Extent
    room: Extent
    taps: Division
    h_kinds: Int
    w_kinds: Int
    h: Windows
    w: Windows


def _kinds(g: Geometry) -> tuple[int, int]:
    """Along H and W, how many windows follow each other before one does not overlap the first."""
    return max(g.axes[1].cover(), 1), max(g.axes[2].cover(), 1)


def _line(g: Geometry, x: Spec) -> int:
    """Bytes of a row of windows."""
    return (width_of(x.dtype) + 4) * g.axes[2].outputs


def _bands(g: Geometry, x: Spec, device: Device) -> Bands | None:
    width, line = width_of(x.dtype) * g.axes[2].extent, _line(g, x)
    return bands_of(g, device, lambda rows: width * rows + windows_of(g, rows) * line)


def _plan(problem: PoolProblem, device: Device, aligned: bool, g: Geometry, known: Known) -> Plan:
    x, place, (_, h, w) = problem.inputs[1], known.rule == BY_PLACE, g.axes
    bands = _bands(g, x, device)
    assert bands is not None  # rejects
    windows, row = windows_of(g, bands.rows), row_of_threads(w.outputs)
    wide = vector_length(x.dtype, aligned, bands.rows * w.extent, h.extent * w.extent)
    config = SharedScatterConfig(POOL_TYPES[x.dtype], POOL_TYPES[known.dtype], place, g.adaptive, wide, row, THREADS)
    words = [f"max_pool_shared_scatter_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[known.dtype]}"]
    words += ["place"] * place + ["adaptive"] * g.adaptive
    h_kinds, w_kinds = _kinds(g)
    arguments = SharedScatterArguments(
        Array(0),
        known.saved,
        dx_of(problem),
        outer=g.outer,
        planes=bands.planes,
        rows=bands.rows,
        bands=bands.bands,
        room=windows,
        taps=division(w.extent if place else w.window, (1 << 31) - 1),
        h_kinds=h_kinds,
        w_kinds=w_kinds,
        h=h.numbers(g.adaptive),
        w=w.numbers(g.adaptive),
    )
    shared = bands.planes * (width_of(x.dtype) * bands.rows * w.extent + windows * _line(g, x)) + 32
    kernel = Kernel("pool/shared_scatter.cu", "_".join([*words, f"r{row}"]), config, ("pool/window",))
    return planned(kernel, (blocks_of(g, bands), 1, 1), THREADS, arguments, shared_memory=shared)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    if (found := backward_reason(problem)) or of_magnitudes(problem):
        return found or "magnitudes take the sign of x"
    g = geometry_at(problem)
    if not (g.first and g.flat) or g.length >= 1 << 31:
        return "windows do not lie over rows and columns of channels-first memory, of fewer than 2^31 elements"
    if rule_of(problem) == BY_TAP and numbered_by_rows(problem):
        return "taps of small windows have other numbers"
    if _kinds(g)[0] * _kinds(g)[1] > _KINDS:
        return f"more than {_KINDS} windows lie over an element"
    return None if _bands(g, problem.inputs[1], device) else "not even a row fits into shared memory"


def workspace(problem: PoolProblem) -> int:
    return 0 if problem.inputs[2] is not None else saved_bytes(problem)


def cost(problem: PoolProblem, device: Device) -> Cost:
    scratch = workspace(problem)
    return times(problem, 1.25, launches=1 + (scratch > 0), more=2 * scratch)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return launches(problem, device, aligned, lambda g, known: _plan(problem, device, aligned, g, known))
