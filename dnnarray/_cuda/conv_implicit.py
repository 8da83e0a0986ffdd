"""Convolution as one matrix product whose windows are gathered on the way into shared memory: plans for the tensor-core kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import NO_EPILOGUE, Setting, extents, too_large
from dnnarray._cuda.conv_gemm import GemmMaps
from dnnarray._cuda.epilogue import THREADS, Epilogue, rearrange
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._cuda.zero import zero
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry, Phase
from dnnarray._spec import FLOAT32, HALF

PRODUCERS = 1
_THREADS = 128
_COPY = 1e5  # multiply-adds that a multiprocessor could do while each of its gathering threads copies a chunk
_SHARED = 232_448  # bytes of shared memory of a block
_BLOCK = 64  # channels whose taps are walked together
_CHUNK = 8  # elements of a half type in 16 bytes
_ROW = 128  # bytes of a tile's row in shared memory
_TAPS = 31  # bits of a row's mask, over the axes of the window together
_PLACES = 1 << 31  # chunks of an image array that 32 bits can count


@dataclass(frozen=True)
class Tile:
    """A block's tile: pixels x channels, the stages of its ring, and the share of the peak rate that its products reach."""

    m: int
    n: int
    stages: int
    efficiency: float

    @property
    def shared_memory(self) -> int:
        return 1024 + self.stages * ((self.m + self.n) * _ROW + 16)


TILES = (Tile(128, 256, 4, 0.75), Tile(256, 128, 4, 0.75), Tile(128, 128, 6, 0.65), Tile(256, 64, 5, 0.5), Tile(128, 64, 8, 0.45))


def best_tile(rows: int, outs: int, groups: int, chunks: int, units: int) -> tuple[Tile, float]:
    """The tile that is done first, and the time of it in multiply-adds of a multiprocessor at its full rate."""
    return min(((t, _time(t, rows, outs, groups, chunks, units)) for t in TILES), key=lambda pair: pair[1])


