"""Convolution with windows of one pixel by the matrix micro-kernel, straight from the image to the result. Imports
Numba.

The pixels of all images are one row of tiles. A task packs a few tiles, a pass of channels at a time, so that the
micro-kernel reads them one vector behind the other from the first-level cache, and multiplies them with the packed
weight. Its sums go to the result at once; those of a tile that ends in another image than it begins in go beside it
first."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import clear, copy_rows, line_of
from dnnarray._cpu.compiled.conv.plan import (
    C_AT,
    DEPTH_AT,
    ITEM_AT,
    K_AT,
    LANES_AT,
    N_AT,
    OUT_AT,
    ROWS_AT,
    WIDTH_AT,
    channel_shares,
    lines,
    plan,
)
from dnnarray._cpu.compiled.kernel import Integers1, Out1, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import ROWS, VECTORS, apart, chained_tile, lanes, read, routine, write
from dnnarray._cpu.conv.blocks import Shape, even_parts
from dnnarray._cpu.conv.shifted import suits
from dnnarray._problems.conv_geometry import Geometry

_TILE_BYTES = 24 << 10  # of a packed tile: it stays in the first-level cache beside a tile of the weight
_PIXELS = 192  # of a task, which share the weight's trip from memory
# of the weight between two passes over the pixels: few rows, so that a row's next tile is written soon
_WEIGHT_ELEMENTS = 1 << 13
_CHAIN = 64  # channels added up in a row, so that sums round no more than PyTorch's
_TOGETHER = 16  # channels packed for one tile after the other: their planes lie as many pages apart
_MACS = 16  # for an element of a light operation

# Where the kernel finds what the plan of any convolution does not hold.
TILES_AT, BLOCKS_AT, SHARES_AT, SHARE_ROWS_AT, STEPS_AT, CHAIN_AT, SLICE_AT, PARTS_AT, SCRATCH_AT = range(9)
_XN, _XC, _YN, _YK = 0, 2, 6, 8  # byte strides


def fits(g: Geometry, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the kernel does this: every pixel has its output, and the pixels of a plane lie one behind the other."""
    return suits(g) and g.k >= ROWS and _dense(x) and _dense(y) and x.flags.aligned


def _dense(a: np.ndarray) -> bool:
    _, h, w = a.shape[3:]
    steps = (h * w * a.itemsize, w * a.itemsize, a.itemsize)
    return all(m == 1 or step == dense for m, step, dense in zip(a.shape[3:], a.strides[3:], steps, strict=True))


# --- the kernel -------------------------------------------------------------------------------------------------------


@routine
def _pack(like, geo, x, image_step, step, pixel, steps, packed):
    """A tile's pixels of some channels, 0 behind the last one."""
    apart()
    item, width, plane = geo[ITEM_AT], geo[WIDTH_AT], geo[OUT_AT] * geo[OUT_AT + 1] * geo[OUT_AT + 2]
    total, done = geo[N_AT] * plane, 0
    if pixel + width > total:
        clear(like, packed, steps * width, item)
    while done < width and pixel + done < total:
        image, offset = (pixel + done) // plane, (pixel + done) % plane
        run = min(plane - offset, width - done)
        source, target = x + image * image_step + offset * item, packed + done * item
        if run >= geo[LANES_AT]:
            copy_rows(like, source, step, target, width * item, steps, run)
        else:
            for c in range(steps):
                for j in range(run):
                    write(like, target + (c * width + j) * item, read(like, source + c * step + j * item))
        done += run


@routine
def _unpack(like, geo, sums, rows, pixel, y, image_step, step):
    """The sums of a tile that meets several images, or the last pixel, to where they belong."""
    apart()
    item, width, plane = geo[ITEM_AT], geo[WIDTH_AT], geo[OUT_AT] * geo[OUT_AT + 1] * geo[OUT_AT + 2]
    total, done = geo[N_AT] * plane, 0
    while done < width and pixel + done < total:
        image, offset = (pixel + done) // plane, (pixel + done) % plane
        run = min(plane - offset, width - done)
        source, target = sums + done * item, y + image * image_step + offset * item
        if run >= geo[LANES_AT]:
            copy_rows(like, source, width * item, target, step, rows, run)
        else:
            for k in range(rows):
                for j in range(run):
                    write(like, target + k * step + j * item, read(like, source + (k * width + j) * item))
        done += run


@routine
def _multiply(like, geo, cut, weight, rows, packed, offsets, steps, into, row_step, add):
    """A tile for some rows of the weight, over the channels of a pass."""
    apart()
    item = geo[ITEM_AT]
    for row in range(0, rows, geo[ROWS_AT]):
        source, target = weight + row * geo[DEPTH_AT] * item, into + row * row_step
        some = min(geo[ROWS_AT], rows - row)
        chained_tile(
            like, some, source, item, geo[ROWS_AT] * item, packed, offsets, steps, cut[CHAIN_AT], target, row_step, add
        )


