"""Weight gradients whose operands TMA brings: how the pixels are divided, and by which kernel.

The constants are fits to an H200 (docs/development/findings/convolution/tma-stage-cost.md).
"""

from __future__ import annotations

import math
from functools import lru_cache

from dnnarray._cuda.conv import tiling
from dnnarray._cuda.conv.raster import Raster, axes_of, extent, within
from dnnarray._cuda.conv.tiling import BLOCK, ROW, Split, Tile, adding_up, divided, split_below
from dnnarray._problems.base import remembered
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_SIDE, _MOST_ACROSS = 3, 4  # extents of a plane's window, places from tap to tap
_AHEAD, _MOST_RING = 4, 13  # blocks on their way, and all that shared memory holds
_TILES = (
    Tile(256, 192, 4),
    Tile(128, 256, 4),
    Tile(256, 128, 4),
    Tile(128, 192, 5),
    Tile(128, 128, 6),
    Tile(256, 64, 5),
    Tile(64, 256, 5),
)
_L2 = 75e9  # bytes a second that a multiprocessor gets
_STEP, _FILL, _END = (
    0.7e-6,
    0.3e-6,
    1.6e-6,
)  # seconds of a step of 64 places, of a block that comes before the first, of a tile's end
_WAIT = 60e-9  # seconds of a stage beside its products


@frozen
class TmaSplit(Split):
    """The pixels of a weight gradient by ``kernels/conv/implicit_weight_tma_sm90.cu``."""


@frozen
class HaloSplit:
    """The places of a weight gradient in `count` parts of `blocks` steps each, and the seconds that they take.

    `ring` blocks of places stand in shared memory.
    """

    raster: Raster
    ring: int
    count: int
    blocks: int
    seconds: float

    @property
    def fills_up(self) -> bool:
        return True


def _brought(t: Tile) -> float:
    """Seconds of a stage."""
    return max(t.products + _WAIT, (t.m + t.n) * ROW / _L2)


@lru_cache(maxsize=256)
def least_wgrad(k: int) -> float:
    """As `tiling.least_wgrad`, of all ways of `wgrad_split`."""
    by_places = -(-k // BLOCK) * _STEP / (_SIDE * _SIDE * BLOCK * BLOCK)
    return min(tiling.least_wgrad(k), by_places, *(-(-k // t.m) * _brought(t) / (t.n * BLOCK) for t in _TILES))


def tma_split(g: Geometry, kept: Geometry | None = None, limit: float = math.inf) -> TmaSplit | None:
    """The tile and the parts that are done first, None where they take `limit` seconds or more; the sums of `kept` are
    added up, by default all."""
    width = g.taps * -(-g.c // BLOCK) * BLOCK
    ways = ((t, -(-g.k // t.m) * -(-width // t.n) * g.groups, _brought(t), _END) for t in _TILES)
    best = divided(-(-g.n * g.pixels // BLOCK), ways, adding_up(kept or g, 1), kept is not None, limit)
    return best and TmaSplit(best[1], best[2], best[3], best[0])


def halo_split(g: Geometry, kept: Geometry | None = None) -> HaloSplit | None:
    """None where the kernel does not do it; the sums of `kept` are added up, by default all."""
    height, pitch = extent(g, 1), extent(g, 2)
    if (
        height is None
        or pitch is None
        or g.window[1:] != (_SIDE, _SIDE)
        or g.stride[1:] != (1, 1)
        or g.dilation[2] > _MOST_ACROSS
    ):
        return None
    r, axes = Raster(pitch, height, (_SIDE - 1) * (g.dilation[1] * pitch + g.dilation[2])), axes_of(g)
    late = (BLOCK - 1 + r.reach) // BLOCK  # blocks that are there before the first one is complete
    ring, places = min(late + 1 + _AHEAD, _MOST_RING), g.n * g.out[0] * height * pitch
    if ring < late + 3 or places >= 1 << 31 or not within(axes, *r.corners(g, axes), *r.result_corners(g, axes)):
        return None
    everything, tiles = -(-places // BLOCK), -(-g.k // BLOCK) * -(-g.c // BLOCK) * g.window[0] * g.groups
    best = divided(everything, [(r, tiles, _STEP, late * _FILL + _END)], adding_up(kept or g, 1), True, math.inf)
    return best and HaloSplit(r, ring, best[2], best[3], best[0])


def faster(g: Geometry, kept: Geometry | None = None) -> TmaSplit | HaloSplit | None:
    """The faster of both ways by TMA, the first one of equals."""
    by_places = halo_split(g, kept)
    return tma_split(g, kept, _no_more(by_places)) or by_places


def _no_more(found: Split | HaloSplit | None) -> float:
    """The limit for what is preferred to `found` where it takes no more seconds."""
    return math.nextafter(found.seconds, math.inf) if found else math.inf


@remembered
def wgrad_split(g: Geometry) -> Split | HaloSplit:
    """How a weight gradient is done first; by gathering threads (`Split`) where channels are so few that boxes of 64
    are mostly empty."""
    by_engine = faster(g)
    found = split_below(g, _no_more(by_engine)) or by_engine
    assert found is not None
    return found
