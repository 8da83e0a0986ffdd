"""`grouped_tma_sm90`: groups of 16 or 32 channels, windows gathered by the copy engine (TMA, sm_90a), a product of each group's own by wgmma."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from dnnarray._cuda import conv_tiles, conv_tma
from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import Setting, extents, lying, too_large
from dnnarray._cuda.conv_direct import DirectMaps
from dnnarray._cuda.conv_grouped_maps import GroupedMaps, weigh_seconds
from dnnarray._cuda.conv_grouped_maps import rejects as rejects_grouped
from dnnarray._cuda.conv_implicit import ImplicitMaps, along, misfit, sum_splits
from dnnarray._cuda.conv_layout import LayoutMaps
from dnnarray._cuda.conv_raster import Corners, axes_of, corners, extent, within
from dnnarray._cuda.conv_tiles import BLOCK, ROW, SHARED, START, Tile, rounds
from dnnarray._cuda.conv_tma import TmaConfig, result_map, weight_map, windows_map
from dnnarray._cuda.conv_weigh import HaloSplit, TmaSplit, halo_split, tma_split
from dnnarray._cuda.conv_weigh_tma import halo_sums, window_sums
from dnnarray._cuda.device import unit
from dnnarray._cuda.epilogue import Epilogue
from dnnarray._cuda.plan import SHORT, TYPES, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.base import remembered
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32, HALF, name_of

SIZES = (16, 32)  # channels of a group, on both sides
_WEIGHED = (8, 16, 32)  # of a weight gradient, whose products keep only what is of one group
_GROUP = 128  # threads of a warpgroup
_L2 = 75e9  # bytes a second that a multiprocessor gets
_END = 92e-12  # seconds of an element of a tile's end
_PRODUCTS, _FILL = 0.72e-9, 1.5e-6  # seconds of a tap's products of a row of 64 channels; until the first stage is there


@dataclass(frozen=True)
class GroupedTmaConfig(TmaConfig):
    """Compile-time settings of ``kernels/conv/grouped_tma_sm90.cu``."""

    size: int
    across: int


@dataclass(frozen=True)
class Choice:
    """Pixels of a tile with the stages of its ring, the columns of the window that share a box, places of a row, and the seconds that it takes."""

    tile: Tile
    across: int
    pitch: int
    seconds: float


_MOST = (256, 192, 128)  # pixels of a tile
_COLUMNS, _REACH = (3, 5, 7), 8  # of a window that share a box, and places from the first to the last
_STAGES = (8, 7, 6, 5, 4, 3)


def whole(g: Geometry) -> Geometry:
    """The same images without groups: what tensor maps see."""
    return replace(g, groups=1, c=g.groups * g.c, k=g.groups * g.k)


def blocks(g: Geometry) -> Geometry:
    """Groups put together to blocks of 64 channels, of which a weight gradient keeps what is between channels of the same group."""
    return replace(g, groups=g.groups * g.c // BLOCK, c=BLOCK, k=BLOCK)


def shared_columns(g: Geometry) -> tuple[int, int] | None:
    """Columns of the window that share a box, and places of a row of the raster that makes this possible; None where they cannot."""
    pitch, fits = extent(g, 2), g.window[2] in _COLUMNS and (g.window[2] - 1) * g.dilation[2] <= _REACH
    if pitch is None or not fits or not within(axes_of(g), *_corners(g, pitch)):
        return None
    return g.window[2], pitch


def _corners(g: Geometry, pitch: int) -> Corners:
    """Of the places that tiles count: `pitch` in a row of the result."""
    lower, upper = corners(g, axes_of(g))
    return lower, (pitch - g.before[2] - g.space[2], *upper[1:])


def tiles(size: int, across: int) -> Iterator[Tile]:
    """Each height with as many stages as fit beside the rest."""
    for m in _MOST:
        yield next(t for t in (Tile(m, BLOCK, s) for s in _STAGES) if shared_memory(t, size, across) <= SHARED)


@remembered
def choose(g: Geometry, units: int) -> Choice:
    """What is done first."""
    wide = replace(g, groups=1, k=g.groups * g.k)
    found = []
    for across, pitch in filter(None, ((1, g.out[2]), shared_columns(g))):
        places = g.n * g.out[0] * g.out[1] * pitch
        for t in tiles(g.c, across):
            products = _PRODUCTS * g.taps * t.m
            each = max(g.taps // across * _stage(t, g.c, across) / _L2, products + _END * t.m * t.n)
            found.append((START + _FILL + rounds(wide, places, t, units) * each, t, across, pitch))
    seconds, tile, across, pitch = min(found, key=itemgetter(0))
    return Choice(tile, across, pitch, seconds)


@remembered
def weighing(g: Geometry) -> HaloSplit | TmaSplit | None:
    """How a weight gradient is divided; None where `grouped` does it."""
    if g.groups * g.c % BLOCK or conv_tma.misfit(whole(g)):
        return None
    found: list[HaloSplit | TmaSplit | None] = [tma_split(blocks(g), g), halo_split(blocks(g), g)]
    return min((f for f in found if f is not None), key=lambda s: s.seconds)


class GroupedTmaMaps(ImplicitMaps):
    """The maps of a group's own products: `conv_common.Maps`. Weight gradients of other windows go by `GroupedMaps`."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._grouped = GroupedMaps(setting)

    @property
    def transposes(self) -> bool:
        return True

    def weigh(self, small: Operand, large: Operand, weight: Operand) -> None:
        split, shape = weighing(self._g), self._setting.weight_shape
        if split is None or small.dtype not in HALF or large.dtype not in HALF:
            self._grouped.weigh(small, large, weight)
            return
        with self._steps.borrowed():
            partial = self._steps.take(FLOAT32, split.count * math.prod(shape))
            first: Any = halo_sums if isinstance(split, HaloSplit) else window_sums
            self._steps.add(first(blocks(self._g), split, small, large, partial, self._units, size=self._g.c))
            self._steps.add(sum_splits(partial, split.count, weight, shape))

    def launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        f, axes, chosen, wide = formula(e.activation, x.dtype), axes_of(g), choose(g, self._units), whole(g)
        tile, across, places = chosen.tile, chosen.across, g.n * g.out[0] * g.out[1] * chosen.pitch
        given = TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, e.residual is not None
        words = ["conv_grouped_tma_sm90", SHORT[x.dtype], "to", SHORT[y.dtype], tile.name, e.name, f"{axes}d", f"c{g.c}x{across}"]
        config = GroupedTmaConfig(*given, *tile.settings, transposed, axes, g.c, across)
        kernel = Kernel("conv/grouped_tma_sm90.cu", "_".join(words + ["transposed"] * transposed), config, ("activation",))
        weight, backwards = weight_map(g, w, False, BLOCK)
        weight = replace(weight, box=(g.c, 1, 1, 1, BLOCK))
        images = windows_map(wide, x, _corners(g, chosen.pitch) if across > 1 else corners(g, axes), tile.m + _behind(across))
        result = result_map(wide, y, axes) if y.dtype in HALF else images
        residual = replace(result, array=e.residual) if e.residual else result
        count = conv_tiles.counts(wide, places, tile)[:2]
        pointers = (e.bias or x.array, e.residual or x.array, y.array)
        numbers = (places, chosen.pitch, backwards, *count, wide.k, *along(y.strides), *extents(g))
        grid = (min(math.prod(count), self._units), 1, 1)
        threads = _GROUP * (1 + _consumers(tile))
        return Plan(
            kernel, grid, threads, (images, weight, result, residual, *pointers, *numbers, f.p, f.q), shared_memory(tile, g.c, across)
        )


