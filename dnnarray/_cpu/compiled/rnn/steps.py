"""All steps of an LSTM or a GRU over some sequences in one go: the product with the state by the micro-kernel, and what
follows from it. Imports Numba.

A share is a direction of a layer and a part of the batch. Sequences do not depend on each other, nor do directions, so
each thread takes its shares through all steps and never waits for another one. Features are the lanes, sequences the
rows; a panel of the state's weight (as wide as a tile, all its depth) is used for all rows of a share while it is in
the cache.

Arrays are given by their addresses, since a slice of an array costs a counted reference, which threads take from each
other. Those of a layer have the direction as their first axis. ``at[d, s]`` is the first row of the step that direction
d takes as number s, ``running[d, s]`` how many sequences run in it; row numbers count from ``low[d]`` in the gates of
the forward. Where an array has `rows` for each direction, so many have the gates and the tape."""

from __future__ import annotations

from dnnarray._cpu.compiled.conv.copies import copy, turn_rows
from dnnarray._cpu.compiled.kernel import Integers1, Integers2, Out1, device, kernel
from dnnarray._cpu.compiled.memory import fetch
from dnnarray._cpu.compiled.rnn.lanes import (
    gru_slopes,
    gru_units,
    lstm_slopes,
    lstm_units,
    masked_gru_slopes,
    masked_gru_units,
    masked_lstm_slopes,
    masked_lstm_units,
)
from dnnarray._cpu.compiled.tile import BYTES, ROWS, add_vector, apart, narrow_tile, read, routine, write

BATCH = 64  # sequences whose products with a panel are held at a time
# Terms added up in registers: so much of a panel stays in the first-level cache beside the rows, and sums of sums are
# more exact than one long one.
_DEPTH = 128


# --- products ---------------------------------------------------------------------------------------------------------


