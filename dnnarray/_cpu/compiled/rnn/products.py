"""What products over all steps of a recurrent layer make of the gates' gradients, by the micro-kernel. Imports Numba.

The gradient of a weight is a sum over rows (a row is a step of a sequence), that of the input a product with the
weight's columns. Each thread takes some gates of the one and some rows of the other. Arrays are given by their
addresses, as in `rnn_steps`."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from dnnarray._cpu.compiled.conv.copies import clear, copy, copy_rows
from dnnarray._cpu.compiled.kernel import Integers2, Out1, device, kernel
from dnnarray._cpu.compiled.rnn.steps import BATCH, panel_product, put_row
from dnnarray._cpu.compiled.tile import BYTES, ROWS, apart, narrow_tile, routine

_LEAST_SPAN, _PARTS = 16, 4  # few rows are several chains, too
SPAN = 128  # rows that are added up in registers: a short chain, whose panel stays in the first-level cache


def chunk(item: int) -> int:
    """Gates that are packed side by side: whole vectors and whole tiles."""
    return lcm(BYTES // item, ROWS)


def room(gates: int, features: Sequence[int], width: int, item: int) -> int:
    """Elements of scratch that `sum_rows` needs for so many gates and so many features of each of its sides."""
    size, panels = chunk(item), [-(-m // width) for m in features]
    beside = sum(width * p for p, m in zip(panels, features, strict=True) if m % width)
    return (-(-gates // size) * size + sum(panels) * width) * SPAN + gates * beside


def columns_room(panels: int, depth: int, width: int) -> int:
    """Elements of scratch that `rows_with_columns` needs for so many panels."""
    return (panels * depth + BATCH) * width


@device
def _pack_row(like, source, target, step, count, size, item):
    """A row of `count` elements in pieces of `size`, whole vectors, that go to places `step` bytes apart; the last
    piece may be shorter."""
    whole = count // size
    copy_rows(like, source, size * item, target, step, whole, size)
    copy(
        like, source + whole * size * item, item, target + whole * step, item, count - whole * size, item, BYTES // item
    )


@routine
def _pack_rows(like, item, source, source_row, count, size, packed, rows):
    """Some rows to [piece][row][element]."""
    apart()
    for t in range(rows):
        _pack_row(like, source + t * source_row, packed + t * size * item, SPAN * size * item, count, size, item)


@routine
def _add_products(like, item, gates, size, packed, panels, number, width, rows, table, into, into_row, add):
    """Add up the products of some rows: all gates with so many panels."""
    apart()
    for panel in range(number):
        for g in range(0, gates, ROWS):
            scalars, target = (
                packed + (g // size * SPAN * size + g % size) * item,
                into + g * into_row + panel * width * item,
            )
            vectors, source = width * item // BYTES, panels + panel * SPAN * width * item
            narrow_tile(
                like,
                vectors,
                min(ROWS, gates - g),
                scalars,
                item,
                size * item,
                source,
                table,
                rows,
                target,
                into_row,
                add,
            )


@kernel
def sum_rows(
    start: int,
    stop: int,
    left: int,
    left_row: int,
    rows: int,
    sides: Integers2,
    width: int,
    size: int,
    table: int,
    like: Out1,
    scratch: int,
) -> None:
    """For the gates from `start` to `stop`, target[g, j] = sum over rows t of left[t, g] * right[t, j].

    `sides` holds for each `right` its address, the bytes from row to row, its features, and the address and the step of
    rows of its target."""
    item, zero, gates = like.itemsize, like.dtype.type(0), stop - start
    panels = scratch + (gates + size - 1) // size * size * SPAN * item
    behind = panels
    for side in range(len(sides)):
        behind += (sides[side, 2] + width - 1) // width * width * SPAN * item
    clear(zero, panels, (behind - panels) // item, item)
    span = min(SPAN, max(_LEAST_SPAN, (rows + _PARTS - 1) // _PARTS))
    for first in range(0, rows, span):
        some = min(span, rows - first)
        _pack_rows(zero, item, left + start * item + first * left_row, left_row, gates, size, scratch, some)
        lanes, beside = panels, behind
        for side in range(len(sides)):
            right, right_row, features, target, target_row = sides[side]
            number = (features + width - 1) // width
            into, into_row = target + start * target_row, target_row
            if features % width:
                into, into_row = beside, number * width * item
                beside += gates * into_row
            _pack_rows(zero, item, right + first * right_row, right_row, features, width, lanes, some)
            _add_products(
                zero, item, gates, size, scratch, lanes, number, width, some, table, into, into_row, first > 0
            )
            if features % width and first + some == rows:
                for g in range(gates):
                    copy(
                        zero,
                        into + g * into_row,
                        item,
                        target + (start + g) * target_row,
                        item,
                        features,
                        item,
                        BYTES // item,
                    )
            lanes += number * width * SPAN * item


@kernel
def rows_with_columns(
    start: int,
    stop: int,
    left: int,
    left_row: int,
    rows: int,
    weight: int,
    weight_row: int,
    depth: int,
    columns: int,
    width: int,
    table: int,
    like: Out1,
    target: int,
    target_row: int,
    add: bool,
    scratch: int,
) -> None:
    """Panels of columns from `start` to `stop` of a product with a weight, to or into rows of `columns` elements."""
    item, zero = like.itemsize, like.dtype.type(0)
    own, size = scratch + (stop - start) * depth * width * item, depth * width * item
    for number in range(start, stop):
        count = min(width, columns - number * width)
        panel = scratch + (number - start) * size
        if count < width:
            clear(zero, panel, depth * width, item)
        for k in range(depth):
            copy(
                zero,
                weight + k * weight_row + number * width * item,
                item,
                panel + k * width * item,
                item,
                count,
                item,
                BYTES // item,
            )
    for base in range(0, rows, BATCH):
        some = min(BATCH, rows - base)
        for number in range(start, stop):
            panel_product(
                zero,
                left + base * left_row,
                left_row,
                some,
                scratch + (number - start) * size,
                table,
                depth,
                width,
                item,
                own,
            )
            for i in range(some):
                into = target + (base + i) * target_row + number * width * item
                put_row(
                    zero, own + i * width * item, into, min(width, columns - number * width), item, BYTES // item, add
                )