def _consumers(t: Tile) -> int:
    """Warpgroups that multiply: each 64 rows, or 128 of the tallest tile."""
    return t.m // (128 if t.m > 192 else 64)


def _behind(across: int) -> int:
    """Places of a box behind a tile's last one."""
    return _REACH if across > 1 else 0


def _stage(t: Tile, size: int, across: int) -> int:
    """Bytes of a stage."""
    return (t.m + _behind(across)) * ROW + across * BLOCK * size * 2


def shared_memory(t: Tile, size: int, across: int) -> int:
    """Bytes: the stages, two panels of a warpgroup that results leave by where no columns share a box, and the barriers of all."""
    return 1024 + t.stages * (_stage(t, size, across) + 16) + (_consumers(t) * 2 * (BLOCK * ROW + 16) if across == 1 else 0)


# --- judgement --------------------------------------------------------------------------------------------------------

_CORRELATES = ("conv", "conv_backward", "conv_transpose_backward")
_SPREADS = ("conv_transpose", "conv_backward_input", "conv_backward", "conv_transpose_backward")
_WEIGHS = ("conv_backward_weight", "conv_backward", "conv_transpose_backward")


def _same(g: Geometry) -> Geometry:
    return g


def maps(setting: Setting) -> GroupedTmaMaps | LayoutMaps | DirectMaps:
    """The kernels need 16-byte addresses and channels-last memory."""
    if not setting.steps.aligned:
        return DirectMaps(setting)
    return GroupedTmaMaps(setting) if setting.last else LayoutMaps(setting, GroupedTmaMaps, _same)


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    return _rejects(problem, op, device)


