"""Bands: rows of a plane in channels-first memory, or several whole planes, whose gradient a block sums up in shared
memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._select import Device

THREADS = 256  # that share a band
_ENOUGH = 264  # blocks that keep a card busy
_SMALL = 16 << 10  # bytes of shared memory up to which a block takes further planes
_LARGE = 76 << 10  # bytes of a band


class Bands(NamedTuple):
    """How blocks share planes: planes of a block, rows of a band, bands of a plane."""

    planes: int
    rows: int
    bands: int


def width_of(dtype: np.dtype) -> int:
    """Bytes of a sum."""
    return max(dtype.itemsize, 4)


def bands_of(g: Geometry, device: Device, size: Callable[[int], int]) -> Bands | None:
    """Bands for which there is room, where one of so many rows takes `size` bytes; None where not even a row fits."""
    height, room = g.axes[1].extent, min(_LARGE, device.shared_memory)
    bands = 1
    while size(-(-height // bands)) > room:
        if bands >= height:
            return None
        bands *= 2
    rows = -(-height // bands)
    planes = max(1, min(_SMALL // max(size(height), 1), g.outer // _ENOUGH)) if bands == 1 else 1
    return Bands(planes, rows, -(-height // rows))


def blocks_of(g: Geometry, bands: Bands) -> int:
    """How many blocks there are."""
    return -(-g.outer // bands.planes) * bands.bands


def windows_of(g: Geometry, rows: int) -> int:
    """The most rows of windows that look at so many rows of x."""
    h = g.axes[1]
    most = rows * h.outputs // h.extent + 2 if g.adaptive else (rows - 1 + (h.window - 1) * h.dilation) // h.stride + 1
    return max(min(most, h.outputs), 1)
