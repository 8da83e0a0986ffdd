"""Matrix products of float32 on the matrix unit, for linear layers and convolutions with windows of one pixel. Imports
Numba.

``out[i, p, n] = sum over k of rows[i, p, k] * columns[n, k]``: the columns (a weight) are split and packed first, as
strips of 16 over the whole depth. A task takes a block of the rows of all images, one strip behind the other, and some
of the columns. It splits a pass of the depth of its rows, which stay in the second-level cache while all columns pass
by, and keeps its sums in tiles beside it until the last pass."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import clear, copy, line_of
from dnnarray._cpu.compiled.kernel import Integers1, OutIntegers1, device, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.split_tile import (
    BLOCK,
    DEPTH,
    LINE,
    PIECES,
    SIDE,
    TILE,
    TOLD,
    configure,
    multiply_tiles,
    put_tile,
    release,
    split_across,
    split_along,
)
from dnnarray._cpu.compiled.tile import apart, routine, turn_square

ITEM = 4  # bytes of a float32
_STRIPS = 16  # of rows in a task, which share a trip of the columns
_COLUMNS = 64  # strips of columns in a task: its sums stay in the second-level cache
PASS = 4  # blocks of the depth between two trips: two strips of columns stay in the first-level cache
# bytes: a block to be turned, and numbers with 0 around them (or the sums of a trip)
_BESIDE = BLOCK + SIDE * PASS * DEPTH * ITEM
_MACS = 16  # for an element of a light operation

# Where the kernels find their numbers.
ROWS_AT, PLANE_AT, DEPTH_AT, COLUMNS_AT = range(4)
(IMAGE_STEP_AT, ROW_STEP_AT, STEP_AT) = range(4, 7)
(OUT_IMAGE_AT, OUT_ROW_AT, OUT_COLUMN_AT) = range(7, 10)
TASK_STRIPS_AT, TASK_COLUMNS_AT, SHARES_AT, TASKS_AT, PARTS_AT, SCRATCH_AT = range(10, 16)


# --- packing ----------------------------------------------------------------------------------------------------------


@routine
def _gather(source, row_step, step, rows, depth, along, target, first):
    """`rows` of a strip from row `first` of `target` on: [row][step], or [step][row] where rows follow each other."""
    apart()
    like = np.float32(0)
    if along:
        for row in range(rows):
            copy(
                like,
                source + row * row_step,
                step,
                target + (first + row) * PASS * DEPTH * ITEM,
                ITEM,
                depth,
                ITEM,
                SIDE,
            )
    else:
        for k in range(depth):
            copy(like, source + k * step, row_step, target + (k * SIDE + first) * ITEM, ITEM, rows, ITEM, SIDE)


@routine
def _split(source, row_step, step, blocks, turned, target, beside):
    """A whole strip: blocks of pieces, as the side wants them for which its steps (or its rows) follow each other, else
    turned."""
    apart()
    like, outside = np.float32(0), 0
    for block in range(blocks):
        at, into = source + block * DEPTH * step, beside if turned else target + block * BLOCK
        if step == ITEM:
            outside |= split_along(at, row_step, into, LINE, TILE, SIDE, SIDE)
        else:
            outside |= split_across(at, step, into, LINE, TILE, SIDE, SIDE)
        if turned:
            for piece in range(PIECES):
                turn_square(like, beside + piece * TILE, LINE, target + block * BLOCK + piece * TILE, LINE)
    return outside


@routine
def _pack(source, row_step, step, rows, depth, left, target, beside):
    """A strip of `rows` (16 at most) over a pass of the depth, 0 behind both; `left` says for which side."""
    apart()
    along, numbers = step == ITEM, beside + BLOCK
    if rows < SIDE or depth % DEPTH:
        clear(np.float32(0), numbers, SIDE * PASS * DEPTH, ITEM)
        _gather(source, row_step, step, rows, depth, along, numbers, 0)
        source, row_step, step = numbers, PASS * DEPTH * ITEM if along else ITEM, ITEM if along else SIDE * ITEM
    return _split(source, row_step, step, (depth + DEPTH - 1) // DEPTH, along != left, target, beside)


@routine
def _pack_of_images(geo, rows, strip, k, depth, left, target, beside):
    """The same of a strip of rows of all images, which may begin in one image and end in another."""
    apart()
    plane, row_step, step = geo[PLANE_AT], geo[ROW_STEP_AT], geo[STEP_AT]
    first, last = strip * SIDE, min((strip + 1) * SIDE, geo[ROWS_AT])
    image, offset = first // plane, first % plane
    source = rows + image * geo[IMAGE_STEP_AT] + offset * row_step + k * step
    if offset + last - first <= plane:
        return _pack(source, row_step, step, last - first, depth, left, target, beside)
    along, numbers, done = step == ITEM, beside + BLOCK, 0
    clear(np.float32(0), numbers, SIDE * PASS * DEPTH, ITEM)
    while first + done < last:
        image, offset = (first + done) // plane, (first + done) % plane
        run = min(plane - offset, last - first - done)
        source = rows + image * geo[IMAGE_STEP_AT] + offset * row_step + k * step
        _gather(source, row_step, step, run, depth, along, numbers, done)
        done += run
    beyond = (depth + DEPTH - 1) // DEPTH * DEPTH
    if along:
        return _pack(numbers, PASS * DEPTH * ITEM, ITEM, SIDE, beyond, left, target, beside)
    return _pack(numbers, ITEM, SIDE * ITEM, SIDE, beyond, left, target, beside)


@kernel
def pack_columns(
    start: int,
    stop: int,
    columns: int,
    column_step: int,
    step: int,
    geo: Integers1,
    left: bool,
    packed: int,
    told: OutIntegers1,
    beside: int,
) -> None:
    """Strips of columns from `start` to `stop`, whole depth; `beside` has room for each of them."""
    depth, room = geo[DEPTH_AT], beside + start * _BESIDE
    blocks = (depth + DEPTH - 1) // DEPTH
    for strip in range(start, stop):
        some, outside = min(SIDE, geo[COLUMNS_AT] - strip * SIDE), 0
        for k in range(0, depth, PASS * DEPTH):
            source, target = (
                columns + strip * SIDE * column_step + k * step,
                packed + (strip * blocks + k // DEPTH) * BLOCK,
            )
            outside |= _pack(source, column_step, step, some, min(PASS * DEPTH, depth - k), left, target, room)
        told[strip] = outside


# --- products ---------------------------------------------------------------------------------------------------------


@device(counted=False)
def lanes_of(count):
    """The bits of so many lanes in what `put_tile` and `see_sums` give."""
    return ((1 << count) - 1) * (1 + (1 << SIDE))


@device(counted=False)
def told_of(outside, put, small):
    """What a part tells, from what was said of its numbers and of its sums; `small` says that there are small numbers
    on the other side. Then sums of 0 count, too."""
    told = (outside | put) & TOLD
    return told | put if small or outside > TOLD else told


@routine
def _put_rows(geo, sums, beside, out, first, some, column, columns):
    """A tile whose rows are rows of the result."""
    apart()
    plane = geo[PLANE_AT]
    image, offset = first // plane, first % plane
    target = out + image * geo[OUT_IMAGE_AT] + offset * geo[OUT_ROW_AT] + column * ITEM
    if columns == SIDE and offset + SIDE <= plane:
        return put_tile(sums, target, geo[OUT_ROW_AT], SIDE)
    outside = put_tile(sums, beside, LINE, some) & lanes_of(columns)
    for r in range(some):
        target = out + (first + r) // plane * geo[OUT_IMAGE_AT] + (first + r) % plane * geo[OUT_ROW_AT] + column * ITEM
        copy(np.float32(0), beside + r * LINE, ITEM, target, ITEM, columns, ITEM, SIDE)
    return outside


@routine
def _put_columns(geo, sums, beside, out, first, some, column, columns):
    """A tile whose columns are rows of the result, pixels that lie side by side."""
    apart()
    plane, done = geo[PLANE_AT], 0
    image, offset = first // plane, first % plane
    target = out + image * geo[OUT_IMAGE_AT] + column * geo[OUT_COLUMN_AT] + offset * ITEM
    if columns == SIDE and offset + SIDE <= plane:
        return put_tile(sums, target, geo[OUT_COLUMN_AT], SIDE)
    outside = put_tile(sums, beside, LINE, columns) & lanes_of(some)
    while done < some:
        image, offset = (first + done) // plane, (first + done) % plane
        run = min(plane - offset, some - done)
        target = out + image * geo[OUT_IMAGE_AT] + column * geo[OUT_COLUMN_AT] + offset * ITEM
        for c in range(columns):
            copy(
                np.float32(0),
                beside + c * LINE + done * ITEM,
                ITEM,
                target + c * geo[OUT_COLUMN_AT],
                ITEM,
                run,
                ITEM,
                SIDE,
            )
        done += run
    return outside


@routine
def _put_tiles(geo, sums, beside, out, left, strips, strip, across, column_strip):
    """Up to two by two tiles to where they belong."""
    apart()
    outside = 0
    for i in range(strips):
        first = (strip + i) * SIDE
        some = min(SIDE, geo[ROWS_AT] - first)
        for j in range(across):
            column = (column_strip + j) * SIDE
            columns = min(SIDE, geo[COLUMNS_AT] - column)
            if left:
                outside |= _put_rows(geo, sums + (2 * i + j) * TILE, beside, out, first, some, column, columns)
            else:
                outside |= _put_columns(geo, sums + (2 * j + i) * TILE, beside, out, first, some, column, columns)
    return outside


@routine
def _trip(
    geo, packed, strip, strips, weight, column, columns, blocks, depth_blocks, left, sums, beside, out, add, last
):
    """The products of a pass, all strips of the task with all its columns; after the last pass they go to where they
    belong while they are at hand."""
    apart()
    outside, single = 0, last and not add
    for j in range(0, columns, 2):
        across, other = min(2, columns - j), weight + (column + j) * depth_blocks * BLOCK
        for i in range(0, strips, 2):
            down, own = min(2, strips - i), packed + i * PASS * BLOCK
            into = sums if single else sums + (j // 2 * ((strips + 1) // 2) + i // 2) * 4 * TILE
            if left:
                multiply_tiles(
                    down, across, own, PASS * BLOCK, other, depth_blocks * BLOCK, blocks, into, add, beside + BLOCK
                )
            else:
                multiply_tiles(
                    across, down, other, depth_blocks * BLOCK, own, PASS * BLOCK, blocks, into, add, beside + BLOCK
                )
            if last:
                outside |= _put_tiles(geo, into, beside, out, left, down, strip + i, across, column + j)
    return outside


@kernel
def multiply_images(
    start: int,
    stop: int,
    rows: int,
    weight: int,
    out: int,
    geo: Integers1,
    left: bool,
    small: bool,
    told: OutIntegers1,
    scratch: int,
) -> None:
    """The tasks of the parts from `start` to `stop`; rows, weight (packed), out and scratch are addresses. `left` says
    that rows are the left side, `small` that there are small numbers in the weight."""
    depth, shares = geo[DEPTH_AT], geo[SHARES_AT]
    depth_blocks, all_strips = (depth + DEPTH - 1) // DEPTH, (geo[ROWS_AT] + SIDE - 1) // SIDE
    all_columns = (geo[COLUMNS_AT] + SIDE - 1) // SIDE
    for part in range(start, stop):
        beside, outside, put = scratch + part * geo[SCRATCH_AT], 0, 0
        packed = beside + _BESIDE
        sums = packed + geo[TASK_STRIPS_AT] * PASS * BLOCK
        configure()
        for task in range(geo[TASKS_AT] * part // geo[PARTS_AT], geo[TASKS_AT] * (part + 1) // geo[PARTS_AT]):
            strip, column = task // shares * geo[TASK_STRIPS_AT], task % shares * geo[TASK_COLUMNS_AT]
            strips, columns = (
                min(geo[TASK_STRIPS_AT], all_strips - strip),
                min(geo[TASK_COLUMNS_AT], all_columns - column),
            )
            for k in range(0, depth, PASS * DEPTH):
                some = min(PASS * DEPTH, depth - k)
                for i in range(strips):
                    outside |= _pack_of_images(geo, rows, strip + i, k, some, left, packed + i * PASS * BLOCK, beside)
                source, blocks = weight + k // DEPTH * BLOCK, (some + DEPTH - 1) // DEPTH
                last = k + some == depth
                put |= _trip(
                    geo,
                    packed,
                    strip,
                    strips,
                    source,
                    column,
                    columns,
                    blocks,
                    depth_blocks,
                    left,
                    sums,
                    beside,
                    out,
                    k > 0,
                    last,
                )
        release()
        told[part] = told_of(outside, put, small)


# --- the plan ---------------------------------------------------------------------------------------------------------


class SplitPlan(NamedTuple):
    """How rows and columns are cut."""

    strips: int  # of columns
    blocks: int  # of the depth
    task_strips: int
    task_columns: int
    shares: int  # tasks of the same rows
    parts: int
    part: int  # bytes of scratch of a part

    @property
    def weight(self) -> int:
        """Bytes of the packed columns."""
        return self.strips * self.blocks * BLOCK

    @property
    def memory(self) -> int:
        """Bytes of scratch of all."""
        return self.weight + max(self.parts * self.part, self.strips * _BESIDE) + ALIGNMENT


@lru_cache(maxsize=1024)
def split_plan(rows: int, columns: int, depth: int) -> SplitPlan:
    """The plan for a product of so many rows of all images."""
    cores, strips, across = threads.cores(), -(-rows // SIDE), -(-columns // SIDE)
    blocks = -(-strips // _STRIPS)
    blocks = min(-(-blocks // cores) * cores, -(-strips // 2))
    task_strips = -(-strips // blocks)
    blocks = -(-strips // task_strips)
    shares = max(-(-across // _COLUMNS), min(-(-cores // blocks), -(-across // 2)))
    task_columns = -(-across // shares)
    shares = -(-across // task_columns)
    pairs = -(-task_strips // 2) * -(-task_columns // 2)
    part = _BESIDE + task_strips * PASS * BLOCK + 4 * pairs * TILE
    return SplitPlan(across, -(-depth // DEPTH), task_strips, task_columns, shares, min(cores, blocks * shares), part)


def fits(matrix: np.ndarray) -> bool:
    """Whether the kernels take a matrix that lies like this one: its rows or its columns follow each other."""
    return ITEM in matrix.strides[-2:] and matrix.flags.aligned


def product_numbers(p: SplitPlan, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """What the kernels ask of a product, by a plan for so many rows or more."""
    images, plane, depth = rows.shape
    tasks = -(-images * plane // (SIDE * p.task_strips)) * p.shares
    numbers = (images * plane, plane, depth, out.shape[2], *rows.strides, *out.strides)
    return np.array((*numbers, p.task_strips, p.task_columns, p.shares, tasks, p.parts, p.part), np.int64)


def multiply(rows: np.ndarray, columns: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> bool:
    """out (images, rows, columns) = rows (images, rows, depth) columns (columns, depth) transposed, each of which
    `fits`.

    Gives whether all numbers were such as the pieces can hold. Where not, `out` holds anything.
    """
    images, plane, depth = rows.shape
    p = split_plan(images * plane, columns.shape[0], depth)
    left, work = out.strides[2] == ITEM, images * plane * columns.shape[0] * depth // _MACS
    geo = product_numbers(p, rows, out)
    told, weight = np.zeros(max(p.strips, p.parts), np.int64), line_of(scratch)
    pack_columns(
        p.strips,
        address(columns),
        *columns.strides,
        geo,
        not left,
        weight,
        told,
        weight + p.weight,
        work=8 * columns.size,
    )
    if (told & TOLD).any():
        return False
    small = bool(told.any())
    multiply_images(
        p.parts, address(rows), weight, address(out), geo, left, small, told[: p.parts], weight + p.weight, work=work
    )
    return not told[: p.parts].any()