@remembered
def _rejects(problem: ConvProblem, op: str, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if device.capability != (9, 0):
        return "a device without its matrix instructions (sm_90a)"
    if dtype not in HALF:
        return f"{name_of(dtype)} arrays; it takes float16 and bfloat16"
    sizes = _WEIGHED if op == "conv_backward_weight" else SIZES
    if g.groups == 1 or g.c != g.k or g.c not in sizes:
        return f"{g.groups} groups of {g.c} and {g.k} channels; it takes several, of {' or '.join(map(str, sizes))} on both sides"
    if op == "conv_backward_weight" and weighing(g) is None:
        return f"{g.groups * g.c} channels, no multiple of {BLOCK}, or windows that a tensor map cannot hold"
    if reason := misfit(op, problem, g) or too_large(g):
        return reason
    wanted = [g] * (op in _CORRELATES) + [p.geometry for p in g.phases] * (op in _SPREADS)
    reason = next(filter(None, (conv_tma.misfit(whole(w)) for w in wanted)), None)
    return reason or (rejects_grouped(op, problem, device) if op in _WEIGHS and weighing(g) is None else None)


_COPIES = 3  # times that the copies to another order take of what the bandwidth would allow
_SHARE = 0.8  # of the bandwidth


def _weigh_seconds(g: Geometry, device: Device) -> float:
    split = weighing(g)
    return START + split.seconds + 2 * device.launch if split else weigh_seconds(g, device)


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    """The launches one after the other, with one that packs the weight; the efficiency is of the peak."""
    g, dtype = problem.geometry, problem.inputs[0].dtype
    moved = dtype.itemsize * (g.sizes[0] + g.sizes[2]) / (_SHARE * device.bandwidth)
    found = [choose(g, device.units).seconds + device.launch] * (op in _CORRELATES)
    if op in _SPREADS:
        found.append(sum(choose(p.geometry, device.units).seconds + device.launch for p in g.phases))
    if op in _WEIGHS:
        found.append(_weigh_seconds(g, device))
    seconds = sum(max(f, moved) for f in found) + device.launch * (op != "conv_backward_weight")
    if not lying(op, problem).last:
        seconds += _COPIES * 2 * problem.bytes * problem.maps / device.bandwidth
    of_peak = unit(dtype, "highest")
    peak = device.peak.get(of_peak or "") or device.peak["float32"]
    return Cost(problem.flops, problem.bytes, min(problem.flops / peak / seconds, 1.0) if problem.flops else 1.0, 0, of_peak)
