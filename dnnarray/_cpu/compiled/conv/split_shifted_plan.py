"""How a convolution by shifts on the matrix unit is cut into tasks, and the numbers that its kernels get. Imports Numba
for its constants alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.plan import channel_shares, even_extent
from dnnarray._cpu.compiled.memory import ALIGNMENT
from dnnarray._cpu.compiled.split_product import ITEM
from dnnarray._cpu.compiled.split_tile import BLOCK, DEPTH, LINE, PIECES, SIDE, TILE
from dnnarray._cpu.conv.blocks import block_extents
from dnnarray._cpu.conv.split import lane
from dnnarray._problems.conv_geometry import Geometry, Triple
from dnnarray._records import changed

_IMAGE = 1 << 18  # bytes of a task's image: it shares the second-level cache with the sums and the weight
_MIN_PIXELS = 256  # of a task, which share the weight's trips
BESIDE = 2 * BLOCK + SIDE * DEPTH * ITEM  # bytes: a block before it is turned, after it, and numbers with 0 around them

# Where the kernels find their numbers; three entries for the axes D H W from `SPACE_AT` on.
(
    C_AT,
    K_AT,
    SETS_AT,
    CHANNEL_TASKS_AT,
    CHANNEL_ROWS_AT,
    TASKS_AT,
    PARTS_AT,
    SCRATCH_AT,
    GROUPS_AT,
    PIECE_AT,
    PIXEL_AT,
    ROWS_AT,
) = range(12)
SPACE_AT, OUT_AT, STRIDE_AT, BEFORE_AT, COVERED_AT, PHASE_AT, BLOCK_AT = range(12, 33, 3)
# Those of a map (the forward one, or a phase of the gradient): blocks of its depth, the first of them in the table and
# in the weight, where its results begin.
BLOCKS_AT, FIRST_AT, START_AT = range(3)
WINDOW_AT, EXTENT_AT = 3, 6  # axes
XN, XG, XC, XD, XH, XW, YN, YG, YK, YD, YH, YW = range(12)  # byte strides


class ShiftsPlan(NamedTuple):
    """How the maps of a geometry are cut into tasks."""

    numbers: np.ndarray  # what the kernels call `geo`
    maps: np.ndarray
    offsets: np.ndarray  # bytes, of each block of each map in the image
    parts: int
    strips: int  # of output channels, in all groups
    weight: int  # bytes of the packed weights
    memory: int  # bytes of scratch of all


def _blocking(g: Geometry, out: Triple) -> Triple:
    """Output extents of a task; with a stride along H the rows of its other phases lie between two planes."""
    pixels = max(_IMAGE // (2 * PIECES * g.c * math.prod(g.stride)), _MIN_PIXELS)
    d, h, w = (even_extent(m, b) for m, b in zip(out, block_extents(changed(g, out=out), pixels)[1:], strict=True))
    return (d if g.stride[1] == 1 else 1, h, w)


def _columns(g: Geometry, merged: int) -> int:
    """Blocks that the taps of a row come to."""
    return -(-g.window[2] // merged)


def _offsets(g: Geometry, before: Triple, phases: Triple, piece: int, merged: int) -> np.ndarray:
    """Of each 32 channels and tap, or so many taps of a row, in an image that begins `before` the first pixel: a tap
    stands in its phase of the stride along D and H."""
    counts = (*g.window[:2], _columns(g, merged))
    d, h, w = (
        np.arange(m) * step + ahead - own
        for m, step, ahead, own in zip(counts, (*g.dilation[:2], g.dilation[2] * merged), before, g.before, strict=True)
    )
    rows = ((d % g.stride[0] * phases[0] + d // g.stride[0]) * g.stride[1])[:, None] + h % g.stride[1]
    taps = ((rows * phases[1] + h // g.stride[1])[:, :, None] * phases[2] + w).reshape(-1) * (LINE // merged)
    return (np.arange(-(-g.c // DEPTH))[:, None] * PIECES * piece + taps).reshape(-1)


def _each_axis(values: Iterable[Triple]) -> Triple:
    """The largest along each axis."""
    d, h, w = (max(v) for v in zip(*values, strict=True))
    return d, h, w


def _covered(g: Geometry, before: Triple) -> Triple:
    """Inputs that an output reads, and those before them from `before` on."""
    d, h, w = (reach + ahead - own for reach, ahead, own in zip(g.reach((1, 1, 1)), before, g.before, strict=True))
    return d, h, w


@lru_cache(maxsize=1024)
def shifts_plan(geometries: tuple[Geometry, ...]) -> ShiftsPlan:
    """The plan for maps of one image: geometries that have no extent of 0, and differ in their windows alone."""
    g, out, before = geometries[0], _each_axis(m.out for m in geometries), _each_axis(m.before for m in geometries)
    covered = _each_axis(_covered(m, before) for m in geometries)
    merged = DEPTH // max(map(lane, geometries))
    block, groups, strips = _blocking(g, out), -(-g.c // DEPTH), -(-g.k // SIDE)
    depth, height, width = (-(-((m - 1) * s + c) // s) for m, s, c in zip(block, g.stride, covered, strict=True))
    phases = depth, height, width * g.stride[2]
    # Behind the last pixel there is what the last tile reads.
    piece = -(-(math.prod(phases) * g.stride[0] * g.stride[1] + SIDE * g.stride[2] + merged) // merged) * LINE
    pixels = ((block[0] - 1) * height * g.stride[1] + block[1] - 1) * width + block[2]
    tasks = g.n * math.prod(-(-m // b) for m, b in zip(out, block, strict=True))
    shares, rows = channel_shares(g, tasks, 2 * SIDE)
    parts = min(threads.cores(), tasks * shares)
    pairs = -(-pixels // (2 * SIDE)) * -(-rows // (2 * SIDE))
    part = BESIDE + groups * PIECES * piece + pairs * 4 * TILE
    numbers = (
        *(g.c, g.k, g.groups, shares, rows, tasks * shares, parts, part, groups, piece, LINE // merged, strips),
        *(*g.space, *out, *g.stride, *before, *covered, *phases, *block),
    )
    counts = [groups * m.window[0] * m.window[1] * _columns(m, merged) for m in geometries]
    maps = [
        (count, sum(counts[:i]), 0, *m.window, *m.out)
        for i, (m, count) in enumerate(zip(geometries, counts, strict=True))
    ]
    weight = g.groups * strips * sum(counts) * BLOCK
    memory = weight + max(parts * part, g.groups * strips * BESIDE) + ALIGNMENT
    offsets = np.concatenate([_offsets(m, before, phases, piece, merged) for m in geometries])
    return ShiftsPlan(
        np.array(numbers, np.int64), np.array(maps, np.int64), offsets, parts, g.groups * strips, weight, memory
    )
