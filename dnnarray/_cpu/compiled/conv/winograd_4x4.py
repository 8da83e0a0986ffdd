"""Convolution with 3x3 windows by F(4x4, 3x3) (Lavin and Gray, 2016), blocked over tiles. Imports Numba.

An output tile of 4x4 takes 36 products instead of 144. A task is a block of tiles, all in the lanes of vectors: their
inputs are transformed straight from the image into [factor][channel][tile], the micro-kernel multiplies each factor
with that of the weight, some output channels at a time, and these go back to the image. So what is transformed stays in
the caches. A NaN or an infinity would reach a whole tile: the kernel says whether it wrote one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import aligned_array, copy, line_of
from dnnarray._cpu.compiled.conv.drivers import by_definition, correlations, with_definition
from dnnarray._cpu.compiled.conv.winograd_transforms import (
    REACH,
    TILE,
    copy_checked,
    transform_back,
    transform_columns,
    transform_edge_rows,
    transform_rows,
    transform_weight,
)
from dnnarray._cpu.compiled.kernel import Integers1, Out1, Out2, device, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import BYTES, ROWS, VECTORS, apart, lanes, narrow_tile, read, routine, write
from dnnarray._cpu.conv.blocks import Shape, Way
from dnnarray._cpu.conv.winograd import cost_4x4, rejects
from dnnarray._problems.conv_geometry import Geometry

_FACTORS = REACH * REACH
_TILES = 48  # of a block: what a factor of the weight is read for
_PRODUCT_ELEMENTS = (96 if BYTES == 64 else 48) << 10  # of the products of a block before they go back
_CHANNELS = 64  # of one sum: sums of these sums are more exact than one long one
_MACS = 64  # of the definition, for an element of a light operation
_PACK = 16  # light operations to transform an element of the weight

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
    _BLOCK,
    _PITCH,
    _BLOCKS,
    _CHUNK,
    _CHUNKS,
    _SHARES,
    _PARTS,
    _V_FACTOR,
    _M_FACTOR,
    _ROW_PITCH,
    _MEMORY,
    _WEIGHT_MEMORY,
    _ONCE,
    _PANEL,
) = range(28)
_XN, _XG, _XC, _, _XH, _XW, _YN, _YG, _YK, _, _YH, _YW = range(12)  # byte strides


# --- the plan ---------------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    numbers: np.ndarray
    shapes: tuple[Shape, ...]  # of scratch: the transformed weight, and the memory of all parts


def _odd_panels(tiles: int, width: int, item: int) -> int:
    """The least number of tiles that is at least `tiles`, full vectors, and no even number of cache lines: rows then
    use all sets of the cache."""
    panels = -(-tiles // width)
    return (panels + (panels * width * item % (2 * ALIGNMENT) == 0)) * width


@lru_cache(maxsize=1024)
def _plan(g: Geometry, item: int) -> _Plan:
    """The plan for a geometry that has no extent of 0."""
    width, cores = VECTORS * lanes(item), threads.cores()
    tall, wide = -(-g.out[1] // TILE), -(-g.out[2] // TILE)
    total = g.n * tall * wide
    # An equal number of blocks for each core where there are as many.
    blocks = -(-total // max(_TILES, width))
    blocks = -(-blocks // cores) * cores if blocks * g.groups > cores else blocks
    block = -(-total // (blocks * lanes(item))) * lanes(item)
    blocks = -(-total // block)
    pitch = _odd_panels(block, lanes(item), item)
    row_blocks = -(-g.k // ROWS)
    chunk = min(max(_PRODUCT_ELEMENTS // (_FACTORS * pitch * ROWS), 1), row_blocks)
    chunks = -(-row_blocks // chunk)
    shares = min(-(-cores // (blocks * g.groups)), chunks)
    once = blocks == 1  # each factor of the weight is used by one block alone: transformed where it is used
    parts = min(cores, blocks * g.groups * shares)
    v_factor, m_factor = g.c * pitch + width, chunk * ROWS * pitch + width
    row_pitch = (TILE * (wide + 1) + 2 * TILE * lanes(item)) // 16 * 16 + 16
    # a line more, or all factors meet in the same sets of the cache
    panel = -(-g.c * ROWS // ALIGNMENT) * ALIGNMENT + ALIGNMENT // 4
    weight_memory = _FACTORS * panel * chunk if once else 0
    memory = (
        _FACTORS * (v_factor + m_factor) + (REACH + TILE) * row_pitch + REACH * g.space[2] + lanes(item) + weight_memory
    )
    memory = -(-memory // ALIGNMENT) * ALIGNMENT
    numbers = [
        g.groups,
        g.c,
        g.k,
        tall,
        wide,
        total,
        g.space[1],
        g.space[2],
        g.out[1],
        g.out[2],
        g.before[1],
        g.before[2],
        item,
        lanes(item),
        block,
        pitch,
        blocks,
        chunk,
        chunks,
        shares,
        parts,
        v_factor,
        m_factor,
        row_pitch,
        memory,
        weight_memory,
        once,
        panel,
    ]
    weight = 0 if once else g.groups * row_blocks * _FACTORS * panel
    return _Plan(np.array(numbers, np.int64), ((weight,), (parts * memory + ALIGNMENT,)))


@lru_cache(maxsize=1024)
def _buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    return with_definition([max(pair) for pair in zip(_plan(g, 4).shapes, _plan(g, 8).shapes, strict=True)], [g])


# --- the input --------------------------------------------------------------------------------------------------------


@routine
def _row_of_tiles(like, geo, x, step, row, column, count, rows):
    """Transform down the columns: six input rows of `count` tiles from tile (row, column) on. `x` is one channel of an
    image, its rows dense."""
    apart()
    item, width, pitch = geo[_ITEM], geo[_LANES], geo[_ROW_PITCH] * geo[_ITEM]
    top, left = TILE * row - geo[_BEFORE_H], TILE * column - geo[_BEFORE_W]
    high, low = max(-top, 0), min(geo[_H] - top, REACH)
    source = x + top * step + left * item
    for j in range(0, TILE * count + REACH - TILE, width):
        begin, end = -left - j, geo[_W] - left - j
        if high == 0 and low == REACH and begin <= 0 and end >= width:
            transform_rows(like, source + j * item, step, high, low, begin, end, rows + j * item, pitch)
        else:
            transform_edge_rows(like, source + j * item, step, high, low, begin, end, rows + j * item, pitch)


@device(counted=False)
def _dense_rows(like, geo, x, xs, row, image):
    """The rows that tiles read, one behind the other, where their elements are apart. Gives the address of what would
    be row 0, and their step."""
    item, width = geo[_ITEM], geo[_W] * geo[_ITEM]
    if xs[_XW] == item:
        return x, xs[_XH]
    top = TILE * row - geo[_BEFORE_H]
    for h in range(max(top, 0), min(top + REACH, geo[_H])):
        copy(like, x + h * xs[_XH], xs[_XW], image + (h - top) * width, item, geo[_W], item, geo[_LANES])
    return image - top * width, width


@device(counted=False)
def _transform_input(like, geo, x, xs, segments, rows, image, factors):
    """A block of tiles to [factor][channel][tile]. A row's last vector runs on into the next channel's tiles, which are
    written later."""
    item, width, pitch = geo[_ITEM], geo[_LANES], geo[_ROW_PITCH] * geo[_ITEM]
    for c in range(geo[_C]):
        for s in range(len(segments)):
            number, row, column, count, at = (
                segments[s, 0],
                segments[s, 1],
                segments[s, 2],
                segments[s, 3],
                segments[s, 4],
            )
            source = x + number * xs[_XN] + c * xs[_XC]
            dense, step = _dense_rows(like, geo, source, xs, row, image)
            _row_of_tiles(like, geo, dense, step, row, column, count, rows)
            for i in range(REACH):
                target = factors + (i * REACH * geo[_V_FACTOR] + c * geo[_PITCH] + at) * item
                for j in range(0, count, width):
                    transform_columns(
                        like, rows + i * pitch + TILE * j * item, target + j * item, geo[_V_FACTOR] * item
                    )


@device(counted=False)
def _segments(geo, block, segments):
    """Fill in (image, row, first column, tiles, place in the block) of the parts of rows that make up a block; gives
    their number."""
    first, last = block * geo[_BLOCK], min((block + 1) * geo[_BLOCK], geo[_TOTAL])
    at, count = first, 0
    while at < last:
        row, column = at // geo[_WIDE], at % geo[_WIDE]
        tiles = min(geo[_WIDE] - column, last - at)
        segments[count, 0], segments[count, 1] = row // geo[_TALL], row % geo[_TALL]
        segments[count, 2], segments[count, 3], segments[count, 4] = column, tiles, at - first
        at += tiles
        count += 1
    return count


# --- products and results ---------------------------------------------------------------------------------------------


@routine
def _multiply(like, geo, weight, factors, offsets, columns, rows, products):
    """Each factor of the tiles with `rows` rows of that of the weight, given as panels of the micro-kernel's rows:
    [panel][factor][channel][row]."""
    apart()
    item, width, result_row = geo[_ITEM], geo[_LANES] * geo[_ITEM], geo[_PITCH] * geo[_ITEM]
    panel, vectors = geo[_PANEL] * item, (columns + geo[_LANES] - 1) // geo[_LANES]
    tiles = (vectors + VECTORS - 1) // VECTORS
    for factor in range(_FACTORS):
        source, target = factors + factor * geo[_V_FACTOR] * item, products + factor * geo[_M_FACTOR] * item
        for number in range(tiles):  # nearly equal ones
            first, last = vectors * number // tiles, vectors * (number + 1) // tiles
            for c in range(0, geo[_C], _CHANNELS):
                count, b = min(_CHANNELS, geo[_C] - c), source + first * width
                for row in range(0, rows, ROWS):
                    a = weight + (row // ROWS * _FACTORS + factor) * panel + c * ROWS * item
                    into = target + row * result_row + first * width
                    some, at = min(ROWS, rows - row), offsets + c * 8
                    narrow_tile(like, last - first, some, a, item, ROWS * item, b, at, count, into, result_row, c > 0)


@routine
def _write_tiles(like, geo, stage, y, ys, row, column, count, flags):
    """Four staged rows of `count` tiles to one channel of y, without what reaches over its edge."""
    apart()
    item, pitch = geo[_ITEM], geo[_ROW_PITCH] * geo[_ITEM]
    run = min(TILE * count, geo[_OUT_W] - TILE * column)
    for i in range(min(TILE, geo[_OUT_H] - TILE * row)):
        source, target = stage + i * pitch, y + (TILE * row + i) * ys[_YH] + TILE * column * ys[_YW]
        if ys[_YW] == item and run >= geo[_LANES]:
            copy_checked(like, source, target, run, flags)
        else:
            total = read(like, flags)
            for j in range(run):
                value = read(like, source + j * item)
                write(like, target + j * ys[_YW], value)
                total += value * like
            write(like, flags, total)


@device(counted=False)
def _write_results(like, geo, products, rows, segments, stage, y, ys, flags):
    """The products of `rows` output channels back to the image, whose first channel is at `y`."""
    item, width, pitch = geo[_ITEM], geo[_LANES], geo[_ROW_PITCH] * geo[_ITEM]
    for k in range(rows):
        for s in range(len(segments)):
            number, row, column, count, at = (
                segments[s, 0],
                segments[s, 1],
                segments[s, 2],
                segments[s, 3],
                segments[s, 4],
            )
            source = products + (k * geo[_PITCH] + at) * item
            for j in range(0, count, width):
                transform_back(like, source + j * item, geo[_M_FACTOR] * item, stage + TILE * j * item, pitch)
            _write_tiles(like, geo, stage, y + number * ys[_YN] + k * ys[_YK], ys, row, column, count, flags)


@routine
def _transform_panel(like, geo, weight, strides, panel, target):
    """The windows of one group's rows of a panel: [factor][channel][row]."""
    apart()
    item = geo[_ITEM]
    last = min(geo[_K] - panel * ROWS, ROWS) - 1
    for c in range(geo[_C]):
        source = weight + panel * ROWS * strides[1] + c * strides[2]
        transform_weight(
            like, source, last, strides[1], strides[4], strides[5], target + c * ROWS * item, geo[_PANEL] * item
        )


