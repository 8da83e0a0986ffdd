"""What the tables say of convolutions on the processor's matrix unit; the kernels stand in ``compiled/conv``.
Imports no Numba.

`split_gemm` takes windows of one pixel as matrix products, `split_shifted` any windows as shifts of an image.
"""

from __future__ import annotations

from dnnarray._cpu import matrix_unit
from dnnarray._cpu.conv.shifted import rejects as rejects_shifted
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost

SUMMARY_SHIFTS = (
    "taps as shifts of an image, without im2col, in three pieces of bfloat16 on the processor's matrix unit (AMX)"
)
_GROUPED = 40  # more where each group has an image of its own
_SPLITTING, _WEIGHT = 80, 80  # operations that an element of the image is worth, and one of the weight
_SUM = 50  # and one of the result, which is turned


def rejects(g: Geometry) -> str | None:
    """Why a geometry is not for products of whole images, or None."""
    still = g.taps == g.groups == 1 and g.stride == (1, 1, 1) and g.before == (0, 0, 0) and g.out == g.space
    return None if still else "it takes windows of one pixel at every pixel, in one group"


def split_cost(g: Geometry, itemsize: int) -> Cost:
    """Of a correlation by `split_gemm`."""
    x, w, y = g.sizes
    return Cost(matrix_unit.product_flops(g.n * g.pixels, g.k, g.c), (x + w + y) * itemsize, 1.0, 12)


def lane(g: Geometry) -> int:
    """Channels that a pixel has room for in an image in pieces: 32 fill a line, of fewer several neighbouring pixels
    are one, with the taps that meet them."""
    if g.window[2] == 1 or g.dilation[2] > 1:
        return matrix_unit.DEPTH
    return next((size for size in (4, 8, 16) if g.c <= size), matrix_unit.DEPTH)


def rejects_shifts(g: Geometry) -> str | None:
    """Why a geometry is not for shifts, or None."""
    return rejects_shifted(g)


def shifts_cost(g: Geometry, itemsize: int) -> Cost:
    """Of a correlation by `split_shifted`: over whole blocks of channels and taps, and with the gaps between the
    rows."""
    x, w, y = g.sizes
    channels = lane(g)
    line = 1 + (g.window[2] - 1) * g.dilation[2] / (g.stride[2] * g.out[2])
    taps = g.taps // g.window[2] * -(-g.window[2] * channels // matrix_unit.DEPTH)
    products = g.groups * matrix_unit.tile_flops(g.n * g.pixels, g.k, g.c) * taps * min(line, 2.0)
    splitting = _SPLITTING + (_GROUPED if g.groups > 1 else 0)
    return Cost(products + splitting * x + _WEIGHT * w + _SUM * y, (x + w + y) * itemsize, 1.0, 12)
