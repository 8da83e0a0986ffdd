"""Convolution on the matrix unit without im2col: taps as shifts of an image in pieces. Imports Numba.

A task is a block of output pixels, gaps between the rows included, and some output channels. What it reads is split
into an image of its own, zero-padded and with its rows apart by the phases of the stride: [32
channels][piece][pixel][channel], a line of the cache for each pixel, so that 16 pixels of a row or of neighbouring rows
are a tile wherever they begin, at steps of the stride. The weight's rows are the other side, a block for each 32
channels of each tap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dnnarray._cpu.compiled.conv.copies import aligned_array, box_of, clear, copy, line_of
from dnnarray._cpu.compiled.conv.drivers import by_definition, correlations, with_definition
from dnnarray._cpu.compiled.conv.split_shifted_plan import (
    BEFORE_AT,
    BESIDE,
    BLOCK_AT,
    BLOCKS_AT,
    C_AT,
    CHANNEL_ROWS_AT,
    CHANNEL_TASKS_AT,
    COVERED_AT,
    EXTENT_AT,
    FIRST_AT,
    GROUPS_AT,
    K_AT,
    OUT_AT,
    PARTS_AT,
    PHASE_AT,
    PIECE_AT,
    PIXEL_AT,
    ROWS_AT,
    SCRATCH_AT,
    SETS_AT,
    SPACE_AT,
    START_AT,
    STRIDE_AT,
    TASKS_AT,
    WINDOW_AT,
    XC,
    XD,
    XG,
    XH,
    XN,
    XW,
    YD,
    YG,
    YH,
    YK,
    YN,
    YW,
    shifts_plan,
)
from dnnarray._cpu.compiled.kernel import Integers1, Integers2, OutIntegers1, device, kernel
from dnnarray._cpu.compiled.memory import address
from dnnarray._cpu.compiled.split_product import ITEM, lanes_of, told_of
from dnnarray._cpu.compiled.split_tile import (
    BLOCK,
    DEPTH,
    LINE,
    PIECES,
    SIDE,
    TILE,
    TOLD,
    configure,
    multiply_shifts,
    put_lanes,
    put_lanes_apart,
    put_pairs,
    release,
    see_sums,
    split_across,
    split_along,
)
from dnnarray._cpu.compiled.tile import apart, routine, turn_square
from dnnarray._cpu.conv.blocks import Shape, Way, at
from dnnarray._cpu.conv.split import rejects_shifts, shifts_cost
from dnnarray._problems.conv_geometry import Geometry

_PASS = (
    5  # blocks of the depth between two trips over the pixels: two strips of the weight stay in the first-level cache
)
_MACS = 32  # for an element of a light operation

# --- the weight -------------------------------------------------------------------------------------------------------


@routine
def _turn(source, target, step):
    """A block's pieces turned, to pieces `step` bytes apart."""
    apart()
    for piece in range(PIECES):
        turn_square(np.float32(0), source + piece * TILE, LINE, target + piece * step, LINE)


@routine
def _gather_taps(geo, window, weight, strides, number, rows, numbers):
    """The steps of a block, [row][step]: 32 channels of a tap, or the channels of several taps of a row of the
    window."""
    apart()
    zero, lane = np.float32(0), geo[PIXEL_AT] * DEPTH // LINE
    merged = DEPTH // lane
    columns = (window[2] + merged - 1) // merged
    taps = window[0] * window[1] * columns
    c, tap = number // taps * DEPTH, number % taps
    channels, first = min(lane, geo[C_AT] - c), tap % columns * merged
    if channels < lane or window[2] - first < merged:
        clear(zero, numbers, SIDE * DEPTH, ITEM)
    place = weight + c * strides[2] + tap // columns // window[1] * strides[3] + tap // columns % window[1] * strides[4]
    for s in range(first, min(first + merged, window[2])):
        for row in range(rows):
            target = numbers + (row * DEPTH + (s - first) * lane) * ITEM
            copy(zero, place + row * strides[1] + s * strides[5], strides[2], target, ITEM, channels, ITEM, SIDE)


