"""Means over windows of any kind in channels-last memory, first down the columns of x and then along the rows."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, divider
from dnnarray._records import frozen

_LANES, _ENOUGH = 8, 264  # vectors of channels of a block, fewer where there would not be so many blocks
_SUMS = 48 << 10  # bytes of shared memory for the sums of columns
_FLIGHT = 12  # rows of a window that are loaded together
_SMALL = 3  # the longest side of a window of which another kernel has all elements under way


@frozen
class ColumnsLastConfig(Config):
    """Compile-time settings of ``kernels/pool/columns_last.cu``."""

    element: str
    adaptive: bool
    wide: int
    flight: int
    threads: int


def columns_last_plan(g: Geometry, dtype: np.dtype, padded: bool, aligned: bool, pointers: tuple[Array, Array]) -> Plan | None:
    """The means of the windows; None where they are small, share no columns and fit into registers by rows, or where there is no room for a row of x."""
    _, h, w = g.axes
    if not (g.last and g.flat) or g.whole or w.window <= _SMALL or g.length == 0 or h.outputs * w.outputs == 0:
        return None
    if not w.uneven and w.stride_used >= w.window and w.window <= _FLIGHT:
        return None
    wide = vector_length(dtype, aligned, g.channels)
    inner, size = g.channels // wide, max(dtype.itemsize, 4) * wide  # bytes of the sums of a vector
    lanes = min(inner, _LANES, _SUMS // (w.extent * size))
    if lanes == 0:
        return None
    while lanes > 1 and g.n * h.outputs * -(-inner // lanes) < _ENOUGH:
        lanes //= 2
    chunks, vectors = -(-inner // lanes), w.extent * lanes
    total = g.n * h.outputs * chunks
    if total >= 1 << 31:  # blocks
        return None
    flight = h.window if 8 < h.window <= _FLIGHT else min(h.window, 8)
    config = ColumnsLastConfig(POOL_TYPES[dtype], g.adaptive, wide, flight, THREADS)
    words = [f"mean_pool_columns_last_{POOL_SHORT[dtype]}x{wide}"] + ["adaptive"] * g.adaptive + [f"f{flight}"]
    dividers = [n for divisor, most in ((lanes, vectors), (chunks, total), (h.outputs, total)) for n in divider(divisor, most)]
    numbers = (inner, *dividers, *h.packed(g.adaptive), *w.packed(g.adaptive), int(padded))
    kernel = Kernel("pool/columns_last.cu", "_".join(words), config)
    return Plan(kernel, (total, 1, 1), THREADS, (*pointers, *numbers), vectors * size)
