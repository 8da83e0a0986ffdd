"""`fft` and `fft_tiled`: convolution of float32 arrays in large windows as products of spectra, by cuFFT.

`fft` transforms whole planes, `fft_tiled` overlapping tiles of them (overlap-save). A tile is as long as its outputs
and the window's reach together, so nothing wraps around into an output. Axes along which the window has one tap are not
transformed: each of their places is a tile of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from dnnarray._cuda.common.epilogue import Epilogue, apply
from dnnarray._cuda.conv.direct import DirectMaps
from dnnarray._cuda.conv.fourier_result import fourier_result
from dnnarray._cuda.conv.fourier_tiles import fourier_tiles
from dnnarray._cuda.conv.implicit import part_of, target_of
from dnnarray._cuda.conv.kinds import SINGLE
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting, lying, too_large
from dnnarray._cuda.conv.spectral_product import spectral_product
from dnnarray._cuda.core import fourier
from dnnarray._cuda.core.plan import Transform
from dnnarray._cuda.core.planner import Operand
from dnnarray._problems.base import remembered
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry, Triple, smooth
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT32

_FEWEST_TAPS = 16  # of a window for which spectra may pay
_WEIGHT, _IMAGES = 64 << 20, 128 << 20  # bytes of the spectra of weights and of images that are held at a time
_MOST = 1 << 30  # bytes of scratch memory
_FACTORS = (2, 3, 4, 6, 8, 12)  # lengths of a tile in windows


@frozen
class Tiling:
    """How planes are cut: places of a tile, outputs that it gives, and tiles, along each axis."""

    size: Triple
    step: Triple
    tiles: Triple

    @property
    def lengths(self) -> tuple[int, ...]:
        """Of the transform."""
        return tuple(n for n in self.size if n > 1)

    @property
    def volume(self) -> int:
        return math.prod(self.size)

    @property
    def frequencies(self) -> int:
        """Complex numbers of a real tile's spectrum."""
        last = self.lengths[-1]
        return self.volume // last * (last // 2 + 1)

    @property
    def count(self) -> int:
        return math.prod(self.tiles)


@frozen
class Chunks:
    """What is in the scratch memory at a time: images, groups, and output channels of a group."""

    images: int
    groups: int
    k: int


@remembered
def tiling(g: Geometry, tiled: bool) -> Tiling:
    """Whole planes, or the tiles that are expected to take the least time."""
    whole = _cut(g, None)
    if not tiled:
        return whole
    found = [_cut(g, factor) for factor in _FACTORS]
    return min(found, key=lambda t: _seconds(g, t))


