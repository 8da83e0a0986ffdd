"""Weight gradients on wgmma: how the pixels are divided, and by which kernel.

`Split` of `conv_tiles` gathers the windows; `HaloSplit` brings one input for all taps (``kernels/conv/implicit_weight_halo_sm90.cu``). The
constants are fits to an H200 (docs/measured.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from dnnarray._cuda.conv_raster import extent
from dnnarray._cuda.conv_tiles import BLOCK, PLANNED, Split, split
from dnnarray._cuda.plan import Config
from dnnarray._problems.base import remembered
from dnnarray._problems.conv_geometry import Geometry

HALO_THREADS = 512
_SIDE, _MOST_ACROSS = 3, 4  # extents of the window, places from tap to tap
_AHEAD, _MOST_RING = 4, 13  # blocks on their way, and all that shared memory holds
_STEP, _FILL, _END = 0.78e-6, 0.4e-6, 1.6e-6  # seconds of a step of 64 places, of a block that comes before the first, of a tile's end
_BYTES = 4.2e12  # of memory a second


@dataclass(frozen=True)
class HaloWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_weight_halo_sm90.cu``."""

    element: str


@dataclass(frozen=True)
class HaloSplit:
    """The places of a weight gradient in `count` parts of `blocks` steps each, and the seconds that they take.

    Images are a raster of `pitch` places in a row and `height` rows; `ring` blocks of places stand in shared memory.
    """

    pitch: int
    height: int
    ring: int
    count: int
    blocks: int
    seconds: float


def halo_split(g: Geometry) -> HaloSplit | None:
    """None where the kernel does not do it."""
    height, pitch = extent(g, 1), extent(g, 2)
    flat = (g.space[0], g.out[0], *g.window) == (1, 1, 1, _SIDE, _SIDE)
    if height is None or pitch is None or not flat or g.stride != (1, 1, 1) or g.c % BLOCK or g.dilation[2] > _MOST_ACROSS:
        return None
    reach = (_SIDE - 1) * (g.dilation[1] * pitch + g.dilation[2])  # places from the first tap to the last
    late = (BLOCK - 1 + reach) // BLOCK  # blocks that are there before the first one is complete
    ring, places = min(late + 1 + _AHEAD, _MOST_RING), g.n * height * pitch
    if ring < late + 3 or places >= 1 << 31:
        return None
    everything, tiles = -(-places // BLOCK), -(-g.k // BLOCK) * (g.c // BLOCK) * g.groups
    found = []
    for wanted in {1, 2, 3, 4, max(PLANNED // tiles, 1), max(2 * PLANNED // tiles, 1)}:
        blocks = -(-everything // min(wanted, max(everything // 4, 1)))
        count = -(-everything // blocks)
        sums = 8 * count * g.groups * g.k * g.taps * g.c / _BYTES
        seconds = -(-tiles * count // PLANNED) * (blocks * _STEP + late * _FILL + _END) + sums
        found.append(HaloSplit(pitch, height, ring, count, blocks, seconds))
    return min(found, key=lambda s: s.seconds)


@remembered
def weighing(g: Geometry) -> Split | HaloSplit:
    """How a weight gradient is done first."""
    gathered, halo = split(g), halo_split(g)
    return gathered if halo is None or gathered.seconds <= halo.seconds else halo