@kernel
def split_weight(
    start: int,
    stop: int,
    weight: int,
    strides: Integers1,
    geo: Integers1,
    window: Integers1,
    blocks: int,
    packed: int,
    told: OutIntegers1,
    beside: int,
) -> None:
    """Strips of output channels from `start` to `stop`: [group][strip][block][piece], 0 in what is missing; `beside`
    has room for each of them."""
    for strip in range(start, stop):
        block, outside, own = beside + strip * BESIDE, 0, strip % geo[ROWS_AT] * SIDE
        numbers, first = block + BLOCK, weight + strip // geo[ROWS_AT] * strides[0] + own * strides[1]
        clear(np.float32(0), numbers, SIDE * DEPTH, ITEM)
        for number in range(blocks):
            _gather_taps(geo, window, first, strides, number, min(SIDE, geo[K_AT] - own), numbers)
            outside |= split_along(numbers, DEPTH * ITEM, block, LINE, TILE, SIDE, SIDE)
            _turn(block, packed + (strip * blocks + number) * BLOCK, TILE)
        told[strip] |= outside


# --- the image --------------------------------------------------------------------------------------------------------


@routine
def _split_few(strides, source, count, channels, target, piece, beside):
    """Some pixels, or some channels: by way of a block beside, or of numbers with 0 around them."""
    apart()
    zero, along, turned = np.float32(0), strides[XC] == ITEM, beside + BLOCK
    numbers = turned + BLOCK
    if along:
        clear(zero, numbers, SIDE * DEPTH, ITEM)
        for pixel in range(count):
            copy(zero, source + pixel * strides[XW], ITEM, numbers + pixel * DEPTH * ITEM, ITEM, channels, ITEM, SIDE)
        outside = split_along(numbers, DEPTH * ITEM, turned, LINE, TILE, SIDE, SIDE)
    else:
        step = strides[XC]
        if channels < DEPTH or strides[XW] != ITEM:
            clear(zero, numbers, SIDE * DEPTH, ITEM)
            for c in range(channels):
                copy(zero, source + c * step, strides[XW], numbers + c * SIDE * ITEM, ITEM, count, ITEM, SIDE)
            source, step = numbers, SIDE * ITEM
        outside = split_across(source, step, beside, LINE, TILE, SIDE, count)
        _turn(beside, turned, TILE)
    for i in range(PIECES):
        copy(zero, turned + i * TILE, ITEM, target + i * piece, ITEM, count * SIDE, ITEM, SIDE)
    return outside


@routine
def _split_row(strides, source, count, channels, target, piece, beside):
    """`count` pixels of a row, 32 channels at most."""
    apart()
    outside = 0
    if count < SIDE or channels < DEPTH or (strides[XC] != ITEM and strides[XW] != ITEM):
        for at in range(0, count, SIDE):
            outside |= _split_few(
                strides, source + at * strides[XW], min(SIDE, count - at), channels, target + at * LINE, piece, beside
            )
        return outside
    for i in range(0, count, SIDE):
        at = min(i, count - SIDE)  # the last ones overlap those before them
        if strides[XC] == ITEM:
            outside |= split_along(source + at * strides[XW], strides[XW], target + at * LINE, LINE, piece, SIDE, SIDE)
        else:
            outside |= split_across(source + at * ITEM, strides[XC], beside, LINE, TILE, SIDE, SIDE)
            _turn(beside, target + at * LINE, piece)
    return outside


