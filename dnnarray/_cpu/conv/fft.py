"""`fft` and `fft_tiled`: products of spectra, for large windows.

`fft` transforms the whole padded image; `fft_tiled` cuts it into overlapping tiles (overlap-save) whose transforms stay
in the cache. The transform length covers the padded input, so nothing wraps around into an output. A stride takes every
so many of all outputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from dnnarray._cpu.conv.blocks import CHANNELS_FIRST, Shape, Way, at, load, packed
from dnnarray._cpu.sums import Cascade
from dnnarray._problems.conv_geometry import Geometry, Triple, smooth
from dnnarray._select import Cost

_SPECTRUM_ELEMENTS = 1 << 20  # of the spectra held at a time: a few megabytes
_TILE_ELEMENTS = 1 << 14  # channels times pixels below which a tile costs more in calls than in arithmetic
_MAX_ELEMENTS = 1 << 25  # of all scratch of `fft`: 128 MB in float32
_RUN = 8  # images whose products are added one after the other
_NOTHING = "the window is one pixel: there is nothing to transform"


class _Plan(NamedTuple):
    size: Triple  # transform lengths
    step: Triple  # outputs of stride 1 that a tile gives
    dense: Triple  # outputs of stride 1 in all
    images: int
    groups: int
    k: int
    buffers: tuple[Shape, ...]  # tile, its spectrum, spectrum of the weight, spectrum of the result


@lru_cache(maxsize=1024)
def _plan(g: Geometry, tiled: bool) -> _Plan:
    dense = _dense(g)
    covered = g.reach((1, 1, 1))
    whole = tuple(smooth(m + w - 1) for m, w in zip(dense, covered, strict=True))
    size = _tile(g, dense, covered) if tiled else (whole[0], whole[1], whole[2])
    step = tuple(min(n - w + 1, m) for n, w, m in zip(size, covered, dense, strict=True))
    volume = math.prod(_spectrum_shape(size))
    k = min(g.k, max(_SPECTRUM_ELEMENTS // (volume * g.c), 1))
    groups = min(g.groups, max(_SPECTRUM_ELEMENTS // (volume * g.c * k), 1)) if k == g.k else 1
    images = min(g.n, max(_SPECTRUM_ELEMENTS // (volume * groups * max(g.c, k)), 1))
    spectrum = _spectrum_shape(size)
    real = (images * groups * g.c + groups * k * g.c, *size)
    buffers = (
        real,
        (2, images * groups * g.c, *spectrum),
        (2, groups * k * g.c, *spectrum),
        (2, images * groups * k, *spectrum),
    )
    return _Plan(size, (step[0], step[1], step[2]), dense, images, groups, k, buffers)


def _dense(g: Geometry) -> Triple:
    a, b, c = ((m - 1) * s + 1 for m, s in zip(g.out, g.stride, strict=True))
    return a, b, c


def _tile(g: Geometry, dense: Triple, covered: Triple) -> Triple:
    """Four windows long along each axis that has one, more where there are few channels, never longer than the
    image."""
    factor = 4
    while True:
        sizes = []
        for m, w in zip(dense, covered, strict=True):
            sizes.append(min(smooth(m + w - 1), 1 << math.ceil(math.log2(factor * w))) if w > 1 else m)
        if math.prod(sizes) * g.c * g.groups >= _TILE_ELEMENTS or factor >= 4096:
            return sizes[0], sizes[1], sizes[2]
        factor *= 2


def _spectrum_shape(size: Triple) -> Triple:
    return size[0], size[1], size[2] // 2 + 1


def _complex(memory: np.ndarray, shape: Shape) -> np.ndarray:
    return packed(memory.view(np.complex64 if memory.dtype == np.float32 else np.complex128), shape)


def _transform(a: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """The spectrum over the last three axes of real `a`."""
    out = _complex(memory, (*a.shape[:-1], a.shape[-1] // 2 + 1))
    np.fft.rfft(a, axis=-1, out=out)
    for axis in (-2, -3):
        if a.shape[axis] > 1:
            np.fft.fft(out, axis=axis, out=out)
    return out


def _inverse(spectrum: np.ndarray, length: int) -> np.ndarray:
    """The real array behind a spectrum, `length` long on the last axis."""
    for axis in (-3, -2):
        if spectrum.shape[axis] > 1:
            spectrum = np.fft.ifft(spectrum, axis=axis, out=spectrum)
    return np.fft.irfft(spectrum, n=length, axis=-1)


def _spread(w: np.ndarray, size: Triple, steps: Triple, memory: np.ndarray) -> np.ndarray:
    """The last three axes of `w` with gaps of `steps`, in zeros of `size`."""
    flat = packed(memory, (*w.shape[:3], *size))
    flat[...] = 0
    flat[at([slice(0, (n - 1) * d + 1, d) for n, d in zip(w.shape[3:], steps, strict=True)])] = w
    return flat


def _multiply(x: np.ndarray, w: np.ndarray, memory: np.ndarray) -> np.ndarray:
    """y[n, g, k] = sum over c of x[n, g, c] * w[g, k, c] for every frequency."""
    n, groups, c, *space = x.shape
    out = _complex(memory, (n, groups, w.shape[1], *space))
    if c == 1:
        return np.multiply(x, w[None, :, :, 0], out=out)
    volume = math.prod(space)
    left = np.ascontiguousarray(x.reshape(n, groups, c, volume).transpose(1, 3, 0, 2))
    right = np.ascontiguousarray(w.reshape(groups, -1, c, volume).transpose(0, 3, 2, 1))
    out.reshape(n, groups, -1, volume)[...] = np.matmul(left, right).transpose(2, 0, 3, 1)
    return out


def _chunks(g: Geometry, plan: _Plan) -> Iterator[tuple[slice, slice]]:
    for group, k in product(range(0, g.groups, plan.groups), range(0, g.k, plan.k)):
        yield slice(group, min(group + plan.groups, g.groups)), slice(k, min(k + plan.k, g.k))


def _forward(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray, tiled: bool
) -> None:
    plan = _plan(g, tiled)
    real, source, weight_memory, result = buffers
    starts = [range(0, m, s) for m, s in zip(plan.dense, plan.step, strict=True)]
    for groups, k in _chunks(g, plan):
        weight = _transform(_spread(w[groups, k], plan.size, g.dilation, real), weight_memory)
        np.conjugate(weight, out=weight)
        for i, *start in product(range(0, g.n, plan.images), *starts):
            images = slice(i, min(i + plan.images, g.n))
            low = [s - b for s, b in zip(start, g.before, strict=True)]
            tile = load(x[:, groups], images, low, plan.size, real, CHANNELS_FIRST)
            values = _inverse(_multiply(_transform(tile, source), weight, result), plan.size[2])
            _store(g, plan, y[images, groups, k], values, start)


def _store(g: Geometry, plan: _Plan, y: np.ndarray, values: np.ndarray, start: Sequence[int]) -> None:
    """Write the outputs of a tile that the stride meets."""
    source, target = [], []
    for s, length, stride, m in zip(start, plan.step, g.stride, g.out, strict=True):
        first = -(-s // stride)
        last = min((s + length - 1) // stride + 1, m)
        target.append(slice(first, max(last, first)))
        source.append(
            slice(first * stride - s, max((last - 1) * stride - s + 1, 0), stride) if last > first else slice(0)
        )
    y[at(target)] = values[at(source)]


def _weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    """The correlation of the input with the gradient: the window's offsets are the outputs of it."""
    plan = _plan(g, False)
    real, source, weight_memory, _ = buffers
    low = [-b for b in g.before]
    taps = at([slice(0, (n - 1) * d + 1, d) for n, d in zip(g.window, g.dilation, strict=True)])
    for groups, k in _chunks(g, plan):
        total = _complex(
            weight_memory, (groups.stop - groups.start, k.stop - k.start, g.c, *_spectrum_shape(plan.size))
        )
        sums = Cascade(total, -(-g.n // plan.images) * -(-plan.images // _RUN))
        for i in range(0, g.n, plan.images):
            images = slice(i, min(i + plan.images, g.n))
            upstream = np.fft.rfftn(_spread_gradient(g, plan, grad[images, groups, k]), axes=(-3, -2, -1))
            np.conjugate(upstream, out=upstream)
            image = _transform(load(x[:, groups], images, low, plan.size, real, CHANNELS_FIRST), source)
            for j in range(0, len(image), _RUN):
                products = np.einsum("ngk...,ngc...->gkc...", upstream[j : j + _RUN], image[j : j + _RUN])
                np.add(sums.low, products, out=sums.low)
                sums.step()
        sums.finish()
        w[groups, k] = _inverse(total, plan.size[2])[taps]


def _spread_gradient(g: Geometry, plan: _Plan, grad: np.ndarray) -> np.ndarray:
    memory = np.empty(math.prod(grad.shape[:3]) * math.prod(plan.size), grad.dtype)
    return _spread(grad, plan.size, g.stride, memory)


def _rejects_whole(g: Geometry) -> str | None:
    if g.taps == 1:
        return _NOTHING
    if 0 not in g.sizes and sum(map(math.prod, _plan(g, False).buffers)) > _MAX_ELEMENTS:
        return "the spectra of one whole image would not stay within bounded scratch memory; fft_tiled holds tiles only"
    return None


def _rejects_tiled(g: Geometry) -> str | None:
    if g.taps == 1:
        return _NOTHING
    dense = _dense(g)
    if 0 in g.sizes or all(
        n >= m + w - 1 for n, m, w in zip(_tile(g, dense, g.reach((1, 1, 1))), dense, g.reach((1, 1, 1)), strict=True)
    ):
        return "the image is no larger than one tile; fft does it"
    return None


def _cost(g: Geometry, itemsize: int, tiled: bool) -> Cost:
    plan = _plan(g, tiled)
    x, w, y = g.sizes
    tiles = math.prod(-(-m // s) for m, s in zip(plan.dense, plan.step, strict=True))
    volume = math.prod(plan.size)
    one = 2.5 * volume * math.log2(max(volume, 2))
    chunks = -(-g.groups // plan.groups) * -(-g.k // plan.k)
    repeats = -(-g.k // plan.k)
    images = g.n * g.groups * tiles
    transforms = one * (images * (g.c * repeats + g.k) + g.groups * g.k * g.c)
    products = 4 * volume * images * g.c * g.k
    calls = chunks * -(-g.n // plan.images) * tiles
    return Cost(
        transforms / 0.015 + products / (0.01 if g.c == 1 else 0.05), (x + w + y) * itemsize, 1.0, 40 * calls + 20
    )


def _way(name: str, summary: str, tiled: bool) -> Way:
    return Way(
        name=name,
        summary=summary,
        rejects=_rejects_tiled if tiled else _rejects_whole,
        buffers=lambda g: _plan(g, tiled).buffers,
        forward=partial(_forward, tiled=tiled),
        cost=lambda g, itemsize: _cost(g, itemsize, tiled),
        weight_buffers=None if tiled else lambda g: _plan(g, False).buffers,
        weight_gradient=None if tiled else _weight_gradient,
        weight_cost=None if tiled else lambda g, itemsize: _cost(g, itemsize, False),
        rejects_weight=None if tiled else _rejects_whole,
        mixes=True,
    )


FFT = _way("fft", "product of the spectra of whole images and windows", tiled=False)
FFT_TILED = _way("fft_tiled", "product of the spectra of overlapping tiles (overlap-save)", tiled=True)
