"""`grouped_tma_sm90`: groups of 8, 16 or 32 channels, windows gathered by TMA (sm_90a), products of
each group's own by wgmma.

`grouped_tma_tf32`: the same in float32, which is rounded to TF32, also for groups of 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.conv import implicit_tma_sm90
from dnnarray._cuda.conv.arguments import pixel_strides
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.grouped_maps import GroupedMaps, wgrad_seconds
from dnnarray._cuda.conv.grouped_maps import rejects as rejects_grouped
from dnnarray._cuda.conv.implicit import misfit, part_of, target_of
from dnnarray._cuda.conv.implicit_tma_sm90 import windows_map
from dnnarray._cuda.conv.implicit_weight_tma_halo_sm90 import halo_sums
from dnnarray._cuda.conv.implicit_weight_tma_sm90 import window_sums
from dnnarray._cuda.conv.kinds import HOPPER_HALF, HOPPER_SINGLE
from dnnarray._cuda.conv.layout import LayoutMaps
from dnnarray._cuda.conv.raster import Corners, axes_of, corners, extent, within
from dnnarray._cuda.conv.shared import NO_EPILOGUE, OF_IMAGES, Setting, correlations, extents, lying, too_large
from dnnarray._cuda.conv.split_sums import WeightTerms, sum_splits
from dnnarray._cuda.conv.tiling import BLOCK, ROW, SHARED, START
from dnnarray._cuda.conv.wgrad import HaloSplit, TmaSplit, faster
from dnnarray._cuda.core.device import unit
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._cuda.positional import NOTHING
from dnnarray._problems.base import remembered
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed, frozen
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32, HALF

SIZES = (8, 16, 32)  # channels of a group, on both sides; of float32 4, too
_LEAST = 32  # bytes of the sum's channels that a product takes
_GROUP = 128  # threads of a warpgroup
_CONSUMERS = (
    3,
    4,
)  # warpgroups of a block that multiply: where groups are put in pairs (whose repair takes registers), and elsewhere
_KEPT = 512  # bytes of shared memory for what all threads need
_WIDE = 16  # bytes of a load
_COLUMNS, _REACH = (3, 5, 7), 8  # of a window that share a box, and places from the first to the last
_STAGES = (6, 5, 4, 3, 2)  # of the ring of a warpgroup
_BEGIN, _WEIGHT = 5e-6, 0.3e-9  # seconds of a launch until a block has its weights, beside those of a weight
_TILE, _STAGE, _TAP = (
    0.37e-6,
    0.077e-6,
    0.04e-6,
)  # seconds of a tile beside its stages, of a stage beside its products, of a tap's products


@frozen
class GroupedTmaConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_tma_sm90.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    transposed: bool
    axes: int
    real: int
    across: int
    stages: int
    consumers: int


@frozen
class Choice:
    """Columns of the window that share a box, places of a row, stages of the ring, warpgroups that multiply, bytes of
    shared memory, seconds."""

    across: int
    pitch: int
    stages: int
    consumers: int
    shared_memory: int
    seconds: float


def whole(g: Geometry) -> Geometry:
    """The same images without groups: what tensor maps see."""
    return changed(g, groups=1, c=g.groups * g.c, k=g.groups * g.k)


def blocks(g: Geometry) -> Geometry:
    """Groups put together to blocks of 64 channels, of which a weight gradient keeps what is between channels of the
    same group."""
    return changed(g, groups=g.groups * g.c // BLOCK, c=BLOCK, k=BLOCK)


def shared_columns(g: Geometry) -> tuple[int, int] | None:
    """Columns of the window that share a box, and places of a row of the raster that makes this possible; None where
    they cannot."""
    pitch, fits = extent(g, 2), g.window[2] in _COLUMNS and (g.window[2] - 1) * g.dilation[2] <= _REACH
    if pitch is None or not fits or not within(axes_of(g), *_corners(g, pitch)):
        return None
    return g.window[2], pitch


def _corners(g: Geometry, pitch: int) -> Corners:
    """Of the places that tiles count: `pitch` in a row of the result."""
    lower, upper = corners(g, axes_of(g))
    return lower, (pitch - g.before[2] - g.space[2], *upper[1:])


def tiles_of(g: Geometry, pitch: int, itemsize: int) -> tuple[int, int]:
    """Along the places, `pitch` in a row of the result, and along the channels."""
    return -(-g.n * g.out[0] * g.out[1] * pitch // BLOCK), -(-g.groups * g.k * itemsize // ROW)


def grid_of(tiles: tuple[int, int], units: int) -> tuple[int, int]:
    """Blocks along both: at most one for each multiprocessor, with tiles of the same channels if that is possible."""
    across = min(tiles[1], units)
    return min(tiles[0], units // across), across


@remembered
def choose(g: Geometry, units: int, itemsize: int = 2) -> Choice | None:
    """What is done first; None where a window's weights do not fit into shared memory."""
    weights = g.taps * ROW // itemsize * max(g.c * itemsize, _LEAST)
    consumers = _CONSUMERS[g.c * itemsize >= _LEAST]
    found = []
    for across, pitch in filter(None, ((1, g.out[2]), shared_columns(g))):
        stage = (BLOCK + (_REACH if across > 1 else 0)) * ROW
        memory = {stages: 1024 + weights + consumers * stages * (stage + 16) for stages in _STAGES}
        fitting = [stages for stages in _STAGES if memory[stages] <= SHARED - _KEPT]
        if not fitting:
            continue
        tiles = tiles_of(g, pitch, itemsize)
        shares = [-(-t // blocks) for t, blocks in zip(tiles, grid_of(tiles, units), strict=True)]
        each = _TILE + g.taps // across * _STAGE + g.taps * _TAP
        seconds = _BEGIN + shares[1] * (_WEIGHT * weights / 2 + shares[0] * each)
        found.append((seconds, across, pitch, fitting[0], memory[fitting[0]]))
    if not found:
        return None
    seconds, across, pitch, stages, shared = min(found, key=itemgetter(0))
    return Choice(across, pitch, stages, consumers, shared, seconds)


@remembered
def wgrad_split(g: Geometry) -> HaloSplit | TmaSplit | None:
    """How a weight gradient is divided; None where `grouped` does it."""
    if g.groups * g.c % BLOCK or implicit_tma_sm90.misfit(whole(g)):
        return None
    return faster(blocks(g), g)


class GroupedTmaMaps:
    """The maps of a group's own products: `shared.Maps`. Operands of several types, and weight gradients that
    `wgrad_split` leaves, go by `GroupedMaps`."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._g, self._units = setting, setting.steps, setting.g, setting.units
        self._grouped = GroupedMaps(setting)

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        if not self._takes(large.dtype):
            self._grouped.forward(large, weight, small, epilogue)
            return
        self._steps.add(self._launch(self._g, large, weight, small, epilogue, False))

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """One correlation of stride 1 for each residue of the stride."""
        g = self._g
        if not self._takes(small.dtype) or not (g.phases_cover or epilogue.empty):
            self._grouped.dgrad(small, weight, large, epilogue)
            return
        if not g.phases_cover:
            size = math.prod(self._setting.shape(False))
            self._steps.add(zero(large.array, size * large.dtype.itemsize, self._steps.aligned))
        for phase in g.phases:
            part, target = part_of(weight, phase), target_of(large, phase)
            self._steps.add(self._launch(phase.geometry, small, part, target, epilogue, True))

    def _takes(self, dtype: np.dtype) -> bool:
        return dtype in HALF or self._setting.precision == "high"

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        split, shape = wgrad_split(self._g), self._setting.weight_shape
        if split is None or small.dtype not in HALF or large.dtype not in HALF:
            self._grouped.wgrad(small, large, weight)
            return
        with self._steps.borrowed():
            partial = self._steps.take(FLOAT32, split.count * math.prod(shape))
            first: Any = halo_sums if isinstance(split, HaloSplit) else window_sums
            self._steps.add(first(blocks(self._g), split, small, large, partial, self._units, size=self._g.c))
            terms = WeightTerms(self._g, small, large) if split.fills_up else None
            self._steps.add(sum_splits(partial, split.count, weight, shape, self._steps.aligned, terms))

    def _launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool) -> Plan:
        f, axes, chosen, wide = (
            formula(e.activation, x.dtype),
            axes_of(g),
            choose(g, self._units, x.dtype.itemsize),
            whole(g),
        )
        assert chosen is not None
        across, places = chosen.across, g.n * g.out[0] * g.out[1] * chosen.pitch
        flags = e.bias is not None, e.residual is not None, transposed
        config = GroupedTmaConfig(
            TYPES[x.dtype], TYPES[y.dtype], f.type, *flags, axes, g.c, across, chosen.stages, chosen.consumers
        )
        words = [
            "conv_grouped_tma_sm90",
            SHORT[x.dtype],
            "to",
            SHORT[y.dtype],
            e.name,
            f"{axes}d_c{g.c}x{across}x{chosen.stages}x{chosen.consumers}",
        ]
        kernel = Kernel(
            "conv/grouped_tma_sm90.cu", "_".join(words + ["transposed"] * transposed), config, ("core/activation",)
        )
        behind = _REACH if across > 1 else 0
        images = windows_map(wide, x, _corners(g, chosen.pitch) if across > 1 else corners(g, axes), BLOCK + behind)
        tiles = tiles_of(g, chosen.pitch, x.dtype.itemsize)
        form, turned = row_form(w, g.c, g.window)
        pointers: tuple[Any, ...] = (
            x.array,
            w.array,
            NOTHING if e.bias is None else e.bias,
            e.residual or x.array,
            y.array,
        )
        numbers = (
            places,
            chosen.pitch,
            *tiles,
            wide.k,
            form,
            int(turned),
            *w.strides,
            *pixel_strides(x.strides),
            *pixel_strides(y.strides),
            *extents(g),
        )
        grid, threads = (*grid_of(tiles, self._units), 1), (1 + chosen.consumers) * _GROUP
        return Plan(kernel, grid, threads, (images, *pointers, *numbers, f.p, f.q), chosen.shared_memory, early=True)


def row_form(w: Operand, c: int, window: Sequence[int]) -> tuple[int, bool]:
    """How rows of a weight lie: 1 for dense (C, window), 2 for dense (window, C), 0 for neither; and whether their taps
    are the other way round."""
    row, channel, *steps = w.strides
    _, height, width = window
    signs = {step > 0 for step, n in zip(steps, window, strict=True) if n > 1}
    turned = signs == {False}
    start = sum((n - 1) * step for step, n in zip(steps, window, strict=True)) if turned else 0
    aligned = row * w.dtype.itemsize % _WIDE == 0 and w.at(start).offset % _WIDE == 0
    for form, (own, tap) in ((1, (math.prod(window), 1)), (2, (1, c))):
        dense = (height * width * tap, width * tap, tap)
        if (
            aligned
            and len(signs) < 2
            and channel == own
            and all(abs(a) == b or n == 1 for a, b, n in zip(steps, dense, window, strict=True))
        ):
            return form, turned
    return 0, False


# --- judgement --------------------------------------------------------------------------------------------------------


def _same(g: Geometry) -> Geometry:
    return g


def maps(setting: Setting) -> GroupedTmaMaps | LayoutMaps | DirectMaps:
    """The kernels need 16-byte addresses and channels-last memory."""
    if not setting.steps.aligned:
        return DirectMaps(setting)
    return GroupedTmaMaps(setting) if setting.last else LayoutMaps(setting, GroupedTmaMaps, _same)


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    return _rejects(problem, op, device)


def rejects_single(op: str, problem: ConvProblem, device: Device) -> str | None:
    """Of `grouped_tma_tf32`."""
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if op not in OF_IMAGES:
        return "the gradient of the weight"
    if reason := HOPPER_SINGLE.refuses(dtype, device):
        return reason
    if g.groups == 1 or g.c != g.k or g.c not in (4, *SIZES):
        return f"{g.groups} groups of {g.c} and {g.k} channels; it takes several, of 4, 8, 16 or 32 on both sides"
    if not lying(problem).last:
        return "memory that is not channels-last"
    return _misfit(op, problem, device, g, dtype)


@remembered
def _rejects(problem: ConvProblem, op: str, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if reason := HOPPER_HALF.refuses(dtype, device):
        return reason
    if g.groups == 1 or g.c != g.k or g.c not in SIZES:
        return f"{g.groups} groups of {g.c} and {g.k} channels; it takes several, of 8, 16 or 32 on both sides"
    if op == "conv_backward_weight" and wgrad_split(g) is None:
        return f"{g.groups * g.c} channels, no multiple of {BLOCK}, or windows that a tensor map cannot hold"
    if reason := _misfit(op, problem, device, g, dtype):
        return reason
    return rejects_grouped(op, problem, device) if problem.runs.wgrad and wgrad_split(g) is None else None


def _misfit(op: str, problem: ConvProblem, device: Device, g: Geometry, dtype: np.dtype) -> str | None:
    """Why the kernel's products do not do it, or None."""
    if reason := misfit(op, problem, g) or too_large(g):
        return reason
    wanted = correlations(problem)
    if reason := next(filter(None, (implicit_tma_sm90.misfit(whole(w)) for w in wanted)), None):
        return reason
    if any(choose(w, device.units, dtype.itemsize) is None for w in wanted):
        return f"a window of {g.window}, whose weights do not fit into shared memory"
    return None


_COPIES = 3  # times that the copies to another order take of what the bandwidth would allow
_SHARE = 0.8  # of the bandwidth


def _wgrad_seconds(g: Geometry, device: Device) -> float:
    split = wgrad_split(g)
    return START + split.seconds + 2 * device.launch if split else wgrad_seconds(g, device)


def _correlates(g: Geometry, device: Device, itemsize: int) -> float:
    found = choose(g, device.units, itemsize)
    return found.seconds + device.launch if found else math.inf


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    """The launches one after the other; the efficiency is of the peak."""
    g, dtype = problem.geometry, problem.inputs[0].dtype
    moved = dtype.itemsize * (g.sizes[0] + g.sizes[2]) / (_SHARE * device.bandwidth)
    takes = problem.runs
    found = [_correlates(g, device, dtype.itemsize)] * takes.forward
    if takes.dgrad:
        found.append(sum(_correlates(p.geometry, device, dtype.itemsize) for p in g.phases))
    if takes.wgrad:
        found.append(_wgrad_seconds(g, device))
    seconds = sum(max(f, moved) for f in found)
    if not lying(problem).last:
        seconds += _COPIES * 2 * problem.bytes * problem.maps / device.bandwidth
    of_peak = unit(dtype, "high")
    peak = device.peak.get(of_peak or "") or device.peak["float32"]
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), 0, of_peak)
