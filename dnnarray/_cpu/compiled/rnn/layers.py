"""LSTM and GRU layers: the input's products by the BLAS, then all steps of a block in one region of threads. Imports
Numba.

All of it runs on the threads of the team, with the BLAS at one thread inside each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from math import gcd
from typing import Any

import numpy as np

from dnnarray._cpu import matrix_unit, threads
from dnnarray._cpu import rnn as numpy_rnn
from dnnarray._cpu.compiled.dense import taken
from dnnarray._cpu.compiled.kernel import Kernel, driver
from dnnarray._cpu.compiled.memory import address, aligned
from dnnarray._cpu.compiled.rnn.products import SPAN, chunk, columns_room, room, rows_with_columns, sum_rows
from dnnarray._cpu.compiled.rnn.split import KERNELS, Split
from dnnarray._cpu.compiled.rnn.steps import BATCH, backward_steps, forward_steps, pack_columns, pack_turned
from dnnarray._cpu.compiled.split_product import fits
from dnnarray._cpu.compiled.tile import BYTES, VECTORS, lanes
from dnnarray._cpu.products import multiply
from dnnarray._cpu.rnn.cells import Layer, Tape, layer
from dnnarray._cpu.rnn.sequence import Gradients, Layers, Run, input_gradient, sum_up, weight_products
from dnnarray._cpu.sums import of_rows
from dnnarray._problems.rnn import GATES

_MACS, _CELL = 16, 12  # multiply-adds for an element of a light operation; elements of it for a unit's gates
_LONGEST = 64  # bytes of a vector
_LONG_ROWS = 1 << 13  # whose products are added up in the dtype, at the most
_FEW = 4  # sequences of a share: with fewer the weight is read for too little


class _Weights:
    """The weights of a layer: one `Layer` for each direction, and those of the state in panels."""

    def __init__(self, run: Run, number: int, pack: Kernel) -> None:
        self.entries = run.entries(number)
        self.layers = [layer(run.problem, run.weights[k]) for k in self.entries]
        dtype, hidden = run.problem.dtype, run.problem.hidden
        rows = GATES[run.problem.cell.kind] * hidden
        gates, depth = (rows // hidden, hidden) if pack is pack_turned else (1, rows)
        self.width = _width(hidden, dtype.itemsize)
        panels = -(-hidden // self.width)
        self.packed = aligned(len(self.layers), gates * panels * depth * self.width, dtype)
        self._table = np.arange(max(depth, SPAN)) * (self.width * dtype.itemsize)
        self.table = address(self._table)
        for w, packed in zip(self.layers, self.packed, strict=True):
            weight = taken(w.w_hh)
            if hidden % self.width:  # lanes that no unit has
                packed[: gates * panels * depth * self.width].reshape(gates, panels, -1)[:, -1] = 0
            pack(
                gates * panels,
                address(weight),
                hidden,
                depth,
                self.width,
                packed,
                address(packed),
                work=2 * weight.size,
            )


def _width(units: int, item: int) -> int:
    """Lanes of a panel: of tiles of three vectors or of two those that leave fewer lanes without a unit."""
    vectors = -(-units // lanes(item))
    return min(range(VECTORS, max(VECTORS - 2, 0), -1), key=lambda v: -(-vectors // v) * v) * lanes(item)


def _gates_bias(w: Layer) -> np.ndarray:
    """What is added to the input's share, and behind it what stays beside the state in the n gate of a GRU: four
    rows."""
    bias = np.zeros(4 * w.hidden, w.w_hh.dtype)
    if w.bias is not None:
        bias[: len(w.bias)] = w.bias
    if w.bias_n is not None:
        bias[3 * w.hidden :] = w.bias_n
    return bias


def _slices(run: Run, work: int) -> int:
    """Parts of each direction: with the directions as many as threads are worth, or a multiple of them."""
    parts = threads.worth(work // threads.WAKING)
    return parts // gcd(parts, run.problem.directions)


def _shares(run: Run, work: int) -> int:
    """Parts of the batch."""
    return max(1, min(_slices(run, work), run.problem.batch // _FEW))


def _work(run: Run, steps: int) -> int:
    """Of so many steps of all directions, in elements of a light operation."""
    problem = run.problem
    gates = GATES[problem.cell.kind]
    return steps * problem.directions * problem.batch * problem.hidden * gates * (problem.hidden // _MACS + _CELL)


def _table(run: Run, blocks: list[range]) -> tuple[np.ndarray, np.ndarray]:
    """(first row, sequences that run) of each step of each direction."""
    starts = np.array(run.packing.starts)
    steps = np.array(blocks, np.int64).reshape(len(blocks), -1)
    return starts[steps], starts[steps + 1] - starts[steps]


# --- forward ----------------------------------------------------------------------------------------------------------


def _forward(
    run: Run, number: int, x: np.ndarray, y: np.ndarray, finals: tuple[np.ndarray, ...], taped: bool = False
) -> None:
    """`run_layer` with both directions side by side."""
    weights = _Weights(run, number, pack_turned)
    bias = np.stack([_gates_bias(w) for w in weights.layers])
    states = _first_states(run, weights.entries, ("h", "c"), run.states)
    out = y if y.flags.carray else np.empty_like(y)
    split = _split(run, weights, x, taped)
    for blocks in zip(*(_blocks(run, k, taped) for k in weights.entries), strict=True):
        _forward_block(run, number, weights, split, bias, list(blocks), x, out, taped)
    if out is not y:
        y[...] = out
    for state, final in zip(states, finals, strict=False):
        for own, k in zip(state, weights.entries, strict=True):
            run.packing.unsort(own, final[k])


def _order(run: Run, backwards: bool) -> range:
    """All time steps."""
    return range(len(run.packing.starts) - 1)[:: -1 if backwards else 1]


def _blocks(run: Run, k: int, taped: bool) -> Iterable[range]:
    """The time steps of an entry in blocks; with a tape, which has room for all gates, in one."""
    every = _order(run, run.backwards(k))
    return [every] if taped and every else run.packing.blocks(run.backwards(k))


def _first_states(
    run: Run, entries: range, names: tuple[str, ...], given: tuple[np.ndarray | None, ...]
) -> list[np.ndarray]:
    """States (or their gradients) before the first step, in the scratch: [direction][sequence][unit]."""
    own = [run.memory[name] for name in names if name in run.memory]
    for states, memory in zip(given, own, strict=True):
        for k, into in zip(entries, memory, strict=True):
            run.packing.sort(None if states is None else states[k], into)
    return own


def _split(run: Run, weights: _Weights, x: np.ndarray, taped: bool) -> Split | None:
    """The input's weights for the matrix unit, where that is faster."""
    if not (numpy_rnn.by_pieces(run.problem, x.shape[1]) and fits(x)):
        return None
    memory = run.memory["pieces"]
    return Split([w.w_ih for w in weights.layers], numpy_rnn.rows_at_once(run.problem, taped), memory)


