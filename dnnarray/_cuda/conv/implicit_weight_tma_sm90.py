"""Weight gradients whose operands TMA brings, products by wgmma."""

from __future__ import annotations

import math

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, PixelStrides, conv_axes, pixel_strides
from dnnarray._cuda.conv.implicit_tma_sm90 import gradient_map, windows_map
from dnnarray._cuda.conv.raster import axes_of, corners
from dnnarray._cuda.conv.tiling import BLOCK
from dnnarray._cuda.conv.wgrad import TmaSplit
from dnnarray._cuda.core.arguments import Arguments, Box, Extent, Int, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 384


@frozen
class ImplicitWeightTmaSm90Config(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_tma_sm90.cu``."""

    element: str
    tile_m: int
    tile_n: int
    stages: int
    axes: int
    direct: bool
    size: int


@frozen
class ImplicitWeightTmaSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_weight_tma_sm90.cu`` is called with; the strides of the result are along K and the
    window."""

    dy: Box
    x: Box
    partial: FloatOut
    result: Out
    rows: Extent
    channels: Int
    tiles_m: Int
    tiles_n: Int
    groups: Int
    outs: Int
    splits: Int
    blocks: Int
    w_strides: PixelStrides
    axes: ConvAxes


def window_sums(
    g: Geometry,
    split: TmaSplit,
    small: Operand,
    large: Operand,
    result: Operand,
    units: int,
    direct: bool = False,
    size: int = BLOCK,
) -> Plan:
    """Into the weight (`direct`) or its parts; of each 64 channels the sums between neighbours of the same `size`."""
    tile, axes = split.tile, axes_of(g)
    words = ["conv_implicit_weight_tma_sm90", SHORT[small.dtype], tile.name, f"{axes}d"] + ["direct"] * direct
    words += [f"c{size}"] * (size != BLOCK)
    config = ImplicitWeightTmaSm90Config(TYPES[small.dtype], *tile.settings, axes, direct, size)
    kernel = Kernel("conv/implicit_weight_tma_sm90.cu", "_".join(words), config, ("ptx/tma", "conv/geometry"))
    tiles = -(-g.k // tile.m), -(-g.taps * -(-g.c // BLOCK) * BLOCK // tile.n)
    arguments = ImplicitWeightTmaSm90Arguments(
        dy=gradient_map(g, small, ((0,) * axes, (0,) * axes)),
        x=windows_map(g, large, corners(g, axes), BLOCK),
        partial=None if direct else result.array,
        result=result.array if direct else None,
        rows=g.n * g.pixels,
        channels=g.c,
        tiles_m=tiles[0],
        tiles_n=tiles[1],
        groups=g.groups,
        outs=g.k,
        splits=split.count,
        blocks=split.blocks,
        w_strides=pixel_strides(result.strides) if direct else (0, 0, 0, 0),
        axes=conv_axes(g),
    )
    grid = (min(math.prod(tiles) * g.groups * split.count, units), 1, 1)
    return planned(kernel, grid, _THREADS, arguments, shared_memory=tile.shared_memory)
