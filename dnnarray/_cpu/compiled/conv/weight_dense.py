"""The gradient of a dense convolution weight by the matrix micro-kernel, without im2col. Imports Numba.

A task is a block of output pixels of one image. Its inputs are copied once to [pixel][channel], zero-padded. Channels
then are the lanes, the gradient's rows the scalars where they lie, and the sums run over the pixels: a tap of the
window is a shift of the image, a table says where each pixel begins. With few channels and no dilation the taps of a
window's row are neighbours, too, and make one run of lanes.

Each part adds up blocks of its own; `collect` adds the parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import aligned_array, clear, copy, line_of, turn_rows
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import ROWS, VECTORS, apart, chained_tile, lanes, read, routine, write, write_word
from dnnarray._cpu.conv.blocks import Shape, block_extents, even_parts
from dnnarray._problems.conv_geometry import Geometry

_BLOCK_ELEMENTS = 1 << 15  # of the image of a block
_MIN_PIXELS = 128  # of a block, where the image has them: what a tile's sums are read and written for
_IN_A_ROW = 64  # of its pixels, added up: a short chain, then the next
_MERGED = 32  # channels up to which the taps of a row are taken together
_SUM_ELEMENTS = 1 << 23  # of the sums of all parts, unless one has more
_MACS = 16  # for an element of a light operation

# Where the kernels find their numbers; three entries for the axes D H W where it says so.
(
    _GROUPS,
    _C,
    _K,
    _ITEM,
    _LANES,
    _WIDTH,
    _POINT,
    _RUN,
    _RUN_PITCH,
    _RUNS,
    _BLOCK_H,
    _BLOCK_W,
    _IMAGE,
    _GRADIENT,
    _MEMORY,
    _TABLE,
    _SPLITS,
    _SHARES,
    _SHARE_ROWS,
    _BLOCKS,
    _N,
    _SUMS,
    _CHAIN,
) = range(23)
_SPACE, _OUT, _STRIDE, _BEFORE, _DILATION, _WINDOW = range(23, 41, 3)
_XN, _XG, _XC, _XD, _XH, _XW, _YN, _YG, _YK, _YD, _YH, _YW = range(12)  # byte strides


# --- the plan ---------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    numbers: np.ndarray
    shifts: np.ndarray  # of each run of lanes in the image, in bytes
    shapes: tuple[Shape, ...]  # of scratch: all sums, each part's memory, each part's table of 64-bit integers


def _point(g: Geometry, item: int) -> tuple[int, bool]:
    """Elements from one pixel of the image to the next, and whether the taps of a row make one run of lanes."""
    if g.c <= _MERGED and g.dilation[2] == 1 and g.window[2] > 1:
        return g.c, True
    line = ALIGNMENT // item
    lines = -(-g.c // line)
    return (lines + (lines % 2 == 0)) * line, False  # an odd number of lines: neighbours then use all sets of the cache


@lru_cache(maxsize=1024)
def _plan(g: Geometry, item: int) -> _Plan:
    """The plan for a geometry that has no extent of 0."""
    width, cores = VECTORS * lanes(item), threads.cores()
    point, merged = _point(g, item)
    run, runs = (g.window[2] * g.c, g.taps // g.window[2]) if merged else (g.c, g.taps)
    run_pitch = -(-run // width) * width
    pixels = max(_BLOCK_ELEMENTS // (point * math.prod(g.stride)), _MIN_PIXELS)
    _, _, h, w = block_extents(g, pixels)
    h = -(-g.out[1] // -(-g.out[1] // h))
    blocks = g.n * g.out[0] * -(-g.out[1] // h) * -(-g.out[2] // w)
    sums = g.groups * g.k * runs * run_pitch
    splits = max(min(cores, blocks, _SUM_ELEMENTS // sums), 1)
    row_blocks = -(-g.k // ROWS)
    shares = min(-(-cores // splits), row_blocks)
    share_rows = -(-row_blocks // shares) * ROWS
    shares = -(-g.k // share_rows)
    reach = g.reach((1, h, w))
    image = math.prod(reach) * point + run_pitch
    gradient = share_rows * h * w
    memory = -(-(image + gradient) // ALIGNMENT) * ALIGNMENT
    numbers = [
        g.groups,
        g.c,
        g.k,
        item,
        lanes(item),
        width,
        point,
        run,
        run_pitch,
        runs,
        h,
        w,
        image,
        gradient,
        memory,
        h * w,
        splits,
        shares,
        share_rows,
        blocks,
        g.n,
        sums,
        even_parts(h * w, _IN_A_ROW),
        *g.space,
        *g.out,
        *g.stride,
        *g.before,
        *g.dilation,
        *g.window,
    ]
    steps = [reach[1] * reach[2] * point, reach[2] * point, point]
    windows = (*g.window[:2], 1) if merged else g.window
    shifts = np.zeros(windows, np.int64)
    for axis, (count, step) in enumerate(zip(windows, steps, strict=True)):
        shifts += (np.arange(count) * g.dilation[axis] * step).reshape([-1 if i == axis else 1 for i in range(3)])
    parts = splits * shares
    return _Plan(
        np.array(numbers, np.int64),
        shifts.reshape(-1) * item,
        ((splits * sums,), (parts * memory + ALIGNMENT,), (2 * parts * h * w,)),
    )


def dense_buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    return [max(pair) for pair in zip(_plan(g, 4).shapes, _plan(g, 8).shapes, strict=True)]


# --- kernels ----------------------------------------------------------------------------------------------------------


@device
def _load_pixels(like, geo, xs, source, target, channels, count):
    """A row's `count` pixels from address `source` on, as many channels."""
    item, point = geo[_ITEM], geo[_POINT] * geo[_ITEM]
    if xs[_XW] == item:
        turn_rows(like, source, xs[_XC], target, point, channels, count, item, geo[_LANES])
        return
    for w in range(count):
        copy(like, source + w * xs[_XW], xs[_XC], target + w * point, item, channels, item, geo[_LANES])


