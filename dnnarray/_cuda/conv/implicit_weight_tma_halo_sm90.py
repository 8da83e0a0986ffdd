"""Weight gradients of windows of 3 x 3 on rasters, whose operands TMA brings once for all taps,
products by wgmma."""

from __future__ import annotations

from dnnarray._cuda.conv import tiling
from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, conv_axes
from dnnarray._cuda.conv.implicit_tma_sm90 import gradient_map, windows_map
from dnnarray._cuda.conv.raster import axes_of
from dnnarray._cuda.conv.tiling import BLOCK
from dnnarray._cuda.conv.wgrad import HaloSplit
from dnnarray._cuda.core.arguments import Arguments, Box, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 512
_MIRRORED = 24  # places of a ring that stand twice


@frozen
class ImplicitWeightTmaHaloSm90Config(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_tma_halo_sm90.cu``."""

    element: str
    axes: int
    size: int


@frozen
class ImplicitWeightTmaHaloSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_weight_tma_halo_sm90.cu`` is called with; `x_end` brings the rows that stand twice
    in shared memory."""

    dy: Box
    x: Box
    x_end: Box
    partial: FloatOut
    images: Int
    pitch: Int
    height: Int
    channels: Int
    outs: Int
    groups: Int
    splits: Int
    blocks: Int
    ring: Int
    axes: ConvAxes


def halo_sums(
    g: Geometry, split: HaloSplit, small: Operand, large: Operand, partial: Operand, units: int, size: int = BLOCK
) -> Plan:
    """Sums of each part; of each 64 channels those between neighbours of the same `size`."""
    r, axes = split.raster, axes_of(g)
    words = ["conv_implicit_weight_tma_halo_sm90", SHORT[small.dtype], f"{axes}d"] + [f"c{size}"] * (size != BLOCK)
    config = ImplicitWeightTmaHaloSm90Config(TYPES[small.dtype], axes, size)
    kernel = Kernel("conv/implicit_weight_tma_halo_sm90.cu", "_".join(words), config, ("ptx/tma", "conv/geometry"))
    places = r.corners(g, axes)
    arguments = ImplicitWeightTmaHaloSm90Arguments(
        dy=gradient_map(g, small, r.result_corners(g, axes)),
        x=windows_map(g, large, places, BLOCK),
        x_end=windows_map(g, large, places, _MIRRORED),
        partial=partial.array,
        images=g.n,
        pitch=r.pitch,
        height=r.height,
        channels=g.c,
        outs=g.k,
        groups=g.groups,
        splits=split.count,
        blocks=split.blocks,
        ring=split.ring,
        axes=conv_axes(g),
    )
    tiles = -(-g.k // BLOCK) * -(-g.c // BLOCK) * g.window[0] * g.groups
    return planned(kernel, (min(tiles * split.count, units), 1, 1), _THREADS, arguments, shared_memory=tiling.SHARED)
