"""The gradient of a dense convolution weight with output channels in the lanes. Imports Numba.

A task is a block of output pixels of one image. The gradient there is turned to [pixel][output channel], the image is
copied zero-padded as it lies. The rows of a tile are channels and taps: places in the image, from which a pixel is as
far as the stride takes it. So a window of 7x7 over three channels is 147 rows, whatever the stride, where its channels
would leave most lanes empty.

Each part adds up blocks of its own; `collect_lanes` adds the parts and turns them to where they belong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.channel_lanes import _clip as clip
from dnnarray._cpu.compiled.conv.channel_lanes import _load as load
from dnnarray._cpu.compiled.conv.channel_lanes_plan import (
    APART_AT,
    BLOCK_AT,
    CHAIN_AT,
    COUNT_AT,
    GROUPS_AT,
    IMAGE_AT,
    ITEM_AT,
    K_AT,
    LANES_AT,
    LOW_AT,
    MEMORY_AT,
    OUT_AT,
    PITCH_AT,
    RESULT_AT,
    SHARES_AT,
    SPACE_AT,
    STRIDE_AT,
    TABLE_AT,
    TASKS_AT,
    VECTORS_AT,
)
from dnnarray._cpu.compiled.conv.channel_lanes_plan import _steps_apart as steps_apart
from dnnarray._cpu.compiled.conv.channel_lanes_plan import _taps as taps_of
from dnnarray._cpu.compiled.conv.copies import aligned_array, box_of, clear, copy_rows, line_of, turn_rows
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import ROWS, VECTORS, apart, lanes, read, routine, write, write_word
from dnnarray._cpu.compiled.tile_pixels import POINT_BYTES, multiply_pixels
from dnnarray._cpu.conv.blocks import Shape, block_extents, even_parts
from dnnarray._problems.conv_geometry import Geometry

# of a block, at most: its gradient stays in the first-level cache, a tile's sums are read and written once for all of
# them
_PIXELS = 256
_BLOCK_ELEMENTS = 1 << 17  # of the image of a block
_MIN_PIXELS = 128  # where the image has them
_IN_A_ROW = 64  # pixels that are added up: a short chain, then the next
_SUM_ELEMENTS = 1 << 23  # of the sums of all parts, unless one has more
_MACS = 16  # for an element of a light operation

# Where the kernels find their numbers, behind those of a convolution with output channels in the lanes.
_ROWS, _TILES, _SHARE_TILES, _SPLITS, _SUMS, _STEP = range(COUNT_AT, COUNT_AT + 6)
_XN, _XG, _XC, _YN, _YG, _YK, _YD, _YH, _YW = 0, 1, 2, 6, 7, 8, 9, 10, 11  # byte strides


# --- the plan ---------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    numbers: np.ndarray
    points: np.ndarray  # of each row of the sums, up to whole tiles: its byte offset in the image, and in the sums
    parts: int
    shapes: tuple[Shape, ...]  # of scratch: all sums, each part's memory, each part's table of 64-bit integers


def _points(g: Geometry, apart: Sequence[int], pitch: int, itemsize: int) -> np.ndarray:
    """Channels and taps as the weight lies, the last one again up to whole tiles."""
    offsets = taps_of(g, apart).reshape(g.c, g.taps)
    rows = offsets.T if g.pixel_major else offsets
    points = np.stack([rows.reshape(-1), np.arange(rows.size) * pitch], axis=1) * itemsize
    return np.pad(points, ((0, -len(points) % ROWS), (0, 0)), mode="edge")


@lru_cache(maxsize=1024)
def _plan(g: Geometry, itemsize: int) -> _Plan:
    """The plan for a geometry that has no extent of 0."""
    width, cores, line = lanes(itemsize), threads.cores(), ALIGNMENT // itemsize
    vectors, rows = -(-g.k // width), g.c * g.taps
    pitch = (-(-vectors * width // line) | 1) * line
    pixels = min(max(_BLOCK_ELEMENTS // (g.c * math.prod(g.stride)), _MIN_PIXELS), _PIXELS)
    _, _, h, w = block_extents(g, pixels)
    block = (1, even_parts(g.out[1], h), even_parts(g.out[2], w))
    blocks = g.n * math.prod(-(-m // b) for m, b in zip(g.out, block, strict=True))
    sums = g.groups * rows * pitch
    splits = max(min(cores, blocks, _SUM_ELEMENTS // sums), 1)
    tiles = -(-rows // ROWS)
    share_tiles = -(-tiles // min(-(-cores // splits), tiles))
    shares = -(-tiles // share_tiles)
    extent = g.reach(block)
    apart, order, image = steps_apart(g, extent)
    image, dense = (-(-m // ALIGNMENT) * ALIGNMENT for m in (image, math.prod(block) * vectors * width))
    numbers = np.zeros(_STEP + 1, np.int64)
    for at, value in {
        GROUPS_AT: g.groups,
        K_AT: g.k,
        ITEM_AT: itemsize,
        LANES_AT: width,
        VECTORS_AT: vectors,
        PITCH_AT: pitch,
        IMAGE_AT: image,
        RESULT_AT: dense,
        MEMORY_AT: image + dense,
        TABLE_AT: math.prod(block),
        TASKS_AT: blocks,
        SHARES_AT: shares,
        CHAIN_AT: even_parts(math.prod(block), _IN_A_ROW),
        _ROWS: rows,
        _TILES: tiles,
        _SHARE_TILES: share_tiles,
        _SPLITS: splits,
        _SUMS: sums,
        _STEP: even_parts(vectors, VECTORS),
    }.items():
        numbers[at] = value
    numbers[OUT_AT : OUT_AT + 3], numbers[BLOCK_AT : BLOCK_AT + 3], numbers[STRIDE_AT : STRIDE_AT + 3] = (
        g.out,
        block,
        g.stride,
    )
    numbers[LOW_AT : LOW_AT + 3] = [-before for before in g.before]
    numbers[SPACE_AT : SPACE_AT + 16] = (g.c, *g.space, g.c, *extent, *(a * itemsize for a in apart), *order)
    parts = splits * shares
    return _Plan(
        numbers,
        _points(g, apart, pitch, itemsize),
        parts,
        ((splits * sums,), (parts * (image + dense) + ALIGNMENT,), (2 * parts * math.prod(block),)),
    )


def lanes_buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    return [max(pair) for pair in zip(_plan(g, 4).shapes, _plan(g, 8).shapes, strict=True)]


# --- kernels ----------------------------------------------------------------------------------------------------------


@device
def _place_pixels(geo, extents, table):
    """Write the byte offset of each pixel of a block in its image."""
    for h in range(extents[1]):
        for w in range(extents[2]):
            offset = h * geo[STRIDE_AT + 1] * geo[APART_AT + 2] + w * geo[STRIDE_AT + 2] * geo[APART_AT + 3]
            write_word(table + (h * extents[2] + w) * 8, offset)


@routine
def _turn_gradient(like, geo, grad, ys, extents, dense):
    """The block's gradient to [block of vectors][pixel][lane]."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    rows, run, pixels = extents[1], extents[2], extents[1] * extents[2]
    if ys[_YH] == run * ys[_YW]:  # the rows lie one behind the other
        rows, run = 1, pixels
    for before in range(0, geo[VECTORS_AT], geo[_STEP]):
        line = min(geo[_STEP], geo[VECTORS_AT] - before) * width
        k = min(line, geo[K_AT] - before * width)
        into = dense + before * width * pixels * item
        if k < line:
            clear(like, into, pixels * line, item)
        for h in range(rows):
            source, target = grad + h * ys[_YH] + before * width * ys[_YK], into + h * run * line * item
            if ys[_YK] == item and k >= width:
                copy_rows(like, source, ys[_YW], target, line * item, run, k)
            elif ys[_YW] == item:
                turn_rows(like, source, ys[_YK], target, line * item, k, run, item, width)
            else:
                for w in range(run):
                    for j in range(k):
                        write(like, target + (w * line + j) * item, read(like, source + w * ys[_YW] + j * ys[_YK]))