@routine
def _load_block(like, geo, x, xs, low, extents, image):
    """What a block reads: [d][h][w][channel], 0 outside of x."""
    apart()
    item, point = geo[_ITEM], geo[_POINT] * geo[_ITEM]
    reach_d = (geo[_WINDOW] - 1) * geo[_DILATION] + 1
    reach_h = (geo[_BLOCK_H] - 1) * geo[_STRIDE + 1] + (geo[_WINDOW + 1] - 1) * geo[_DILATION + 1] + 1
    reach_w = (geo[_BLOCK_W] - 1) * geo[_STRIDE + 2] + (geo[_WINDOW + 2] - 1) * geo[_DILATION + 2] + 1
    begin = min(max(-low[2], 0), reach_w)
    end = max(min(geo[_SPACE + 2] - low[2], reach_w), begin)
    height = reach_h - (geo[_BLOCK_H] - extents[0]) * geo[_STRIDE + 1]
    together = geo[_LANES] if xs[_XW] == item else geo[_C]  # channels: memory is read as it lies
    for c in range(0, geo[_C], together):
        some = min(together, geo[_C] - c)
        for d in range(reach_d):
            for h in range(height):
                target = image + (d * reach_h + h) * reach_w * point
                at_d, at_h = low[0] + d, low[1] + h
                inside = 0 <= at_d < geo[_SPACE] and 0 <= at_h < geo[_SPACE + 1]
                if c == 0:
                    edge = begin if inside else reach_w
                    clear(like, target, edge * geo[_POINT], item)
                    clear(like, target + end * point, (reach_w - end) * geo[_POINT], item)
                if inside:
                    source = x + at_d * xs[_XD] + at_h * xs[_XH] + (low[2] + begin) * xs[_XW] + c * xs[_XC]
                    _load_pixels(like, geo, xs, source, target + begin * point + c * item, some, end - begin)


@device
def _place_points(geo, extents, table):
    """Write the byte offset of each pixel of a block in its image."""
    point = geo[_POINT] * geo[_ITEM]
    line = ((geo[_BLOCK_W] - 1) * geo[_STRIDE + 2] + (geo[_WINDOW + 2] - 1) * geo[_DILATION + 2] + 1) * point
    for h in range(extents[0]):
        for w in range(extents[1]):
            write_word(table + (h * extents[1] + w) * 8, h * geo[_STRIDE + 1] * line + w * geo[_STRIDE + 2] * point)


@device
def _gradient_rows(like, geo, grad, ys, rows, extents, dense):
    """The rows of a block's gradient with their pixels at equal steps: where they lie, or copied. Gives (address, step
    of rows, step of pixels)."""
    item = geo[_ITEM]
    if extents[0] == 1 or ys[_YH] == extents[1] * ys[_YW]:
        return grad, ys[_YK], ys[_YW]
    row_step = extents[0] * extents[1] * item
    for k in range(rows):
        for h in range(extents[0]):
            into = dense + k * row_step + h * extents[1] * item
            copy(like, grad + k * ys[_YK] + h * ys[_YH], ys[_YW], into, item, extents[1], item, geo[_LANES])
    return dense, row_step, item


@routine
def _add_products(like, geo, grad, row_step, step, rows, image, shifts, table, pixels, sums, add):
    """Add gradient times image for all runs of lanes."""
    apart()
    item, chain = geo[_ITEM], geo[_CHAIN]
    sum_row = geo[_RUNS] * geo[_RUN_PITCH] * item
    for run in range(geo[_RUNS]):
        for column in range(0, geo[_RUN], geo[_WIDTH]):
            b, into = image + shifts[run] + column * item, sums + (run * geo[_RUN_PITCH] + column) * item
            for row in range(0, rows, ROWS):
                chained_tile(
                    like,
                    min(ROWS, rows - row),
                    grad + row * row_step,
                    row_step,
                    step,
                    b,
                    table,
                    pixels,
                    chain,
                    into + row * sum_row,
                    sum_row,
                    add,
                )


