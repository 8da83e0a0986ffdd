"""The gradient of maxima over small windows that overlap much, in one launch that seeks them, or is given where they stand."""

from __future__ import annotations

from dnnarray._cuda.plan import Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, divider
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, HALF, INT64, Spec

_COVER = 6  # windows over an element from which on one pass is faster than two
_LAST, _SOUGHT, _GIVEN = 6, 8, 4  # columns of a thread: in channels-last memory, and along rows
_ROWS, _TALL = 28, 57  # rows of x that a thread walks down; those of many registers
_THREADS = 1 << 17  # that keep a card busy


@frozen
class WinnersConfig(Config):
    """Compile-time settings of ``kernels/pool/winners.cu``."""

    element: str
    saved: str
    given: bool
    last: bool
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    before: int
    wide: int
    columns: int
    piece: int
    threads: int


def overlap_much(g: Geometry, x: Spec, indices: Spec | None, aligned: bool) -> bool:
    """Whether windows are small, many lie over an element, none leaves a gap, and elements lie side by side in words and vectors."""
    _, h, w = g.axes
    if not g.at_once() or g.whole or x.dtype not in (*HALF, FLOAT32) or (indices is not None and w.extent == 1):
        return False
    if h.cover() * w.cover() < _COVER or any(a.stride_used > a.window for a in (h, w)):
        return False
    # With fewer windows what is sought beside a thread's own columns weighs more: two passes of floats are faster, and one of given places along rows.
    most = 2 if x.dtype in HALF and (g.last or indices is None) else 1
    if max(h.stride_used, w.stride_used) > most:
        return False
    along = g.channels if g.last else w.extent
    return vector_length(x.dtype, aligned, along) >= (_wide(x) if g.last else 4)


def winners_plan(g: Geometry, x: Spec, indices: Spec | None, aligned: bool, pointers: tuple[Array, Array, Array, Array]) -> Plan:
    """The launch, for windows that overlap much."""
    _, h, w = g.axes
    columns, wide = _columns(g, x, indices, aligned), _wide(x) if g.last else 1
    piece = 1 if g.last else vector_length(x.dtype, aligned, w.outputs, columns // w.stride_used)
    saved = INT64 if indices is None else indices.dtype  # nothing is read where none are given
    config = WinnersConfig(
        POOL_TYPES[x.dtype], POOL_TYPES[saved], indices is not None, g.last, h.window, h.stride_used, w.window, w.stride_used, w.before, wide,
        columns, piece, THREADS,
    )  # fmt: skip
    words = [f"max_pool_winners_{POOL_SHORT[x.dtype]}"] + ([] if indices is None else [f"by_{POOL_SHORT[saved]}"])
    words += [
        f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}_at{w.before}",
        "last" if g.last else "first",
        f"x{wide}c{columns}p{piece}",
    ]
    inner, groups, rows = g.channels // wide if g.last else 1, -(-w.extent // columns), -(-(h.extent + h.before) // h.stride_used)
    tall = indices is None and g.first and x.dtype == FLOAT32
    steps = _steps(g.outer * inner * groups, rows, (_TALL if tall else _ROWS) // h.stride_used)
    strips = -(-rows // steps)
    total = g.outer * strips * groups * inner
    dividers = [n for divisor in (inner, groups, strips) for n in divider(divisor, total)]
    sizes = (h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3])
    numbers = (total, *dividers, *sizes, steps, *divider(w.extent, h.extent * w.extent))
    kernel, shared = Kernel("pool/winners.cu", "_".join(words), config), _sums(g, columns) * wide * 4 * THREADS
    return Plan(kernel, (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers), shared)


def _wide(x: Spec) -> int:
    """Channels of a word."""
    return 4 // x.dtype.itemsize


def _columns(g: Geometry, x: Spec, indices: Spec | None, aligned: bool) -> int:
    """Columns of a thread: whole vectors along rows."""
    if g.last:
        return _LAST
    width = g.axes[2].extent
    wanted = _SOUGHT if indices is None else _GIVEN
    return wanted if width % wanted == 0 else vector_length(x.dtype, aligned, width)


def _sums(g: Geometry, columns: int) -> int:
    """Sums of a thread, for a channel: as many rows as a window has, of all columns that the windows over the thread's own ones look at."""
    _, h, w = g.axes
    left, right = (w.window - 1 - w.before) // w.stride_used, (w.before + w.stride_used - 1) // w.stride_used
    return h.window * ((left + columns // w.stride_used + right - 1) * w.stride_used + w.window)


def _steps(columns: int, rows: int, most: int) -> int:
    """Rows of windows of a strip: equal strips, and where threads are few, short ones."""
    strips = max(-(-rows // most), min(-(-_THREADS // columns), -(-rows // 4)))
    return -(-rows // strips)