def _cut(g: Geometry, factor: int | None) -> Tiling:
    """Tiles of `factor` windows, or whole planes."""
    size, step, tiles = [], [], []
    for out, reach in zip(g.out, g.reach((1, 1, 1)), strict=True):
        whole = smooth(out + reach - 1)
        size.append(1 if reach == 1 else whole if factor is None else min(whole, smooth(factor * reach)))
        step.append(min(size[-1] - reach + 1, out))
        tiles.append(-(-out // step[-1]))
    return Tiling((size[0], size[1], size[2]), (step[0], step[1], step[2]), (tiles[0], tiles[1], tiles[2]))


def _chunks(g: Geometry, t: Tiling) -> Chunks:
    each = 8 * t.frequencies
    k = min(g.k, max(_WEIGHT // (each * g.c), 1))
    groups = min(g.groups, max(_WEIGHT // (each * g.c * k), 1)) if k == g.k else 1
    images = min(g.n, max(_IMAGES // (each * t.count * groups * (g.c + k)), 1))
    return Chunks(images, groups, k)


def _rows(g: Geometry, t: Tiling, c: Chunks) -> tuple[int, int, int]:
    """Tiles of the images, of the weight and of the results in the scratch memory."""
    return c.images * c.groups * g.c * t.count, c.groups * c.k * g.c, c.images * c.groups * c.k * t.count


def _bytes(g: Geometry, t: Tiling) -> int:
    """About the scratch memory."""
    rows = _rows(g, t, _chunks(g, t))
    return 8 * t.frequencies * (sum(rows) + max(rows)) + 4 * t.volume * max(rows)


def _parts(g: Geometry, c: Chunks) -> Iterator[tuple[int, int, int, int]]:
    """(first group, groups, first output channel of a group, output channels) one after the other."""
    for first, k0 in product(range(0, g.groups, c.groups), range(0, g.k, c.k)):
        yield first, min(c.groups, g.groups - first), k0, min(c.k, g.k - k0)


def _single(t: Tiling) -> Tiling:
    """One tile of that size."""
    return Tiling(t.size, t.size, (1, 1, 1))


Axes = list[
    tuple[int, int, int, int]
]  # for each axis: places taken of a tile, extent of the array, dilation, places before it


def _covered(g: Geometry, t: Tiling) -> Axes:
    """Of the input: all that a tile's outputs read."""
    return [(size, extent, 1, before) for size, extent, before in zip(t.size, g.space, g.before, strict=True)]


def _own(g: Geometry, t: Tiling) -> Axes:
    """Of the output's gradient: each place in one tile."""
    return [(step, extent, 1, 0) for step, extent in zip(t.step, g.out, strict=True)]


def _window(g: Geometry, t: Tiling) -> Axes:
    """Of the weight: its taps apart by the dilation."""
    return [(size, extent, dilation, 0) for size, extent, dilation in zip(t.size, g.window, g.dilation, strict=True)]


class FourierMaps:
    """The maps by products of spectra: `shared.Maps`."""

    def __init__(self, setting: Setting, tiled: bool) -> None:
        self._setting, self._steps, self._tiled = setting, setting.steps, tiled
        # One NaN or infinity would reach all that shares a transform with it.
        self._repair = DirectMaps(setting, repair=True)

    def forward(self, large: Operand, weight: Operand, small: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        self._forward(self._setting.g, large, weight, small)
        if not epilogue.empty:
            self._steps.add(apply(epilogue, small, small, self._setting.view(True), self._steps.aligned))
        self._repair.forward(large, weight, small, epilogue)

    def dgrad(self, small: Operand, weight: Operand, large: Operand, epilogue: Epilogue = NO_EPILOGUE) -> None:
        """One correlation with the weight the other way round."""
        for phase in self._setting.g.phases:
            w = part_of(weight, phase)
            k, c, *window = w.strides
            turned = Operand(w.array, w.dtype, (c, k, *window))
            self._forward(phase.geometry, small, turned, target_of(large, phase), self._setting.g.k * k)
        if not epilogue.empty:
            self._steps.add(apply(epilogue, large, large, self._setting.view(False), self._steps.aligned))
        self._repair.dgrad(small, weight, large, epilogue)

    def wgrad(self, small: Operand, large: Operand, weight: Operand) -> None:
        g, t = self._setting.g, self._tiling(self._setting.g)
        chunks = _chunks(g, t)
        for first, groups, k0, k in _parts(g, chunks):
            with self._steps.borrowed():
                sums = self._take_spectra(t, groups * k * g.c)
                for n0 in range(0, g.n, chunks.images):
                    n = min(chunks.images, g.n - n0)
                    with self._steps.borrowed():
                        x = self._image_spectra(large, t, (first, groups, 0, g.c, g.c), n0, n, _covered(g, t))
                        dy = self._image_spectra(small, t, (first, groups, k0, k, g.k), n0, n, _own(g, t))
                        row = n * t.count
                        steps = (g.c * row, row, 1, k * row, row, 1, k * g.c, 1, g.c)
                        counts = (groups, g.c, k, row)
                        self._steps.add(spectral_product(x, dy, sums, t.frequencies, counts, steps, n0 > 0))
                s_k, s_c, *window = weight.strides
                target = weight.part((first * g.k + k0) * s_k)
                self._write(sums, target, (groups * k, g.c), (s_k, s_c, *window), _single(t), g.window, g.dilation)
        self._repair.wgrad(small, large, weight)

    # --- parts of them ------------------------------------------------------------------------------------------------

    def _tiling(self, g: Geometry) -> Tiling:
        return tiling(g, self._tiled)

    def _forward(self, g: Geometry, x: Operand, w: Operand, y: Operand, w_group: int | None = None) -> None:
        """`w_group`: elements of the weight from group to group."""
        t = self._tiling(g)
        chunks, s_k = _chunks(g, t), w.strides[0]
        w_group = g.k * s_k if w_group is None else w_group
        for first, groups, k0, k in _parts(g, chunks):
            with self._steps.borrowed():
                part = w.part(first * w_group + k0 * s_k)
                weight = self._spectra(part, (w_group, *w.strides), (groups, k, g.c), _single(t), _window(g, t))
                for n0 in range(0, g.n, chunks.images):
                    n = min(chunks.images, g.n - n0)
                    with self._steps.borrowed():
                        source = self._image_spectra(x, t, (first, groups, 0, g.c, g.c), n0, n, _covered(g, t))
                        row = n * t.count
                        result = self._take_spectra(t, groups * k * row)
                        steps = (g.c * row, 1, row, k * g.c, g.c, 1, k * row, 1, row)
                        counts = (groups, row, k, g.c)
                        self._steps.add(spectral_product(source, weight, result, t.frequencies, counts, steps, False))
                        s_n, s_c, *space = y.strides
                        target = y.part(n0 * s_n + (first * g.k + k0) * s_c)
                        self._write(result, target, (groups * k, n), (s_c, s_n, *space), t, g.out, (1, 1, 1))

    def _take_spectra(self, t: Tiling, rows: int) -> Operand:
        return self._steps.take(FLOAT32, 2 * rows * t.frequencies)

    def _image_spectra(self, x: Operand, t: Tiling, channels: tuple[int, ...], n0: int, n: int, axes: Axes) -> Operand:
        """Of `n` images, as channels x images x tiles; `channels`: the first group, groups, the first channel of a
        group, channels, all of a group."""
        first, groups, c0, count, all_of_group = channels
        s_n, s_c, *space = x.strides
        part = x.part(n0 * s_n + (first * all_of_group + c0) * s_c)
        return self._spectra(part, (all_of_group * s_c, s_c, s_n, *space), (groups, count, n), t, axes)

    def _spectra(self, x: Operand, strides: tuple[int, ...], rows: Triple, t: Tiling, axes: Axes) -> Operand:
        count = math.prod(rows) * t.count
        found = self._take_spectra(t, count)
        with self._steps.borrowed():
            tiles = self._steps.take(FLOAT32, count * t.volume)
            self._steps.add(fourier_tiles(x, strides, rows, (t.size, t.step, t.tiles), axes, tiles))
            self._transform(tiles, found, t, count, False)
        return found

    def _write(
        self,
        spectra: Operand,
        y: Operand,
        rows: tuple[int, int],
        strides: tuple[int, ...],
        t: Tiling,
        extents: Triple,
        spread: Triple,
    ) -> None:
        """Results from their spectra."""
        with self._steps.borrowed():
            count = math.prod(rows) * t.count
            tiles = self._steps.take(FLOAT32, count * t.volume)
            self._transform(spectra, tiles, t, count, True)
            self._steps.add(fourier_result(tiles, y, rows, strides, (t.size, t.step, t.tiles), extents, spread))

    def _transform(self, source: Operand, target: Operand, t: Tiling, count: int, inverse: bool) -> None:
        with self._steps.borrowed():
            work = self._steps.take(FLOAT32, 2 * count * t.frequencies)
            self._steps.add(
                Transform(source.array, target.array, work.array, t.lengths, count, inverse, 8 * count * t.frequencies)
            )


# --- judgement --------------------------------------------------------------------------------------------------------


def maps(setting: Setting, tiled: bool) -> FourierMaps:
    return FourierMaps(setting, tiled)


def rejects(op: str, problem: ConvProblem, device: Device, tiled: bool) -> str | None:
    g, dtype = problem.geometry, problem.inputs[0].dtype
    if reason := SINGLE.refuses(dtype, device):
        return reason
    if 0 in (g.n, g.groups, g.c, g.k, *g.space, *g.out):
        return "an extent of 0"
    if g.taps < _FEWEST_TAPS:
        return f"a window of {g.taps} taps; it takes {_FEWEST_TAPS} or more"
    if set(g.stride) != {1}:
        return f"a stride of {max(g.stride)}; it computes all outputs of stride 1"
    if lying(problem).mixed:
        return "results whose memory is neither channels-first nor channels-last"
    return too_large(g) or _unfit(problem, op, tiled) or fourier.missing()


@remembered
def _unfit(problem: ConvProblem, op: str, tiled: bool) -> str | None:
    for g in _correlations(op, problem.geometry):
        t = tiling(g, tiled)
        if tiled and t == tiling(g, False):
            return "an image that is no larger than one tile; fft does it"
        if (needed := _bytes(g, t)) > _MOST:
            return (
                f"spectra of {needed:,} bytes at a time; "
                f"{'' if tiled else 'fft_tiled holds tiles only, and '}{_MOST:,} are allowed"
            )
    return None


def _correlations(op: str, g: Geometry) -> list[Geometry]:
    """What the maps of an operation transform."""
    turned = [phase.geometry for phase in g.phases]
    if op in ("conv", "conv_backward_weight"):
        return [g]
    return turned if op in ("conv_backward_input", "conv_transpose") else [g, *turned]


_BANDWIDTH, _RATE = 1.1e12, 5e12  # bytes and operations a second of an H200 that the steps reach


def _seconds(g: Geometry, t: Tiling) -> float:
    """Of the steps beside their launches: planes cut, transformed, multiplied, transformed back, and put together."""
    chunks, passes = _chunks(g, t), len(t.lengths)
    # bytes of a tile written and read, and of its transform's passes
    plane = 8 * t.volume + (16 * passes - 8) * t.frequencies
    images, results = g.n * g.groups * g.c * t.count, g.n * g.groups * g.k * t.count
    moved = plane * (images * -(-g.k // chunks.k) + results + g.groups * g.k * g.c)
    operations = 8 * g.n * t.count * g.groups * g.c * g.k * t.frequencies
    return moved / _BANDWIDTH + operations / _RATE


def _launches(g: Geometry, t: Tiling) -> int:
    chunks, passes = _chunks(g, t), len(t.lengths)
    parts = -(-g.groups // chunks.groups) * -(-g.k // chunks.k)
    return parts * (1 + passes + -(-g.n // chunks.images) * (3 + 2 * passes))


def cost(op: str, problem: ConvProblem, device: Device, tiled: bool) -> Cost:
    peak, found = device.peak["float32"], _correlations(op, problem.geometry)
    seconds = sum(_seconds(g, tiling(g, tiled)) for g in found) * problem.maps / len(found)
    launches = sum(_launches(g, tiling(g, tiled)) for g in found) * problem.maps // len(found)
    return Cost(seconds * peak, problem.bytes, 1.0, launches, "float32")
