"""Tiles of the wgmma kernels and how long they take: what the choice among them rests on.

A stage of a tile takes its products at the full rate of the matrix units and a wait; that of the weight gradient, the
copies of its gathering threads. The constants are fits to an H200
(docs/development/findings/convolution/gathering-stage-cost.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Protocol, TypeVar

from dnnarray._problems.base import remembered
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import share_of_peak

T = TypeVar("T")

BLOCK = 64  # channels, columns or pixels of a stage
ROW = 128  # bytes of a tile's row in shared memory
PLANNED = 132  # multiprocessors that parts are planned for where the device is not known
SHARED = 232_448  # bytes of shared memory of a block
RATE = 3.7e12  # multiply-adds a second of a multiprocessor
START = 1.5e-6  # seconds of a launch until the products run
_SUMS = 2.5e12  # bytes of partial sums a second, written and read again
_WAIT = {128: 260e-9, 256: 390e-9}  # seconds of a stage beside its products, by the rows of a tile
_COPY = 49e-9  # seconds in which each gathering thread of the weight gradient copies a chunk
_END = 1.6e-6  # seconds of 128 rows of a tile's end


@frozen
class Tile:
    """A block's tile, rows x columns of the result, and the stages of its ring."""

    m: int
    n: int
    stages: int

    @property
    def shared_memory(self) -> int:
        return 1024 + self.stages * ((self.m + self.n) * ROW + 16)

    @property
    def settings(self) -> tuple[int, int, int]:
        return self.m, self.n, self.stages

    @property
    def name(self) -> str:
        """For symbols."""
        return f"{self.m}x{self.n}x{self.stages}"

    @cached_property
    def products(self) -> float:
        """Seconds of the products of a stage."""
        return self.m * self.n * BLOCK / RATE


TILES = (Tile(128, 256, 4), Tile(256, 128, 4), Tile(128, 128, 6), Tile(256, 64, 5), Tile(128, 64, 8))
_TIMED = tuple((t, t.products + _WAIT[t.m], _END * t.m / 128) for t in TILES)  # seconds of a stage, of a tile's end
WEIGHT_TILES = (Tile(128, 256, 4), Tile(128, 128, 6), Tile(64, 256, 5), Tile(64, 128, 8))


DGRADS = (
    "conv_backward_input",
    "conv_transpose",
    "conv_backward",
)  # operations whose correlations are those of a stride's residues


class Timed(Protocol):
    """A way to do a correlation."""

    @property
    def seconds(self) -> float: ...


@frozen
class Choice:
    """A tile and the seconds that it takes."""

    tile: Tile
    seconds: float


@remembered
def choose(g: Geometry, units: int) -> Choice:
    """The tile for a correlation that is done first."""
    blocks, rows = -(-g.taps * g.c // BLOCK), g.n * g.pixels
    found = [(START + rounds(g, rows, t, units) * (blocks * each + end), t) for t, each, end in _TIMED]
    seconds, tile = min(found, key=itemgetter(0))
    return Choice(tile, seconds)


@lru_cache(maxsize=256)
def least(k: int) -> tuple[float, float]:
    """Seconds of a row of a result of `k` channels that no tile takes less than: of a stage, of its end."""
    return min(-(-k // t.n) * each / t.m for t, each, _ in _TIMED), min(
        -(-k // t.n) * end / t.m for t, _, end in _TIMED
    )


@lru_cache(maxsize=256)
def least_wgrad(k: int) -> float:
    """Seconds of a pixel for one channel of a tap, for all `k` of the result, that no tile of a weight gradient takes
    less than."""
    return min(-(-k // t.m) * _gathering(t) / (t.n * BLOCK) for t in WEIGHT_TILES)


def rounds(g: Geometry, rows: int, t: Tile, units: int) -> int:
    """Tiles of a multiprocessor."""
    return -(-(-(-rows // t.m) * -(-g.k // t.n)) * g.groups // units)


def counts(g: Geometry, rows: int, t: Tile) -> tuple[int, int, int]:
    """Tiles along the result's rows and columns, and groups."""
    return -(-rows // t.m), -(-g.k // t.n), g.groups


@frozen
class Split:
    """The pixels of a weight gradient in `count` parts of `blocks` stages each, and the seconds that they take."""

    tile: Tile
    count: int
    blocks: int
    seconds: float

    @property
    def fills_up(self) -> bool:
        """Whether places are taken in that the definition does not have, whose gradients of zero make NaN of
        infinities."""
        return False


def parts(everything: int, tiles: int) -> Iterator[tuple[int, int]]:
    """Ways to divide the stages of each tile of a weight gradient: parts, and stages of a part."""
    most = max(everything // 4, 1)
    for wanted in {1, 2, 3, 4, PLANNED // tiles or 1, 2 * PLANNED // tiles or 1}:
        blocks = -(-everything // min(wanted, most))
        yield -(-everything // blocks), blocks


def adding_up(g: Geometry, count: int) -> float:
    """Seconds in which partial sums of a weight gradient are written and read again."""
    return 8 * count * g.groups * g.k * g.taps * g.c / _SUMS


Way = tuple[T, int, float, float]
"""To divide a weight gradient: a tile or the like, how many there are, seconds of a stage of each and of its end."""


def divided(
    everything: int, ways: Iterable[Way[T]], sums: float, always: bool, limit: float
) -> tuple[float, T, int, int] | None:
    """The fewest seconds, the way, the parts and the stages of a part; None where all take `limit` or more.

    `everything` are the stages of a tile, `sums` the seconds of adding up a part, `always` or where there are several.
    """
    best = None
    for way, tiles, each, end in ways:
        if tiles * (everything * each + end) / PLANNED >= limit:
            continue  # even if nothing were rounded up
        for count, blocks in parts(everything, tiles):
            seconds = -(-tiles * count // PLANNED) * (blocks * each + end) + (
                count * sums if always or count > 1 else 0
            )
            if seconds < limit:
                best, limit = (seconds, way, count, blocks), seconds
    return best


def _gathering(t: Tile) -> float:
    """Seconds of a stage of a weight gradient."""
    return (t.m + t.n) / 16 * _COPY


def split(g: Geometry) -> Split:
    """The tile and the parts that are done first; the device does not matter, since the scratch memory must be known
    without it."""
    found = split_below(g, math.inf)
    assert found is not None
    return found


def split_below(g: Geometry, limit: float) -> Split | None:
    """As `split`; None where it takes `limit` seconds or more."""
    width = g.taps * g.c
    ways = ((t, -(-g.k // t.m) * -(-width // t.n) * g.groups, _gathering(t), _END) for t in WEIGHT_TILES)
    best = divided(-(-g.n * g.pixels // BLOCK), ways, adding_up(g, 1), True, limit)
    return best and Split(best[1], best[2], best[3], best[0])


def efficiency(
    op: str,
    g: Geometry,
    units: int,
    peak: float,
    weight: Callable[[Geometry], Timed],
    tile: Callable[[Geometry, int], Timed],
) -> float:
    """The share of the peak rate that the products of an operation reach: a weight gradient takes the seconds of
    `weight`, a correlation those of its `tile`."""
    dgrad = op in DGRADS
    found = [weight(g).seconds] if op.endswith(("backward", "backward_weight")) else []
    if op != "conv_backward_weight":
        found.append(sum(tile(p.geometry, units).seconds for p in g.phases) if dgrad else tile(g, units).seconds)
    return share_of_peak(2 * g.macs * len(found), sum(found), peak)