@routine
def _add_products(like, geo, points, tiles, image, table, pixels, dense, sums, add):
    """Add gradient times image for so many tiles of channels and taps."""
    apart()
    width = geo[LANES_AT] * geo[ITEM_AT]
    for before in range(0, geo[VECTORS_AT], geo[_STEP]):
        vectors = min(geo[_STEP], geo[VECTORS_AT] - before)
        source = dense + before * width * pixels
        multiply_pixels(
            like, vectors, points, tiles, image, table, pixels, geo[CHAIN_AT], source, sums + before * width, add
        )


@kernel
def lanes_weight(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    points: int,
    geo: Integers1,
    like: Out1,
    sums: int,
    scratch: int,
    table: int,
) -> None:
    """The parts from `start` to `stop`: every so many blocks of pixels, for a share of the channels and taps."""
    item, zero = geo[ITEM_AT], like.dtype.type(0)
    first, extents, low = np.empty(3, np.int64), np.empty(3, np.int64), np.zeros(4, np.int64)
    begin, count = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for part in range(start, stop):
        split, share = part // geo[SHARES_AT], part % geo[SHARES_AT] * geo[_SHARE_TILES]
        tiles = min(geo[_SHARE_TILES], geo[_TILES] - share)
        image = scratch + part * geo[MEMORY_AT] * item
        dense, pixels = image + geo[IMAGE_AT] * item, table + part * geo[TABLE_AT] * 8
        count[:] = -1
        count[0] = geo[SPACE_AT]
        for group in range(geo[GROUPS_AT]):
            own = sums + (split * geo[_SUMS] + group * geo[_ROWS] * geo[PITCH_AT]) * item
            for block in range(split, geo[TASKS_AT], geo[_SPLITS]):
                n = box_of(block, geo, OUT_AT, BLOCK_AT, first, extents)
                source = grad + n * strides[_YN] + group * strides[_YG]
                for axis in range(3):
                    low[1 + axis] = first[axis] * geo[STRIDE_AT + axis] + geo[LOW_AT + axis]
                    source += first[axis] * strides[_YD + axis]
                _place_pixels(geo, extents, pixels)
                if clip(geo, low, begin, count):
                    clear(zero, image, geo[IMAGE_AT], item)
                load(zero, geo, x + n * strides[_XN] + group * strides[_XG], strides, low, begin, count, image)
                _turn_gradient(zero, geo, source, strides, extents, dense)
                many = extents[1] * extents[2]
                _add_products(
                    zero,
                    geo,
                    points + share * ROWS * POINT_BYTES,
                    tiles,
                    image,
                    pixels,
                    many,
                    dense,
                    own,
                    block > split,
                )


