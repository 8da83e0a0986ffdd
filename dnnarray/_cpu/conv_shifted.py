"""`shifted`: what the tables say of the compiled convolution without im2col; the kernels stand in ``compiled/conv.py``. Imports no Numba."""

from __future__ import annotations

from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost

SUMMARY = "taps as shifts of a packed image, without im2col: the matrix micro-kernel on runs of pixels"
SUMMARY_WEIGHT = "inner products of the gradient with shifts of the image, one channel a group"
_TILE_ROWS, _TILE_PIXELS = 6, 16  # of the micro-kernel, for the estimate: a wider one changes little


_STRIDED = 24  # passes that picking every so many elements of a row comes to: it goes one by one


def _covered(extent: int, size: int) -> float:
    """The share of the micro-kernel's tiles that an extent fills."""
    return extent / (-(-extent // size) * size)


def strided_cost(elements: int, itemsize: int) -> Cost:
    """Of writing an image's phases one after the other, each to every so many of its pixels."""
    return Cost(8 * _STRIDED * elements * itemsize / 4, 0)


def shifted_cost(g: Geometry, itemsize: int) -> Cost:
    """Products at a rate that grows with the depth of the sums, and three passes over the block: in, result, out."""
    x, w, y = g.sizes
    depth = g.c * g.taps
    rows = _covered(g.k, _TILE_ROWS) if g.k > _TILE_ROWS else 0.8 * g.k / (g.k + 1)
    efficiency = 0.85 * rows * depth / (depth + 16)
    line = 1 + (g.window[2] - 1) * g.dilation[2] / max(g.out[2], 1)
    moved = 3 * x + 4 * y + 4 * w + (_STRIDED * x if g.stride != (1, 1, 1) else 0)
    return Cost(2 * g.macs * min(line, 1.2) / efficiency + 8 * moved * itemsize / 4, (x + w + y) * itemsize, 1.0, 12)
