"""Tiles of the kernels whose float32 operands come in parts of half types, and how long they take.

A stage brings all parts of both operands once: two of them are twice the bytes and three times the products. The
constants are fits to an H200 (docs/development/findings/convolution/float32-parts.md)."""

from __future__ import annotations

from collections.abc import Iterable

from dnnarray._cuda.conv.tiling import BLOCK, PLANNED, ROW, Split, Tile, rounds
from dnnarray._cuda.conv.tma_tiling import Choice
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

WEIGHT_THREADS = 384
_TILES = {  # by parts: two of them need three sums of each element
    1: (Tile(128, 256, 4), Tile(256, 128, 4), Tile(192, 128, 4), Tile(128, 128, 6), Tile(256, 64, 5), Tile(128, 64, 8)),
    2: (Tile(128, 128, 3), Tile(192, 64, 3)),
}
_WEIGHT_TILES = {
    1: (Tile(128, 256, 4), Tile(64, 256, 5), Tile(128, 128, 6), Tile(64, 128, 8)),
    2: (Tile(128, 128, 3), Tile(64, 128, 4)),
}
_PRODUCTS = {1: 1, 2: 3}  # of a pair of numbers, by parts
_L2, _MEMORY = 75e9, 4.2e12  # bytes a second that a multiprocessor gets from the second-level cache; of memory
_SHARED = 220e9  # bytes a second of a multiprocessor's shared memory, written and read: the limit of two parts
_WAIT, _END = 60e-9, 230e-12  # seconds of a stage beside its products, of an element of a tile's end


def shared_memory(t: Tile, parts: int) -> int:
    return 1024 + t.stages * (parts * (t.m + t.n) * ROW + 16)


def _stage(t: Tile, parts: int, halves: bool = False) -> float:
    """Seconds. Each instruction reads its 64 rows and its columns from shared memory; `halves`: two warpgroups divide
    the columns."""
    brought, products = parts * (t.m + t.n) * ROW, _PRODUCTS[parts]
    read = products * ROW * (2 * (BLOCK + t.n // 2) if halves else t.m // BLOCK * (BLOCK + t.n))
    return max(products * t.products + _WAIT, brought / _L2, (brought + read) / _SHARED)


def choose(g: Geometry, units: int, parts: int) -> Choice:
    """The tile for a correlation that is done first."""
    blocks, rows = g.taps * -(-g.c // BLOCK), g.n * g.pixels
    found = [
        Choice(t, None, rounds(g, rows, t, units) * (blocks * _stage(t, parts) + _END * t.m * t.n))
        for t in _TILES[parts]
    ]
    return min(found, key=lambda c: c.seconds)


@frozen
class WeightTiles:
    """Tiles of a weight gradient along its rows and its columns, which are panels of 64 channels of a tap, and the
    groups."""

    m: int
    n: int
    groups: int

    @classmethod
    def of(cls, g: Geometry, t: Tile) -> WeightTiles:
        return cls(-(-g.k // t.m), -(-g.taps * -(-g.c // BLOCK) * BLOCK // t.n), g.groups)

    @property
    def count(self) -> int:
        return self.m * self.n * self.groups


def split(g: Geometry, parts: int) -> Split:
    """How the pixels of a weight gradient are divided first; the scratch memory must be known without the device."""
    everything = -(-g.n * g.pixels // BLOCK)
    return min(_splits(g, parts, everything), key=lambda s: s.seconds)


def _splits(g: Geometry, parts: int, everything: int) -> Iterable[Split]:
    for t in _WEIGHT_TILES[parts]:
        tiles = WeightTiles.of(g, t).count
        for wanted in {1, 2, 3, 4, *(max(waves * PLANNED // tiles, 1) for waves in (1, 2, 3))}:
            blocks = -(-everything // min(wanted, max(everything // 4, 1)))
            count = -(-everything // blocks)
            sums = 8 * count * g.groups * g.k * g.taps * g.c / _MEMORY
            seconds = -(-tiles * count // PLANNED) * (blocks * _stage(t, parts, t.m == BLOCK) + _END * t.m * t.n) + sums
            yield Split(t, count, blocks, seconds)
