"""The gradient of a 3x3 weight by F(4x4, 3x3) (Lavin and Gray, 2016): 36 products for a tile of 4x4 outputs instead of
144. Imports Numba.

It is the forward's formula read backwards. With y = O[(G w G') * (I x I')]O' the gradient is G'[sum over tiles of (O'
dy O) * (I x I')]G, where I, G and O transform inputs, weight and outputs. Channels are the lanes throughout: strips of
a row of tiles are turned to [row][pixel][lane], so that no transform shuffles, and the micro-kernel adds up tiles. Each
part adds up blocks of tiles of its own; `collect_windows` adds the parts and transforms them back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import aligned_array, clear, copy_rows, line_of, turn_rows
from dnnarray._cpu.compiled.conv.drivers import weight_by_definition, with_definition
from dnnarray._cpu.compiled.conv.winograd_transforms import (
    REACH,
    TAPS,
    TILE,
    gradient_factors,
    input_factors,
    weight_taps,
)
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, driver, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import ROWS, VECTORS, apart, lanes, narrow_tile, read, routine, write
from dnnarray._cpu.conv import maps as conv_maps
from dnnarray._cpu.conv.blocks import Shape, even_parts
from dnnarray._cpu.conv.gemm import DIRECT
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry

_FACTORS = REACH * REACH
_TILES = 32  # of a block, at least, where there are as many
_BLOCK_ELEMENTS = 3 << 16  # of a block's factors: they and the sums stay in the second-level cache
# of sums, up to which each part has some of its own: larger ones are shared out by output channels
_PART_ELEMENTS = 1 << 19
_MACS = 64  # of the definition, for an element of a light operation
_BACK = 40  # light operations to transform an element of the weight back

# Where the kernels find their numbers.
(
    _GROUPS,
    _C,
    _K,
    _TALL,
    _WIDE,
    _TOTAL,
    _H,
    _W,
    _OUT_H,
    _OUT_W,
    _BEFORE_H,
    _BEFORE_W,
    _ITEM,
    _LANES,
    _C_PITCH,
    _K_PITCH,
    _BLOCK,
    _BLOCKS,
    _SPLITS,
    _SHARES,
    _SHARE_ROWS,
    _STEP,
    _X_FACTOR,
    _Y_FACTOR,
    _SUM_FACTOR,
    _SUMS,
    _STRIP_ROW,
    _MEMORY,
) = range(28)
_XN, _XG, _XC, _XH, _XW, _YN, _YG, _YK, _YH, _YW = 0, 1, 2, 4, 5, 6, 7, 8, 10, 11  # byte strides


# --- the plan ---------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    numbers: np.ndarray
    offsets: np.ndarray  # of a block's tiles in a factor of the image, in bytes
    parts: int
    shapes: tuple[Shape, ...]  # of scratch: all sums, and the memory of all parts


def _odd_lines(elements: int, item: int) -> int:
    """So many elements in an odd number of cache lines: neighbouring rows then use all sets of the cache."""
    line = ALIGNMENT // item
    return (-(-elements // line) | 1) * line


@lru_cache(maxsize=1024)
def _plan(g: Geometry, item: int) -> _Plan:
    """The plan for a geometry that has no extent of 0."""
    width, cores = lanes(item), threads.cores()
    vectors = -(-g.c // width)
    tall, wide = -(-g.out[1] // TILE), -(-g.out[2] // TILE)
    total = g.n * tall * wide
    c_pitch = _odd_lines(vectors * width, item)
    sums = g.groups * _FACTORS * g.k * c_pitch
    splits = min(cores, -(-total // _TILES)) if sums <= _PART_ELEMENTS else 1
    row_blocks = -(-g.k // ROWS)
    share_rows = -(-row_blocks // min(-(-cores // splits), row_blocks)) * ROWS
    shares = -(-g.k // share_rows)
    k_pitch = _odd_lines(-(-share_rows // width) * width, item)
    factors = c_pitch + k_pitch  # of a tile; a block has no fewer than sums, which it reads and writes
    most = max(_BLOCK_ELEMENTS // (_FACTORS * factors), _TILES, c_pitch * share_rows // factors)
    block = -(-total // (-(-total // (most * splits)) * splits))  # as many blocks for each part
    blocks = -(-total // block)
    strip_row = (TILE * min(wide, block) + REACH - TILE) * width
    x_factor, y_factor = (_odd_lines(block * pitch, item) for pitch in (c_pitch, k_pitch))
    memory = -(-(_FACTORS * (x_factor + y_factor) + REACH * strip_row) // ALIGNMENT) * ALIGNMENT
    numbers = [
        g.groups,
        g.c,
        g.k,
        tall,
        wide,
        total,
        *g.space[1:],
        *g.out[1:],
        *g.before[1:],
        item,
        width,
        c_pitch,
        k_pitch,
        block,
        blocks,
        splits,
        shares,
        share_rows,
        even_parts(vectors, VECTORS),
        x_factor,
        y_factor,
        g.k * c_pitch,
        sums,
        strip_row,
        memory,
    ]
    parts = splits * shares
    offsets = np.arange(block, dtype=np.int64) * (c_pitch * item)
    return _Plan(np.array(numbers, np.int64), offsets, parts, ((splits * sums,), (parts * memory + ALIGNMENT,)))


@lru_cache(maxsize=1024)
def _buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    return with_definition(
        [max(pair) for pair in zip(_plan(g, 4).shapes, _plan(g, 8).shapes, strict=True)], [g], wgrad=True
    )


# --- kernels ----------------------------------------------------------------------------------------------------------


@routine
def _load_strip(like, source, step, row_step, pixel_step, rows, high, low, count, begin, end, channels, geo, strip):
    """Rows of `count` pixels of so many channels, a vector's at most, to [row][pixel][lane]: 0 but for the rows from
    `high` to `low` and the pixels from `begin` to `end`. `source` is where the first pixel of the first row would
    be."""
    apart()
    item, width = geo[_ITEM], geo[_LANES]
    line, pitch, inside = width * item, geo[_STRIP_ROW] * item, end - begin
    for h in range(rows):
        target = strip + h * pitch
        if h < high or h >= low or channels < width:
            clear(like, target, count * width, item)
        else:
            clear(like, target, begin * width, item)
            clear(like, target + end * line, (count - end) * width, item)
        if h < high or h >= low:
            continue
        row, target = source + h * row_step + begin * pixel_step, target + begin * line
        if step == item and channels == width:
            copy_rows(like, row, pixel_step, target, line, inside, channels)
        elif pixel_step == item:
            turn_rows(like, row, step, target, line, channels, inside, item, width)
        else:
            for w in range(inside):
                for c in range(channels):
                    write(like, target + w * line + c * item, read(like, row + w * pixel_step + c * step))


@routine
def _image_factors(like, geo, x, xs, row, column, count, strip, factors):
    """The factors of `count` tiles of an image from tile (row, column) on: [factor][tile][channel]."""
    apart()
    item, line, pitch = geo[_ITEM], geo[_LANES] * geo[_ITEM], geo[_STRIP_ROW] * geo[_ITEM]
    top, left, pixels = TILE * row - geo[_BEFORE_H], TILE * column - geo[_BEFORE_W], TILE * count + REACH - TILE
    high, low = max(-top, 0), min(geo[_H] - top, REACH)
    begin = min(max(-left, 0), pixels)
    end = max(min(geo[_W] - left, pixels), begin)
    source = x + top * xs[_XH] + left * xs[_XW]
    some = min(geo[_LANES], geo[_C])
    for first in range(0, geo[_C], geo[_LANES]):
        c = min(first, geo[_C] - some)  # the last vector overlaps the one before it
        _load_strip(
            like,
            source + c * xs[_XC],
            xs[_XC],
            xs[_XH],
            xs[_XW],
            REACH,
            high,
            low,
            pixels,
            begin,
            end,
            some,
            geo,
            strip,
        )
        for w in range(pixels):
            input_factors(like, strip + w * line, pitch, strip + w * line, pitch)
        for t in range(count):
            for i in range(REACH):
                target = factors + (i * REACH * geo[_X_FACTOR] + t * geo[_C_PITCH] + c) * item
                input_factors(like, strip + i * pitch + TILE * t * line, line, target, geo[_X_FACTOR] * item)


@routine
def _gradient_factors(like, geo, grad, ys, row, column, count, channels, strip, factors):
    """The same of the gradient's tiles, for so many of its channels."""
    apart()
    item, line, pitch = geo[_ITEM], geo[_LANES] * geo[_ITEM], geo[_STRIP_ROW] * geo[_ITEM]
    pixels, low = TILE * count, min(geo[_OUT_H] - TILE * row, TILE)
    end = min(geo[_OUT_W] - TILE * column, pixels)
    source = grad + TILE * row * ys[_YH] + TILE * column * ys[_YW]
    some = min(geo[_LANES], channels)
    for first in range(0, channels, geo[_LANES]):
        k = min(first, channels - some)
        _load_strip(
            like, source + k * ys[_YK], ys[_YK], ys[_YH], ys[_YW], TILE, 0, low, pixels, 0, end, some, geo, strip
        )
        for w in range(pixels):
            gradient_factors(like, strip + w * line, pitch, strip + w * line, pitch)
        for t in range(count):
            for i in range(REACH):
                target = factors + (i * REACH * geo[_Y_FACTOR] + t * geo[_K_PITCH] + k) * item
                gradient_factors(like, strip + i * pitch + TILE * t * line, line, target, geo[_Y_FACTOR] * item)