@kernel
def pack_turned(
    start: int, stop: int, weight: int, units: int, depth: int, width: int, like: Out1, packed: int
) -> None:
    """The panels from `start` to `stop` of a weight (gates * units, depth): [gate][panel][depth][lane]."""
    item, zero = like.itemsize, like.dtype.type(0)
    panels = (units + width - 1) // width
    for number in range(start, stop):
        row = number // panels * units + number % panels * width
        rows = min(width, units - number % panels * width)
        source, target = weight + row * depth * item, packed + number * depth * width * item
        turn_rows(zero, source, depth * item, target, width * item, rows, depth, item, BYTES // item)


@kernel
def pack_columns(
    start: int, stop: int, weight: int, units: int, depth: int, width: int, like: Out1, packed: int
) -> None:
    """The panels from `start` to `stop` of the columns of a weight (depth, units): [panel][depth][lane]."""
    item, zero = like.itemsize, like.dtype.type(0)
    for number in range(start, stop):
        count = min(width, units - number * width)
        for k in range(depth):
            source, target = weight + (k * units + number * width) * item, packed + (number * depth + k) * width * item
            copy(zero, source, item, target, item, count, item, BYTES // item)


@device
def panel_product(like, a, a_row, rows, panel, table, depth, width, item, out):
    """`rows` rows of a, `a_row` bytes apart, times a panel: [row][lane]. Tiles of nearly the same number of rows: those
    of few rows wait for their sums."""
    tiles = (rows + ROWS - 1) // ROWS
    for k in range(0, depth, _DEPTH):
        for number in range(tiles):
            row = rows * number // tiles
            some, terms = rows * (number + 1) // tiles - row, min(_DEPTH, depth - k)
            scalars, lanes, into = a + row * a_row + k * item, panel + k * width * item, out + row * width * item
            narrow_tile(
                like, width * item // BYTES, some, scalars, a_row, item, lanes, table, terms, into, width * item, k > 0
            )


# --- one step ---------------------------------------------------------------------------------------------------------


@routine
def _units(like, lstm, count, gates, step, bias, sums, sum_step, state, h, kept, taped, item, width):
    """`count` units of one sequence."""
    apart()
    for u in range(0, count, width):
        at, some = u * item, count - u
        if lstm and some >= width:
            lstm_units(
                like, some, gates + at, step, bias + at, sums + at, sum_step, state + at, h + at, kept + at, taped
            )
        elif lstm:
            masked_lstm_units(
                like, some, gates + at, step, bias + at, sums + at, sum_step, state + at, h + at, kept + at, taped
            )
        elif some >= width:
            gru_units(
                like, some, gates + at, step, bias + at, sums + at, sum_step, state + at, h + at, kept + at, taped
            )
        else:
            masked_gru_units(
                like, some, gates + at, step, bias + at, sums + at, sum_step, state + at, h + at, kept + at, taped
            )


@routine
def _slopes(like, lstm, count, gates, step, before, kept, into, kept_into, dy, dh, more, item, width):
    """The gradients of a sequence's units; `more` is dc or, of a GRU, what the weight meets; `kept_into` is of a GRU
    alone."""
    apart()
    for u in range(0, count, width):
        at, some = u * item, count - u
        if lstm and some >= width:
            lstm_slopes(
                like,
                some,
                gates + at,
                step,
                before + at,
                kept + at,
                into + at,
                kept_into + at,
                dy + at,
                dh + at,
                more + at,
            )
        elif lstm:
            masked_lstm_slopes(
                like,
                some,
                gates + at,
                step,
                before + at,
                kept + at,
                into + at,
                kept_into + at,
                dy + at,
                dh + at,
                more + at,
            )
        elif some >= width:
            gru_slopes(
                like,
                some,
                gates + at,
                step,
                before + at,
                kept + at,
                into + at,
                kept_into + at,
                dy + at,
                dh + at,
                more + at,
            )
        else:
            masked_gru_slopes(
                like,
                some,
                gates + at,
                step,
                before + at,
                kept + at,
                into + at,
                kept_into + at,
                dy + at,
                dh + at,
                more + at,
            )


@device
def _copy_rows(like, source, target, target_row, rows, count, item, width):
    """Dense rows to rows `target_row` bytes apart."""
    for i in range(rows):
        copy(like, source + i * count * item, item, target + i * target_row, item, count, item, width)


@device
def add_row(like, source, target, count, item, width):
    """Add so many elements to those at `target`."""
    for u in range(0, count - width + 1, width):
        add_vector(like, source + u * item, target + u * item)
    for u in range(count // width * width, count):
        write(like, target + u * item, read(like, target + u * item) + read(like, source + u * item))


@device
def put_row(like, source, target, count, item, width, add):
    """Add so many elements to those at `target`, or put them there."""
    if add:
        add_row(like, source, target, count, item, width)
    else:
        copy(like, source, item, target, item, count, item, width)


# --- all steps --------------------------------------------------------------------------------------------------------


@kernel
def forward_steps(
    start: int,
    stop: int,
    slices: int,
    lstm: bool,
    like: Out1,
    at: Integers2,
    running: Integers2,
    low: Integers1,
    batch: int,
    hidden: int,
    rows: int,
    width: int,
    packed: int,
    packed_step: int,
    table: int,
    bias: int,
    gates: int,
    h: int,
    c: int,
    fresh: int,
    y: int,
    y_row: int,
    taped: bool,
    old_h: int,
    old_c: int,
    kept: int,
    memory: int,
) -> None:
    """The shares from `start` to `stop` of the directions times the `slices` of the batch. `gates` holds the input's
    share; the states are changed in place.

    With a tape the gates become the activated ones, the states before each step go to `old_h` and `old_c`, and tanh(c)
    or the n gate's product to `kept`."""
    item, zero = like.itemsize, like.dtype.type(0)
    count, panels, size, stride, lane = (
        (4 if lstm else 3),
        (hidden + width - 1) // width,
        hidden * width * item,
        BATCH * width * item,
        BYTES // item,
    )
    state_row, gates_row = hidden * item, count * hidden * item
    for share in range(start, stop):
        d, part = share // slices, share % slices
        first, last = batch * part // slices, batch * (part + 1) // slices
        own, weight, offsets = memory + share * count * stride, packed + d * packed_step, bias + 4 * d * state_row
        h_at, c_at, fresh_at = h + d * batch * state_row, c + d * batch * state_row, fresh + d * batch * state_row
        for s in range(at.shape[1]):
            begin, top = at[d, s], min(last, running[d, s])
            gates_at, tape_at = gates + (d * rows + begin - low[d]) * gates_row, (d * rows + begin) * state_row
            if taped:
                here = tape_at + first * state_row
                _copy_rows(zero, h_at + first * state_row, old_h + here, state_row, top - first, hidden, item, lane)
                if lstm:
                    _copy_rows(zero, c_at + first * state_row, old_c + here, state_row, top - first, hidden, item, lane)
            for number in range(panels):
                unit = number * width
                units, column = min(width, hidden - unit), unit * item
                for base in range(first, top, BATCH):
                    some = min(BATCH, top - base)
                    for i in range(some):
                        for gate in range(count):
                            fetch(gates_at + (base + i) * gates_row + gate * state_row + column)
                    for gate in range(count):
                        panel = weight + (gate * panels + number) * size
                        panel_product(
                            zero,
                            h_at + base * state_row,
                            state_row,
                            some,
                            panel,
                            table,
                            hidden,
                            width,
                            item,
                            own + gate * stride,
                        )
                    for i in range(some):
                        place = (base + i) * state_row + column
                        _units(
                            zero,
                            lstm,
                            units,
                            gates_at + (base + i) * gates_row + column,
                            state_row,
                            offsets + column,
                            own + i * width * item,
                            stride,
                            (c_at if lstm else h_at) + place,
                            fresh_at + place,
                            kept + tape_at + place,
                            taped,
                            item,
                            lane,
                        )
            new = fresh_at + first * state_row
            _copy_rows(zero, new, h_at + first * state_row, state_row, top - first, hidden, item, lane)
            _copy_rows(zero, new, y + (begin + first) * y_row + d * state_row, y_row, top - first, hidden, item, lane)


@kernel
def backward_steps(
    start: int,
    stop: int,
    slices: int,
    lstm: bool,
    like: Out1,
    at: Integers2,
    running: Integers2,
    batch: int,
    hidden: int,
    rows: int,
    width: int,
    packed: int,
    packed_step: int,
    table: int,
    gates: int,
    before: int,
    kept: int,
    into: int,
    kept_into: int,
    dy: int,
    dy_row: int,
    dh: int,
    more: int,
    memory: int,
) -> None:
    """As `forward_steps`, the steps in the opposite order: the gradients of the gates' arguments go to `into`, dh and
    dc become those of the states before the first step.

    `before` is the cell state (GRU: h) before each step, `more` is dc (GRU: the gradients that the weight meets, a row
    for each sequence). `into` may be `gates`, and `kept_into`, where a GRU's gradient of the n gate's product goes,
    `kept`."""
    item, zero = like.itemsize, like.dtype.type(0)
    count, panels, lane = (4 if lstm else 3), (hidden + width - 1) // width, BYTES // item
    depth = count * hidden
    state_row, gates_row = hidden * item, depth * item
    more_row = state_row if lstm else gates_row
    for share in range(start, stop):
        d, part = share // slices, share % slices
        first, last = batch * part // slices, batch * (part + 1) // slices
        own, weight = memory + share * BATCH * width * item, packed + d * packed_step
        dh_at, more_at = dh + d * batch * state_row, more + d * batch * more_row
        for s in range(at.shape[1]):
            begin, top = at[d, s], min(last, running[d, s])
            for i in range(first, top):
                row = d * rows + begin + i
                _slopes(
                    zero,
                    lstm,
                    hidden,
                    gates + row * gates_row,
                    state_row,
                    before + row * state_row,
                    kept + row * state_row,
                    into + row * gates_row,
                    kept_into + row * state_row,
                    dy + (begin + i) * dy_row + d * state_row,
                    dh_at + i * state_row,
                    more_at + i * more_row,
                    item,
                    lane,
                )
            source = into + (d * rows + begin) * gates_row if lstm else more_at
            for number in range(panels):
                unit = number * width
                for base in range(first, top, BATCH):
                    some = min(BATCH, top - base)
                    panel_product(
                        zero,
                        source + base * gates_row,
                        gates_row,
                        some,
                        weight + unit * gates_row,
                        table,
                        depth,
                        width,
                        item,
                        own,
                    )
                    for i in range(some):
                        sums, product = dh_at + (base + i) * state_row + unit * item, own + i * width * item
                        add_row(zero, product, sums, min(width, hidden - unit), item, lane)
