"""`grouped` as an algorithm: the three maps, what they do not take, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.gemm import GemmMaps
from dnnarray._cuda.conv.grouped import CHUNKS_OUT, MOST, PLACES, SHARED, Tile, correlation, fits, slab, stacked, tile
from dnnarray._cuda.conv.grouped_float import QUAD, float_correlation, float_tile
from dnnarray._cuda.conv.grouped_float_weight import FloatSplit, float_floor, float_split, float_sums
from dnnarray._cuda.conv.grouped_rows import (
    RowSplit,
    RowTile,
    can_walk,
    row_correlation,
    row_split,
    row_tile,
    rows_floor,
)
from dnnarray._cuda.conv.grouped_rows_weight import row_sums
from dnnarray._cuda.conv.grouped_weight import WeightSplit, weight_split, weight_sums
from dnnarray._cuda.conv.implicit import part_of, target_of
from dnnarray._cuda.conv.kinds import AMPERE_BOTH
from dnnarray._cuda.conv.layout import LayoutMaps
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, correlations, lying, too_large
from dnnarray._cuda.conv.split_sums import WeightTerms, sum_splits
from dnnarray._cuda.conv.tiling import adding_up
from dnnarray._cuda.core.device import unit
from dnnarray._cuda.core.plan import Plan
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32, HALF


class GroupedMaps:
    """The maps by slabs of groups: `shared.Maps`. Operands of several types go by the definition, their weight
    gradients by `GemmMaps`."""

    def __init__(self, setting: Setting) -> None:
        self._steps, self._g, self._units = setting.steps, setting.g, setting.units
        self._setting, self._plain, self._gemm = setting, DirectMaps(setting), GemmMaps(setting)

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        if not _takes(large, weight, small):
            self._plain.forward(large, weight, small, epilogue)
            return
        k, c, *window = weight.strides
        w = Operand(weight.array, weight.dtype, (self._g.k * k, k, c, *window))
        self._steps.add(self._launch(self._g, large, w, small, epilogue))

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """One correlation of stride 1 for each residue of the stride."""
        g = self._g
        if not (_takes(small, weight, large) and (g.phases_cover or epilogue.empty)):
            self._plain.dgrad(small, weight, large, epilogue)
            return
        if not g.phases_cover:
            size = math.prod(self._setting.shape(False))
            self._steps.add(zero(large.array, size * large.dtype.itemsize, self._steps.aligned))
        for phase in g.phases:
            part = part_of(weight, phase)
            k, c, *window = part.strides
            w = Operand(part.array, part.dtype, (g.k * k, c, k, *window))
            self._steps.add(self._launch(phase.geometry, small, w, target_of(large, phase), epilogue))

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        g, shape, single = self._g, self._setting.weight_shape, small.dtype == large.dtype == FLOAT32
        if not single and (small.dtype not in HALF or large.dtype not in HALF):
            self._gemm.wgrad(small, large, weight)
            return
        count, first = _parts(g, single)
        with self._steps.borrowed():
            sums = self._steps.take(FLOAT32, count * math.prod(shape))
            self._steps.add(first(g, small, large, sums))
            # products of halves are filled up with zeros
            terms = None if large.dtype == FLOAT32 else WeightTerms(g, small, large)
            self._steps.add(sum_splits(sums, count, weight, shape, self._steps.aligned, terms))

    def _launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue) -> Plan:
        if x.dtype == FLOAT32:
            return float_correlation(self._units, g, x, w, y, e)
        walks = x.dtype == y.dtype and row_tile(g, self._units, e.residual is not None)
        return (row_correlation if walks else correlation)(self._units, g, x, w, y, e)


def _parts(g: Geometry, single: bool) -> tuple[int, Callable[[Geometry, Operand, Operand, Operand], Plan]]:
    """Partial sums of a weight gradient, and their launch; `single`: of float32."""
    if single:
        whole = float_split(g)
        return (whole.splits if whole else 0), float_sums
    if rows := row_split(g):
        return rows.splits, row_sums
    split = weight_split(g)
    return (split.count if split else 0), weight_sums


def _takes(x: Operand, weight: Operand, y: Operand) -> bool:
    """Whether the kernels know these types together."""
    return x.dtype == weight.dtype and (x.dtype in HALF or x.dtype == y.dtype == FLOAT32)


def _same(g: Geometry) -> Geometry:
    return g


def maps(setting: Setting) -> GroupedMaps | LayoutMaps | DirectMaps:
    """The kernels need 16-byte addresses and channels-last memory."""
    if not setting.steps.aligned:
        return DirectMaps(setting)
    return GroupedMaps(setting) if setting.last else LayoutMaps(setting, GroupedMaps, _same)


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if reason := AMPERE_BOTH.refuses(dtype, device):
        return reason
    if dtype == FLOAT32 and not lying(problem).last:
        return "float32 arrays that are not channels-last"
    chunk = 16 // dtype.itemsize
    if 0 in (g.n, g.groups, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if (g.groups * g.c) % chunk or (g.groups * g.k) % chunk:
        return f"{g.groups * g.c} and {g.groups * g.k} channels; it takes multiples of {chunk}"
    if lying(problem).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    s = slab(g.c, g.k, chunk)
    if max(s.inputs, s.outputs) * chunk > MOST // (8 // chunk):
        return f"groups of {g.c} and {g.k} channels; those that fill vectors together may have {MOST // (8 // chunk)}"
    if max(g.groups * g.c * math.prod(g.space), g.groups * g.k * g.pixels) >= PLACES or g.n * g.pixels >= PLACES:
        return "an image of 2^31 elements or more"
    return too_large(g) or _too_wide(op, problem, device, dtype == FLOAT32)


def _adds(problem: ConvProblem) -> bool:
    """Whether a residual is added."""
    return problem.kind == "conv" and problem.inputs[3] is not None


def _too_wide(op: str, problem: ConvProblem, device: Device, single: bool) -> str | None:
    g = problem.geometry
    wanted = correlations(problem)
    found: list[Tile | RowTile | WeightSplit | RowSplit | FloatSplit | None] = []
    for w in wanted:
        if single:
            found.append(float_tile(stacked(w), device.units))
        elif walk := row_tile(w, device.units, _adds(problem)):
            found.append(walk)
    if not single:
        widest_last = sorted(wanted, key=lambda w: w.taps)  # of phases, the one with the widest window along each axis
        for widest in map(stacked, {(w.c, w.k): w for w in widest_last}.values()):
            if device.shared_memory < SHARED or not fits(widest, 4):
                found.append(tile(widest, device.units, 4))
    if problem.runs.wgrad:
        found.append(float_split(g) if single else row_split(g) or weight_split(g))
    all_fit = all(t is not None and t.shared_memory <= device.shared_memory for t in found)
    return None if all_fit else f"a window of {g.window}, which does not fit into shared memory"


_CLOCK = 1.7e9
# times that the steps of `grouped_rows` take of what is counted there; seconds
_SLOWER, _WEIGHT_SLOWER, _WEIGHT_BEGIN = 1.5, 1.1, 4e-6
_FLOAT_SLOWER = 2.7  # times that weight gradients of float32 take of what is counted in `grouped_float_weight`
_SHARE = 0.45  # of the bandwidth
_FMA, _FMA_SHARE = 128, 0.5  # float32 multiply-adds a clock of a multiprocessor; of them, by the kernel of float32
_BEGIN = 8e-6  # seconds until a block has its weights
_FLOAT_TILE = 7.5e-9  # seconds of a unit of `float_tile`'s time, beside the multiply-adds
_WAVEFRONTS, _PRODUCTS = (
    0.65e9,
    0.3e9,
)  # a second of a multiprocessor: 128 bytes of shared memory, products of 16 x 8 x 16
_COPIES = 1.5  # times that the copies to another order take of what the bandwidth would allow


def _by_tiles(g: Geometry, device: Device, wgrad: bool) -> float:
    """Seconds of one launch of `grouped`: the slowest of memory, shared memory and the matrix units."""
    s = slab(g.c, g.k)
    products = -(-g.groups // s.together) * -(-g.taps * s.inputs // 2) * g.n * g.pixels / 16
    each = -(-s.outputs // CHUNKS_OUT) * (5.0 if wgrad else 4.75) + 0.5 * s.outputs
    moved = 2 * (g.sizes[0] + g.sizes[2])
    on_chip = max(each / _WAVEFRONTS, s.outputs / _PRODUCTS) * products / device.units
    return max(moved / (_SHARE * device.bandwidth), on_chip) + _BEGIN


def _by_fma(g: Geometry, device: Device) -> float:
    """Seconds of one launch of `grouped_float`: its tiles read first and multiply then."""
    found = float_tile(stacked(g), device.units)
    return _without_tiles(g, device) + (0.0 if found is None else _FLOAT_TILE * found.time)


def _without_tiles(g: Geometry, device: Device) -> float:
    """The same without what each tile takes."""
    s = slab(g.c, g.k, QUAD)
    terms = g.n * g.pixels * g.taps * -(-g.groups // s.together) * s.inputs * s.outputs * QUAD * QUAD
    moved = 4 * (g.sizes[0] + g.sizes[2])
    return max(moved / (_SHARE * device.bandwidth), terms / (_FMA * _FMA_SHARE * _CLOCK * device.units)) + _BEGIN


def _correlates(g: Geometry, device: Device, single: bool, residual: bool = False) -> float:
    """Seconds of a correlation."""
    if single:
        return _by_fma(g, device) + device.launch
    walk = row_tile(g, device.units, residual)
    return (_by_tiles(g, device, False) if walk is None else _SLOWER * walk.time / _CLOCK) + device.launch


def wgrad_seconds(g: Geometry, device: Device, single: bool = False) -> float:
    """Seconds of a weight gradient."""
    if single and (split := float_split(g)):
        return _FLOAT_SLOWER * split.time / _CLOCK + _WEIGHT_BEGIN + 2 * device.launch
    walk = row_split(g)
    seconds = _by_tiles(g, device, True) if walk is None else _WEIGHT_SLOWER * walk.time / _CLOCK + _WEIGHT_BEGIN
    if not single and walk is None and (tiles := weight_split(g)):
        seconds += adding_up(g, tiles.count)
    return seconds + 2 * device.launch


_TERMS = 2048  # multiply-adds of a product of 16 x 8 x 16


def floor(op: str, problem: ConvProblem, device: Device) -> float:
    """Seconds of the products and of the launches alone; of some kernels, also of reading and writing the images."""
    if not problem.flops:
        return 0.0
    g, single = problem.geometry, problem.inputs[0].dtype == FLOAT32
    least = _least_single if single else _least
    seconds = sum(least(part, device) for part in correlations(problem))
    if not problem.runs.wgrad:
        return seconds
    by_rows = (
        float_floor(g) * _FLOAT_SLOWER
        if single
        else rows_floor(g, device.units, True) * _WEIGHT_SLOWER
        if can_walk(g)
        else None
    )
    return seconds + (_terms(g, device) if by_rows is None else by_rows / _CLOCK) + device.launch


def _least(g: Geometry, device: Device) -> float:
    """Of a correlation of half types."""
    seconds = rows_floor(g, device.units, False) * _SLOWER / _CLOCK if can_walk(g) else _terms(g, device)
    return seconds + device.launch


def _least_single(g: Geometry, device: Device) -> float:
    return _without_tiles(g, device) + device.launch


def _terms(g: Geometry, device: Device) -> float:
    """Seconds of the multiply-adds of the matrix units."""
    return g.macs / (_TERMS * _PRODUCTS * device.units) + _BEGIN


def cost(op: str, problem: ConvProblem, device: Device) -> Cost:
    """The launches one after the other; the efficiency is of the peak."""
    g, dtype, last = problem.geometry, problem.inputs[0].dtype, lying(problem).last
    single = dtype == FLOAT32
    seconds, found = 0.0, problem.runs
    if found.forward:
        seconds += _correlates(g, device, single, _adds(problem))
    if found.dgrad:
        seconds += sum(_correlates(p.geometry, device, single) for p in g.phases)
    if found.wgrad:
        seconds += wgrad_seconds(g, device, single)
    if not last:
        seconds += _COPIES * 2 * problem.bytes * problem.maps / device.bandwidth
    of_peak = unit(dtype, "highest")
    peak = device.peak.get(of_peak or "") or device.peak["float32"]
    return Cost(problem.flops, problem.bytes, share_of_peak(problem.flops, seconds, peak), 0, of_peak)
