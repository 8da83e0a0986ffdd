"""Planes as rows of places, so that every tap of a window is a shift: what the kernels that keep an image's part for
all taps run on."""

from __future__ import annotations

import math

from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

Corners = tuple[tuple[int, ...], tuple[int, ...]]  # lower and upper, the fastest axis first

_CORNERS = {2: 128, 3: 16}  # by axes of space: what a tensor map can hold
_FEWEST = 6  # taps of a halo: the input of the next channels must find its buffer free before the weights run out


def axes_of(g: Geometry) -> int:
    """Of space, for TMA."""
    return 2 if (g.space[0], g.out[0], g.window[0], g.before[0]) == (1, 1, 1, 0) else 3


def corners(g: Geometry, axes: int) -> Corners:
    """Where the first window begins, and the last one as seen from the image's last pixel."""
    (o0, o1, o2), (s0, s1, s2), (b0, b1, b2), (n0, n1, n2) = g.out, g.stride, g.before, g.space
    upper = (o2 - 1) * s2 - b2 - (n2 - 1), (o1 - 1) * s1 - b1 - (n1 - 1), (o0 - 1) * s0 - b0 - (n0 - 1)
    return (-b2, -b1, -b0)[:axes], upper[:axes]


def within(axes: int, *places: tuple[int, ...]) -> bool:
    """Whether a map can hold these corners."""
    reach = _CORNERS[axes]
    return min(map(min, places)) >= -reach and max(map(max, places)) < reach


@frozen
class Raster:
    """Planes as the kernels with a halo see them: places in a row, rows, places from the first tap to the last."""

    pitch: int
    height: int
    reach: int

    def corners(self, g: Geometry, axes: int) -> Corners:
        """Of the input, all places of the raster between them."""
        lower, upper = corners(g, axes)
        return lower, (self.pitch - g.before[2] - g.space[2], self.height - g.before[1] - g.space[1], *upper[2:])

    def result_corners(self, g: Geometry, axes: int) -> Corners:
        """Of the result, the same places."""
        beyond = self.pitch - g.out[2], self.height - g.out[1]
        return (0,) * axes, (*beyond, 0)[:axes]

    def behind(self, g: Geometry) -> int:
        """Places behind the last pixel of the result."""
        return (self.height - g.out[1]) * self.pitch + self.pitch - g.out[2]


def extent(g: Geometry, axis: int) -> int | None:
    """Places of a raster along an axis: what is behind the end of a row is also before the next one. None where a tap
    is no shift."""
    spread = _spread(g, axis)
    after = max(g.out[axis] + spread - g.before[axis] - g.space[axis], 0)
    found = g.space[axis] + max(g.before[axis], after)
    fits = g.stride[axis] == 1 and 0 <= g.before[axis] <= spread and g.before[axis] < found and g.out[axis] <= found
    return found if fits else None


def _spread(g: Geometry, axis: int) -> int:
    """Places from the first tap to the last."""
    return (g.window[axis] - 1) * g.dilation[axis]


def raster(g: Geometry) -> Raster | None:
    """None where a tap is no shift of a raster, or a tensor map cannot hold it."""
    if math.prod(g.window[1:]) < _FEWEST:
        return None
    height, pitch, axes = extent(g, 1), extent(g, 2), axes_of(g)
    if height is None or pitch is None:
        return None
    found = Raster(pitch, height, _spread(g, 1) * pitch + _spread(g, 2))
    return found if within(axes, *found.corners(g, axes)) else None
