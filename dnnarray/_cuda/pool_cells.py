"""Gradients of norms over small windows in channels-last memory: threads walk down cells and hand over what they found."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, WindowAxis, divider
from dnnarray._records import frozen

_LANES = 8  # vectors of channels of a block, 128 bytes; more where images are narrow
_WALK, _ENOUGH = 28, 528  # rows of cells that a block walks down, fewer where there would not be so many blocks


@frozen
class CellsConfig(Config):
    """Compile-time settings of ``kernels/pool/cells.cu``."""

    element: str
    exponent: int
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    wide: int
    threads: int


def cells_plan(g: Geometry, dtype: np.dtype, exponent: int, aligned: bool, pointers: tuple[Array, ...]) -> Plan:
    """The gradient of a norm of this exponent; `pointers` are of the gradient, x and the result."""
    _, h, w = g.axes
    wide = vector_length(dtype, aligned, g.channels)
    inner, across, down = g.channels // wide, _cells(w), _cells(h)
    aside = (w.window - 1) // w.stride_used  # columns that a block looks at for their neighbours alone
    lanes = min(inner, max(_LANES, THREADS // (across + aside)))
    tiles, chunks = -(-across // (THREADS // lanes - aside)), -(-inner // lanes)
    blocks = g.outer * tiles * chunks
    strips = max(-(-down // _WALK), min(-(-down // 2), _ENOUGH // blocks))
    total = blocks * strips
    config = CellsConfig(POOL_TYPES[dtype], exponent, h.window, h.stride_used, w.window, w.stride_used, wide, THREADS)
    words = f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}"
    kernel = Kernel("pool/cells.cu", f"norm_pool_cells_{POOL_SHORT[dtype]}x{wide}_l{exponent}_{words}", config)
    dividers = [n for divisor in (chunks, tiles, strips) for n in divider(divisor, total)]
    numbers = (inner, *divider(lanes, THREADS), *dividers, -(-across // tiles), -(-down // strips))
    extents = (h.packed()[0], h.packed()[3], w.packed()[0], w.packed()[3])
    return Plan(kernel, (total, 1, 1), THREADS, (*pointers, *numbers, *extents))


def _cells(axis: WindowAxis) -> int:
    """Cells along an axis with elements: what lies between the first element of a window and that of the next."""
    return -(-(axis.extent + axis.before) // axis.stride_used) - axis.before // axis.stride_used