# --- kernels ----------------------------------------------------------------------------------------------------------


@kernel
def transform_weights(
    start: int, stop: int, weight: int, strides: Integers1, geo: Integers1, like: Out1, target: int
) -> None:
    """The panels of the weight from `start` to `stop`, all groups' one after the other."""
    zero = like.dtype.type(0)
    panels = (geo[_K] + ROWS - 1) // ROWS
    size = _FACTORS * geo[_PANEL] * geo[_ITEM]
    for number in range(start, stop):
        _transform_panel(
            zero, geo, weight + number // panels * strides[0], strides, number % panels, target + number * size
        )


@kernel
def winograd(
    start: int,
    stop: int,
    x: int,
    y: int,
    strides: Integers1,
    weight: int,
    transformed: int,
    weight_strides: Integers1,
    offsets: int,
    geo: Integers1,
    like: Out1,
    scratch: int,
    finite: Out2,
) -> None:
    """The tasks of the parts from `start` to `stop`; `finite` becomes NaN in a part's row where it wrote what is not
    finite."""
    item, zero = geo[_ITEM], like.dtype.type(0)
    xs, ys = strides[:6], strides
    table = np.empty((geo[_BLOCK], 5), np.int64)
    panels, panel_size = (geo[_K] + ROWS - 1) // ROWS, _FACTORS * geo[_PANEL] * item
    for part in range(start, stop):
        factors = scratch + part * geo[_MEMORY] * item
        products = factors + _FACTORS * geo[_V_FACTOR] * item
        rows = products + _FACTORS * geo[_M_FACTOR] * item
        stage = rows + REACH * geo[_ROW_PITCH] * item
        flags = stage + TILE * geo[_ROW_PITCH] * item
        own_weight = flags + geo[_LANES] * item
        image = own_weight + geo[_WEIGHT_MEMORY] * item
        for i in range(geo[_LANES]):
            write(zero, flags + i * item, zero)
        for task in range(part, geo[_GROUPS] * geo[_BLOCKS] * geo[_SHARES], geo[_PARTS]):
            share, block, group = (
                task % geo[_SHARES],
                task // geo[_SHARES] % geo[_BLOCKS],
                task // geo[_SHARES] // geo[_BLOCKS],
            )
            segments = table[: _segments(geo, block, table)]
            columns = min(geo[_BLOCK], geo[_TOTAL] - block * geo[_BLOCK])
            _transform_input(zero, geo, x + group * xs[_XG], xs, segments, rows, image, factors)
            for chunk in range(share, geo[_CHUNKS], geo[_SHARES]):
                panel = chunk * geo[_CHUNK]
                k, some = panel * ROWS, min(geo[_CHUNK] * ROWS, geo[_K] - panel * ROWS)
                source = transformed + (group * panels + panel) * panel_size
                if geo[_ONCE]:
                    source = own_weight
                    for i in range((some + ROWS - 1) // ROWS):
                        _transform_panel(
                            zero,
                            geo,
                            weight + group * weight_strides[0],
                            weight_strides,
                            panel + i,
                            own_weight + i * panel_size,
                        )
                _multiply(zero, geo, source, factors, offsets, columns, some, products)
                _write_results(zero, geo, products, some, segments, stage, y + group * ys[_YG] + k * ys[_YK], ys, flags)
        for i in range(geo[_LANES]):
            finite[part, i] = read(zero, flags + i * item)


# --- drivers ----------------------------------------------------------------------------------------------------------


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    transformed, memory = buffers
    item = y.itemsize
    p = _plan(g, item)
    geo, like = p.numbers, memory
    x, w = aligned_array(x), aligned_array(w)
    weight, weight_strides = address(w), np.array(w.strides, np.int64)
    if transformed.size:
        panels = g.groups * -(-g.k // ROWS)
        transform_weights(panels, weight, weight_strides, geo, like, address(transformed), work=_PACK * w.size)
    offsets = np.arange(g.c, dtype=np.int64) * (int(geo[_PITCH]) * item)
    parts = int(geo[_PARTS])
    finite = np.zeros((parts, lanes(item)), y.dtype)
    strides = np.array(x.strides + y.strides, np.int64)
    winograd(
        parts,
        address(x),
        address(y),
        strides,
        weight,
        address(transformed),
        weight_strides,
        address(offsets),
        geo,
        like,
        line_of(memory),
        finite,
        work=g.macs // _MACS,
    )
    if not np.isfinite(finite).all():
        by_definition(g, memory, x, w, y)


WAY = Way("winograd_4x4", "", rejects, _buffers, _forward, cost_4x4)
conv, conv_backward_input, conv_transpose = correlations(WAY, transform_weights, winograd)
