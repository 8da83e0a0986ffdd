"""`depthwise` of lines and small windows: a thread's patch of outputs straight from the first-level cache, the last
spatial axis innermost in memory."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides
from dnnarray._cuda.conv.depthwise_common import Correlation, DepthwiseArguments, axes, is_flat
from dnnarray._cuda.core.arguments import Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
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


@frozen
class DepthwisePatchArguments(DepthwiseArguments):
    """What ``kernels/conv/depthwise_patch.cu`` is called with."""

    planes: Int
    channels: Int
    multiplier: Int
    flip: Int
    across: Int
    down: Int
    x_strides: ImageStrides
    y_strides: ImageStrides
    axes: ConvAxes


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
    config = DepthwisePatchConfig(
        TYPES[c.x.dtype], c.added, c.relu, g.window[1], g.window[2], -g.before[2] % vector, rows, run
    )
    name = (
        f"conv_depthwise_patch_{SHORT[c.x.dtype]}{'_added' * c.added}{'_relu' * c.relu}"
        f"_s{g.window[1]}x{g.window[2]}_from{config.shift}_r{rows}"
    )
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    arguments = DepthwisePatchArguments(
        pointers[0],
        pointers[1],
        pointers[2],
        pointers[3],
        pointers[4],
        planes=planes,
        channels=c.channels,
        multiplier=g.k,
        flip=int(c.flip),
        across=across,
        down=down,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    blocks = -(-planes * across * down // _THREADS)
    return planned(
        Kernel("conv/depthwise_patch.cu", name, config, ("conv/geometry",)), (blocks, 1, 1), _THREADS, arguments
    )
