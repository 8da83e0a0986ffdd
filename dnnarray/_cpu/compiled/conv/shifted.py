"""Convolution by the matrix micro-kernel, without im2col: drivers and kernels. Imports Numba.

A task is a block of output pixels. Its inputs are copied once into an image of their own, zero-padded and split into
the phases of the stride, in which each tap of the window is one shift of the whole block. The micro-kernel then takes
runs of neighbouring pixels as vectors and the weight as scalars, and adds up over channels and taps in registers. Where
the pixels of a tile are not neighbours (a row of the image ends inside of it), they are either gathered or computed
together with the gap between the rows, whichever is cheaper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dnnarray._cpu.compiled.conv.copies import aligned_array, clear, copy, line_of
from dnnarray._cpu.compiled.conv.depthwise import correlate_planes, depthwise, fits
from dnnarray._cpu.compiled.conv.drivers import correlations
from dnnarray._cpu.compiled.conv.load import load_image, place_pixels, task_box
from dnnarray._cpu.compiled.conv.plan import (
    BEFORE_AT,
    C_AT,
    CHAIN_AT,
    CHANNEL_ROWS_AT,
    CHANNEL_TASKS_AT,
    DEPTH_AT,
    FLAT_AT,
    GROUPS_AT,
    IMAGE_ELEMENTS_AT,
    ITEM_AT,
    K_AT,
    LANES_AT,
    LONG_AT,
    PACKED_ELEMENTS_AT,
    PARTS_AT,
    PHASE_AT,
    RESULT_PIXELS_AT,
    ROWS_AT,
    SCRATCH_AT,
    STEP_COUNT_AT,
    STRIDE_AT,
    TABLE_AT,
    TASKS_AT,
    TILES_AT,
    WEIGHT_ROWS_AT,
    WIDTH_AT,
    WINDOW_AT,
    XG_AT,
    XN_AT,
    YD_AT,
    YG_AT,
    YH_AT,
    YK_AT,
    YN_AT,
    YW_AT,
    buffers,
    plan,
)
from dnnarray._cpu.compiled.conv.pointwise import correlate_pixels, pointwise, pointwise_buffers
from dnnarray._cpu.compiled.conv.pointwise import fits as fits_pointwise
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, kernel
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.tile import (
    ROWS,
    apart,
    chained_tile,
    long_tile,
    read,
    read_word,
    routine,
    write,
    write_word,
)
from dnnarray._cpu.conv.blocks import Shape, Way, never
from dnnarray._cpu.conv.shifted import shifted_cost, suits
from dnnarray._problems.conv_geometry import Geometry

_PACK, _MACS = 2, 16  # elements of a light operation: an element of the weight packed; so many multiply-adds


# --- the kernel -------------------------------------------------------------------------------------------------------


@routine
def _gather(like, image, pixels, count, taps, steps, packed, width, item):
    """The pixels of one tile at all taps, side by side; the last pixel again where there are no more."""
    apart()
    for t in range(steps):
        source, target = image + read_word(taps + t * 8), packed + t * width * item
        for j in range(width):
            write(like, target + j * item, read(like, source + read_word(pixels + min(j, count - 1) * 8)))


@routine
def _tile_bases(like, geo, image, count, pixels, taps, steps, packed, bases):
    """Write the address from which each tile reads its vectors, negative where it had to be gathered to `packed`."""
    apart()
    width, item = geo[WIDTH_AT], geo[ITEM_AT]
    for first in range(0, count, width):
        if geo[FLAT_AT]:
            base = image + first * item
        else:
            some, at = min(width, count - first), pixels + first * 8
            base = image + read_word(at)
            if some < width or read_word(at + (width - 1) * 8) - read_word(at) != (width - 1) * item:
                _gather(like, image, at, some, taps, steps, packed, width, item)
                base = -packed
                packed += steps * width * item
        write_word(bases, base)
        bases += 8


@routine
def _multiply(like, geo, weight, weight_row, k, bases, tiles, taps, packed_taps, steps, result, add):
    """All tiles of the block for `k` rows of the weight, over the channels and taps of one pass."""
    apart()
    item, width = geo[ITEM_AT], geo[WIDTH_AT]
    result_row = geo[RESULT_PIXELS_AT] * item
    for number in range(tiles):
        base = read_word(bases + number * 8)
        offsets = taps if base >= 0 else packed_taps
        target = result + number * width * item
        for row in range(0, k, geo[ROWS_AT]):
            rows = min(geo[ROWS_AT], k - row)
            source, into = weight + row * weight_row, target + row * result_row
            if geo[LONG_AT]:
                long_tile(
                    like,
                    rows,
                    source,
                    item,
                    geo[ROWS_AT] * item,
                    abs(base),
                    offsets,
                    steps,
                    geo[CHAIN_AT],
                    into,
                    result_row,
                    add,
                )
            else:
                chained_tile(
                    like,
                    rows,
                    source,
                    item,
                    geo[ROWS_AT] * item,
                    abs(base),
                    offsets,
                    steps,
                    geo[CHAIN_AT],
                    into,
                    result_row,
                    add,
                )


@routine
def _store(like, geo, result, k, images, extents, y, ys):
    """The block's pixels from the result's rows to y, without the gaps."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    result_row = geo[RESULT_PIXELS_AT] * item
    row, plane = extents[2], extents[1] * extents[2]
    if geo[FLAT_AT]:
        row = geo[PHASE_AT + 2]
        plane = row * geo[PHASE_AT + 1] * geo[STRIDE_AT + 1] * geo[STRIDE_AT + 2]
    rows, run = extents[1], extents[2]
    if row == run and ys[YH_AT] == run * ys[YW_AT]:  # the rows lie one behind the other on both sides
        rows, run = 1, rows * run
    channels_inside = ys[YK_AT] < ys[YW_AT]
    together = k if channels_inside else 1  # channels: memory is written as it lies
    for i in range(images):
        for first in range(0, k, together):
            for d in range(extents[0]):
                for h in range(rows):
                    source = result + (i * extents[0] * plane + d * plane + h * row) * item + first * result_row
                    target = y + i * ys[YN_AT] + d * ys[YD_AT] + h * ys[YH_AT] + first * ys[YK_AT]
                    if channels_inside:
                        for w in range(run):
                            copy(like, source + w * item, result_row, target + w * ys[YW_AT], ys[YK_AT], k, item, width)
                    else:
                        copy(like, source, item, target, ys[YW_AT], run, item, width)


