"""`split_gemm`: what the tables say of convolutions on the processor's matrix unit; the kernels stand in ``compiled/conv_split.py``. Imports no Numba."""

from __future__ import annotations

from dnnarray._cpu import matrix_unit
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._select import Cost


def rejects(g: Geometry) -> str | None:
    """Why a geometry is not for it, or None."""
    still = g.taps == g.groups == 1 and g.stride == (1, 1, 1) and g.before == (0, 0, 0) and g.out == g.space
    return None if still else "it takes windows of one pixel at every pixel, in one group"


def split_cost(g: Geometry, itemsize: int) -> Cost:
    """Of a correlation."""
    x, w, y = g.sizes
    return Cost(matrix_unit.product_flops(g.n * g.pixels, g.k, g.c), (x + w + y) * itemsize, 1.0, 12)
