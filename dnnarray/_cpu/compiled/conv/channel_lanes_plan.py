"""How a convolution with output channels in the lanes is cut into tasks, and the numbers that its kernels get.

A convolution is one piece; the gradient of an input is one for each phase of the stride, and all of them write to one
block of the result. Imports Numba for the length of a vector alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.ahead import WORDS
from dnnarray._cpu.compiled.memory import ALIGNMENT
from dnnarray._cpu.compiled.tile import BYTES, ROWS, VECTORS, lanes
from dnnarray._cpu.compiled.tile_pixels import MOST_PIXELS
from dnnarray._cpu.conv.blocks import Shape, even_parts
from dnnarray._problems.conv_geometry import Geometry, Triple

_BLOCK_ELEMENTS = 1 << 15  # of a block's image or result: both lie in the second-level cache
_MIN_PIXELS = 192  # of a block: what the weight's trip from memory is shared among
_MOST_ELEMENTS = 1 << 18  # of a block's image, where the window and the stride allow it
# channels times taps of one pass over the pixels: short sums of sums are more exact, and a block of the weight stays in
# the first-level cache
_STEPS = 160
# steps of the gradient of an input, added up in a row: PyTorch's rounds as little; 4 to 5% of the time on one core
_CHAIN = 48
_FEW_TAPS_CHAIN = 24  # the same where they are those of few taps
# the same forward, with all their taps: with AVX-512 PyTorch's adds up so many in a row
_FORWARD_CHANNELS = 16 if BYTES == 64 else _STEPS
# of both images, which the second-level caches hold: the result of larger ones is asked for ahead
_NEAR_BYTES = 4 << 20
_TASKS_PER_CORE = 4  # where the extents allow it: the parts are cut beforehand, and cores are not equally fast
_LEAST_BLOCKS = 2  # blocks of output channels in a task, or its image costs more than its products

# Where the kernels find their numbers; entries for the axes (C) D H W where it says so.
(
    GROUPS_AT,
    K_AT,
    ITEM_AT,
    LANES_AT,
    VECTORS_AT,
    PITCH_AT,
    IMAGE_AT,
    RESULT_AT,
    STEPS_AT,
    PARTS_AT,
    MEMORY_AT,
    TABLE_AT,
    TASKS_AT,
    SHARES_AT,
    SHARE_BLOCKS_AT,
    COVERED_AT,
    PIECES_AT,
    CHAIN_AT,
) = range(18)
OUT_AT, BLOCK_AT, STEP_AT, STRIDE_AT, LOW_AT = range(
    18, 33, 3
)  # D H W: of the result, of a block of it; from pixel to pixel of a piece in the result and in x; the first one read
SPACE_AT, EXTENT_AT, APART_AT, ORDER_AT = range(
    33, 49, 4
)  # C D H W: of x, of a block's image; the image's steps in bytes; axes, slowest first
AHEAD_AT, COUNT_AT = 49, 50
# The same for a piece; three entries for the first two.
START_AT, WINDOW_AT = 0, 3
BASE_AT, TAPS_AT, DEPTH_AT, WEIGHT_AT, POINTS_AT = range(6, 11)
PIECE_COUNT_AT = 11


class Piece(NamedTuple):
    """A correlation without gaps in its result: output j stands at `start` + j * `step`."""

    geometry: Geometry
    start: Triple
    step: Triple


class Plan(NamedTuple):
    """How the pieces of a map are cut into tasks, for elements of one size."""

    numbers: np.ndarray  # what the kernels call `geo`
    pieces: np.ndarray
    taps: np.ndarray  # byte offset of each channel and tap in the image, piece after piece
    parts: int
    blocks: int  # of the packed weight
    shapes: tuple[Shape, ...]  # of scratch: the packed weight, each part's memory, each part's table of 64-bit integers


def _triple(values: Sequence[int]) -> Triple:
    a, b, c = values
    return a, b, c


@lru_cache(maxsize=1024)
def forward_plan(g: Geometry, itemsize: int) -> Plan:
    """The plan for a geometry that has no extent of 0."""
    return _plan((Piece(g, (0, 0, 0), (1, 1, 1)),), g.out, itemsize, max(_FORWARD_CHANNELS * g.taps, _CHAIN))


@lru_cache(maxsize=1024)
def gradient_plan(g: Geometry, itemsize: int) -> Plan | None:
    """That of its input's gradient; None where no tap meets the input. The phases of a stride share the taps: their
    sums are short as they are."""
    pieces = tuple(Piece(p.geometry, _triple([s.start for s in p.target]), g.stride) for p in g.phases)
    chain = min(_CHAIN, max(_FEW_TAPS_CHAIN, 8 * g.taps)) if len(pieces) == 1 else _STEPS
    return _plan(pieces, g.space, itemsize, chain) if pieces else None


def _whole(extent: int, size: int, step: int) -> int:
    """About `size`, so that blocks are nearly equal and begin at multiples of `step`."""
    size = max(size // step, 1) * step
    return min(-(-extent // -(-extent // size) // step) * step, extent) if size < extent else extent


def _blocking(pieces: Sequence[Piece], out: Triple) -> Triple:
    """The extents of a block of the result."""
    g, step = pieces[0].geometry, pieces[0].step
    read = g.c * math.prod(g.stride) / math.prod(step)  # elements of the image for a pixel
    pixels = max(int(_BLOCK_ELEMENTS / max(read, g.k)), min(_MIN_PIXELS, int(_MOST_ELEMENTS / read)), ROWS)
    w = _whole(out[2], pixels, step[2])
    h = _whole(out[1], max(pixels // w, 1), step[1])
    d = _whole(out[0], max(pixels // (w * h), 1), step[0])
    return d, h, w


def _pixels(piece: Piece, block: Triple) -> Triple:
    """Those of a piece in a block, along each axis."""
    return _triple(
        [max(-(-(b - start) // step), 0) for b, start, step in zip(block, piece.start, piece.step, strict=True)]
    )


def _read(pieces: Sequence[Piece], block: Triple) -> tuple[Triple, Triple]:
    """The first position that a block reads, from where the stride has taken it, and how many it reads."""
    low = [min(-p.geometry.before[axis] for p in pieces) for axis in range(3)]
    extent = [
        max(
            p.geometry.reach(_pixels(p, block))[axis] - p.geometry.before[axis]
            for p in pieces
            if _pixels(p, block)[axis]
        )
        - low[axis]
        for axis in range(3)
    ]
    return _triple(low), _triple(extent)


def _steps_apart(g: Geometry, extent: Triple) -> tuple[list[int], list[int], int]:
    """From channel to channel, plane to plane, row to row and pixel to pixel of the image, the axes from the slowest
    on, and all elements."""
    d, h, w = extent
    line = ALIGNMENT // 4
    if g.pixel_major:
        point = g.c
        return [1, h * w * point, w * point, point], [1, 2, 3, 0], d * h * w * point
    plane = -(-d * h * w // line) | 1  # an odd number of cache lines: channels then use all sets of the cache
    return [plane * line, h * w, w, 1], [0, 1, 2, 3], g.c * plane * line


def _plan(pieces: Sequence[Piece], out: Triple, itemsize: int, chain: int) -> Plan:
    g = pieces[0].geometry
    block = _blocking(pieces, out)
    low, extent = _read(pieces, block)
    apart, order, image = _steps_apart(g, extent)
    width, cores = lanes(itemsize), threads.cores()
    vectors = -(-g.k // width)
    line = ALIGNMENT // itemsize
    pitch = (-(-vectors * width // line) | 1) * line
    number = g.n * math.prod(-(-m // b) for m, b in zip(out, block, strict=True))
    shares, share_blocks = _shares(g, number, -(-vectors // VECTORS))
    parts = min(cores, number * shares)
    counts = [math.prod(_pixels(p, block)) + MOST_PIXELS for p in pieces]
    depths = [g.c * p.geometry.taps for p in pieces]
    steps = max(even_parts(d, _STEPS) for d in depths)
    image, result = (-(-m // ALIGNMENT) * ALIGNMENT for m in (image, math.prod(block) * pitch))
    numbers = np.zeros(COUNT_AT, np.int64)
    numbers[:OUT_AT] = (
        g.groups,
        g.k,
        itemsize,
        width,
        vectors,
        pitch,
        image,
        result,
        steps,
        parts,
        image + result,
        WORDS + 2 * sum(counts),
        number * shares,
        shares,
        share_blocks,
        sum(p.geometry.pixels for p in pieces) == math.prod(out),
        len(pieces),
        even_parts(steps, chain),
    )
    numbers[OUT_AT:SPACE_AT] = (*out, *block, *pieces[0].step, *g.stride, *low)
    numbers[SPACE_AT:AHEAD_AT] = (g.c, *g.space, g.c, *extent, *(a * itemsize for a in apart), *order)
    numbers[AHEAD_AT] = g.n * g.groups * (g.c * math.prod(g.space) + g.k * math.prod(out)) * itemsize > _NEAR_BYTES
    rows = np.zeros((len(pieces), PIECE_COUNT_AT), np.int64)
    taps = []
    for i, (p, depth) in enumerate(zip(pieces, depths, strict=True)):
        base = (
            sum((-before - first) * a for before, first, a in zip(p.geometry.before, low, apart[1:], strict=True))
            * itemsize
        )
        before = sum(depths[:i])
        rows[i] = (
            *p.start,
            *p.geometry.window,
            base,
            before,
            depth,
            before * g.groups * vectors * width,
            2 * sum(counts[:i]),
        )
        taps.append(_taps(p.geometry, apart) * itemsize)
    weight = sum(depths) * g.groups * vectors * width
    return Plan(
        numbers, rows, np.concatenate(taps), parts, len(pieces) * g.groups * -(-vectors // VECTORS),
        ((weight + ALIGNMENT,), (parts * (image + result) + ALIGNMENT,), (2 * parts * int(numbers[TABLE_AT]),)),
    )  # fmt: skip


def _taps(g: Geometry, apart: Sequence[int]) -> np.ndarray:
    """The offset of each channel and tap in the image, in elements."""
    total = np.arange(g.c, dtype=np.int64).reshape(-1, 1, 1, 1) * apart[0]
    for axis in range(3):
        offset = np.arange(g.window[axis]) * g.dilation[axis] * apart[1 + axis]
        total = total + offset.reshape([-1 if i == axis else 1 for i in range(3)])
    return total.reshape(-1)


def _shares(g: Geometry, blocks: int, channel_blocks: int) -> tuple[int, int]:
    """Into how many tasks the channels of a block are split, so that the cores have enough of them, and the blocks of
    output channels of one."""
    wanted = -(-_TASKS_PER_CORE * threads.cores() // blocks)
    if g.groups > 1:
        return min(wanted, g.groups), channel_blocks
    each = -(-channel_blocks // min(wanted, max(channel_blocks // _LEAST_BLOCKS, 1)))
    return -(-channel_blocks // each), each


@lru_cache(maxsize=1024)
def buffers(g: Geometry, gradient: bool = False) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    plans = [(gradient_plan if gradient else forward_plan)(g, item) for item in (4, 8)]
    return tuple(max(pair, key=math.prod) for pair in zip(*(p.shapes for p in plans if p is not None), strict=True))
