"""`depthwise` of lines and small windows: a thread's patch of outputs straight from the first-level cache, the last spatial axis innermost in memory."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv.depthwise_common import Correlation, is_flat
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64

_THREADS = 128
_ROWS = 4  # of a patch in a plane
_MOST_TAPS = 25  # of windows of several rows, whose inputs a thread holds in registers
_MOST = 1 << 30  # elements of a line, so that 31 bits count those of whole patches too


@frozen
class DepthwisePatchConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_patch.cu``."""

    element: str
    added: bool
    relu: bool
    high: int
    side: int
    shift: int
    rows: int
    run: int


def can_patch(c: Correlation) -> bool:
    """Whether patches can do it."""
    g, vector = c.g, 16 // c.x.dtype.itemsize
    ones = set(g.stride) == {1} and (g.dilation[1] == 1 or g.window[1] == 1)
    small = g.window[1] == 1 or (g.window[1] == g.window[2] and g.window[1] * g.window[2] <= _MOST_TAPS)
    if not c.fast or not ones or not small or not is_flat(g) or c.memory.last or c.x.dtype == FLOAT64:
        return False
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    whole = vector_length(c.x.dtype, c.aligned, g.space[2], g.out[2], *xs[:-1], *ys[:-1]) == vector
    return xs[-1] == ys[-1] == 1 and whole and max(g.space[2], g.out[2]) <= _MOST


def patches(c: Correlation, pointers: tuple[Any, ...]) -> Plan:
    """One launch. `pointers` are of x, w, bias, residual and y."""
    g, vector = c.g, 16 // c.x.dtype.itemsize
    rows, run = (1, 2) if g.window[1] == 1 else (_ROWS, 1)  # of a thread: rows of a patch, patches beside each other
    planes, across, down = g.n * c.channels, -(-g.out[2] // (vector * run)), -(-g.out[1] // rows)
    config = DepthwisePatchConfig(TYPES[c.x.dtype], c.added, c.relu, g.window[1], g.window[2], -g.before[2] % vector, rows, run)
    name = f"conv_depthwise_patch_{SHORT[c.x.dtype]}{'_added' * c.added}{'_relu' * c.relu}_s{g.window[1]}x{g.window[2]}_from{config.shift}_r{rows}"
    (x_n, x_c, _, x_h, _), (y_n, y_c, _, y_h, _) = (c.memory.strides(s.shape) for s in (c.x, c.y))
    numbers = (planes, c.channels, g.k, int(c.flip), across, down, x_n, x_c, x_h, y_n, y_c, y_h, *g.space[1:], *g.out[1:], *g.before[1:])
    blocks = -(-planes * across * down // _THREADS)
    return Plan(Kernel("conv/depthwise_patch.cu", name, config), (blocks, 1, 1), _THREADS, (*pointers, *numbers))
