"""Weight gradients whose operands the copy engine brings (TMA, sm_90a): the launches, and what the engine does not take."""

from __future__ import annotations

import math

from dnnarray._cuda.conv import layout, tiling, tma_tiling, weigh
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.implicit import ImplicitMaps, along
from dnnarray._cuda.conv.layout import LayoutMaps
from dnnarray._cuda.conv.raster import Corners, axes_of, corners
from dnnarray._cuda.conv.shared import Setting, extents
from dnnarray._cuda.conv.tiling import BLOCK, Split
from dnnarray._cuda.conv.tma import TmaMaps, windows_map
from dnnarray._cuda.conv.weigh import HaloSplit, TmaSplit
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, TensorMap
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_HALO_THREADS, _THREADS = 512, 384
_MIRRORED = 24  # places of a ring that stand twice


@frozen
class HaloWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_tma_halo_sm90.cu``."""

    element: str
    axes: int
    size: int


@frozen
class TmaWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_tma_sm90.cu``."""

    element: str
    tile_m: int
    tile_n: int
    stages: int
    axes: int
    direct: bool
    size: int


class WeighingMaps(TmaMaps):
    """The maps with all operands from the copy engine, where it brings them fast."""

    def divided(self, g: Geometry) -> Split | HaloSplit:
        return weigh.weighing(g)

    def whole(self, split: Split | HaloSplit, small: Operand, large: Operand, weight: Operand) -> Plan | None:
        dense = weight.strides[1] == 1 and not any(s % 2 for s in along(weight.strides))
        return window_sums(self._g, split, small, large, weight, self._units, True) if isinstance(split, TmaSplit) and dense else None

    def partial_sums(self, split: Split | HaloSplit, small: Operand, large: Operand, partial: Operand) -> Plan:
        if isinstance(split, HaloSplit):
            return halo_sums(self._g, split, small, large, partial, self._units)
        if isinstance(split, TmaSplit):
            return window_sums(self._g, split, small, large, partial, self._units)
        return super().partial_sums(split, small, large, partial)


def window_sums(
    g: Geometry, split: TmaSplit, small: Operand, large: Operand, result: Operand, units: int, direct: bool = False, size: int = BLOCK
) -> Plan:
    """Into the weight (`direct`) or its parts; of each 64 channels the sums between neighbours of the same `size`."""
    tile, axes = split.tile, axes_of(g)
    words = (
        ["conv_implicit_weight_tma_sm90", SHORT[small.dtype], tile.name, f"{axes}d"] + ["direct"] * direct + [f"c{size}"] * (size != BLOCK)
    )
    config = TmaWeightConfig(TYPES[small.dtype], *tile.settings, axes, direct, size)
    kernel = Kernel("conv/implicit_weight_tma_sm90.cu", "_".join(words), config)
    maps = gradient_map(g, small, ((0,) * axes, (0,) * axes)), windows_map(g, large, corners(g, axes), BLOCK)
    tiles = -(-g.k // tile.m), -(-g.taps * -(-g.c // BLOCK) * BLOCK // tile.n)
    sizes = (g.n * g.pixels, g.c, *tiles, g.groups, g.k, split.count, split.blocks)
    grid = (min(math.prod(tiles) * g.groups * split.count, units), 1, 1)
    steps = along(result.strides) if direct else (0, 0, 0, 0)
    return Plan(kernel, grid, _THREADS, (*maps, result.array, result.array, *sizes, *steps, *extents(g)), tile.shared_memory)


def halo_sums(g: Geometry, split: HaloSplit, small: Operand, large: Operand, partial: Operand, units: int, size: int = BLOCK) -> Plan:
    """Sums of each part; of each 64 channels those between neighbours of the same `size`."""
    r, axes = split.raster, axes_of(g)
    words = ["conv_implicit_weight_tma_halo_sm90", SHORT[small.dtype], f"{axes}d"] + [f"c{size}"] * (size != BLOCK)
    kernel = Kernel("conv/implicit_weight_tma_halo_sm90.cu", "_".join(words), HaloWeightConfig(TYPES[small.dtype], axes, size))
    places = r.corners(g, axes)
    images = windows_map(g, large, places, BLOCK), windows_map(g, large, places, _MIRRORED)
    sizes = (g.n, r.pitch, r.height, g.c, g.k, g.groups, split.count, split.blocks, split.ring)
    tiles = -(-g.k // BLOCK) * -(-g.c // BLOCK) * g.window[0] * g.groups
    grid = (min(tiles * split.count, units), 1, 1)
    arguments: tuple[Array | TensorMap | int, ...] = (gradient_map(g, small, r.result_corners(g, axes)), *images, partial.array, *sizes)
    return Plan(kernel, grid, _HALO_THREADS, (*arguments, *extents(g)), tiling.SHARED)


def gradient_map(g: Geometry, y: Operand, corners: Corners) -> TensorMap:
    """The boxes of 64 channels of neighbouring pixels of the result."""
    axes, (n, _, *space) = len(corners[0]), (s * y.dtype.itemsize for s in y.strides)
    shape = (g.groups * g.k, *g.out[::-1][:axes], g.n)
    return TensorMap(y.array, y.dtype, shape, (*space[::-1][:axes], n), (BLOCK, BLOCK), (1,) * len(shape), corners)


# --- the table's entry --------------------------------------------------------------------------------------------------


def maps(setting: Setting) -> ImplicitMaps | LayoutMaps | DirectMaps:
    return layout.maps(setting, WeighingMaps)


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    return layout.cost(op, problem, device, tma_tiling.choose, weigh.weighing)


def floor(op: str, problem: ConvProblem, device: Device) -> float:
    return layout.floor(op, problem, device, tma_tiling.least, weigh.least_weighing)
