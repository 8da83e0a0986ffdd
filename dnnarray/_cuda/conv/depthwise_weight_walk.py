"""`depthwise`: the gradient of the weight by threads that walk down their columns."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, PixelStrides, pixel_strides
from dnnarray._cuda.conv.depthwise_common import Correlation, PartialSums, axes, is_flat
from dnnarray._cuda.core.arguments import Arguments, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_UNITS = 132  # multiprocessors that the sums are divided for: the scratch memory must not depend on the device
_SIDE = 3  # of the window
_STRIP, _BLOCKS = 7, 2  # columns of a thread, blocks of a multiprocessor
_LANES = {32: 1.0, 48: 1.0, 24: 1.1, 16: 1.25}  # threads with neighbouring words, and what bytes cost then
_START = 6  # rows that a walk's beginning and end take the time of


@frozen
class DepthwiseWeightWalkConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_walk.cu``."""

    element: str
    shared: bool
    side: int
    strip: int
    ahead: int
    threads: int
    blocks: int


@frozen
class DepthwiseWeightWalkArguments(Arguments, restrict=True):
    """What ``kernels/conv/depthwise_weight_walk.cu`` is called with."""

    dy: In
    x: In
    partial: FloatOut
    batch: Int
    channels: Int
    multiplier: Int
    flip: Int
    splits: Int
    lanes: Int
    high: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes


def walks(c: Correlation) -> bool:
    """Whether threads that walk down their columns can do it: words of 4 bytes, a square window without steps."""
    g, size = c.g, c.x.dtype.itemsize
    side = g.window[2]
    square = c.fast and g.window[1] == side and g.stride[1:] == (1, 1) and g.dilation[1] == 1
    words = size == 4 or (size == 2 and c.aligned and c.channels % 2 == 0 and (c.plain or g.k % 2 == 0))
    return square and words and side == _SIDE and is_flat(g) and c.memory.last


def _segments(rows: int, groups: int, blocks: int) -> int:
    """Parts of the rows of an image, so that as many blocks as run at a time have as much to do; `groups` of walks over
    all rows."""

    def rounds(parts: int) -> int:
        return -(-groups * parts // blocks) * (-(-rows // parts) + _START)

    return min(range(1, max(rows // 8, 1) + 1), key=rounds)


def walked(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums | None:
    """By threads that walk down their columns, or None where that is not for this problem."""
    if not walks(c):
        return None
    g, dtype = c.g, c.x.dtype
    words = c.channels * dtype.itemsize // 4
    lanes = min(_LANES, key=lambda n: -(-words // n) * n * _LANES[n])
    threads = 192 if lanes % 3 == 0 or dtype.itemsize == 2 else 256  # two channels of a word take more registers
    chunks, slots, strips = -(-words // lanes), threads // lanes, -(-g.out[2] // _STRIP)
    blocks = max(1, _UNITS * _BLOCKS // chunks)
    high = -(-g.out[1] // _segments(g.out[1], -(-g.n * strips // slots), blocks))
    splits = min(-(-g.n * strips * -(-g.out[1] // high) // slots), blocks)
    config = DepthwiseWeightWalkConfig(TYPES[dtype], not c.plain, _SIDE, _STRIP, 1, threads, _BLOCKS)
    name = f"conv_depthwise_weight_walk_{SHORT[dtype]}{'_shared' * (not c.plain)}_s{_SIDE}_{threads}"
    xs, ys = (pixel_strides(c.memory.strides(s.shape)) for s in (c.x, c.y))
    arguments = DepthwiseWeightWalkArguments(
        *pointers,
        batch=g.n,
        channels=c.channels,
        multiplier=g.k,
        flip=int(c.flip),
        splits=splits,
        lanes=lanes,
        high=high,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    kernel = Kernel("conv/depthwise_weight_walk.cu", name, config, ("conv/geometry",))
    return PartialSums(planned(kernel, (chunks * splits, 1, 1), threads, arguments), splits)