def _forward_block(
    run: Run,
    number: int,
    weights: _Weights,
    split: Split | None,
    bias: np.ndarray,
    blocks: list[range],
    x: np.ndarray,
    y: np.ndarray,
    taped: bool,
) -> None:
    memory, spans = run.memory, [run.packing.span(steps) for steps in blocks]
    gates = memory[f"gates{number}" if taped else "gates"]
    low = np.array([0 if taped else span[0] for span in spans])
    _input_products(run, weights, split, spans, low, x, gates)
    at, running = _table(run, blocks)
    lstm, hidden = run.problem.cell.kind == "lstm", run.problem.hidden
    work = _work(run, len(blocks[0]))
    slices = _shares(run, work)
    shares = slices * len(blocks)
    products = aligned(shares, GATES[run.problem.cell.kind] * BATCH * weights.width, y.dtype)
    tape = [_place(memory.get(f"{name}{number}") if taped else None) for name in ("h", "c", "extra")]
    forward_steps(
        shares,
        slices,
        lstm,
        bias[0],
        at,
        running,
        low,
        run.problem.batch,
        hidden,
        gates.shape[1],
        weights.width,
        address(weights.packed),
        weights.packed.strides[0],
        weights.table,
        address(bias),
        address(gates),
        address(memory["h"]),
        _place(memory.get("c")),
        address(memory["fresh"]),
        address(y),
        y.strides[0],
        taped,
        *tape,
        address(products),
        work=work,
    )