@routine
def _add_products(like, geo, gradient, image, offsets, tiles, rows, sums, add):
    """Add up the products of so many tiles' factors: `rows` output channels with all channels."""
    apart()
    item, width, pitch = geo[_ITEM], geo[_LANES], geo[_C_PITCH] * geo[_ITEM]
    vectors = (geo[_C] + width - 1) // width
    for factor in range(_FACTORS):
        a, b = gradient + factor * geo[_Y_FACTOR] * item, image + factor * geo[_X_FACTOR] * item
        into = sums + factor * geo[_SUM_FACTOR] * item
        for before in range(0, vectors, geo[_STEP]):
            some, column = min(geo[_STEP], vectors - before), before * width * item
            for row in range(0, rows, ROWS):
                scalars, target = a + row * item, into + row * pitch + column
                narrow_tile(
                    like,
                    some,
                    min(ROWS, rows - row),
                    scalars,
                    item,
                    geo[_K_PITCH] * item,
                    b + column,
                    offsets,
                    tiles,
                    target,
                    pitch,
                    add,
                )


@device
def _transform_block(like, geo, x, grad, strides, begin, tiles, rows, strip, image, gradient):
    """The factors of both images for so many tiles from the one numbered `begin` on, row by row."""
    done = 0
    while done < tiles:
        row, column = (begin + done) // geo[_WIDE], (begin + done) % geo[_WIDE]
        n, row, count = row // geo[_TALL], row % geo[_TALL], min(geo[_WIDE] - column, tiles - done)
        into, onto = image + done * geo[_C_PITCH] * geo[_ITEM], gradient + done * geo[_K_PITCH] * geo[_ITEM]
        _image_factors(like, geo, x + n * strides[_XN], strides, row, column, count, strip, into)
        _gradient_factors(like, geo, grad + n * strides[_YN], strides, row, column, count, rows, strip, onto)
        done += count