def _time(t: Tile, rows: int, outs: int, groups: int, chunks: int, units: int) -> float:
    tiles = -(-rows // t.m) * -(-outs // t.n) * groups
    blocks = -(-chunks // 8) + 4  # what a tile's end costs beside its products
    return -(-tiles // units) * t.m * t.n * blocks * 64 / t.efficiency


WEIGHT_TILES = (Tile(128, 256, 4, 0.7), Tile(128, 128, 6, 0.6), Tile(64, 256, 5, 0.45), Tile(64, 128, 8, 0.4))
_PIXELS = 64  # of a stage of the weight gradient
_PLANNED = 132  # multiprocessors that its parts are planned for: the scratch memory must be known without the device
_TERMS = 3e12 / 4.2e12  # multiply-adds that a multiprocessor could do while a byte moves, times the number of multiprocessors


@dataclass(frozen=True)
class Split:
    """The pixels of a weight gradient in `count` parts of `blocks` stages each."""

    tile: Tile
    count: int
    blocks: int


def best_split(g: Geometry, units: int = _PLANNED) -> tuple[Split, float]:
    """The tile and the parts that are done first, and the time in multiply-adds of a multiprocessor at its full rate."""
    everything = -(-g.n * g.pixels // _PIXELS)
    found = []
    for tile in WEIGHT_TILES:
        tiles = -(-g.k // tile.m) * -(-g.taps * g.c // tile.n) * g.groups
        for wanted in {1, 2, 3, 4, max(units // tiles, 1), max(2 * units // tiles, 1)}:
            blocks = -(-everything // min(wanted, max(everything // 4, 1)))
            count = -(-everything // blocks)
            rounds = -(-tiles * count // units)
            sums = 8 * count * g.groups * g.k * g.taps * g.c * _TERMS
            found.append((Split(tile, count, blocks), rounds * (blocks + 6) * tile.m * tile.n * _PIXELS / tile.efficiency + sums))
    return min(found, key=lambda pair: pair[1])


@dataclass(frozen=True)
class WeightConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_sm90.cu``."""

    element: str
    tile_m: int
    tile_n: int
    stages: int
    producers: int
    fence: int


@dataclass(frozen=True)
class SumsConfig(Config):
    """Compile-time settings of ``kernels/conv/split_sums.cu``."""

    element: str
    threads: int


@dataclass(frozen=True)
class ImplicitConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_gemm_sm90.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    tile_m: int
    tile_n: int
    stages: int
    producers: int
    transposed: bool
    fence: int


HALO = True
FENCE = 2
_FEWEST = 6  # taps: the input of the next channels must find its buffer free before the weights run out
HALO_TILES = ((128, 256), (256, 128), (128, 128), (256, 64), (128, 64))


@dataclass(frozen=True)
class HaloConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_halo_sm90.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    tile_m: int
    tile_n: int
    stages: int
    transposed: bool
    fence: int


@dataclass(frozen=True)
class Raster:
    """How ``kernels/conv/implicit_halo_sm90.cu`` sees the images: places in a row, rows in an image, places between the first and the last
    tap."""

    pitch: int
    height: int
    reach: int

    def shared_memory(self, tile: Tile) -> int:
        image = -(-(tile.m + self.reach) * _ROW // 1024) * 1024
        return 1024 + 2 * image + tile.stages * (tile.n * _ROW + 16) + 64


def raster(g: Geometry) -> Raster | None:
    """None where a tap is no shift of the raster."""
    if g.stride != (1, 1, 1) or g.c % _BLOCK or g.taps < _FEWEST or (g.space[0], g.out[0], g.window[0]) != (1, 1, 1):
        return None
    sides = []
    for i in (1, 2):
        spread = (g.window[i] - 1) * g.dilation[i]
        after = max(g.out[i] + spread - g.before[i] - g.space[i], 0)
        if not 0 <= g.before[i] <= spread or g.before[i] >= g.space[i] + max(g.before[i], after):
            return None
        sides.append((g.space[i] + max(g.before[i], after), spread))
    (height, down), (pitch, across) = sides
    if g.out[1] > height or g.out[2] > pitch:
        return None
    return Raster(pitch, height, down * pitch + across)


def best_halo(r: Raster, g: Geometry, units: int) -> Tile | None:
    """The tile that is done first, of those that fit into shared memory."""
    found = []
    for m, n in HALO_TILES:
        stages = next((s for s in (8, 6, 5, 4, 3) if r.shared_memory(Tile(m, n, s, 1)) <= _SHARED), None)
        if stages:
            tiles = -(-g.n * r.height * r.pitch // m) * -(-g.k // n) * g.groups
            blocks = g.taps * g.c // _BLOCK
            copies = g.c // _BLOCK * (-(-(m + r.reach) // 16) + g.taps * n // 16) * _COPY
            each = max(m * n * 64 * blocks / 0.9, copies) + m * n * 64 * 3
            found.append((-(-tiles // units) * each, Tile(m, n, stages, 1)))
    return min(found, key=lambda pair: pair[0])[1] if found else None


class ImplicitMaps:
    """The maps by gathering kernels: `conv_common.Maps`. What they do not take goes through `GemmMaps`.

    `walks`: the kernel takes the weight by its strides, also for the gradient of the input.
    """

    walks = True

    def __init__(self, setting: Setting) -> None:
        self._setting, self._steps, self._g, self.units = setting, setting.steps, setting.g, setting.units
        self._gemm = GemmMaps(setting)

    def correlate(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        if not self._takes(large.dtype):
            self._gemm.correlate(large, weight, small, epilogue)
            return
        with self._steps.borrowed():
            w = self._gemm.packed(weight, large.dtype)
            self._steps.add(self.launch(self._g, large, w, small, epilogue))

    def spread(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """One correlation of stride 1 for each residue of the stride."""
        g = self._g
        if not self._takes(small.dtype) or not (g.phases_cover or epilogue.empty) or (g.groups > 1 and g.window[0] > 1):
            self._gemm.spread(small, weight, large, epilogue)
            return
        if not g.phases_cover:
            size = math.prod(self._setting.shape(False))
            self._steps.add(zero(large.array, size * large.dtype.itemsize, self._steps.aligned))
        with self._steps.borrowed():
            transposed = self.walks and g.k % _BLOCK == 0
            if transposed and not self._walks(weight):
                weight = self._gemm.packed(weight, small.dtype)
            for phase in g.phases:
                with self._steps.borrowed():
                    w = _part(weight, phase) if transposed else self._turned(weight, phase)
                    self._steps.add(self.launch(phase.geometry, small, w, _target(large, phase), epilogue, transposed))

    def _takes(self, dtype: np.dtype) -> bool:
        return dtype in HALF

    def _walks(self, weight: Operand) -> bool:
        """Whether the kernel can take the weight as it lies, its channels dense."""
        k, c, *window = weight.strides
        return (c == 1 or self._g.c == 1) and all(s % _CHUNK == 0 for s in (k, *window))

    def weigh(self, small: Operand, large: Operand, weight: Operand) -> None:
        if small.dtype not in HALF or large.dtype not in HALF:
            self._gemm.weigh(small, large, weight)
            return
        g, shape = self._g, self._setting.weight_shape
        split, _ = best_split(g)
        size = math.prod(shape)
        with self._steps.borrowed():
            partial = self._steps.take(FLOAT32, split.count * size)
            self._steps.add(self._weigh_splits(split, small, large, partial))
            self._steps.add(_sum_splits(partial, split.count, weight, shape))

    def _weigh_splits(self, split: Split, small: Operand, large: Operand, partial: Operand) -> Plan:
        g, tile = self._g, split.tile
        config = WeightConfig(TYPES[small.dtype], tile.m, tile.n, tile.stages, PRODUCERS, FENCE)
        name = f"conv_implicit_weight_sm90_{SHORT[small.dtype]}_{tile.m}x{tile.n}x{tile.stages}_p{PRODUCERS}f{FENCE}"
        chunks = g.taps * g.c // _CHUNK
        tiles = -(-g.k // tile.m), -(-chunks * _CHUNK // tile.n), g.groups
        sizes = (g.n * g.pixels, g.c // _CHUNK, chunks, *tiles, g.k, split.count, split.blocks)
        x_steps = [s // _CHUNK for s in along(large.strides)]
        arguments: tuple[Array | int, ...] = (small.array, large.array, partial.array, *sizes, *x_steps, *extents(g))
        grid = (min(math.prod(tiles) * split.count, self.units), 1, 1)
        return Plan(Kernel("conv/implicit_weight_sm90.cu", name, config), grid, _THREADS * (2 + PRODUCERS), arguments, tile.shared_memory)

    def _turned(self, weight: Operand, phase: Phase) -> Operand:
        """The weight of a phase as (groups C, window, K)."""
        g, p = self._g, phase.geometry
        part = _part(weight, phase)
        k, c, *steps = part.strides
        shape = (g.groups, g.k, g.c, *p.window)
        target = self._steps.take(weight.dtype, math.prod(shape))
        _, h, w = p.window
        lying = (g.c * p.taps * g.k, 1, p.taps * g.k, h * w * g.k, w * g.k, g.k)
        source = Operand(part.array, weight.dtype, (g.k * k, k, c, *steps))
        self._steps.add(rearrange(source, Operand(target.array, target.dtype, lying), shape))
        return Operand(target.array, target.dtype, (p.taps * g.k, 1, h * w * g.k, w * g.k, g.k))

    def launch(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        halo = raster(g) if HALO and (transposed or w.strides[1] == 1) else None
        tile = best_halo(halo, g, self.units) if halo else None
        if halo and tile:
            return self._launch_halo(halo, tile, g, x, w, y, e, transposed)
        return self._launch_plain(g, x, w, y, e, transposed)

    def _launch_halo(self, r: Raster, tile: Tile, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool) -> Plan:
        f = formula(e.activation, x.dtype)
        config = HaloConfig(
            TYPES[x.dtype],
            TYPES[y.dtype],
            f.type,
            e.bias is not None,
            e.residual is not None,
            tile.m,
            tile.n,
            tile.stages,
            transposed,
            FENCE,
        )
        words = [
            "conv_implicit_halo_sm90",
            SHORT[x.dtype],
            "to",
            SHORT[y.dtype],
            f"{tile.m}x{tile.n}x{tile.stages}",
            e.name,
            f"f{FENCE}",
        ]
        kernel = Kernel("conv/implicit_halo_sm90.cu", "_".join(words + ["transposed"] * transposed), config, ("activation",))
        tiles_m, tiles_n = -(-g.n * r.height * r.pitch // tile.m), -(-g.k // tile.n)
        sizes = (g.n, r.pitch, r.height, r.reach, g.c, tiles_m, tiles_n, g.groups, g.k)
        w_steps = (w.strides[0] * (g.c if transposed else g.k), w.strides[0], *w.strides[3:])
        steps = (*w_steps, x.strides[0], *x.strides[3:], y.strides[0], *y.strides[3:])
        pointers = (x.array, w.array, e.bias or x.array, e.residual or x.array, y.array)
        grid = (min(tiles_m * tiles_n * g.groups, self.units), 1, 1)
        return Plan(kernel, grid, 384, (*pointers, *sizes, *steps, *extents(g)[3:], f.p, f.q), r.shared_memory(tile))

    def _launch_plain(self, g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, transposed: bool = False) -> Plan:
        rows, chunks = g.n * g.pixels, g.taps * g.c // _CHUNK
        tile, _ = best_tile(rows, g.k, g.groups, chunks, self.units)
        f = formula(e.activation, x.dtype)
        residual = e.residual is not None
        config = ImplicitConfig(
            TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, residual, tile.m, tile.n, tile.stages, PRODUCERS, transposed, FENCE
        )
        words = [
            "conv_implicit_gemm_sm90",
            SHORT[x.dtype],
            "to",
            SHORT[y.dtype],
            f"{tile.m}x{tile.n}x{tile.stages}",
            f"p{PRODUCERS}f{FENCE}",
            e.name,
        ]
        kernel = Kernel("conv/implicit_gemm_sm90.cu", "_".join(words + ["transposed"] * transposed), config, ("activation",))
        tiles_m, tiles_n = -(-rows // tile.m), -(-g.k // tile.n)
        x_steps = [s // _CHUNK for s in along(x.strides)]
        w_steps = (w.strides[0] * (g.c if transposed else g.k), *along(w.strides))
        sizes = (rows, g.c // _CHUNK, chunks, tiles_m, tiles_n, g.groups, g.k, *w_steps, *x_steps, *along(y.strides))
        pointers = (x.array, w.array, e.bias or x.array, e.residual or x.array, y.array)
        grid = (min(tiles_m * tiles_n * g.groups, self.units), 1, 1)
        return Plan(kernel, grid, _THREADS * (2 + PRODUCERS), (*pointers, *sizes, *extents(g), f.p, f.q), tile.shared_memory)


def _sum_splits(partial: Operand, count: int, weight: Operand, shape: tuple[int, ...]) -> Plan:
    """The weight's gradient from its parts, which lie as (K, window, C)."""
    order = (0, 2, 3, 4, 1)
    axes = [weight.strides[i] for i in order]
    kernel = Kernel("conv/split_sums.cu", f"conv_split_sums_{SHORT[weight.dtype]}", SumsConfig(TYPES[weight.dtype], THREADS))
    size, inner = math.prod(shape), [shape[i] for i in order[1:]]
    arguments: tuple[Array | int, ...] = (partial.array, weight.array, size, count, *inner, *axes)
    return Plan(kernel, (-(-size // THREADS), 1, 1), THREADS, arguments)


def along(strides: Sequence[int]) -> tuple[int, ...]:
    """Without the channels' own."""
    return (strides[0], *strides[2:])


def _part(weight: Operand, phase: Phase) -> Operand:
    """The taps of a phase of a weight."""
    k, c, *window = weight.strides
    start = sum(t.start * s for t, s in zip(phase.taps, window, strict=True))
    return Operand(weight.at(start), weight.dtype, (k, c, *(t.step * s for t, s in zip(phase.taps, window, strict=True))))


def _target(large: Operand, phase: Phase) -> Operand:
    """The pixels of a phase."""
    n, c, *space = large.strides
    start = sum(t.start * s for t, s in zip(phase.target, space, strict=True))
    return Operand(large.at(start), large.dtype, (n, c, *(t.step * s for t, s in zip(phase.target, space, strict=True))))


def misfit(op: str, problem: ConvProblem, g: Geometry) -> str | None:
    """Why the images cannot be gathered in chunks of 16 bytes, or None; `g` is what the kernels are given."""
    chunk = 16 // problem.inputs[0].dtype.itemsize
    if 0 in (g.n, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if sum(g.window) > _TAPS:
        return f"a window of {g.window}; its extents may add up to {_TAPS}"
    if max(g.sizes) // chunk >= _PLACES:
        return f"an array of {chunk * _PLACES} elements or more"
    if Setting(op, problem, True).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    return too_large(g)


def efficiency(op: str, g: Geometry, units: int) -> float:
    """The share of the peak rate that the products of an operation reach."""
    if op == "conv_backward_weight":
        time = best_split(g)[1]
    else:
        time = best_tile(g.n * g.pixels, g.k, g.groups, g.taps * g.c // _CHUNK, units)[1]
    return min(g.macs / (time * units), 1.0)
