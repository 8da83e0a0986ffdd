"""Tiles of the kernels whose operands the copy engine brings, what they run on, and how long they take.

A stage takes its products at the rate that the matrix units keep up, or the second-level cache. The constants are fits to an H200
(docs/measured.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnnarray._cuda.conv_tiles import BLOCK, ROW, SHARED, Tile, rounds
from dnnarray._problems.conv_geometry import Geometry

Corners = tuple[tuple[int, ...], tuple[int, ...]]  # lower and upper, the fastest axis first

_CORNERS = {2: 128, 3: 16}  # by axes of space: what a tensor map can hold
_GROUP = 128  # threads of a warpgroup
_FEWEST = 6  # taps of a halo: the input of the next channels must find its buffer free before the weights run out
_TALLEST = 1024  # pixels of a box
_TILES = (Tile(128, 256, 4), Tile(256, 128, 4), Tile(192, 128, 4), Tile(128, 128, 6), Tile(256, 64, 4), Tile(128, 64, 8))
_L2 = 75e9  # bytes a second that a multiprocessor gets
_WAIT, _END = 60e-9, 92e-12  # seconds of a stage beside its products, of an element of a tile's end


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
    """Planes as ``kernels/conv/implicit_tma_halo_sm90.cu`` sees them: places in a row, rows, places from the first tap to the last."""

    pitch: int
    height: int
    reach: int

    def corners(self, g: Geometry, axes: int) -> Corners:
        """Of the input, all places of the raster between them."""
        lower, upper = corners(g, axes)
        last = [p - b - n for p, b, n in zip((self.pitch, self.height), g.before[::-1], g.space[::-1], strict=False)]
        return lower, (*last, *upper[2:])

    def shared_memory(self, tile: Tile) -> int:
        image = -(-(tile.m + self.reach) * ROW // 1024) * 1024
        return 1024 + 2 * image + tile.stages * (tile.n * ROW + 16) + 64


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


def places(g: Geometry, r: Raster | None) -> int:
    """Rows of the product."""
    return g.n * (g.pixels if r is None else g.out[0] * r.height * r.pitch)


@dataclass(frozen=True)
class Choice:
    """A tile, what it runs on (None: windows fetched anew for each tap) and the seconds that it takes."""

    tile: Tile
    raster: Raster | None
    seconds: float

    @property
    def threads(self) -> int:
        """One warpgroup that asks, and those that multiply."""
        return _GROUP * (1 + _consumers(self.tile))

    @property
    def shared_memory(self) -> int:
        """The same for every raster, since the limit that a kernel is given once is for all its launches."""
        return SHARED if self.raster else self.tile.shared_memory + _staging(self.tile)


def _consumers(t: Tile) -> int:
    """Warpgroups that multiply: each 64 rows, or 128 of the tallest tile."""
    return t.m // (128 if t.m > 192 else 64)


def _staging(t: Tile) -> int:
    """Bytes of the panels that results leave by, two a warpgroup, and of their barriers."""
    return _consumers(t) * 2 * (BLOCK * ROW + 16)


def choose(g: Geometry, units: int, residual: bool = False) -> Choice:
    """What is done first. Results of a raster leave from registers, where a residual comes too late."""
    r = None if residual else raster(g)
    found = [_timed(g, units, t, None) for t in _TILES]
    if r:
        found += [_timed(g, units, halo, r) for t in _TILES if (halo := with_halo(t, r))]
    return min(found, key=lambda c: c.seconds)


def with_halo(t: Tile, r: Raster) -> Tile | None:
    """The tile with as many stages as fit beside its halos."""
    fitting = (Tile(t.m, t.n, s) for s in (8, 6, 5, 4, 3))
    return next((f for f in fitting if r.shared_memory(f) <= SHARED and t.m + r.reach <= _TALLEST), None)


def _timed(g: Geometry, units: int, t: Tile, r: Raster | None) -> Choice:
    """With the slower of products and second-level cache."""
    blocks = g.taps * -(-g.c // BLOCK)
    moved = (t.n + (t.m if r is None else (t.m + r.reach) / math.prod(g.window[1:]))) * ROW
    each = max(t.products + _WAIT, moved / _L2)
    return Choice(t, r, rounds(g, places(g, r), t, units) * (blocks * each + _END * t.m * t.n))