@routine
def _put_words(source, count, words, target, pixel, piece, turned):
    """The words of `count` pixels from a row for each word of each piece to where the pixels lie."""
    apart()
    if words == 2:
        for i in range(PIECES):
            put_pairs(source + 2 * i * LINE, source + (2 * i + 1) * LINE, target + i * piece, count)
        return
    for square in range(0, PIECES * words, SIDE):
        turn_square(np.float32(0), source + square * LINE, LINE, turned + square * LINE, LINE)
    for i in range(PIECES):
        put_lanes(turned + i * words // SIDE * TILE, target + i * piece, pixel, count, i * words % SIDE, words)


@routine
def _split_short(strides, source, count, channels, pixel, target, piece, beside):
    """Sixteen pixels of a row or fewer, with so few channels that several of them fill a line; a pixel takes `pixel`
    bytes."""
    apart()
    zero, outside, words, turned = np.float32(0), 0, pixel // ITEM, beside + BLOCK
    numbers, step, nothing = turned + BLOCK, strides[XC], turned + BLOCK + SIDE * SIDE * ITEM
    clear(zero, nothing, SIDE, ITEM)
    if strides[XW] != ITEM:
        for c in range(channels):
            copy(zero, source + c * step, strides[XW], numbers + c * SIDE * ITEM, ITEM, count, ITEM, SIDE)
        source, step = numbers, SIDE * ITEM
    for pair in range(words):
        low = source + 2 * pair * step if 2 * pair < channels else nothing
        high = low + step if 2 * pair + 1 < channels else nothing
        outside |= split_across(low, high - low, beside + pair * LINE, LINE, words * LINE, 1, count)
    _put_words(beside, count, words, target, pixel, piece, turned)
    return outside


@routine
def _split_short_row(strides, source, count, channels, pixel, target, piece, beside):
    """`count` pixels of a row of few channels."""
    apart()
    outside = 0
    for i in range(0, count, SIDE):
        at = max(min(i, count - SIDE), 0)  # the last ones overlap those before them
        outside |= _split_short(
            strides, source + at * strides[XW], min(SIDE, count), channels, pixel, target + at * pixel, piece, beside
        )
    return outside


@device(counted=False)
def _clear_bytes(target, count, piece):
    """Pixels outside of the image."""
    if count > 0:
        for i in range(PIECES):
            clear(np.float32(0), target + i * piece, count // ITEM, ITEM)


@routine
def _split_image(geo, strides, x, low, extents, image, beside):
    """What the block reads, from position `low` on; x is the address of the image's first pixel."""
    apart()
    outside, piece, pixel, width = 0, geo[PIECE_AT], geo[PIXEL_AT], geo[PHASE_AT + 2]
    depth, height = (
        (extents[0] - 1) * geo[STRIDE_AT] + geo[COVERED_AT],
        (extents[1] - 1) * geo[STRIDE_AT + 1] + geo[COVERED_AT + 1],
    )
    sd, sh = geo[STRIDE_AT], geo[STRIDE_AT + 1]
    begin = min(max(-low[2], 0), width)
    end = max(min(geo[SPACE_AT + 2] - low[2], width), begin)
    for group in range(geo[GROUPS_AT]):
        channels, pieces = min(DEPTH, geo[C_AT] - group * DEPTH), image + group * PIECES * piece
        for d in range(depth):
            for h in range(height):
                at_d, at_h = low[0] + d, low[1] + h
                row = ((d % sd * geo[PHASE_AT] + d // sd) * sh + h % sh) * geo[PHASE_AT + 1] + h // sh
                target = pieces + row * width * pixel
                if not (0 <= at_d < geo[SPACE_AT] and 0 <= at_h < geo[SPACE_AT + 1]):
                    _clear_bytes(target, width * pixel, piece)
                    continue
                _clear_bytes(target, begin * pixel, piece)
                _clear_bytes(target + end * pixel, (width - end) * pixel, piece)
                source = (
                    x
                    + group * DEPTH * strides[XC]
                    + at_d * strides[XD]
                    + at_h * strides[XH]
                    + (low[2] + begin) * strides[XW]
                )
                target += begin * pixel
                if pixel < LINE:
                    outside |= _split_short_row(strides, source, end - begin, channels, pixel, target, piece, beside)
                else:
                    outside |= _split_row(strides, source, end - begin, channels, target, piece, beside)
    return outside


# --- products ---------------------------------------------------------------------------------------------------------


@device(counted=False)
def _put_run(strides, sums, turned, first, count, channels, target):
    """Neighbouring pixels of a tile; `turned` is the same tile with a row for each channel. Gives what `see_sums`
    does."""
    if strides[YK] == ITEM:
        put_lanes(sums + first * LINE, target, strides[YW], count, 0, channels)
    elif strides[YW] == ITEM:
        put_lanes(turned, target, strides[YK], channels, first, count)
    elif strides[YW] == 2 * ITEM:
        put_lanes_apart(turned, target, strides[YK], channels, first, count)
    else:
        for c in range(channels):
            copy(
                np.float32(0),
                turned + c * LINE + first * ITEM,
                ITEM,
                target + c * strides[YK],
                strides[YW],
                count,
                ITEM,
                SIDE,
            )
    return see_sums(sums + first * LINE, count) & lanes_of(channels)


@routine
def _put_tile(geo, strides, sums, strip, pixels, extents, channels, y, beside):
    """A tile of sums to the pixels of y that its rows are, without the gaps."""
    apart()
    line = geo[PHASE_AT + 2] // geo[STRIDE_AT + 2]
    plane = line * geo[PHASE_AT + 1] * geo[STRIDE_AT + 1]
    if strides[YK] != ITEM:
        turn_square(np.float32(0), sums, LINE, beside, LINE)
    pixel, last, put = strip * SIDE, min((strip + 1) * SIDE, pixels), 0
    while pixel < last:
        d, rest = pixel // plane, pixel % plane
        h, w = rest // line, rest % line
        if w >= extents[2]:
            pixel += line - w
        elif h >= extents[1]:
            pixel += plane - rest
        else:
            count = min(extents[2] - w, last - pixel)
            target = y + d * strides[YD] + h * strides[YH] + w * strides[YW]
            put |= _put_run(strides, sums, beside, pixel - strip * SIDE, count, channels, target)
            pixel += count
    return put


@routine
def _multiply(geo, image, offsets, strips, blocks, weight, columns, sums, beside):
    """All pixels for so many strips of output channels, the depth in passes; with one strip of channels four of pixels
    keep the unit busy."""
    apart()
    row, together = geo[STRIDE_AT + 2] * geo[PIXEL_AT], 4 if columns == 1 else 2
    for first in range(0, blocks, _PASS):
        some = min(_PASS, blocks - first)
        for column in range(0, columns, 2):
            across, other = min(2, columns - column), weight + (column * blocks + first) * BLOCK
            for strip in range(0, strips, together):
                down, source = min(together, strips - strip), image + strip * SIDE * row
                into = sums + (column // 2 * ((strips + 1) // 2) + strip // 2) * 4 * TILE
                multiply_shifts(
                    down,
                    across,
                    source,
                    offsets + first * 8,
                    row,
                    geo[PIECE_AT],
                    other,
                    blocks * BLOCK,
                    some,
                    into,
                    first > 0,
                    beside,
                )


@routine
def _map(geo, strides, phase, low, extents, image, offsets, weight, k, y, beside, sums):
    """The outputs of a map in the block from position `low` on, for `k` channels."""
    apart()
    put, line = 0, geo[PHASE_AT + 2] // geo[STRIDE_AT + 2]
    inside = (
        min(extents[0], phase[EXTENT_AT] - low[0]),
        min(extents[1], phase[EXTENT_AT + 1] - low[1]),
        min(extents[2], phase[EXTENT_AT + 2] - low[2]),
    )
    if min(inside) <= 0:
        return 0
    pixels = ((inside[0] - 1) * geo[PHASE_AT + 1] * geo[STRIDE_AT + 1] + inside[1] - 1) * line + inside[2]
    strips, columns = (pixels + SIDE - 1) // SIDE, (k + SIDE - 1) // SIDE
    _multiply(geo, image, offsets + phase[FIRST_AT] * 8, strips, phase[BLOCKS_AT], weight, columns, sums, beside)
    target = y + phase[START_AT] + low[0] * strides[YD] + low[1] * strides[YH] + low[2] * strides[YW]
    for column in range(columns):
        for strip in range(strips):
            tile = sums + ((column // 2 * ((strips + 1) // 2) + strip // 2) * 4 + strip % 2 * 2 + column % 2) * TILE
            into, channels = target + column * SIDE * strides[YK], min(SIDE, k - column * SIDE)
            put |= _put_tile(geo, strides, tile, strip, pixels, inside, channels, into, beside)
    return put


@device(counted=False)
def _share(share, geo):
    """(first group, last + 1, first output channel in it, output channels) of a task."""
    sets, tasks = geo[SETS_AT], geo[CHANNEL_TASKS_AT]
    if sets > 1:
        return sets * share // tasks, sets * (share + 1) // tasks, 0, geo[K_AT]
    k0 = share * geo[CHANNEL_ROWS_AT]
    return 0, 1, k0, min(geo[CHANNEL_ROWS_AT], geo[K_AT] - k0)


@kernel
def correlate_shifts(
    start: int,
    stop: int,
    x: int,
    y: int,
    strides: Integers1,
    weight: int,
    offsets: int,
    geo: Integers1,
    maps: Integers2,
    small: bool,
    told: OutIntegers1,
    scratch: int,
) -> None:
    """The tasks of the parts from `start` to `stop`; x, y, weight (packed), offsets (of the blocks) and scratch are
    addresses, `small` says that there are small numbers in the weight."""
    low, first, extents = np.empty(3, np.int64), np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        beside, outside, put = scratch + part * geo[SCRATCH_AT], 0, 0
        image = beside + BESIDE
        sums = image + geo[GROUPS_AT] * PIECES * geo[PIECE_AT]
        clear(
            np.float32(0), image, (sums - image) // ITEM, ITEM
        )  # what no task writes is multiplied, too, for sums that nobody wants
        configure()
        for task in range(part, geo[TASKS_AT], geo[PARTS_AT]):
            number = box_of(task // geo[CHANNEL_TASKS_AT], geo, OUT_AT, BLOCK_AT, low, extents)
            for axis in range(3):
                first[axis] = low[axis] * geo[STRIDE_AT + axis] - geo[BEFORE_AT + axis]
            begin, end, k0, k = _share(task % geo[CHANNEL_TASKS_AT], geo)
            for group in range(begin, end):
                source, target = (
                    x + number * strides[XN] + group * strides[XG],
                    y + number * strides[YN] + group * strides[YG] + k0 * strides[YK],
                )
                outside |= _split_image(geo, strides, source, first, extents, image, beside)
                for i in range(len(maps)):
                    strip = (
                        maps[i, FIRST_AT] * geo[SETS_AT] * geo[ROWS_AT]
                        + (group * geo[ROWS_AT] + k0 // SIDE) * maps[i, BLOCKS_AT]
                    )
                    put |= _map(
                        geo,
                        strides,
                        maps[i],
                        low,
                        extents,
                        image,
                        offsets,
                        weight + strip * BLOCK,
                        k,
                        target,
                        beside,
                        sums,
                    )
        release()
        told[part] = told_of(outside, put, small)


# --- drivers ----------------------------------------------------------------------------------------------------------


def _run(
    geometries: tuple[Geometry, ...],
    scratch: np.ndarray,
    x: np.ndarray,
    weights: Sequence[np.ndarray],
    results: Sequence[np.ndarray],
) -> bool:
    """The maps of x, and whether all numbers were such as the pieces can hold; where not, the results hold anything."""
    p = shifts_plan(geometries)
    told, packed = np.zeros(max(p.strips, p.parts), np.int64), line_of(scratch)
    memory, strides, maps = packed + p.weight, np.array(x.strides + results[0].strides, np.int64), p.maps.copy()
    for number, (w, y) in enumerate(zip(weights, results, strict=True)):
        place, window = packed + int(maps[number, FIRST_AT]) * p.strips * BLOCK, maps[number, WINDOW_AT : WINDOW_AT + 3]
        blocks, w_strides = int(maps[number, BLOCKS_AT]), np.array(w.strides, np.int64)
        split_weight(p.strips, address(w), w_strides, p.numbers, window, blocks, place, told, memory, work=16 * w.size)
        maps[number, START_AT] = address(y) - address(results[0])
    if (told & TOLD).any():
        return False
    arguments = (
        address(x),
        address(results[0]),
        strides,
        packed,
        address(p.offsets),
        p.numbers,
        maps,
        bool(told.any()),
        told[: p.parts],
        memory,
    )
    correlate_shifts(p.parts, *arguments, work=sum(m.macs for m in geometries) // _MACS)
    return not told[: p.parts].any()


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    if not _run((g,), buffers[0], aligned_array(x), (aligned_array(w),), (y,)):
        by_definition(g, buffers[0], x, w, y)


def _phases(g: Geometry) -> tuple[Geometry, ...]:
    return tuple(p.geometry for p in g.phases)


def _input_gradient(g: Geometry, buffers: Sequence[np.ndarray], grad: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    """All phases of the stride: they read one image."""
    if not g.phases_cover:
        x[...] = 0
    if not g.phases:
        return
    turned = aligned_array(w).transpose(0, 2, 1, 3, 4, 5)
    weights, results = [turned[at(p.taps)] for p in g.phases], [x[at(p.target)] for p in g.phases]
    if not _run(_phases(g), buffers[0], aligned_array(grad), weights, results):
        for p, weight, result in zip(g.phases, weights, results, strict=True):
            by_definition(p.geometry, buffers[0], grad, weight, result)


def _elements(geometries: tuple[Geometry, ...]) -> Sequence[Shape]:
    return with_definition([(-(-shifts_plan(geometries).memory // ITEM),)], geometries) if geometries else ((0,),)


WAY = Way(
    "split_shifted",
    "",
    rejects_shifts,
    lambda g: _elements((g,)),
    _forward,
    shifts_cost,
    input_gradient=_input_gradient,
    input_buffers=lambda g: _elements(_phases(g)),
)
conv, conv_backward_input, conv_transpose = correlations(WAY, split_weight, correlate_shifts)
