"""Tiles of the kernels whose operands TMA brings, what they run on, and how long they take.

A stage takes its products at the rate that the matrix units keep up, or the second-level cache. The constants are fits
to an H200 (docs/development/findings/convolution/tma-stage-cost.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from dnnarray._cuda.conv.raster import Raster, axes_of, raster, within
from dnnarray._cuda.conv.tiling import BLOCK, RATE, ROW, SHARED, START, Tile
from dnnarray._problems.base import remembered
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_GROUP = 128  # threads of a warpgroup
_TALLEST = 1024  # pixels of a box
_TILES = (
    Tile(128, 256, 3),
    Tile(256, 128, 3),
    Tile(192, 128, 4),
    Tile(128, 128, 6),
    Tile(256, 64, 4),
    Tile(128, 64, 8),
)
_HELD = (Tile(384, 64, 4), Tile(256, 64, 4))  # of three warpgroups and of two, and how many inputs there may be at most
_L2 = 75e9  # bytes a second that a multiprocessor gets
_STAGES = (8, 6, 5, 4, 3)  # of a weight beside halos
_SHORT = 4  # stages of tiles that are mostly their end
_CROWDED = 1.2  # times that products of 64 columns take, which ask for all that shared memory gives
_COUNTED = (1 << 31) - _TALLEST  # places of rasters, those of a last tile beside them
_WAIT, _END = 60e-9, 92e-12  # seconds of a stage beside its products, of an element of a tile's end


def halo_memory(r: Raster, tile: Tile, residual: bool = False, stages: int | None = None) -> int:
    """Bytes of shared memory: two parts of the input, the weight's stages (the tile's, if it is not said how many), a
    residual's panels."""
    image = -(-(tile.m + r.reach) * ROW // 1024) * 1024
    return 1024 + 2 * image + (stages or tile.stages) * (tile.n * ROW + 16) + 72 + (_panels(tile) if residual else 0)


def places(g: Geometry, r: Raster | None) -> int:
    """Rows of the product; of a raster, up to the last pixel of the result."""
    return g.n * g.pixels if r is None else g.n * g.out[0] * r.height * r.pitch - r.behind(g)


@frozen
class Choice:
    """A tile, what it runs on (None: windows fetched anew for each tap) and the seconds that it takes; `held`: with the
    weight in shared memory for good."""

    tile: Tile
    raster: Raster | None
    seconds: float
    held: bool = False
    sets: int = 1  # of panels by which results leave

    @property
    def kernel(self) -> str:
        """Its file in ``kernels/conv``, and how symbols begin."""
        return "implicit_tma_sm90" if self.raster is None else f"implicit_tma_{'held' if self.held else 'halo'}_sm90"

    @property
    def rows(self) -> int:
        """Of the result, that a block takes at once; one of its warpgroups where they take turns."""
        return _own(self.tile) if self.held else self.tile.m

    def blocks(self, tiles: tuple[int, int, int], units: int) -> int:
        """Of a launch; those that hold a weight are as many for each of the weight's tiles."""
        rows, columns, groups = tiles
        each = columns * groups if self.held else 1
        return each * max(min(rows * columns * groups, units) // each, 1)

    @property
    def threads(self) -> int:
        """One warpgroup that asks, and those that multiply."""
        return _GROUP * (1 + _consumers(self.tile))

    @property
    def shared_memory(self) -> int:
        """The same for every raster, since the limit that a kernel is given once is for all its launches."""
        return SHARED if self.raster else self.tile.shared_memory + self.sets * _panels(self.tile)


def _consumers(t: Tile) -> int:
    """Warpgroups that multiply: each 64 rows, or 128 of the tallest tile."""
    return t.m // (128 if t.m > 192 else 64)


def _panels(t: Tile) -> int:
    """Bytes of a tile of half types, by which results leave and residuals come, and of its barriers."""
    return t.m * t.n * 2 + 24 * _consumers(t)


@remembered
def choose(g: Geometry, units: int, residual: bool = False, first: bool = False, wide: bool = False) -> Choice:
    """What is done first. Results of a raster are not written channels-first (`first`), nor by who holds the weight in
    float32 (`wide`): ptxas serialises it."""
    blocks, r = g.taps * -(-g.c // BLOCK), None if first else raster(g)
    seconds, tile = _fastest(g, units, places(g, None), blocks, 0, 1)
    if r and residual and not within(axes_of(g), *r.result_corners(g, axes_of(g))):
        r = None
    if r and places(g, r) > _COUNTED:
        r = None
    chosen = None
    if r:
        by_raster, t = _fastest(g, units, places(g, r), blocks, r.reach, math.prod(g.window[1:]), _widest(r, residual))
        if t and by_raster < seconds:
            seconds, tile, chosen = by_raster, with_halo(t, r, residual), r
    held = _holding(g, r, units, residual) if r and not wide else None
    if held and held.seconds < seconds:
        return held
    assert tile is not None
    sets = 2 if blocks <= _SHORT and not (chosen or first or wide) else 1
    return Choice(tile if sets == 1 else _with_sets(tile, sets), chosen, seconds, False, sets)


@lru_cache(maxsize=256)
def least(k: int) -> tuple[float, float]:
    """As `tiling.least`; who holds the weight takes the time of a tile's end once."""
    held = -(-k // BLOCK) * BLOCK * BLOCK / RATE * _CROWDED
    return min(held, *(-(-k // t.n) * (t.products + _WAIT) / t.m for t in _TILES)), 0.0


def _fastest(
    g: Geometry,
    units: int,
    rows: int,
    blocks: int,
    reach: int,
    taps: int,
    fits: Callable[[Tile], bool] = lambda t: True,
) -> tuple[float, Tile | None]:
    """The tile and its seconds: the slower of products and second-level cache, which gives its weight and, once for
    `taps` stages, its rows and their reach."""
    best, found, k, groups = math.inf, None, g.k, g.groups
    for t in _TILES:
        m, n = t.m, t.n
        each = max(t.products + _WAIT, (n + (m + reach) / taps) * ROW / _L2)
        tiles = -(-rows // m) * -(-k // n) * groups
        seconds = START + -(-tiles // units) * (blocks * each + _END * m * n)
        if (found is None or seconds < best) and fits(t):
            best, found = seconds, t
    return best, found


@lru_cache(maxsize=256)
def _staged(m: int, n: int, stages: int) -> Tile:
    return Tile(m, n, stages)


@lru_cache(maxsize=64)
def _with_sets(t: Tile, sets: int) -> Tile:
    """The tile with as many stages as fit beside its panels."""
    fitting = (_staged(t.m, t.n, s) for s in range(t.stages, 0, -1))
    return next(f for f in fitting if f.shared_memory + sets * _panels(f) <= SHARED)


def _holding(g: Geometry, r: Raster, units: int, residual: bool) -> Choice | None:
    """The weight of few channels in shared memory for good, warpgroups by turns with their parts of a tile: as many as
    there is room for inputs."""
    if g.c > BLOCK or g.window[0] > 1:
        return None
    taps = math.prod(g.window[1:])
    fitting = ((t, inputs) for t in _HELD if (inputs := _inputs(t, r, taps, residual)) >= _consumers(t))
    tile, inputs = next(fitting, (None, 0))
    if tile is None:
        return None
    own, columns = _own(tile), -(-g.k // tile.n) * g.groups
    rows = -(-places(g, r) // own)
    count = -(-rows // max(units // columns, 1))
    each = max(taps * tile.products / _consumers(tile) * _CROWDED, _input_bytes(tile, r) / _L2)
    return Choice(
        _staged(tile.m, tile.n, inputs), r, START + taps * tile.n * ROW / _L2 + count * each + _END * own * tile.n, True
    )


def _own(t: Tile) -> int:
    """Rows of a warpgroup."""
    return t.m // _consumers(t)


def _input_bytes(t: Tile, r: Raster) -> int:
    """What a warpgroup's products read beside the weight."""
    return -(-(_own(t) + r.reach) * ROW // 1024) * 1024


def _inputs(t: Tile, r: Raster, taps: int, residual: bool) -> int:
    """How many fit beside the weight and the residual's panels."""
    room = SHARED - 2048 - taps * t.n * ROW - (_panels(t) if residual else 0)
    return min(room // _input_bytes(t, r), t.stages) if _own(t) + r.reach <= _TALLEST else 0


def _widest(r: Raster, residual: bool) -> Callable[[Tile], bool]:
    """Which tiles have a halo: their rows in one box, the fewest stages in shared memory."""
    return lambda t: t.m + r.reach <= _TALLEST and halo_memory(r, t, residual, _STAGES[-1]) <= SHARED


def with_halo(t: Tile, r: Raster, residual: bool = False) -> Tile | None:
    """The tile with as many stages as fit beside its halos."""
    if t.m + r.reach > _TALLEST:
        return None
    return next((_staged(t.m, t.n, s) for s in _STAGES if halo_memory(r, t, residual, s) <= SHARED), None)
