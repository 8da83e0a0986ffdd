"""The algorithm ``vector_windows``: windows that begin and end with vectors of a row, each reduced by one thread or by
a few lanes."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import division
from dnnarray._cuda.pool.separable import flight_of
from dnnarray._cuda.pool.shared import (
    NORM,
    POOL_TYPES,
    THREADS,
    Division,
    Indices,
    Reduction,
    Results,
    Windows,
    forward,
    forward_reason,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device


@frozen
class VectorWindowsConfig(Config):
    """Compile-time settings of ``kernels/pool/vector_windows.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    wide: int
    flight: int
    lanes: int
    own: int
    threads: int


@frozen
class VectorWindowsArguments(Arguments, restrict=True):
    """What ``kernels/pool/vector_windows.cu`` is called with."""

    x: In
    y: Results
    indices: Indices
    total: Extent
    vectors: Division
    heights: Division
    width: Extent
    h: Windows
    padded: Int


def _sharing(r: Reduction, aligned: bool) -> tuple[int, int, int] | None:
    """(elements of a vector, lanes that share a window, windows of a vector) where windows stand beside each other and
    begin and end with vectors."""
    g = r.g
    _, h, w = g.axes
    apart = (
        not w.uneven and (w.stride_used, w.dilation, w.before) == (w.window, 1, 0) and w.outputs * w.window <= w.extent
    )
    if not (apart and g.first and g.flat) or g.whole or g.length == 0 or h.outputs * w.outputs == 0:
        return None
    wide = vector_length(r.dtype, aligned, w.extent)
    lanes, own = max(w.window // wide, 1), max(wide // w.window, 1)
    fits = lanes * wide == own * w.window and lanes in (1, 2, 4, 8, 16, 32) and w.outputs % own == 0
    return (wide, lanes, own) if fits and wide * r.dtype.itemsize >= 8 else None


def reason(r: Reduction, device: Device) -> str | None:
    if r.kind == NORM:
        return "a norm of its windows may have to be scaled"
    return (
        None
        if _sharing(r, device.aligned)
        else "windows do not begin and end with vectors of a row in channels-first memory"
    )


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the results and the places."""
    g, sharing = r.g, _sharing(r, aligned)
    assert sharing is not None  # reason
    (_, h, w), (wide, lanes, own) = g.axes, sharing
    vectors = w.outputs * w.window // wide
    total, flight = g.outer * h.outputs * vectors, flight_of(h)
    config = VectorWindowsConfig(
        POOL_TYPES[r.dtype], POOL_TYPES[r.result], r.kind, r.magnitude, g.adaptive, wide, flight, lanes, own, THREADS
    )
    words = [
        *r.words("vector_windows", wide),
        *["magnitude"] * r.magnitude,
        *["adaptive"] * g.adaptive,
        f"l{lanes}o{own}f{flight}",
    ]
    arguments = VectorWindowsArguments(
        *arrays, total=total, vectors=division(vectors, total), heights=division(h.outputs, total), width=w.extent,
        h=h.numbers(g.adaptive), padded=int(r.padded),
    )  # fmt: skip
    kernel = Kernel("pool/vector_windows.cu", "_".join(words), config, ("pool/window",))
    return planned(kernel, (-(-total // THREADS), 1, 1), THREADS, arguments)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
