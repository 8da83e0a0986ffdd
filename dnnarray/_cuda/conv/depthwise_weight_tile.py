"""`depthwise`: the gradient of the weight from tiles of both images in shared memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, pixel_strides
from dnnarray._cuda.conv.depthwise_common import Correlation, PartialSums, axes, is_flat
from dnnarray._cuda.core.arguments import Arguments, In, Int, OutArithmetic
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel
from dnnarray._cuda.core.planner import planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._spec import FLOAT64

_UNITS = 132  # multiprocessors that the sums are divided for: the scratch memory must not depend on the device
_WARPS, _VECTOR = 8, 4
_STRIP = 7  # odd, so that the next strip stands in other banks
_BYTES, _BLOCKS = {3: 72 << 10, 5: 108 << 10, 7: 108 << 10}, {3: 6, 5: 2, 7: 2}  # by the side of the window, measured


@frozen
class DepthwiseWeightTileConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_tile.cu``."""

    element: str
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    most_threads: int


@frozen
class DepthwiseWeightTileArguments(Arguments, restrict=True):
    """What ``kernels/conv/depthwise_weight_tile.cu`` is called with."""

    dy: In
    x: In
    partial: OutArithmetic
    batch: Int
    channels: Int
    flip: Int
    splits: Int
    wide: Int
    high: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes


@lru_cache(maxsize=1024)
def _tile(g: Geometry, lanes: int, pixel: int) -> tuple[int, int, int] | None:
    """Columns and rows of the tile with the least work, its inputs included, and its bytes."""
    best, found, side = float("inf"), None, g.window[2]
    for strips in range(1, 17):
        for high in range(1, 33):
            wide = strips * _STRIP
            brought = ((wide - 1) * g.stride[2] + side) * ((high - 1) * g.stride[1] + side) + wide * high
            tiles = -(-g.out[2] // wide) * -(-g.out[1] // high)
            idle = -(-strips // (32 // lanes)) * (32 // lanes) / strips
            cost = tiles * (wide * high * idle * side / 3 + 0.5 * brought)
            if brought * pixel <= _BYTES[side] and cost < best:
                best, found = cost, (wide, high, brought * pixel)
    return found


def tiled(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums | None:
    """From tiles in shared memory, or None where that is not for this problem."""
    g, dtype, side = c.g, c.x.dtype, c.g.window[2]
    square = c.fast and g.window[1] == side and g.stride[1] == g.stride[2] and g.dilation[1] == 1
    lanes = 16 // dtype.itemsize
    tile = (
        _tile(g, lanes, lanes * _VECTOR * dtype.itemsize)
        if square and c.plain and is_flat(g) and c.whole_vectors
        else None
    )
    if tile is None or dtype == FLOAT64:
        return None
    wide, high, size = tile
    chunks, copies = -(-c.channels // (lanes * _VECTOR)), max(_WARPS // side, 1)
    tiles = g.n * -(-g.out[2] // wide) * -(-g.out[1] // high)
    splits = max(1, min(tiles, _UNITS * _BLOCKS[side] // chunks))
    config = DepthwiseWeightTileConfig(TYPES[dtype], side, g.stride[2], _VECTOR, lanes, _STRIP, 32 * _WARPS)
    name = f"conv_depthwise_weight_tile_{SHORT[dtype]}_s{side}_by_{g.stride[2]}"
    kernel = Kernel("conv/depthwise_weight_tile.cu", name, config, ("conv/geometry",))
    xs, ys = (pixel_strides(c.memory.strides(s.shape)) for s in (c.x, c.y))
    arguments = DepthwiseWeightTileArguments(
        *pointers,
        batch=g.n,
        channels=c.channels,
        flip=int(c.flip),
        splits=splits,
        wide=wide,
        high=high,
        x_strides=xs,
        y_strides=ys,
        axes=axes(g, g.out, g.space),
    )
    plan = planned(kernel, (chunks * splits, 1, 1), 32 * side * copies, arguments, shared_memory=size)
    return PartialSums(plan, splits * copies)


def wgrad_takes_tiles(c: Correlation) -> bool:
    """Whether tiles in shared memory can do it."""
    return tiled(c, (0, 0, 0)) is not None