def _input_products(
    run: Run,
    weights: _Weights,
    split: Split | None,
    spans: list[tuple[int, int]],
    low: np.ndarray,
    x: np.ndarray,
    gates: np.ndarray,
) -> None:
    """The input's share of the gates of a block, some of its rows in each thread."""
    work = _product_work(run, spans[0][1] - spans[0][0], x.shape[1])
    rows = [x[first:last] for first, last in spans]
    shares = [into[first - base : last - base] for (first, last), base, into in zip(spans, low, gates, strict=True)]
    held = [False] * len(rows) if split is None else split.multiply(rows, shares, work)
    items = [
        (own[a:b], w.w_ih.T, into[a:b])
        for w, own, into, done in zip(weights.layers, rows, shares, held, strict=True)
        if not done
        for a, b in threads.split(len(own), _slices(run, work))
    ]
    if items:
        threads.each(multiply, items, work=work)


def _product_work(run: Run, rows: int, depth: int) -> int:
    """Of a product of so many rows of all directions with the weights of all gates, in elements of a light
    operation."""
    return run.problem.directions * rows * depth * GATES[run.problem.cell.kind] * run.problem.hidden // _MACS


def _place(array: np.ndarray | None) -> int:
    return 0 if array is None else address(array)


# --- backward ---------------------------------------------------------------------------------------------------------


def _backward(run: Run, number: int, x: Any, dy: np.ndarray, dx: np.ndarray | None, gradients: Gradients) -> None:
    """`run_layer_backward` with both directions side by side."""
    weights = _Weights(run, number, pack_columns)
    states = _first_states(run, weights.entries, ("dh", "dc"), gradients.finals)
    lstm = run.problem.cell.kind == "lstm"
    at, running = _table(run, [_order(run, not run.backwards(k)) for k in weights.entries])
    work = _work(run, at.shape[1])
    slices = _shares(run, work)
    shares = slices * len(weights.layers)
    tape, slopes = run.tape(number), run.slopes(number)
    before = tape.c if lstm else tape.h
    products = aligned(shares, BATCH * weights.width, dy.dtype)
    backward_steps(
        shares,
        slices,
        lstm,
        products[0],
        at,
        running,
        run.problem.batch,
        run.problem.hidden,
        tape.gates.shape[1],
        weights.width,
        address(weights.packed),
        weights.packed.strides[0],
        weights.table,
        address(tape.gates),
        address(before),
        address(tape.extra),
        address(slopes.gates),
        address(slopes.extra),
        address(dy),
        dy.strides[0],
        address(states[0]),
        address(states[1] if lstm else run.memory["both"]),
        address(products),
        work=work,
    )
    for state, out in zip(states, gradients.states, strict=True):
        if out is not None:
            for own, k in zip(state, weights.entries, strict=True):
                run.packing.unsort(own, out[k])
    if run.problem.of_weights or dx is not None:
        _products_of_gradients(run, weights, slopes, x, dx, gradients)


