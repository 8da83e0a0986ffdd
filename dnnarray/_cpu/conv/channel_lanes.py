"""`channel_lanes`: what the tables say of the compiled convolution with output channels in the lanes; its kernels stand
in ``compiled/conv/channel_lanes.py``. Imports no Numba."""

from __future__ import annotations

from dnnarray._cpu.conv.shifted import covered, suits
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost

SUMMARY_LANES = (
    "output channels in the lanes and pixels as scalars, without im2col: any stride, all phases of an "
    "input's gradient at once"
)
_LANES, _TILE_PIXELS = 8, 6  # of the micro-kernel, for the estimate
_CACHED = 512  # channels whose block stays in the second-level cache
_ONE_PIXEL = 0.75  # of the rate where an image has one tap for each of its passes through memory


def channel_lanes_cost(g: Geometry, itemsize: int) -> Cost:
    """Products at a rate that grows with the depth of the sums, and passes over the block: in, result, out (element by
    element where lanes are left over)."""
    x, w, y = g.sizes
    depth = g.c * g.taps
    efficiency = 0.88 * covered(g.k, _LANES) * covered(g.pixels, _TILE_PIXELS) * depth / (depth + 12)
    if g.c > _CACHED:
        efficiency *= 0.85
    if suits(g):
        efficiency *= _ONE_PIXEL
    moved = 2 * x + (3 if g.k >= _LANES else 16) * y + 4 * w
    return Cost(2 * g.macs / efficiency + 8 * moved * itemsize / 4, (x + w + y) * itemsize, 1.0, 12)
