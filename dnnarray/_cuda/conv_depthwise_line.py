"""`depthwise` of lines: one spatial axis, innermost in memory."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv_depthwise_common import Correlation
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64

_RUN = 2  # vectors of a thread
_MOST_THREADS, _WARP = 128, 32
_MOST = 1 << 30  # elements of a line, so that 31 bits count those of whole blocks too
_LEAST = 64  # vectors of a line for which a block of its own is busy


@frozen
class DepthwiseLineConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_line.cu``."""

    element: str
    added: bool
    relu: bool
    side: int
    shift: int


def can_line(c: Correlation) -> bool:
    """Whether lines can do it."""
    g, vector = c.g, 16 // c.x.dtype.itemsize
    if not c.fast or c.memory.last or c.x.dtype == FLOAT64 or g.stride[2] != 1 or {*g.window[:2], *g.space[:2], *g.out[:2]} != {1}:
        return False
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    whole = vector_length(c.x.dtype, c.aligned, g.space[2], g.out[2], *xs[:2], *ys[:2]) == vector
    return xs[4] == ys[4] == 1 and whole and _LEAST * vector <= g.out[2] and max(g.space[2], g.out[2]) <= _MOST


def lines(c: Correlation, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, vector = c.g, 16 // c.x.dtype.itemsize
    pairs = -(-g.out[2] // (vector * _RUN))  # of vectors: threads of a line
    threads = min(_MOST_THREADS, -(-pairs // _WARP) * _WARP)
    parts = -(-pairs // threads)
    before = g.before[2]
    config = DepthwiseLineConfig(TYPES[c.x.dtype], c.added, c.relu, g.window[2], -before % vector)
    name = f"conv_depthwise_line_{SHORT[c.x.dtype]}{'_added' * c.added}{'_relu' * c.relu}_s{g.window[2]}_from{config.shift}"
    (x_n, x_c, *_), (y_n, y_c, *_) = (c.memory.strides(s.shape) for s in (c.x, c.y))
    numbers = (c.channels, g.k, int(c.flip), parts, g.space[2], g.out[2], before, x_n, x_c, y_n, y_c)
    return Plan(Kernel("conv/depthwise_line.cu", name, config), (g.n * c.channels * parts, 1, 1), threads, (*pointers, *numbers))