@device(counted=False)
def _channels(share, geo):
    """(first group, last + 1, first output channel in it, output channels) of a task."""
    if geo[GROUPS_AT] > 1:
        return (
            share * geo[GROUPS_AT] // geo[CHANNEL_TASKS_AT],
            (share + 1) * geo[GROUPS_AT] // geo[CHANNEL_TASKS_AT],
            0,
            geo[K_AT],
        )
    first = share * geo[CHANNEL_ROWS_AT]
    return 0, 1, first, min(geo[CHANNEL_ROWS_AT], geo[K_AT] - first)


@device(counted=False)
def _block(like, geo, image, count, pixels, taps, packed_taps, packed, bases, weight, k, result):
    """Channels and taps in passes of `STEP_COUNT_AT`, the rows of the weight in slices that stay in the cache."""
    item = geo[ITEM_AT]
    depth, tiles = geo[DEPTH_AT], (count + geo[WIDTH_AT] - 1) // geo[WIDTH_AT]
    for step in range(0, depth, geo[STEP_COUNT_AT]):
        steps, some = min(geo[STEP_COUNT_AT], depth - step), taps + step * 8
        _tile_bases(like, geo, image, count, pixels, some, steps, packed, bases)
        for row in range(0, k, geo[WEIGHT_ROWS_AT]):
            source, into = (
                weight + (row * depth + step * geo[ROWS_AT]) * item,
                result + row * geo[RESULT_PIXELS_AT] * item,
            )
            rows = min(geo[WEIGHT_ROWS_AT], k - row)
            _multiply(like, geo, source, depth * item, rows, bases, tiles, some, packed_taps, steps, into, step > 0)