@kernel
def dense_weight(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    shifts: Integers1,
    geo: Integers1,
    like: Out1,
    sums: int,
    scratch: int,
    table: int,
) -> None:
    """The parts from `start` to `stop`: every so many blocks of pixels, for a share of the gradient's rows."""
    item, zero = geo[_ITEM], like.dtype.type(0)
    ys, low, extents = strides, np.empty(3, np.int64), np.empty(2, np.int64)
    across = (geo[_OUT + 2] + geo[_BLOCK_W] - 1) // geo[_BLOCK_W]
    down = (geo[_OUT + 1] + geo[_BLOCK_H] - 1) // geo[_BLOCK_H]
    for part in range(start, stop):
        split, first = part // geo[_SHARES], part % geo[_SHARES] * geo[_SHARE_ROWS]
        rows = min(geo[_SHARE_ROWS], geo[_K] - first)
        image = scratch + part * geo[_MEMORY] * item
        dense, points = image + geo[_IMAGE] * item, table + part * geo[_TABLE] * 8
        clear(
            zero, image + (geo[_IMAGE] - geo[_RUN_PITCH]) * item, geo[_RUN_PITCH], item
        )  # lanes beyond the last pixel
        for group in range(geo[_GROUPS]):
            own = sums + (split * geo[_SUMS] + (group * geo[_K] + first) * geo[_RUNS] * geo[_RUN_PITCH]) * item
            for block in range(split, geo[_BLOCKS], geo[_SPLITS]):
                q, p = block % across * geo[_BLOCK_W], block // across % down * geo[_BLOCK_H]
                o, n = block // across // down % geo[_OUT], block // across // down // geo[_OUT]
                extents[0], extents[1] = min(geo[_BLOCK_H], geo[_OUT + 1] - p), min(geo[_BLOCK_W], geo[_OUT + 2] - q)
                source = (
                    grad + n * ys[_YN] + group * ys[_YG] + first * ys[_YK] + o * ys[_YD] + p * ys[_YH] + q * ys[_YW]
                )
                low[0], low[1], low[2] = o, p, q
                for axis in range(3):
                    low[axis] = low[axis] * geo[_STRIDE + axis] - geo[_BEFORE + axis]
                _place_points(geo, extents, points)
                _load_block(zero, geo, x + n * strides[_XN] + group * strides[_XG], strides, low, extents, image)
                a, row_step, step = _gradient_rows(zero, geo, source, ys, rows, extents, dense)
                pixels = extents[0] * extents[1]
                _add_products(zero, geo, a, row_step, step, rows, image, shifts, points, pixels, own, block > split)


@kernel
def collect(start: int, stop: int, sums: int, geo: Integers1, like: Out1, target: int, strides: Integers1) -> None:
    """The gradient of the weight's rows from `start` to `stop`, all groups' one after the other, as the sum over the
    parts."""
    item, zero = geo[_ITEM], like.dtype.type(0)
    merged = geo[_RUN] > geo[_C]
    for number in range(start, stop):
        row = sums + number * geo[_RUNS] * geo[_RUN_PITCH] * item
        into = target + number // geo[_K] * strides[0] + number % geo[_K] * strides[1]
        for c in range(geo[_C]):
            tap = 0
            for t in range(geo[_WINDOW]):
                for r in range(geo[_WINDOW + 1]):
                    for s in range(geo[_WINDOW + 2]):
                        at = tap * geo[_RUN_PITCH] + c
                        if merged:
                            at = tap // geo[_WINDOW + 2] * geo[_RUN_PITCH] + s * geo[_C] + c
                        total = zero
                        for split in range(geo[_SPLITS]):
                            total += read(zero, row + (split * geo[_SUMS] + at) * item)
                        write(zero, into + c * strides[2] + t * strides[3] + r * strides[4] + s * strides[5], total)
                        tap += 1


def weight_gradient(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    """w, the gradient of the weight; none of the arrays is empty."""
    sums, memory, table = buffers
    p = _plan(g, w.itemsize)
    geo = p.numbers
    x, grad = aligned_array(x), aligned_array(grad)
    strides = np.array(x.strides + grad.strides, np.int64)
    dense_weight(
        int(geo[_SPLITS] * geo[_SHARES]),
        address(x),
        address(grad),
        strides,
        p.shifts,
        geo,
        memory,
        address(sums),
        line_of(memory),
        address(table),
        work=g.macs // _MACS,
    )
    collect(g.groups * g.k, address(sums), geo, memory, address(w), np.array(w.strides, np.int64), work=4 * w.size)