@kernel
def winograd_weight(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    offsets: int,
    geo: Integers1,
    like: Out1,
    sums: int,
    scratch: int,
) -> None:
    """The parts from `start` to `stop`: every so many blocks of tiles, for a share of the output channels."""
    item, zero = geo[_ITEM], like.dtype.type(0)
    for part in range(start, stop):
        split, first = part // geo[_SHARES], part % geo[_SHARES] * geo[_SHARE_ROWS]
        rows = min(geo[_SHARE_ROWS], geo[_K] - first)
        image = scratch + part * geo[_MEMORY] * item
        gradient = image + _FACTORS * geo[_X_FACTOR] * item
        strip = gradient + _FACTORS * geo[_Y_FACTOR] * item
        for group in range(geo[_GROUPS]):
            own = sums + (split * geo[_SUMS] + group * _FACTORS * geo[_SUM_FACTOR] + first * geo[_C_PITCH]) * item
            source, slope = x + group * strides[_XG], grad + group * strides[_YG] + first * strides[_YK]
            for block in range(split, geo[_BLOCKS], geo[_SPLITS]):
                begin = block * geo[_BLOCK]
                tiles = min(geo[_BLOCK], geo[_TOTAL] - begin)
                _transform_block(zero, geo, source, slope, strides, begin, tiles, rows, strip, image, gradient)
                _add_products(zero, geo, gradient, image, offsets, tiles, rows, own, block > split)