@kernel
def correlate(
    start: int,
    stop: int,
    x: int,
    y: int,
    strides: Integers1,
    weight: int,
    taps: int,
    geo: Integers1,
    like: Out1,
    scratch: int,
    table: int,
) -> None:
    """The tasks of the parts from `start` to `stop`; x, y, weight (packed), taps, scratch and table are addresses."""
    item = geo[ITEM_AT]
    zero = like.dtype.type(0)
    xs = ys = strides
    low, extents = np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        image = scratch + part * geo[SCRATCH_AT] * item
        packed = image + geo[IMAGE_ELEMENTS_AT] * item
        result = packed + geo[PACKED_ELEMENTS_AT] * item
        packed_taps = table + part * geo[TABLE_AT] * 8
        bases = packed_taps + geo[STEP_COUNT_AT] * 8
        pixels = bases + geo[TILES_AT] * 8
        for t in range(geo[STEP_COUNT_AT]):
            write_word(packed_taps + t * 8, t * geo[WIDTH_AT] * item)
        for task in range(part, geo[TASKS_AT], geo[PARTS_AT]):
            channel, first, images = task_box(task, geo, low, extents)
            target = y + first * ys[YN_AT] + low[0] * ys[YD_AT] + low[1] * ys[YH_AT] + low[2] * ys[YW_AT]
            for axis in range(3):
                low[axis] = low[axis] * geo[STRIDE_AT + axis] - geo[BEFORE_AT + axis]
            count = place_pixels(geo, images, extents, pixels)
            group, last, k0, k = _channels(channel, geo)
            while group < last:
                load_image(zero, x + group * xs[XG_AT] + first * xs[XN_AT], xs, geo, images, low, extents, image)
                rows = (
                    weight
                    + (group * ((geo[K_AT] + geo[ROWS_AT] - 1) // geo[ROWS_AT] * geo[ROWS_AT]) + k0)
                    * geo[DEPTH_AT]
                    * item
                )
                _block(zero, geo, image, count, pixels, taps, packed_taps, packed, bases, rows, k, result)
                _store(zero, geo, result, k, images, extents, target + group * ys[YG_AT] + k0 * ys[YK_AT], ys)
                group += 1


@routine
def _pack_channels(like, geo, source, row_step, step, rows, into):
    """A block of rows of a weight with windows of one pixel, a channel after the other, whichever of the two lie side
    by side."""
    apart()
    item = geo[ITEM_AT]
    if rows < ROWS:
        clear(like, into, geo[C_AT] * ROWS, item)
    for c in range(geo[C_AT]):
        at, place = source + c * step, into + c * ROWS * item
        if rows == ROWS:
            for row in range(ROWS):  # a number known here: unrolled
                write(like, place + row * item, read(like, at + row * row_step))
        else:
            for row in range(rows):
                write(like, place + row * item, read(like, at + row * row_step))


@kernel
def pack_weight(
    start: int, stop: int, weight: int, strides: Integers1, geo: Integers1, like: Out1, packed: int
) -> None:
    """Blocks of output channels as the micro-kernel reads them: [group][block][channel and tap][row of the block], 0 in
    missing rows."""
    item, rows, window = geo[ITEM_AT], geo[ROWS_AT], geo[WINDOW_AT : WINDOW_AT + 3]
    zero = like.dtype.type(0)
    blocks = (geo[K_AT] + rows - 1) // rows
    for number in range(start, stop):
        group, block = number // blocks, number % blocks
        target = packed + number * geo[DEPTH_AT] * rows * item
        if geo[DEPTH_AT] == geo[C_AT] and rows == ROWS:
            first = weight + group * strides[0] + block * rows * strides[1]
            _pack_channels(zero, geo, first, strides[1], strides[2], min(rows, geo[K_AT] - block * rows), target)
            continue
        for row in range(rows):
            k, into = block * rows + row, target + row * item
            source = weight + group * strides[0] + k * strides[1]
            for c in range(geo[C_AT]):
                for t in range(window[0]):
                    for r in range(window[1]):
                        for s in range(window[2]):
                            at = source + c * strides[2] + t * strides[3] + r * strides[4] + s * strides[5]
                            write(zero, into, read(zero, at) if k < geo[K_AT] else zero)
                            into += rows * item


# --- drivers ----------------------------------------------------------------------------------------------------------


def _forward(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray, back: bool = False
) -> None:
    if fits(g, x, y):
        correlate_planes(g, x, w, y)
        return
    weight, memory, table = buffers
    p = plan(g, y.itemsize, back=back)
    blocks = g.groups * -(-g.k // int(p.numbers[ROWS_AT]))
    x, w = aligned_array(x), aligned_array(w)
    pack_weight(
        blocks, address(w), np.array(w.strides, np.int64), p.numbers, weight, address(weight), work=_PACK * weight.size
    )
    if fits_pointwise(g, x, y):
        correlate_pixels(g, weight, memory, x, y)
        return
    strides = np.array(x.strides + y.strides, np.int64)
    addresses = (
        address(x),
        address(y),
        strides,
        address(weight),
        address(p.taps),
        p.numbers,
        memory,
        line_of(memory),
        address(table),
    )
    correlate(p.parts, *addresses, work=g.macs // _MACS)


def _forward_flipped(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    _forward(g, buffers, x, w, y, back=True)


def _buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch for the kernel that takes a geometry, which the memory of its arrays decides."""
    shapes = buffers(g)
    if not suits(g):
        return shapes
    own = pointwise_buffers(g)
    return [*(max(pair, key=math.prod) for pair in zip(shapes, own, strict=False)), *shapes[len(own) :]]


WAY = Way("shifted", "", never, _buffers, _forward, shifted_cost, forward_flipped=_forward_flipped)
conv, conv_backward_input, conv_transpose = correlations(WAY, pack_weight, correlate, depthwise, pointwise)
