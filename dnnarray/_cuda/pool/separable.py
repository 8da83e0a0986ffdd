"""The algorithm ``separable``: windows of any kind in channels-first memory, first down the columns and then along the
rows."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import WindowAxis, division
from dnnarray._cuda.pool.shared import (
    NORM,
    POOL_TYPES,
    Division,
    Indices,
    Reduction,
    Results,
    Windows,
    forward,
    forward_reason,
    row_of_threads,
)
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_ROW = 4096  # elements of a row that is pooled by columns
_SHARED = 48 << 10  # bytes of shared memory for what is left of several rows
_THREADS, _ENOUGH = 256, 264  # of a block; blocks that keep a card busy
MOST_IN_FLIGHT = 12  # rows of a window that are loaded together


@frozen
class SeparableConfig(Config):
    """Compile-time settings of ``kernels/pool/separable.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    wide: int
    flight: int
    lanes: int
    row: int
    threads: int


@frozen
class SeparableArguments(Arguments, restrict=True):
    """What ``kernels/pool/separable.cu`` is called with."""

    x: In
    y: Results
    indices: Indices
    total: Extent
    rows: Extent
    vectors: Division
    heights: Division
    h: Windows
    w: Windows
    padded: Int


def flight_of(h: WindowAxis) -> int:
    """Loads of a thread under way, down a window: all of it where there are registers for that."""
    return h.window if 8 < h.window <= MOST_IN_FLIGHT else 8


def reason(r: Reduction, device: Device) -> str | None:
    g = r.g
    _, h, w = g.axes
    if r.kind == NORM:
        return "a norm of its windows may have to be scaled"
    if not (g.first and g.flat) or g.whole or h.outputs * w.outputs == 0:
        return "windows do not lie over rows and columns of channels-first memory, several in a plane"
    if vector_length(r.dtype, device.aligned, w.extent) * r.dtype.itemsize < 8:
        return "rows are no whole vectors of 8 bytes or more"
    return None if w.extent <= _ROW else f"a row has more than {_ROW} elements"


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch; `arrays` are x, the results and the places."""
    g = r.g
    _, h, w = g.axes
    wide, total = vector_length(r.dtype, aligned, w.extent), g.outer * h.outputs
    vectors, lanes = w.extent // wide, 1 if w.window < 32 else 8 if w.window < 256 else 32
    row = row_of_threads(w.outputs * lanes)
    several = _THREADS // row
    kept = w.extent * (max(r.dtype.itemsize, 4) + (4 if r.places else 0))  # bytes that are left of a row
    rows = max(_THREADS // vectors // several, 1) * several
    rows = max(1, min(rows, total // _ENOUGH, _SHARED // kept))
    flight = flight_of(h)
    config = SeparableConfig(
        POOL_TYPES[r.dtype], POOL_TYPES[r.result], r.kind, r.magnitude, g.adaptive, wide, flight, lanes, row, _THREADS
    )
    words = [*r.words("separable", wide), *["magnitude"] * r.magnitude, *["adaptive"] * g.adaptive, f"l{lanes}r{row}"]
    words += [f"f{flight}"] * (flight > 8)
    arguments = SeparableArguments(
        *arrays, total=total, rows=rows, vectors=division(vectors, rows * vectors), heights=division(h.outputs, total),
        h=h.numbers(g.adaptive), w=w.numbers(g.adaptive), padded=int(r.padded),
    )  # fmt: skip
    kernel = Kernel("pool/separable.cu", "_".join(words), config, ("pool/window",))
    return planned(kernel, (-(-total // rows), 1, 1), _THREADS, arguments, shared_memory=rows * kept)


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