def _products_of_gradients(
    run: Run, weights: _Weights, slopes: Tape, x: Any, dx: np.ndarray | None, gradients: Gradients
) -> None:
    """What products over all time steps make of the gates' gradients: some gates of the weights' gradients and some
    columns of the input's in each thread."""
    rows, width, features, depth = (
        run.packing.rows,
        weights.width,
        weights.layers[0].w_ih.shape[1],
        slopes.gates.shape[-1],
    )
    item, of_weights, hidden = slopes.gates.itemsize, run.problem.of_weights, run.problem.hidden
    by_entry = [slopes.of(d, rows) for d in range(len(weights.layers))]
    work = _product_work(run, rows, features * (dx is not None) + (features + hidden) * of_weights)
    parts = threads.worth(work // threads.WAKING)
    gates, panels = -(-depth // parts) + chunk(item), -(-features // width) // parts + 1
    needed = max(room(gates, (features, hidden), width, item), columns_room(panels, depth, width))
    scratch = aligned(parts, needed, slopes.gates.dtype)

    def some(part: int) -> None:
        for d, (k, w, tape) in enumerate(zip(weights.entries, weights.layers, by_entry, strict=True)):
            products = weight_products(w, tape, x, gradients.weights[k]) if of_weights else []
            for _, same in groupby(products, key=lambda product: id(product[0])):
                _sum_up(part, parts, weights, scratch[part], list(same))
            if dx is not None:
                _input_gradient(part, parts, weights, scratch[part], w, tape, dx, d > 0)

    threads.each(some, [(part,) for part in range(parts)], work=work)


def _by_tiles(*arrays: np.ndarray) -> bool:
    """Whether a product of such arrays goes by the micro-kernel. OpenBLAS does 102 of 105 GF/s of a core with AVX2, and
    158 of 200 with AVX-512."""
    return BYTES == _LONGEST and all(
        a.size and a.flags.aligned and a.strides[1] == a.itemsize and a.strides[0] > 0 for a in arrays
    )


def _sum_up(part: int, parts: int, weights: _Weights, scratch: np.ndarray, products: list[tuple[Any, ...]]) -> None:
    """A part of the gates of those `weight_products` that share their left side."""
    left, size = products[0][0], chunk(scratch.itemsize)
    first, last = (min(-(-left.shape[1] * p // parts // size) * size, left.shape[1]) for p in (part, part + 1))
    biases = [bias[first:last] for product in products for bias in product[3]]
    if not _by_tiles(left, *(a for product in products for a in product[1:3])):
        cut = slice(first, last)
        for _, right, weight, own in products:
            sum_up(left[:, cut], right, weight[cut], [b[cut] for b in own])
        return
    if biases:
        sums = of_rows(left[:, first:last])
        for bias in biases:
            bias[...] = sums
    if len(left) <= _LONG_ROWS:
        _weight_gradients(first, last, weights, scratch, [product[:3] for product in products])
        return
    totals = [np.zeros((last - first, right.shape[1])) for _, right, _, _ in products]
    for start in range(0, len(left), _LONG_ROWS):
        rows = slice(start, start + _LONG_ROWS)
        _weight_gradients(
            first, last, weights, scratch, [(left[rows], right[rows], weight) for _, right, weight, _ in products]
        )
        for total, product in zip(totals, products, strict=True):
            total += product[2][first:last]
    for total, product in zip(totals, products, strict=True):
        product[2][first:last] = total


def _weight_gradients(
    first: int, last: int, weights: _Weights, scratch: np.ndarray, products: list[tuple[Any, ...]]
) -> None:
    """Some gates of products with the same left side, over all rows."""
    left, size = products[0][0], chunk(scratch.itemsize)
    sides = [
        (address(right), right.strides[0], right.shape[1], address(weight), weight.strides[0])
        for _, right, weight in products
    ]
    sum_rows.run(
        first,
        last,
        address(left),
        left.strides[0],
        len(left),
        np.array(sides, np.int64),
        weights.width,
        size,
        weights.table,
        scratch,
        address(scratch),
    )


def _input_gradient(
    part: int, parts: int, weights: _Weights, scratch: np.ndarray, w: Layer, tape: Tape, dx: np.ndarray, add: bool
) -> None:
    """A part of the input's gradient, or one direction's share of it: some of its columns."""
    gates, (rows, features) = tape.gates, dx.shape
    if not _by_tiles(gates, w.w_ih, dx):
        some = slice(rows * part // parts, rows * (part + 1) // parts)
        input_gradient(w, tape.rows(some.start, some.stop), dx[some], add)
        return
    panels = -(-features // weights.width)
    rows_with_columns.run(
        panels * part // parts,
        panels * (part + 1) // parts,
        address(gates),
        gates.strides[0],
        rows,
        address(w.w_ih),
        w.w_ih.strides[0],
        gates.shape[1],
        features,
        weights.width,
        weights.table,
        scratch,
        address(dx),
        dx.strides[0],
        add,
        address(scratch),
    )


# --- drivers ----------------------------------------------------------------------------------------------------------


_LAYERS = Layers(_forward, _backward, keeps=True)


def _with_shares(run: Callable[..., None], plan: Callable[..., Any]) -> Callable[..., None]:
    """NumPy's algorithm with the compiled layers."""

    def layers(problem: Any, outputs: Any, scratch: Any, *arrays: Any, **runtime: Any) -> None:
        run(problem, outputs, scratch, *arrays, **runtime, layers=_LAYERS, plan=plan)

    return layers


_forwards = _with_shares(numpy_rnn.forward, numpy_rnn.fused_forward_plan)
_backwards = _with_shares(numpy_rnn.backward, numpy_rnn.fused_backward_plan)
_FORWARD = (pack_turned, forward_steps, *(KERNELS if matrix_unit.missing() is None else ()))
lstm = driver(*_FORWARD)(_forwards)
gru = driver(*_FORWARD)(_forwards)
# elsewhere `_by_tiles` leaves these products to the BLAS
_TILED = (sum_rows, rows_with_columns) if BYTES == _LONGEST else ()
_BACKWARD = (*_FORWARD, pack_columns, backward_steps, *_TILED)
lstm_backward = driver(*_BACKWARD)(_backwards)
gru_backward = driver(*_BACKWARD)(_backwards)
