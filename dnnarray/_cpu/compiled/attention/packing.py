"""Pieces of queries, keys and values for the products of attention on the matrix unit. Imports Numba."""

from __future__ import annotations

import numpy as np

from dnnarray._cpu.compiled.attention.pieces import BATCH, DV, GROUP, HEADS, KEY_COUNT, PARTS, D
from dnnarray._cpu.compiled.attention.split_weights import GROUPS
from dnnarray._cpu.compiled.attention.tiled import K, V
from dnnarray._cpu.compiled.conv.copies import clear, copy
from dnnarray._cpu.compiled.kernel import Integers1, OutIntegers1, device, kernel
from dnnarray._cpu.compiled.lanes import multiply
from dnnarray._cpu.compiled.split_tile import (
    BLOCK,
    DEPTH,
    LINE,
    PIECES,
    SIDE,
    TILE,
    split_moderate_across,
    split_moderate_along,
)
from dnnarray._cpu.compiled.tile import apart, routine, turn_square

ITEM = 4  # bytes of a float32
_CHUNK = 8  # blocks of keys in a task

# Where the kernels find their numbers, behind those of all passes: tasks of a head, strips of the values, blocks of the
# depth and of all keys, keys at a time; then the bytes of a part's memory and of a head's pieces, where in these the
# values begin, and places in a part's memory.
SHARES, STRIPS, BLOCKS, KEY_BLOCKS, SPAN, PART, HELD, VALUES_AT = range(10, 18)
QUERIES_AT, SCORES_AT, WEIGHTS_AT, SUMS_AT, MORE_AT, ROWS_AT, FACTOR_AT, NUMBERS_AT, BESIDE_AT = range(18, 27)


@routine
def _held(source, step, rows, columns, width, numbers):
    """Rows with 0 around them, `width` elements each and SIDE or DEPTH of them, where they are not so already: where to
    read them, and their step."""
    apart()
    if rows == SIDE and columns == width:
        return source, step
    like = np.float32(0)
    clear(like, numbers, SIDE * width, ITEM)
    for row in range(rows):
        copy(like, source + row * step, ITEM, numbers + row * width * ITEM, ITEM, columns, ITEM, SIDE)
    return numbers, width * ITEM


@routine
def _pack_keys(source, step, keys, d, first, last, blocks, target, numbers):
    """Strips of 16 keys from `first` to `last` over the whole depth, as a left side."""
    apart()
    outside = 0
    for strip in range(first, last):
        rows = max(min(SIDE, keys - strip * SIDE), 0)
        at, row_step = _held(source + strip * SIDE * step, step, rows, d, blocks * DEPTH, numbers)
        for block in range(blocks):
            outside |= split_moderate_along(
                at + block * DEPTH * ITEM, row_step, target + (strip * blocks + block) * BLOCK, LINE, TILE, SIDE, SIDE
            )
    return outside


@routine
def _pack_values(source, step, keys, dv, first, last, strips, blocks, target, numbers, beside):
    """Strips of 16 columns over the blocks of keys from `first` to `last`, as a left side: turned."""
    apart()
    like, outside = np.float32(0), 0
    for block in range(first, last):
        for strip in range(strips):
            at, row_step = source + block * DEPTH * step + strip * SIDE * ITEM, step
            rows, columns = max(min(DEPTH, keys - block * DEPTH), 0), max(min(SIDE, dv - strip * SIDE), 0)
            if rows < DEPTH or columns < SIDE:
                clear(like, numbers, DEPTH * SIDE, ITEM)
                for row in range(rows):
                    copy(like, at + row * step, ITEM, numbers + row * LINE, ITEM, columns, ITEM, SIDE)
                at, row_step = numbers, LINE
            outside |= split_moderate_across(at, row_step, beside, LINE, TILE, SIDE, SIDE)
            for piece in range(PIECES):
                turn_square(
                    like, beside + piece * TILE, LINE, target + (strip * blocks + block) * BLOCK + piece * TILE, LINE
                )
    return outside


@routine
def pack_queries(source, step, queries, d, blocks, factor, target, numbers, beside):
    """Strips of 16 queries times `factor` over the whole depth, as a right side."""
    apart()
    like, outside = np.float32(0), 0
    for strip in range(GROUPS):
        rows = max(min(SIDE, queries - strip * SIDE), 0)
        at, row_step = _held(source + strip * SIDE * step, step, rows, d, blocks * DEPTH, numbers)
        for block in range(blocks):
            for half in range(2):
                turn_square(like, at + (block * DEPTH + half * SIDE) * ITEM, row_step, beside + half * TILE, LINE)
            for row in range(DEPTH):
                multiply(like, beside + row * LINE, factor)
            outside |= split_moderate_across(
                beside, LINE, target + (strip * blocks + block) * BLOCK, LINE, TILE, SIDE, SIDE
            )
    return outside


@device
def pack_head(sizes, strides, k, v, unit, first, last, held, base):
    """The blocks of keys from `first` to `last` of a head, and of its values."""
    kv_heads, numbers, beside = sizes[HEADS] // sizes[GROUP], base + sizes[NUMBERS_AT], base + sizes[BESIDE_AT]
    b, kv = unit // kv_heads, unit % kv_heads
    source, step = k + b * strides[K] + kv * strides[K + 1], strides[K + 2]
    outside = _pack_keys(source, step, sizes[KEY_COUNT], sizes[D], 2 * first, 2 * last, sizes[BLOCKS], held, numbers)
    source, step = v + b * strides[V] + kv * strides[V + 1], strides[V + 2]
    return outside | _pack_values(
        source,
        step,
        sizes[KEY_COUNT],
        sizes[DV],
        first,
        last,
        sizes[STRIPS],
        sizes[KEY_BLOCKS],
        held + sizes[VALUES_AT],
        numbers,
        beside,
    )


@kernel
def pack_heads(
    start: int, stop: int, k: int, v: int, strides: Integers1, sizes: Integers1, told: OutIntegers1, place: int
) -> None:
    """The pieces of all heads, behind the memory of the parts."""
    chunks = (sizes[KEY_BLOCKS] + _CHUNK - 1) // _CHUNK
    for part in range(start, stop):
        outside = 0
        for task in range(part, sizes[BATCH] * (sizes[HEADS] // sizes[GROUP]) * chunks, sizes[PARTS]):
            unit, first = task // chunks, task % chunks * _CHUNK
            last, held = min(first + _CHUNK, sizes[KEY_BLOCKS]), place + sizes[PARTS] * sizes[PART] + unit * sizes[HELD]
            outside |= pack_head(sizes, strides, k, v, unit, first, last, held, place + part * sizes[PART])
        told[part] = outside
