"""The algorithm ``shared_planes``: windows of any kind in channels-first memory, out of whole planes in shared
memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, WindowAxis, division
from dnnarray._cuda.pool.shared import (
    MEAN,
    POOL_TYPES,
    Division,
    Indices,
    Reduction,
    Results,
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
from dnnarray._spec import HALF

_SHORT_PLANE = 4096  # bytes of a plane that a block reduces together with others
_PLANE = 96 << 10  # bytes of a plane that a block holds in shared memory to pool it
_FEW = 4096  # planes, or windows: threads of a warp share one
_SHORT = 64  # elements of a plane that few threads add up
_STAGE = 16 << 10  # bytes of shared memory for several planes
_THREADS = 256


@frozen
class SharedPlanesConfig(Config):
    """Compile-time settings of ``kernels/pool/shared_planes.cu``."""

    element: str
    result: str
    reduction: int
    magnitude: bool
    adaptive: bool
    whole: bool
    pairs: bool
    wide: int
    lanes: int
    threads: int


@frozen
class SharedPlanesArguments(Arguments, restrict=True):
    """What ``kernels/pool/shared_planes.cu`` is called with."""

    x: In
    y: Results
    indices: Indices
    total: Extent
    planes: Extent
    windows: Division
    outputs: Division
    h: Windows
    w: Windows
    padded: Int
    p: Double


def reason(r: Reduction, device: Device) -> str | None:
    g = r.g
    if not (g.first and g.flat) or g.axes[1].outputs * g.axes[2].outputs == 0:
        return "windows do not lie over rows and columns of channels-first memory"
    most = _SHORT_PLANE if g.whole else min(_PLANE, device.shared_memory)
    return None if g.length * r.dtype.itemsize <= most else f"a plane takes more than {most} bytes"


def few(r: Reduction, device: Device) -> bool:
    """Whether there are few whole planes: a warp reduces a short plane in fewer steps than a block that copies it
    first."""
    return r.g.whole and r.g.outer < _FEW


def plan(r: Reduction, device: Device, aligned: bool, arrays: tuple[Array, Array, Array]) -> Plan:
    """The launch, of blocks that take several planes which follow each other; `arrays` are x, the results and the
    places."""
    g, itemsize = r.g, r.dtype.itemsize
    row = WindowAxis(g.length, 1, g.length, g.length)
    h, w = (WindowAxis(1, 1), row) if g.whole else g.axes[1:]
    wide, windows = vector_length(r.dtype, aligned), h.outputs * w.outputs
    few_windows = g.outer * windows < _FEW
    lanes = next(n for n in (32, 16, 8, 1) if w.window >= (n if few_windows else 8 * n) or n == 8 <= w.window or n == 1)
    short = g.whole and r.kind == MEAN and r.dtype in HALF and not few_windows and w.window < _SHORT
    if short:
        lanes = 1  # a lane adds up a short plane, or two, in fewer steps than eight that must meet
    planes = _planes_of_a_block(g, wide, 128 if short else max(_THREADS // lanes // windows, 1), itemsize)
    if planes * g.length * itemsize > device.shared_memory:  # as many as make whole vectors are too large together
        planes, wide = 1, vector_length(r.dtype, aligned, g.length)
    pairs = short and planes % 2 == 0
    config = SharedPlanesConfig(
        POOL_TYPES[r.dtype],
        POOL_TYPES[r.result],
        r.kind,
        r.magnitude,
        g.adaptive,
        g.whole,
        pairs,
        wide,
        lanes,
        _THREADS,
    )
    words = [
        *r.words("shared_planes", wide),
        *["magnitude"] * r.magnitude,
        *["adaptive"] * g.adaptive,
        *["whole"] * g.whole,
        f"l{lanes}",
    ]
    limit = planes * windows
    arguments = SharedPlanesArguments(
        *arrays, total=g.outer, planes=planes, windows=division(windows, limit), outputs=division(w.outputs, limit),
        h=h.numbers(g.adaptive), w=w.numbers(g.adaptive), padded=int(r.padded), p=r.p,
    )  # fmt: skip
    kernel = Kernel("pool/shared_planes.cu", "_".join([*words, *["pairs"] * pairs]), config, ("pool/window",))
    shared = -(-planes * g.length * itemsize // 16) * 16
    return planned(kernel, (-(-g.outer // planes), 1, 1), _THREADS, arguments, shared_memory=shared)


def _planes_of_a_block(g: Geometry, wide: int, busy: int, itemsize: int) -> int:
    """How many planes a block takes: as many as keep its threads busy, or more while they are small; whole vectors, and
    enough blocks."""
    one = g.length * itemsize
    if g.length % wide == 0 and (2 * one > _STAGE or g.outer < _FEW):
        return 1
    fitting = max(_STAGE // one // busy, 1) * busy if busy * one <= 2 * _STAGE else max(_STAGE // one, 1)
    return -(-min(fitting, max(g.outer // 256, 1)) // wide) * wide


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return forward_reason(problem, device, reason)


def cost(problem: PoolProblem, device: Device) -> Cost:
    return overtaken(problem, device) if few(reduction_of(problem), device) else times(problem, 1.05)


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return forward(problem, device, aligned, plan)
