"""`depthwise`: the gradient of the weight over lines and planes, the last spatial axis innermost in memory."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, ImageStrides
from dnnarray._cuda.conv.depthwise_common import Correlation, PartialSums, axes, is_flat
from dnnarray._cuda.core.arguments import Arguments, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64

_THREADS, _BLOCKS = (
    64,
    132 * 64,
)  # of a block; blocks that a launch should have, whatever the device: the scratch memory must not depend on it
_ROWS, _RUN = (
    {3: 4, 5: 4, 7: 2},
    4,
)  # of a thread: rows of a patch by the side of the window; patches of lines at a time
_MOST = 1 << 30  # patches of a channel and elements of a line


@frozen
class DepthwiseWeightPatchConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_patch.cu``."""

    element: str
    high: int
    side: int
    shift: int
    rows: int
    run: int
    threads: int


@frozen
class DepthwiseWeightPatchArguments(Arguments, restrict=True):
    """What ``kernels/conv/depthwise_weight_patch.cu`` is called with."""

    dy: In
    x: In
    partial: FloatOut
    batch: Int
    channels: Int
    multiplier: Int
    flip: Int
    parts: Int
    share: Int
    across: Int
    down: Int
    x_strides: ImageStrides
    y_strides: ImageStrides
    axes: ConvAxes


def wgrad_takes_patches(c: Correlation) -> bool:
    """Whether patches can do it."""
    g, vector = c.g, 16 // c.x.dtype.itemsize
    ones = set(g.stride) == {1} and (g.dilation[1] == 1 or g.window[1] == 1)
    if (
        not c.fast
        or not ones
        or g.window[1] not in (1, g.window[2])
        or not is_flat(g)
        or c.memory.last
        or c.x.dtype == FLOAT64
    ):
        return False
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    whole = vector_length(c.x.dtype, c.aligned, g.space[2], g.out[2], *xs[:-1], *ys[:-1]) == vector
    few = max(g.space[2], g.out[2], g.n * g.out[1] * g.out[2]) <= _MOST
    return xs[-1] == ys[-1] == 1 and whole and few


def wgrad_by_patches(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums:
    """By threads that take patches of outputs. `pointers` are of dy, x and the partial sums."""
    g, vector = c.g, 16 // c.x.dtype.itemsize
    rows, run = (1, _RUN) if g.window[1] == 1 else (_ROWS[g.window[2]], 1)
    across, down, round_ = -(-g.out[2] // vector), -(-g.out[1] // rows), _THREADS * run
    rounds = -(-g.n * across * down // round_)
    share = -(-rounds // min(rounds, max(1, _BLOCKS // c.channels))) * round_
    parts = -(-g.n * across * down // share)
    config = DepthwiseWeightPatchConfig(
        TYPES[c.x.dtype], g.window[1], g.window[2], -g.before[2] % vector, rows, run, _THREADS
    )
    name = f"conv_depthwise_weight_patch_{SHORT[c.x.dtype]}_s{g.window[1]}x{g.window[2]}_from{config.shift}"
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    arguments = DepthwiseWeightPatchArguments(
        *pointers,
        batch=g.n,
        channels=c.channels,
        multiplier=g.k,
        flip=int(c.flip),
        parts=parts,
        share=share,
        across=across,
        down=down,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    kernel = Kernel("conv/depthwise_weight_patch.cu", name, config, ("conv/geometry",))
    return PartialSums(planned(kernel, (c.channels * parts, 1, 1), _THREADS, arguments), parts)
