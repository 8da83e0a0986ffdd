"""Planes as rows of places, so that every tap of a window is a shift: what the kernels that keep an image's part for all taps run on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnnarray._problems.conv_geometry import Geometry

Corners = tuple[tuple[int, ...], tuple[int, ...]]  # lower and upper, the fastest axis first

_CORNERS = {2: 128, 3: 16}  # by axes of space: what a tensor map can hold
_FEWEST = 6  # taps of a halo: the input of the next channels must find its buffer free before the weights run out


def axes_of(g: Geometry) -> int:
    """Of space, for the copy engine."""
    return 2 if (g.space[0], g.out[0], g.window[0], g.before[0]) == (1, 1, 1, 0) else 3


def corners(g: Geometry, axes: int) -> Corners:
    """Where the first window begins, and the last one as seen from the image's last pixel."""
    upper = [(o - 1) * s - b - (n - 1) for o, s, b, n in zip(g.out, g.stride, g.before, g.space, strict=True)]
    return tuple(-b for b in g.before[::-1][:axes]), tuple(upper[::-1][:axes])


def within(axes: int, *places: tuple[int, ...]) -> bool:
    """Whether a map can hold these corners."""
    return all(-_CORNERS[axes] <= n < _CORNERS[axes] for corner in places for n in corner)


@dataclass(frozen=True)
class Raster:
    """Planes as the kernels with a halo see them: places in a row, rows, places from the first tap to the last."""

    pitch: int
    height: int
    reach: int

    def corners(self, g: Geometry, axes: int) -> Corners:
        """Of the input, all places of the raster between them."""
        lower, upper = corners(g, axes)
        last = [p - b - n for p, b, n in zip((self.pitch, self.height), g.before[::-1], g.space[::-1], strict=False)]
        return lower, (*last, *upper[2:])


def raster(g: Geometry) -> Raster | None:
    """None where a tap is no shift of a raster."""
    if g.stride[1:] != (1, 1) or math.prod(g.window[1:]) < _FEWEST:
        return None
    sides = []
    for i in (1, 2):
        spread = (g.window[i] - 1) * g.dilation[i]
        after = max(g.out[i] + spread - g.before[i] - g.space[i], 0)
        extent = g.space[i] + max(g.before[i], after)
        if not 0 <= g.before[i] <= spread or g.before[i] >= extent or g.out[i] > extent:
            return None
        sides.append((extent, spread))
    (height, down), (pitch, across) = sides
    found, axes = Raster(pitch, height, down * pitch + across), axes_of(g)
    return found if within(axes, *found.corners(g, axes)) else None
