"""Weight gradients of half types whose windows threads gather into shared memory, products by wgmma: the sums of each
part of the pixels."""

from __future__ import annotations

import math

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, PixelStrides, conv_axes, pixel_strides
from dnnarray._cuda.conv.tiling import Split
from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 384
_CHUNK = 8  # elements of a half type in 16 bytes


@frozen
class ImplicitWeightSm90Config(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_sm90.cu``."""

    element: str
    tile_m: int
    tile_n: int
    stages: int


@frozen
class ImplicitWeightSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_weight_sm90.cu`` is called with; channels, columns and the strides of x are counted
    in chunks."""

    dy: In
    x: In
    partial: FloatOut
    rows: Extent
    channels: Int
    total: Int
    tiles_m: Extent
    tiles_n: Extent
    groups: Extent
    outs: Extent
    splits: Extent
    blocks: Extent
    x_strides: PixelStrides
    axes: ConvAxes


def implicit_weight_sm90(g: Geometry, split: Split, dy: Operand, x: Operand, partial: Operand, units: int) -> Plan:
    """The sums of each part of the pixels, (K, window, C)."""
    tile, chunks = split.tile, g.taps * g.c // _CHUNK
    config = ImplicitWeightSm90Config(TYPES[dy.dtype], *tile.settings)
    name = f"conv_implicit_weight_sm90_{SHORT[dy.dtype]}_{tile.name}"
    kernel = Kernel("conv/implicit_weight_sm90.cu", name, config, ("conv/geometry",))
    tiles = -(-g.k // tile.m), -(-chunks * _CHUNK // tile.n), g.groups
    arguments = ImplicitWeightSm90Arguments(
        dy.array,
        x.array,
        partial.array,
        rows=g.n * g.pixels,
        channels=g.c // _CHUNK,
        total=chunks,
        tiles_m=tiles[0],
        tiles_n=tiles[1],
        groups=g.groups,
        outs=g.k,
        splits=split.count,
        blocks=split.blocks,
        x_strides=[s // _CHUNK for s in pixel_strides(x.strides)],
        axes=conv_axes(g),
    )
    grid = (min(math.prod(tiles) * split.count, units), 1, 1)
    return planned(kernel, grid, _THREADS, arguments, shared_memory=tile.shared_memory)