@kernel
def pointwise(
    start: int,
    stop: int,
    x: int,
    y: int,
    strides: Integers1,
    weight: int,
    offsets: int,
    geo: Integers1,
    cut: Integers1,
    like: Out1,
    scratch: int,
) -> None:
    """The tasks of the parts from `start` to `stop`; x, y, weight (packed), offsets (of a tile's channels) and scratch
    are addresses."""
    item, width, plane = geo[ITEM_AT], geo[WIDTH_AT], geo[OUT_AT] * geo[OUT_AT + 1] * geo[OUT_AT + 2]
    zero = like.dtype.type(0)
    tiles = (geo[N_AT] * plane + width - 1) // width
    tile, tasks = cut[STEPS_AT] * width * item, cut[BLOCKS_AT] * cut[SHARES_AT]
    for part in range(start, stop):
        packed = scratch + part * cut[SCRATCH_AT] * item
        beside = packed + cut[TILES_AT] * tile
        # Neighbouring blocks: what a core fetches ahead is its own.
        for task in range(tasks * part // cut[PARTS_AT], tasks * (part + 1) // cut[PARTS_AT]):
            block, k0 = task // cut[SHARES_AT], task % cut[SHARES_AT] * cut[SHARE_ROWS_AT]
            k = min(cut[SHARE_ROWS_AT], geo[K_AT] - k0)
            first, last = tiles * block // cut[BLOCKS_AT], tiles * (block + 1) // cut[BLOCKS_AT]
            target = y + k0 * strides[_YK]
            for step in range(0, geo[C_AT], cut[STEPS_AT]):
                steps = min(cut[STEPS_AT], geo[C_AT] - step)
                for c in range(0, steps, _TOGETHER):
                    source, some = x + (step + c) * strides[_XC], min(_TOGETHER, steps - c)
                    for t in range(first, last):
                        into = packed + (t - first) * tile + c * width * item
                        _pack(zero, geo, source, strides[_XN], strides[_XC], t * width, some, into)
                for row in range(0, k, cut[SLICE_AT]):
                    rows, source = (
                        min(cut[SLICE_AT], k - row),
                        weight + ((k0 + row) * geo[DEPTH_AT] + step * geo[ROWS_AT]) * item,
                    )
                    for t in range(first, last):
                        image, offset = t * width // plane, t * width % plane
                        into, row_step = target + image * strides[_YN] + offset * item, strides[_YK]
                        if offset + width > plane:
                            into, row_step = beside + (t - first) * cut[SHARE_ROWS_AT] * width * item, width * item
                        _multiply(
                            zero,
                            geo,
                            cut,
                            source,
                            rows,
                            packed + (t - first) * tile,
                            offsets,
                            steps,
                            into + row * row_step,
                            row_step,
                            step > 0,
                        )
            for t in range(first, last):
                if t * width % plane + width > plane:
                    sums = beside + (t - first) * cut[SHARE_ROWS_AT] * width * item
                    _unpack(zero, geo, sums, k, t * width, target, strides[_YN], strides[_YK])


# --- the plan ---------------------------------------------------------------------------------------------------------


class PointwisePlan(NamedTuple):
    """How the pixels and channels are cut, for elements of one size."""

    cut: np.ndarray
    offsets: np.ndarray  # bytes, of a packed tile's channels
    memory: int  # elements of scratch


@lru_cache(maxsize=1024)
def pointwise_plan(g: Geometry, itemsize: int) -> PointwisePlan:
    """The plan for what `suits`."""
    width = VECTORS * lanes(itemsize)
    tiles, cores = -(-g.n * g.pixels // width), threads.cores()
    wanted = -(-tiles * width // _PIXELS)
    blocks = min(-(-wanted // cores) * cores, tiles)
    shares, rows = channel_shares(g, blocks, ROWS)
    parts, most = min(cores, blocks * shares), -(-tiles // blocks)
    steps = even_parts(g.c, _TILE_BYTES // (width * itemsize))
    memory = lines(most * width * (steps + rows))
    slice_rows = max(_WEIGHT_ELEMENTS // steps // ROWS, 1) * ROWS
    cut = np.array([most, blocks, shares, rows, steps, even_parts(steps, _CHAIN), slice_rows, parts, memory], np.int64)
    return PointwisePlan(cut, np.arange(steps) * (width * itemsize), parts * memory + ALIGNMENT)


def pointwise_buffers(g: Geometry) -> tuple[Shape, ...]:
    """The shapes of scratch for elements of any size: the packed weight, the parts' memory."""
    return (-(-g.k // ROWS) * ROWS * g.c,), (max(pointwise_plan(g, item).memory for item in (4, 8)),)


def correlate_pixels(g: Geometry, weight: np.ndarray, memory: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """y from x and the packed weight, for what `fits`."""
    cut, offsets, _ = pointwise_plan(g, y.itemsize)
    strides = np.array(x.strides + y.strides, np.int64)
    pointwise(
        int(cut[PARTS_AT]),
        address(x),
        address(y),
        strides,
        address(weight),
        address(offsets),
        plan(g, y.itemsize).numbers,
        cut,
        memory,
        line_of(memory),
        work=g.macs // _MACS,
    )