@kernel
def collect_windows(
    start: int, stop: int, sums: int, geo: Integers1, like: Out1, scratch: int, target: int, strides: Integers1
) -> None:
    """The windows of the output channels from `start` to `stop`, all groups' one after the other, from the sums over
    the parts."""
    item, zero, width, factor = geo[_ITEM], like.dtype.type(0), geo[_LANES], geo[_SUM_FACTOR] * geo[_ITEM]
    for number in range(start, stop):
        group, k = number // geo[_K], number % geo[_K]
        own = sums + (group * _FACTORS * geo[_SUM_FACTOR] + k * geo[_C_PITCH]) * item
        into = target + group * strides[0] + k * strides[1]
        for c in range(0, geo[_C], width):
            at = own + c * item
            for split in range(1, geo[_SPLITS]):
                for i in range(_FACTORS):
                    place = at + i * factor
                    more = place + split * geo[_SUMS] * item
                    for j in range(width):
                        write(zero, place + j * item, read(zero, place + j * item) + read(zero, more + j * item))
            for j in range(REACH):  # down the columns, where the factors stand, then along the rows
                weight_taps(zero, at + j * factor, REACH * factor, at + j * factor, REACH * factor)
            for r in range(TAPS):
                weight_taps(zero, at + r * REACH * factor, factor, at + r * REACH * factor, factor)
                for s in range(TAPS):
                    for j in range(min(width, geo[_C] - c)):
                        value = read(zero, at + (r * REACH + s) * factor + j * item)
                        write(zero, into + (c + j) * strides[2] + r * strides[4] + s * strides[5], value)


# --- drivers ----------------------------------------------------------------------------------------------------------


def _weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    sums, memory = buffers
    p = _plan(g, w.itemsize)
    x, grad = aligned_array(x), aligned_array(grad)
    strides, scratch = np.array(x.strides + grad.strides, np.int64), line_of(memory)
    winograd_weight(
        p.parts,
        address(x),
        address(grad),
        strides,
        address(p.offsets),
        p.numbers,
        memory,
        address(sums),
        scratch,
        work=g.macs // _MACS,
    )
    collect_windows(
        g.groups * g.k,
        address(sums),
        p.numbers,
        memory,
        scratch,
        address(w),
        np.array(w.strides, np.int64),
        work=_BACK * w.size,
    )
    if not np.isfinite(np.sum(w)):  # so that NaN and infinity stay where the definition puts them
        weight_by_definition(g, memory, x, grad, w)


WAY = DIRECT._replace(weight_buffers=_buffers, weight_gradient=_weight_gradient)


@driver(winograd_weight, collect_windows)
def conv_backward_weight(
    problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, grad: np.ndarray, x: np.ndarray
) -> None:
    conv_maps.conv_backward_weight(WAY, problem, outputs, scratch, grad, x)
