"""Convolution with output channels in the lanes: pixels are scalars, read where the stride and the window say. Imports
Numba.

A task is a block of the result. What it reads is copied once to a zero-padded image. The micro-kernel multiplies tiles
of a few pixels, each with an address of its own, with the weight of as many channels as it has lanes, and leaves its
sums as [pixel][channel]; a last pass turns them to where they belong. So a stride costs nothing, and the phases of an
input's gradient meet in one block, whose rows are written as whole vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.ahead import WORDS, ask_for
from dnnarray._cpu.compiled.conv.channel_lanes_plan import (
    AHEAD_AT,
    APART_AT,
    BASE_AT,
    BLOCK_AT,
    CHAIN_AT,
    COVERED_AT,
    DEPTH_AT,
    EXTENT_AT,
    GROUPS_AT,
    IMAGE_AT,
    ITEM_AT,
    K_AT,
    LANES_AT,
    LOW_AT,
    MEMORY_AT,
    ORDER_AT,
    OUT_AT,
    PARTS_AT,
    PIECES_AT,
    PITCH_AT,
    POINTS_AT,
    RESULT_AT,
    SHARE_BLOCKS_AT,
    SHARES_AT,
    SPACE_AT,
    START_AT,
    STEP_AT,
    STEPS_AT,
    STRIDE_AT,
    TABLE_AT,
    TAPS_AT,
    TASKS_AT,
    VECTORS_AT,
    WEIGHT_AT,
    WINDOW_AT,
    Plan,
    buffers,
    forward_plan,
    gradient_plan,
)
from dnnarray._cpu.compiled.conv.copies import aligned_array, box_of, clear, copy_rows, line_of, turn_rows
from dnnarray._cpu.compiled.conv.drivers import correlations
from dnnarray._cpu.compiled.kernel import Integers1, Integers2, Out1, device, kernel
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.tile import VECTORS, apart, read, routine, write, write_word
from dnnarray._cpu.compiled.tile_pixels import MOST_PIXELS, POINT_BYTES, multiply_block
from dnnarray._cpu.conv.blocks import Way, at, never
from dnnarray._cpu.conv.channel_lanes import channel_lanes_cost
from dnnarray._problems.conv_geometry import Geometry

_PACK, _MACS = 2, 16  # elements of a light operation: an element of the weight packed; so many multiply-adds
_XN, _XG, _XC, _YN, _YG, _YK, _YD, _YH, _YW = 0, 1, 2, 6, 7, 8, 9, 10, 11  # byte strides

# --- the kernel -------------------------------------------------------------------------------------------------------


@routine
def _place_points(geo, pieces, extents, table, pixels):
    """Write where each pixel of the pieces stands in image and result, the last one again up to a whole tile of any
    height; `pixels` gets those of each piece."""
    apart()
    block_h, block_w, pitch = geo[BLOCK_AT + 1], geo[BLOCK_AT + 2], geo[PITCH_AT] * geo[ITEM_AT]
    step_d, step_h, step_w = geo[STEP_AT], geo[STEP_AT + 1], geo[STEP_AT + 2]
    for p in range(geo[PIECES_AT]):
        into, count = table + pieces[p, POINTS_AT] * 8, 0
        source = target = 0
        for d in range(pieces[p, START_AT], extents[0], step_d):
            for h in range(pieces[p, START_AT + 1], extents[1], step_h):
                row = (
                    pieces[p, BASE_AT]
                    + d // step_d * geo[STRIDE_AT] * geo[APART_AT + 1]
                    + h // step_h * geo[STRIDE_AT + 1] * geo[APART_AT + 2]
                )
                for w in range(pieces[p, START_AT + 2], extents[2], step_w):
                    source = row + w // step_w * geo[STRIDE_AT + 2] * geo[APART_AT + 3]
                    target = ((d * block_h + h) * block_w + w) * pitch
                    write_word(into + count * POINT_BYTES, source)
                    write_word(into + count * POINT_BYTES + 8, target)
                    count += 1
        pixels[p] = count
        for i in range(count, count + MOST_PIXELS - 1 if count else 0):
            write_word(into + i * POINT_BYTES, source)
            write_word(into + i * POINT_BYTES + 8, target)


@device(counted=False)
def _clip(geo, low, begin, count):
    """The part of a block's image that lies in x: its first position and its extents, C D H W. Says whether they are
    others than before."""
    changed = False
    for axis in range(1, 4):
        extent = geo[EXTENT_AT + axis]
        first = min(max(-low[axis], 0), extent)
        some = max(min(geo[SPACE_AT + axis] - low[axis], extent) - first, 0)
        changed = changed or first != begin[axis] or some != count[axis]
        begin[axis], count[axis] = first, some
    return changed


@routine
def _load(like, geo, x, xs, low, begin, count, image):
    """Copy what a block reads to the image, which is 0 elsewhere; memory is read as it lies."""
    apart()
    a, b, c, d = geo[ORDER_AT], geo[ORDER_AT + 1], geo[ORDER_AT + 2], geo[ORDER_AT + 3]
    item, target = geo[ITEM_AT], image
    for axis in range(1, 4):
        x += (low[axis] + begin[axis]) * xs[_XC + axis]
        target += begin[axis] * geo[APART_AT + axis]
    by_rows = xs[_XC + d] == item
    for i in range(count[a]):
        for j in range(count[b]):
            source = x + i * xs[_XC + a] + j * xs[_XC + b]
            into = target + i * geo[APART_AT + a] + j * geo[APART_AT + b]
            if by_rows:
                copy_rows(like, source, xs[_XC + c], into, geo[APART_AT + c], count[c], count[d])
                continue
            for k in range(count[c]):
                for m in range(count[d]):
                    value = read(like, source + k * xs[_XC + c] + m * xs[_XC + d])
                    write(like, into + k * geo[APART_AT + c] + m * item, value)


@device(counted=False)
def _vectors(block, geo):
    """(the first, how many) vectors of a block of output channels: nearly equal ones, since a tile of one vector loads
    a scalar for each product."""
    blocks = (geo[VECTORS_AT] + VECTORS - 1) // VECTORS
    before = geo[VECTORS_AT] * block // blocks
    return before, geo[VECTORS_AT] * (block + 1) // blocks - before


@routine
def _multiply(like, geo, pieces, pixels, points, group, first, last, image, taps, weight, result, asked):
    """All pieces of a group, in passes over channels and taps, for the blocks of output channels from `first` to
    `last`."""
    apart()
    item, vector = geo[ITEM_AT], geo[LANES_AT] * geo[ITEM_AT]
    for p in range(geo[PIECES_AT]):
        depth = pieces[p, DEPTH_AT]
        source = weight + pieces[p, WEIGHT_AT] * item + group * geo[VECTORS_AT] * depth * vector
        for step in range(0, depth, geo[STEPS_AT]):
            steps, offsets = min(geo[STEPS_AT], depth - step), taps + (pieces[p, TAPS_AT] + step) * 8
            for block in range(first, last):
                before, vectors = _vectors(block, geo)
                part = source + (before * depth + step * vectors) * vector
                into = result + before * vector
                table = points + pieces[p, POINTS_AT] * 8
                multiply_block(
                    like, vectors, asked, table, pixels[p], image, offsets, steps, geo[CHAIN_AT], part, into, step > 0
                )


@routine
def _store(like, geo, result, extents, k, y, ys):
    """The sums of `k` output channels to y."""
    apart()
    item, pitch = geo[ITEM_AT], geo[PITCH_AT] * geo[ITEM_AT]
    rows, run = extents[1], extents[2]
    if run == geo[BLOCK_AT + 2] and ys[_YH] == run * ys[_YW]:  # the rows lie one behind the other on both sides
        rows, run = 1, rows * run
    for d in range(extents[0]):
        for h in range(rows):
            source = result + (d * geo[BLOCK_AT + 1] + h) * geo[BLOCK_AT + 2] * pitch
            target = y + d * ys[_YD] + h * ys[_YH]
            if ys[_YK] == item:
                copy_rows(like, source, pitch, target, ys[_YW], run, k)
            elif ys[_YW] == item:
                turn_rows(like, source, pitch, target, ys[_YK], run, k, item, geo[LANES_AT])
            else:
                for w in range(run):
                    for j in range(k):
                        write(like, target + w * ys[_YW] + j * ys[_YK], read(like, source + w * pitch + j * item))


@device(counted=False)
def _task_box(task, geo, start, extents):
    """Fill in the first pixel and the extents of a task's block; gives (its share of the channels, its image)."""
    share = task % geo[SHARES_AT]
    return share, box_of(task // geo[SHARES_AT], geo, OUT_AT, BLOCK_AT, start, extents)


@device(counted=False)
def _channels(share, geo):
    """(first group, last + 1, first block of output channels, last + 1) of a task."""
    blocks = (geo[VECTORS_AT] + VECTORS - 1) // VECTORS
    if geo[GROUPS_AT] > 1:
        return share * geo[GROUPS_AT] // geo[SHARES_AT], (share + 1) * geo[GROUPS_AT] // geo[SHARES_AT], 0, blocks
    return 0, 1, share * geo[SHARE_BLOCKS_AT], min((share + 1) * geo[SHARE_BLOCKS_AT], blocks)


@device(counted=False)
def _outputs(block, end, geo):
    """(first output channel, how many) of these blocks."""
    k0 = _vectors(block, geo)[0] * geo[LANES_AT]
    return k0, min(_vectors(end, geo)[0] * geo[LANES_AT], geo[K_AT]) - k0


@device(counted=False)
def _tiles(geo, pieces, pixels, blocks):
    """No more than the tiles that these blocks of output channels are multiplied by; none where nothing is to be asked
    for."""
    total = 0
    for p in range(geo[PIECES_AT]):
        passes = (pieces[p, DEPTH_AT] + geo[STEPS_AT] - 1) // geo[STEPS_AT]
        total += (pixels[p] + MOST_PIXELS - 1) // MOST_PIXELS * passes * blocks
    return total * geo[AHEAD_AT]


@kernel
def correlate_lanes(
    start: int,
    stop: int,
    x: int,
    y: int,
    strides: Integers1,
    weight: int,
    taps: int,
    geo: Integers1,
    pieces: Integers2,
    like: Out1,
    scratch: int,
    table: int,
) -> None:
    """The tasks of the parts from `start` to `stop`; x, y, weight (packed), taps, scratch and table are addresses."""
    item, zero = geo[ITEM_AT], like.dtype.type(0)
    first, extents, placed = np.empty(3, np.int64), np.empty(3, np.int64), np.empty(3, np.int64)
    low, begin, count, pixels = (
        np.zeros(4, np.int64),
        np.zeros(4, np.int64),
        np.zeros(4, np.int64),
        np.empty(geo[PIECES_AT], np.int64),
    )
    for part in range(start, stop):
        image = scratch + part * geo[MEMORY_AT] * item
        result, asked = image + geo[IMAGE_AT] * item, table + part * geo[TABLE_AT] * 8
        points = asked + WORDS * 8
        placed[:] = 0
        count[:] = -1
        count[0] = geo[SPACE_AT]
        if not geo[COVERED_AT]:  # what no tap meets is never written
            clear(zero, result, geo[RESULT_AT], item)
        for task in range(part, geo[TASKS_AT], geo[PARTS_AT]):
            share, n = _task_box(task, geo, first, extents)
            if extents[0] != placed[0] or extents[1] != placed[1] or extents[2] != placed[2]:
                _place_points(geo, pieces, extents, points, pixels)
                placed[:] = extents
            for axis in range(3):
                low[1 + axis] = first[axis] // geo[STEP_AT + axis] * geo[STRIDE_AT + axis] + geo[LOW_AT + axis]
            if _clip(geo, low, begin, count):
                clear(zero, image, geo[IMAGE_AT], item)
            group, last, block, end = _channels(share, geo)
            k0, k = _outputs(block, end, geo)
            tiles = _tiles(geo, pieces, pixels, end - block)
            target = (
                y
                + n * strides[_YN]
                + first[0] * strides[_YD]
                + first[1] * strides[_YH]
                + first[2] * strides[_YW]
                + k0 * strides[_YK]
            )
            while group < last:
                into = target + group * strides[_YG]
                _load(zero, geo, x + group * strides[_XG] + n * strides[_XN], strides, low, begin, count, image)
                ask_for(asked, into, strides, _YK, k, extents, item, tiles)
                _multiply(zero, geo, pieces, pixels, points, group, block, end, image, taps, weight, result, asked)
                _store(zero, geo, result + k0 * item, extents, k, into, strides)
                group += 1


@device(counted=False)
def _is_row(at, channels, window, item):
    """Whether channels and taps lie one behind the other."""
    expected, dense = item, window[2] == 1 or at[6] == item
    expected *= window[2]
    dense = dense and (window[1] == 1 or at[5] == expected)
    expected *= window[1]
    dense = dense and (window[0] == 1 or at[4] == expected)
    return dense and (channels == 1 or at[3] == expected * window[0])


@kernel
def pack_lanes(
    start: int, stop: int, sources: Integers2, geo: Integers1, pieces: Integers2, like: Out1, packed: int
) -> None:
    """Blocks of output channels as the micro-kernel reads them: [piece][group][block][channel and tap][lane], 0 in
    missing lanes.

    `sources` holds the address and the six byte strides of each piece's weight.
    """
    item, width, zero = geo[ITEM_AT], geo[LANES_AT], like.dtype.type(0)
    blocks = (geo[VECTORS_AT] + VECTORS - 1) // VECTORS
    for number in range(start, stop):
        piece, group = number // blocks // geo[GROUPS_AT], number // blocks % geo[GROUPS_AT]
        before, vectors = _vectors(number % blocks, geo)
        at, window, depth = sources[piece], pieces[piece, WINDOW_AT : WINDOW_AT + 3], pieces[piece, DEPTH_AT]
        line = vectors * width * item
        k = min(line // item, geo[K_AT] - before * width)
        source = at[0] + group * at[1] + before * width * at[2]
        target = packed + (pieces[piece, WEIGHT_AT] + (group * geo[VECTORS_AT] + before) * depth * width) * item
        if _is_row(at, geo[SPACE_AT], window, item):
            if k * item < line:
                clear(zero, target, depth * line // item, item)
            turn_rows(zero, source, at[2], target, line, k, depth, item, width)
            continue
        for c in range(geo[SPACE_AT]):
            for t in range(window[0]):
                for r in range(window[1]):
                    for s in range(window[2]):
                        tap = source + c * at[3] + t * at[4] + r * at[5] + s * at[6]
                        for j in range(line // item):
                            write(zero, target + j * item, read(zero, tap + j * at[2]) if j < k else zero)
                        target += line


# --- drivers ----------------------------------------------------------------------------------------------------------


def _run(
    p: Plan, memory: Sequence[np.ndarray], x: np.ndarray, weights: Sequence[np.ndarray], y: np.ndarray, macs: int
) -> None:
    weight, scratch, table = memory
    x, weights = aligned_array(x), [aligned_array(w) for w in weights]
    sources = np.array([(address(w), *w.strides) for w in weights], np.int64)
    packed = line_of(weight)
    pack_lanes(p.blocks, sources, p.numbers, p.pieces, weight, packed, work=_PACK * weight.size)
    strides = np.array(x.strides + y.strides, np.int64)
    correlate_lanes(
        p.parts,
        address(x),
        address(y),
        strides,
        packed,
        address(p.taps),
        p.numbers,
        p.pieces,
        weight,
        line_of(scratch),
        address(table),
        work=macs // _MACS,
    )


def _forward(g: Geometry, memory: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    _run(forward_plan(g, y.itemsize), memory, x, [w], y, g.macs)


def _input_gradient(g: Geometry, memory: Sequence[np.ndarray], grad: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    p = gradient_plan(g, x.itemsize)
    if p is None:
        x[...] = 0
        return
    w = w.transpose(0, 2, 1, 3, 4, 5)
    _run(p, memory, grad, [w[at(phase.taps)] for phase in g.phases], x, g.macs)


def _gradient_buffers(g: Geometry) -> Any:
    return buffers(g, gradient=True)


WAY = Way(
    "channel_lanes",
    "",
    never,
    buffers,
    _forward,
    channel_lanes_cost,
    input_gradient=_input_gradient,
    input_buffers=_gradient_buffers,
)
conv, conv_backward_input, conv_transpose = correlations(WAY, pack_lanes, correlate_lanes)
