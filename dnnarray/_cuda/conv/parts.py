"""Float32 convolution on the matrix units of sm_90a: operands in one or two parts of half types, windows by the copy
engine."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.conv import implicit_tma_sm90, parts_tiling, tiling
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.gemm import GemmMaps, same_memory
from dnnarray._cuda.conv.implicit import part_of, target_of
from dnnarray._cuda.conv.kinds import HOPPER_SINGLE
from dnnarray._cuda.conv.parts_tiling import WeightTiles
from dnnarray._cuda.conv.parts_weight_sums import parts_weight_sums
from dnnarray._cuda.conv.raster import axes_of, corners
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, extents, lying, too_large
from dnnarray._cuda.conv.tiling import BLOCK
from dnnarray._cuda.core.parts import NUMERICS, Numerics
from dnnarray._cuda.core.plan import TYPES, Array, Config, Kernel, Plan, TensorMap
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, share_of_peak
from dnnarray._spec import FLOAT32

_CHUNK = 8  # channels that 16 bytes of a part hold
_RANGES, _RANGE_THREADS = (
    528,
    512,
)  # blocks that look for the largest magnitude; their number is known without the device
_BLOCKS, _PARTS_THREADS = 1056, 256  # that write parts
_WAYS = ("none", "found", "guessed", "checked")  # as in the kernel
_SAMPLED = 1 << 20  # numbers of an array whose scale is guessed first
_SCALE = np.dtype(np.int64)  # struct Scale
_PLACES = 1 << 31
_MANY = 1 << 15  # matrices of taps of a weight, from which on it is brought to another order before
_SHARE = 0.25  # of the device's memory that parts may take


@frozen
class RangeConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_range.cu``."""

    vector: int
    threads: int


@frozen
class ImageConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_image.cu``."""

    element: str
    parts: int
    scale: int
    last: bool
    vector: int
    threads: int


@frozen
class PartsConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_tma_sm90.cu``."""

    element: str
    activation: str
    bias: bool
    residual: bool
    tile_m: int
    tile_n: int
    stages: int
    transposed: bool
    axes: int
    parts: int
    scaled: bool
    pairs: bool


