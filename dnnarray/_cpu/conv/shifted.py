"""`shifted`: what the tables say of the compiled convolution without im2col; the kernels stand in
``compiled/conv/*.py``. Imports no Numba."""

from __future__ import annotations

import math

from dnnarray._cpu.conv.blocks import long_sums
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost

SUMMARY = "taps as shifts of a packed image, without im2col: the matrix micro-kernel on runs of pixels"
SUMMARY_WEIGHT = "products of the gradient with shifts of the image over blocks of pixels, without im2col"
_TILE_ROWS, _TILE_PIXELS = 6, 16  # of the micro-kernel, for the estimate: a wider one changes little


_STRIDED = 4  # passes over an image that it costs to split it into the phases of a stride
_BLOCK_PIXELS = 256  # whose products are added up before they meet the sums
_MERGED = 32  # channels up to which the taps of a row are taken together


def huge(g: Geometry) -> str | None:
    """Why the gradient of a weight is not for the kernels: the phases of a stride under one window are too many for
    offsets of 64 bits; or None."""
    reach = math.prod(g.reach((1, 1, 1))) * math.prod(g.stride)
    return None if reach < 1 << 40 else f"a window with all phases of its stride spans {reach:,} pixels"


def rejects(g: Geometry) -> str | None:
    """Why a correlation is not for the kernels, or None."""
    return huge(g) or long_sums(g)


def covered(extent: int, size: int) -> float:
    """The share of the micro-kernel's tiles that an extent fills."""
    return extent / (-(-extent // size) * size)


def strided_cost(elements: int, itemsize: int) -> Cost:
    """Of writing an image's phases one after the other, each to every so many of its pixels."""
    return Cost(8 * _STRIDED * elements * itemsize / 4, 0)


def suits(g: Geometry) -> bool:
    """Whether the pixels of all images are one row of tiles: windows of one pixel, each with its output."""
    still = g.stride == (1, 1, 1) and g.before == (0, 0, 0) and g.out == g.space
    return g.taps == g.groups == 1 and still and not g.pixel_major


def _pointwise_cost(g: Geometry, itemsize: int) -> Cost:
    """Products, a tile's sums from and to memory, the image packed once, of planes far apart, and the weight as well,
    element by element."""
    x, w, y = g.sizes
    efficiency = 0.92 * covered(g.k, _TILE_ROWS) * g.c / (g.c + 10)
    return Cost(2 * g.macs / efficiency + 8 * (6 * x + y + 8 * w) * itemsize / 4, (x + w + y) * itemsize, 1.0, 12)


def shifted_cost(g: Geometry, itemsize: int) -> Cost:
    """Products at a rate that grows with the depth of the sums, and three passes over the block: in, result, out."""
    if suits(g) and g.k > _TILE_ROWS:
        return _pointwise_cost(g, itemsize)
    x, w, y = g.sizes
    depth = g.c * g.taps
    rows = covered(g.k, _TILE_ROWS) if g.k > _TILE_ROWS else 0.8 * g.k / (g.k + 1)
    efficiency = 0.85 * rows * depth / (depth + 16)
    line = 1 + (g.window[2] - 1) * g.dilation[2] / max(g.out[2], 1)
    moved = 3 * x + 4 * y + 4 * w + (_STRIDED * x if g.stride != (1, 1, 1) else 0)
    return Cost(2 * g.macs * min(line, 1.2) / efficiency + 8 * moved * itemsize / 4, (x + w + y) * itemsize, 1.0, 12)


def _run(g: Geometry) -> int:
    """Channels side by side, and the taps of a row with few of them."""
    return g.c * g.window[2] if g.c <= _MERGED and g.dilation[2] == 1 else g.c


def outputs_fill_lanes(g: Geometry) -> bool:
    """Whether the tiles of a weight's gradient are fuller with outputs in the lanes and channels and taps as rows than
    the other way round."""
    outputs = covered(g.k, _TILE_PIXELS) * covered(g.c * g.taps, _TILE_ROWS)
    return outputs >= covered(_run(g), _TILE_PIXELS) * covered(g.k, _TILE_ROWS)


def shifted_weight_cost(g: Geometry, itemsize: int) -> Cost:
    """Depthwise, inner products of whole planes; else products over the pixels of blocks, whose tiles are outputs by
    channels and taps, or the other way round."""
    if g.c == g.k == 1:
        return shifted_cost(g, itemsize)
    x, w, y = g.sizes
    if outputs_fill_lanes(g):
        pixels = min(g.out[1] * g.out[2], _BLOCK_PIXELS)
        efficiency = 0.9 * covered(g.k, _TILE_PIXELS) * covered(g.c * g.taps, _TILE_ROWS) * pixels / (pixels + 10)
    else:
        efficiency = 0.75 * covered(_run(g), _TILE_PIXELS) * covered(g.k, _TILE_ROWS)
    moved = 2 * x + y + 16 * w
    return Cost(2 * g.macs / efficiency + 8 * moved * itemsize / 4, (x + w + y) * itemsize, 1.0, 14)
