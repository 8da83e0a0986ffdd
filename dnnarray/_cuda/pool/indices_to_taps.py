"""Places of maxima, as positions in a plane, to the numbers of their taps: the first launch of gradients that look at
each window several times."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, division
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, CodesOut, Division, PlainWindows, Saved
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, Spec


@frozen
class IndicesToTapsConfig(Config):
    """Compile-time settings of ``kernels/pool/indices_to_taps.cu``."""

    saved: str
    wide: int
    threads: int


@frozen
class IndicesToTapsArguments(Arguments, restrict=True):
    """What ``kernels/pool/indices_to_taps.cu`` is called with."""

    indices: Saved
    taps: CodesOut
    total: Extent
    inner: Division
    groups: Division
    strips: Division
    extent: Division
    h: PlainWindows
    w: PlainWindows


def indices_to_taps(g: Geometry, indices: Spec, aligned: bool, arrays: tuple[Array, Array]) -> Plan:
    """The launch, for small windows in channels-last memory; `arrays` are the places and the taps, a byte each."""
    _, h, w = g.axes
    wide = vector_length(FLOAT32, aligned, g.channels)
    inner, total = g.channels // wide, indices.size // wide
    config = IndicesToTapsConfig(POOL_TYPES[indices.dtype], wide, THREADS)
    by_inner, by_w, by_h = (division(divisor, total) for divisor in (inner, w.outputs, h.outputs))
    arguments = IndicesToTapsArguments(
        *arrays,
        total=total,
        inner=by_inner,
        groups=by_w,
        strips=by_h,
        extent=division(w.extent, (1 << 31) - 1),
        h=h.numbers(),
        w=w.numbers(),
    )
    kernel = Kernel(
        "pool/indices_to_taps.cu",
        f"max_pool_indices_to_taps_{POOL_SHORT[indices.dtype]}x{wide}",
        config,
        ("pool/window",),
    )
    return planned(kernel, (-(-total // THREADS), 1, 1), THREADS, arguments)