@frozen
class PartsWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_weight_tma_sm90.cu``."""

    element: str
    tile_m: int
    tile_n: int
    stages: int
    axes: int
    parts: int
    scaled: bool


NAMES = {"highest": "parts_sm90", "high": "parts_sm90_tf32", "medium": "parts_sm90_bf16"}  # of the algorithms
SUMMARY = "operands in parts of half types, brought by TMA, products by wgmma"


@frozen
class InParts:
    """An array in parts: where each of them lies, and the scale of all."""

    parts: tuple[Operand, ...]
    scale: Array

    @property
    def both(self) -> tuple[Operand, Operand]:
        """The only one twice."""
        return self.parts[0], self.parts[-1]

    def lying(self, channels: int, space: Sequence[int]) -> InParts:
        """As arrays of five axes, channels-last in memory."""
        width, (d, h, w) = filled(channels), space
        strides = (d * h * w * width, 1, h * w * width, w * width, width)
        return InParts(tuple(Operand(p.array, p.dtype, strides) for p in self.parts), self.scale)


def filled(channels: int) -> int:
    """Channels of a part's row: whole chunks."""
    return -(-channels // _CHUNK) * _CHUNK


def in_parts(steps: Planner, source: Operand, how: Numerics, shape: tuple[int, int, int], last: bool) -> InParts:
    """Dense memory of `shape` (batch, channels, pixels), its channels fastest (`last`) or its pixels, as parts of rows
    of 8 channels or more."""
    batch, channels, pixels = shape
    width, size = filled(channels), batch * channels * pixels
    plane = batch * pixels * width
    whole, found = steps.take(how.dtype, how.parts * plane), steps.take(FLOAT32, _BLOCKS).array
    scale, guess = (steps.take(_SCALE, 1).array for _ in range(2))
    vector = 4 if steps.aligned and (channels if last else pixels) % 4 == 0 else 1
    for way, count in _ways(steps, how, source, found, size):
        config = ImageConfig(TYPES[how.dtype], how.parts, _WAYS.index(way), last, vector, _PARTS_THREADS)
        name = f"parts_image_{how.words}_{way}_{'last' if last else 'first'}_x{vector}"
        arguments = (source.array, found, count, scale, guess, whole.array, batch, channels, pixels, width, plane)
        steps.add(
            Plan(Kernel("conv/parts_image.cu", name, config), (_BLOCKS, 1, 1), _PARTS_THREADS, arguments, early=True)
        )
    return InParts(tuple(whole.part(i * plane) for i in range(how.parts)), scale)


def _ways(steps: Planner, how: Numerics, source: Operand, found: Array, size: int) -> tuple[tuple[str, int], ...]:
    """How the passes over an array find its scale, and how many blocks have looked at it before. A large one is read
    once, as a rule."""
    if not how.scaled:
        return (("none", 0),)
    if size >= _SAMPLED:
        return ("guessed", 0), ("checked", _BLOCKS)
    vector = 4 if steps.aligned else 1
    kernel = Kernel("conv/parts_range.cu", f"parts_range_x{vector}", RangeConfig(vector, _RANGE_THREADS))
    steps.add(Plan(kernel, (_RANGES, 1, 1), _RANGE_THREADS, (source.array, found, size), early=True))
    return (("found", _RANGES),)


class PartsMaps:
    """The maps by products of parts: `shared.Maps`. What they do not take goes through `GemmMaps`."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._g = setting, setting.steps, setting.g
        self._how = NUMERICS[setting.precision]
        inner = copy.copy(setting)
        inner.last = True
        self._gemm, self._inner = GemmMaps(setting), GemmMaps(inner)
        self._images: dict[Array, InParts] = {}

    def know(self, image: Operand, parts: InParts) -> None:
        """An image that is there in parts already."""
        self._images[image.array] = parts

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        x = self._image(large, False)
        with self._steps.borrowed():
            w = self._weight(weight)
            self._steps.add(self._launch(self._g, x, w, small, epilogue, False))
            self._repair(x, w).forward(large, weight, small, epilogue)

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """One correlation of stride 1 for each residue of the stride."""
        g = self._g
        if not (g.phases_cover or epilogue.empty):
            self._gemm.dgrad(small, weight, large, epilogue)
            return
        if not g.phases_cover:
            size = math.prod(self._setting.shape(False))
            self._steps.add(zero(large.array, size * large.dtype.itemsize, self._steps.aligned))
        y = self._image(small, True)
        with self._steps.borrowed():
            w = self._weight(weight)
            for phase in g.phases:
                part = InParts(tuple(part_of(p, phase) for p in w.parts), w.scale)
                self._steps.add(self._launch(phase.geometry, y, part, target_of(large, phase), epilogue, True))
            self._repair(y, w).dgrad(small, weight, large, epilogue)

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        y, x = self._image(small, True), self._image(large, False)
        with self._steps.borrowed():
            split = parts_tiling.split(self._g, self._how.parts)
            partial = self._steps.take(FLOAT32, split.count * math.prod(self._setting.weight_shape))
            images = (small, y.scale), (large, x.scale)
            self._steps.add(
                self._wgrad(split, y, x, partial),
                parts_weight_sums(self._g, split.count, partial, *images, weight, self._how.scaled),
            )

    # --- operands -----------------------------------------------------------------------------------------------------

    def _image(self, image: Operand, small: bool) -> InParts:
        """Kept, since several maps of a gradient take the same image."""
        if image.array not in self._images:
            self._images[image.array] = self._fresh(image, small)
        return self._images[image.array]

    def _fresh(self, image: Operand, small: bool) -> InParts:
        n, channels, *space = self._setting.shape(small)
        found = in_parts(self._steps, image, self._how, (n, channels, math.prod(space)), self._setting.last)
        return found.lying(channels, space)

    def _weight(self, weight: Operand) -> InParts:
        """As (K, window, C)."""
        shape = self._setting.weight_shape
        k, c, *window = shape
        taps, (_, h, w) = math.prod(window), window
        if taps == 1 and same_memory(shape, weight.strides, (1, k, 0, 0, 0)):
            found = in_parts(self._steps, weight, self._how, (1, c, k), False)
        elif (
            taps > 1 and k * c < _MANY and same_memory(shape, weight.strides, (c * taps, taps, h * w, w, 1))
        ):  # of one tap it is turned already
            found = in_parts(self._steps, weight, self._how, (k, c, taps), False)
        else:
            packed = self._inner.packed(weight, FLOAT32)
            found = in_parts(self._steps, packed, self._how, (1, c, k * taps), True)
        return found.lying(c, window)

    def _repair(self, x: InParts, w: InParts) -> DirectMaps | _Nothing:
        """An infinity in parts is NaN: what it reached is done again."""
        return DirectMaps(self._setting, repair=True, gates=(x.scale, w.scale)) if self._how.scaled else _Nothing()

    # --- launches -----------------------------------------------------------------------------------------------------

    def _launch(self, g: Geometry, x: InParts, w: InParts, y: Operand, e: Epilogue, transposed: bool) -> Plan:
        how, axes, f = self._how, axes_of(g), formula(e.activation, FLOAT32)
        chosen = parts_tiling.choose(g, self._setting.units, how.parts)
        tile = chosen.tile
        pairs = g.k % 2 == 0 and y.strides[1] == 1 and not any(s % 2 for s in (y.strides[0], *y.strides[2:]))
        given = f.type, e.bias is not None, e.residual is not None
        config = PartsConfig(TYPES[how.dtype], *given, *tile.settings, transposed, axes, how.parts, how.scaled, pairs)
        words = (
            ["conv_parts_tma_sm90", how.words, tile.name, e.name, f"{axes}d"]
            + ["transposed"] * transposed
            + ["pairs"] * pairs
        )
        kernel = Kernel("conv/parts_tma_sm90.cu", "_".join(words), config, ("core/activation",))
        images = [implicit_tma_sm90.windows_map(g, p, corners(g, axes), tile.m) for p in x.both]
        weights, (backwards, _) = zip(
            *(implicit_tma_sm90.weight_map(g, p, transposed, tile.n) for p in w.both), strict=True
        )
        rows = g.n * g.pixels
        tiles = tiling.counts(g, rows, tile)
        pointers = (x.scale, w.scale, e.bias or y.array, e.residual or y.array, y.array)
        numbers = (rows, g.taps * -(-g.c // BLOCK), g.c, backwards, *tiles, g.k, *y.strides, *extents(g))
        grid = (min(math.prod(tiles), self._setting.units), 1, 1)
        shared = parts_tiling.shared_memory(tile, how.parts)
        return Plan(
            kernel, grid, chosen.threads, (*images, *weights, *pointers, *numbers, f.p, f.q), shared, early=True
        )

    def _wgrad(self, split: tiling.Split, y: InParts, x: InParts, partial: Operand) -> Plan:
        g, how, tile, axes = self._g, self._how, split.tile, axes_of(self._g)
        config = PartsWeightConfig(TYPES[how.dtype], *tile.settings, axes, how.parts, how.scaled)
        kernel = Kernel(
            "conv/parts_weight_tma_sm90.cu", f"conv_parts_weight_tma_sm90_{how.words}_{tile.name}_{axes}d", config
        )
        rows, pitch = g.n * g.pixels, y.parts[0].strides[4] * how.dtype.itemsize
        shape, strides = (g.groups * g.k, 1, 1, 1, rows), (16, 16, 16, pitch)
        grads = [TensorMap(p.array, p.dtype, shape, strides, (BLOCK, 1, 1, 1, BLOCK)) for p in y.both]
        images = [implicit_tma_sm90.windows_map(g, p, corners(g, axes), BLOCK) for p in x.both]
        tiles = WeightTiles.of(g, tile)
        numbers = (rows, tiles.m, tiles.n, tiles.groups, g.k, g.c, split.count, split.blocks, *extents(g))
        grid = (min(tiles.count * split.count, self._setting.units), 1, 1)
        arguments: tuple[TensorMap | Array | int, ...] = (*grads, *images, y.scale, x.scale, partial.array, *numbers)
        return Plan(
            kernel,
            grid,
            parts_tiling.WEIGHT_THREADS,
            arguments,
            parts_tiling.shared_memory(tile, how.parts),
            early=True,
        )


class _Nothing:
    """No repair."""

    def forward(self, *_: object) -> None: ...

    def dgrad(self, *_: object) -> None: ...


# --- judgement --------------------------------------------------------------------------------------------------------


def maps(setting: Setting) -> PartsMaps | DirectMaps:
    """TMA needs 16-byte addresses; elsewhere the definition does it."""
    return PartsMaps(setting) if setting.steps.aligned else DirectMaps(setting)


def _correlations(op: str, g: Geometry) -> Iterator[Geometry]:
    """What an operation asks of TMA."""
    if op != "conv_backward_input" and op != "conv_transpose":
        yield g
    if op not in ("conv", "conv_backward_weight"):
        yield from (phase.geometry for phase in g.phases)


def rejects(op: str, problem: ConvProblem, device: Device) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if reason := HOPPER_SINGLE.refuses(dtype, device):
        return reason
    if 0 in (g.n, g.groups, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if g.n * max(g.pixels, math.prod(g.space)) >= _PLACES:
        return f"an image array of {_PLACES} pixels or more"
    large, _, small = g.sizes
    if device.memory and (large + small) * dtype.itemsize > device.memory * _SHARE:
        return "operands whose parts take more than a quarter of the device's memory"
    if lying(problem).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    return too_large(g) or next(filter(None, map(implicit_tma_sm90.misfit, _correlations(op, g))), None)


_MAPS = {  # of each operation with a single one: (correlations, dgrad, weight gradients)
    "conv": (1, 0, 0),
    "conv_transpose": (0, 1, 0),
    "conv_backward_input": (0, 1, 0),
    "conv_backward_weight": (0, 0, 1),
}
_LAUNCHES, _START = 6, 2.5e-6  # of a map; seconds of each
_SECTOR, _PART = (
    32,
    0.35e-6,
)  # bytes that are read for an element whose neighbours lie apart; seconds of a part of a sum, the other
_FAST, _SLOW = 0.9, 0.6  # shares of the bandwidth that a pass over a large array and one over a small one reach


def cost(op: str, problem: ConvProblem, device: Device, precision: str = "highest") -> Cost:
    """The products, and in front of them the passes that bring the operands into parts."""
    g, how = problem.geometry, NUMERICS[precision]
    correlations, dgrad, weights = _MAPS.get(op, problem.runs)
    large, weight, small = g.sizes
    given = (weight, correlations + dgrad > 0), (large, correlations + weights > 0), (small, dgrad + weights > 0)
    seconds = sum(_passes(size, how) for size, taken in given if taken) / device.bandwidth
    seconds += (correlations + dgrad + weights) * (_LAUNCHES - 1) * _START
    if correlations:
        seconds += parts_tiling.choose(g, device.units, how.parts).seconds
    if dgrad:
        seconds += sum(parts_tiling.choose(p.geometry, device.units, how.parts).seconds for p in g.phases)
    if weights:
        split = parts_tiling.split(g, how.parts)
        seconds += split.seconds + split.count * _PART
        if g.taps > 1:  # parts lie as (K, window, C), the weight, as a rule, as (K, C, window)
            seconds += split.count * weight * (_SECTOR - 4) / (_FAST * device.bandwidth)
    flops = 2 * g.macs * (correlations + dgrad + weights)
    peak = device.peak.get(f"{how.dtype.name}_mma") or device.peak["float32"]
    return Cost(flops, problem.bytes, share_of_peak(flops, seconds, peak), 1, f"{how.dtype.name}_mma")


def _passes(size: int, how: Numerics) -> float:
    """Bytes of the passes over an array, as if the bandwidth were reached; small ones are read twice."""
    large = size >= _SAMPLED
    return size * (4 + 4 * (how.scaled and not large) + 2 * how.parts) / (_FAST if large else _SLOW)