@kernel
def collect_lanes(
    start: int,
    stop: int,
    sums: int,
    geo: Integers1,
    places: Integers1,
    like: Out1,
    target: int,
    strides: Integers1,
    dense: bool,
) -> None:
    """The vectors of output channels from `start` to `stop`, all groups' one after the other: the sum over the parts,
    turned to the weight.

    `places` holds the byte offsets of channels and taps in the weight, one behind the other where `dense` says so.
    """
    item, zero, width, pitch = geo[ITEM_AT], like.dtype.type(0), geo[LANES_AT], geo[PITCH_AT] * geo[ITEM_AT]
    for number in range(start, stop):
        group, first = number // geo[VECTORS_AT], number % geo[VECTORS_AT] * width
        source = sums + group * geo[_ROWS] * pitch + first * item
        into = target + group * strides[0] + first * strides[1]
        for row in range(geo[_ROWS]):
            at = source + row * pitch
            for split in range(1, geo[_SPLITS]):
                more = at + split * geo[_SUMS] * item
                for j in range(width):
                    write(zero, at + j * item, read(zero, at + j * item) + read(zero, more + j * item))
        k = min(width, geo[K_AT] - first)
        if dense:
            turn_rows(zero, source, pitch, into, strides[1], geo[_ROWS], k, item, width)
        else:
            for row in range(geo[_ROWS]):
                for j in range(k):
                    write(zero, into + j * strides[1] + places[row], read(zero, source + row * pitch + j * item))


def lanes_weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    """w, the gradient of the weight; none of the arrays is empty."""
    sums, memory, table = buffers
    p = _plan(g, w.itemsize)
    x, grad = aligned_array(x), aligned_array(grad)
    lanes_weight(
        p.parts,
        address(x),
        address(grad),
        np.array(x.strides + grad.strides, np.int64),
        address(p.points),
        p.numbers,
        memory,
        address(sums),
        line_of(memory),
        address(table),
        work=g.macs // _MACS,
    )
    places, strides = _places(g, w), np.array(w.strides, np.int64)
    dense = np.array_equal(places, np.arange(len(places)) * w.itemsize)
    vectors = g.groups * int(p.numbers[VECTORS_AT])
    collect_lanes(vectors, address(sums), p.numbers, places, memory, address(w), strides, dense, work=4 * w.size)


def _places(g: Geometry, w: np.ndarray) -> np.ndarray:
    """Byte offsets of channels and taps in the weight, in the order of the sums."""
    offsets: np.ndarray = np.zeros(w.shape[2:], np.int64)
    for axis, (extent, step) in enumerate(zip(w.shape[2:], w.strides[2:], strict=True)):
        offsets += (np.arange(extent) * step).reshape([-1 if i == axis else 1 for i in range(4)])
    offsets = offsets.reshape(g.c, g.taps)
    return np.ascontiguousarray(offsets.T if g.pixel_major else offsets).reshape(-1)
