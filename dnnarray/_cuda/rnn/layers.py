"""The layers of a recurrent network one after the other, forward and backward, around a recurrence that is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnnarray._cuda.core.plan import TYPES, Matrix
from dnnarray._cuda.rnn.cast import cast, flat_cast, zeros
from dnnarray._cuda.rnn.column_sums import column_sums
from dnnarray._cuda.rnn.describe import description
from dnnarray._cuda.rnn.lengths import take_lengths
from dnnarray._cuda.rnn.network import Block, Given, Launches, Network
from dnnarray._cuda.rnn.products import product
from dnnarray._cuda.rnn.split import split
from dnnarray._records import frozen
from dnnarray._spec import BFLOAT16


@frozen
class Recurrence:
    """How an algorithm goes through the time steps of a layer whose description is in memory.

    ``forward(layer, output)`` and ``backward(layer, output)`` give the launches; `output` is the C++ type of the
    output, or of its gradient."""

    forward: Callable[..., Launches]
    backward: Callable[..., Launches]


@dataclass
class Layer:
    """One layer of a network: its number, and the rows that go into it."""

    network: Network
    number: int
    x: Block
    precision: str

    def memory(self, name: str) -> Block:
        return self.network.memory[f"{name}{self.network.names(self.number)}"]

    def weight(self, field: str, k: int) -> Block:
        """A matrix of the weights in the arithmetic's dtype."""
        n, given = self.network, getattr(self.network.weights[k], field)
        held = n.memory.get(f"{field}{self.number}")
        return given.block if held is None else held.at(k % n.problem.directions * math.prod(given.shape))

    def take_weights(self) -> Launches:
        """Widen them; where there are two directions, those of the state are laid side by side."""
        launches, n = [], self.network
        for k in n.entries(self.number):
            for field in ("w_ih", "w_hh", "w_hr"):
                if f"{field}{self.number}" in n.memory:
                    given = getattr(n.weights[k], field)
                    launches += flat_cast(given.block, self.weight(field, k), math.prod(given.shape))
        return launches

    def gates_of(self, direction: int, step: int = 0) -> Block:
        """The gates of a direction from a time step on."""
        n = self.network
        return self.memory("gates").at((direction * n.rows + step * n.problem.batch) * n.gate_rows)

    def slab(self, name: str, direction: int, slab: int) -> Block:
        n = self.network
        extent = n.problem.state if name == "state" else n.problem.hidden
        return self.memory(name).at((direction * n.slabs + slab) * n.problem.batch * extent)


def _sequence_strides(network: Network, given: Given) -> tuple[int, int, int]:
    """Strides of steps, batch and features of a sequence."""
    a, b, c = given.strides
    return (b, a, c) if network.problem.batch_first else (a, b, c)


def _row_strides(network: Network) -> tuple[int, int, int]:
    width = network.problem.width * (1 + network.halves)
    return network.problem.batch * width, width, 1


def _gradient_strides(network: Network) -> tuple[int, int, int]:
    width = network.problem.width
    return network.problem.batch * width, width, 1


def _take_x(network: Network) -> tuple[Launches, Block]:
    """x as rows (steps, batch, features) of the arithmetic's dtype."""
    p, x = network.problem, network.x
    if not network.moved:
        return [], x.block
    extents = p.steps, p.batch, p.features
    strides = (p.features, p.steps * p.features, 1) if p.batch_first else (p.batch * p.features, p.features, 1)
    lengths = network.memory["lengths"].array if p.packed else None
    return cast(
        x.block, network.memory["x"], extents, strides, (p.batch * p.features, p.features, 1), lengths
    ), network.memory["x"]


# --- forward ----------------------------------------------------------------------------------------------------------


def forward(network: Network, recurrence: Recurrence, precision: str) -> Launches:
    """All layers; with `network.kept` everything the backward needs stays in memory, and nobody wants the last
    output."""
    launches, rows = _begin(network)
    for number in range(network.problem.layers):
        layer = Layer(network, number, rows, precision)
        launches += layer.take_weights() + _input_products(layer) + _first_states(layer)
        output: Any = None
        strides, dtype, parts = (0, 0, 0), network.dtype, False
        if number < network.problem.layers - 1:
            rows = network.memory[network.output_name(number)]
            output, strides, parts = rows.array, _row_strides(network), network.halves
        elif network.y is not None:
            output, strides, dtype = network.y.block.array, _sequence_strides(network, network.y), network.y.block.dtype
        launches.append(description(network, number, output, strides))
        launches += recurrence.forward(layer, f"dnnarray::Parts<{TYPES[rows.dtype]}>" if parts else TYPES[dtype])
        launches += _last_states(layer)
    return launches


def _begin(network: Network) -> tuple[Launches, Block]:
    launches, rows = _take_x(network)
    return take_lengths(network) + launches, rows


def _input_products(layer: Layer) -> Launches:
    """The gates of all steps from the input: one product for each direction."""
    n, launches = layer.network, []
    features = n.features(layer.number)
    parts = 2 if n.halves and layer.number else 1
    for d, k in enumerate(n.entries(layer.number)):
        b, extents = layer.weight("w_ih", k).matrix(features, transposed=True), (n.rows, n.gate_rows, features)
        for part in range(parts):
            a = layer.x.at(part * features).matrix(parts * features)
            launches += product(
                a,
                b,
                layer.gates_of(d),
                extents,
                n.gate_rows,
                add=part > 0,
                precision=layer.precision,
                dtype=layer.x.dtype,
            )
    return launches


def _state_extents(network: Network) -> list[tuple[str, int]]:
    p = network.problem
    return [("state", p.state), ("cell", p.hidden)][: 1 + p.has_cell_state]


def _first_states(layer: Layer) -> Launches:
    n, launches = layer.network, []
    for (name, extent), given in zip(_state_extents(n), n.states, strict=True):
        for d, k in enumerate(n.entries(layer.number)):
            size = n.problem.batch * extent
            target = layer.slab(name, d, n.slab(d, 0))
            launches += zeros(target, size) if given is None else flat_cast(given.block.at(k * size), target, size)
    return launches


def _last_states(layer: Layer) -> Launches:
    n, launches = layer.network, []
    for (name, extent), given in zip(_state_extents(n), n.finals, strict=True):
        for d, k in enumerate(n.entries(layer.number)):
            if given is not None:
                source = layer.slab(name, d, n.slab(d, n.problem.steps))
                launches += _into_state(n, source, given, k, extent)
    return launches


def _into_state(network: Network, source: Block, given: Given, k: int, extent: int) -> Launches:
    """A dense state (batch, extent) as entry `k` of a result (entries, batch, extent), or as the whole result of a
    single step."""
    N, strides = network.problem.batch, (0, *given.strides)[-3:]
    return cast(source, given.block.at(k * strides[0]), (1, N, extent), (0, extent, 1), (0, *strides[1:]))


# --- backward ---------------------------------------------------------------------------------------------------------


def backward(network: Network, recurrence: Recurrence, precision: str) -> Launches:
    """The forward again, then all layers from the last to the first."""
    p, dy = network.problem, network.d_y
    launches = forward(network, recurrence, precision)
    incoming, strides, dtype = (None, (0, 0, 0), network.dtype) if dy is None else (
        dy.block, _sequence_strides(network, dy), dy.block.dtype)  # fmt: skip
    for number in reversed(range(p.layers)):
        rows = (
            network.memory[network.output_name(number - 1)]
            if number
            else (network.memory["x"] if network.moved else network.x.block)
        )
        layer = Layer(network, number, rows, precision)
        output = None if incoming is None else incoming.array
        launches += _last_gradients(layer)
        launches.append(description(network, number, output, strides))
        launches += recurrence.backward(layer, TYPES[dtype])
        launches += _first_gradients(layer)
        incoming, strides, dtype = _below(network, number), _gradient_strides(network), network.dtype
        if p.of_weights or incoming is not None:
            more, gates = _factor(layer, layer.memory("gates"), p.directions * network.rows, network.gate_rows, "gates")
            launches += more + (_weight_gradients(layer, gates) if p.of_weights else [])
            launches += [] if incoming is None else _input_gradients(layer, gates, incoming)
    return launches + _give_dx(network)


def _below(network: Network, number: int) -> Block | None:
    """Where the gradient of a layer's input goes; None where it is that of x, and not wanted."""
    if number:
        return network.memory[f"dy{(number - 1) % 2}"]
    if network.d_x is None:
        return None
    return network.d_x.block if network.direct(network.d_x) else network.memory["dx"]


def _last_gradients(layer: Layer) -> Launches:
    """The gradients of the last states, from which the steps back begin."""
    n, launches = layer.network, []
    for (name, extent), given in zip(_state_extents(n), n.d_finals, strict=True):
        size = n.problem.batch * extent
        for d, k in enumerate(n.entries(layer.number)):
            target = n.memory[f"d_{name}"].at(d * size)
            launches += zeros(target, size) if given is None else flat_cast(given.block.at(k * size), target, size)
    return launches


def _first_gradients(layer: Layer) -> Launches:
    n, launches = layer.network, []
    for (name, extent), given in zip(_state_extents(n), n.d_states, strict=True):
        for d, k in enumerate(n.entries(layer.number)):
            if given is not None:
                launches += _into_state(n, n.memory[f"d_{name}"].at(d * n.problem.batch * extent), given, k, extent)
    return launches


@frozen
class Factor:
    """A matrix of a product: where its parts begin, which add up to it, the distance of its rows, its columns."""

    parts: tuple[Block, ...]
    row: int
    columns: int

    def from_column(self, first: int, columns: int) -> Factor:
        return Factor(tuple(p.at(first) for p in self.parts), self.row, columns)

    def from_row(self, first: int) -> Factor:
        return Factor(tuple(p.at(first * self.row) for p in self.parts), self.row, self.columns)


def _factor(layer: Layer, block: Block, rows: int, columns: int, name: str, low: int = 0) -> tuple[Launches, Factor]:
    """A matrix of dense rows as the products of the gradients take it: as it is in float32 or float64, in two bfloat16
    parts for half types.

    `low` says where the second part of a row stands behind its first, 0 if the matrix comes in one part.
    """
    row = columns + low
    if not layer.network.halves or (block.dtype == BFLOAT16 and not low):
        return [], Factor((block,), row, columns)
    if block.dtype == BFLOAT16:
        return [], Factor((block, block.at(low)), row, columns)
    target = layer.network.memory[f"{name}_parts"]
    return split(block, rows, columns, row, target, low), Factor((target, target.at(columns)), 2 * columns, columns)


def _multiply(
    layer: Layer,
    a: Factor,
    b: Factor,
    c: Block,
    extents: tuple[int, int, int],
    row: int,
    *,
    transposed: bool = False,
    add: bool = False,
) -> Launches:
    """a b, or a^T b where `transposed`; the product of two second parts is below what the others are rounded to."""
    launches: Launches = []
    pairs = [(i, j) for i in range(len(a.parts)) for j in range(len(b.parts)) if i + j < 2]
    for count, (i, j) in enumerate(pairs):
        left, right = a.parts[i].matrix(a.row, transposed=transposed), b.parts[j].matrix(b.row)
        dtype = a.parts[i].dtype
        launches += product(left, right, c, extents, row, add=add or count > 0, precision=layer.precision, dtype=dtype)
    return launches


def _input_gradients(layer: Layer, gates: Factor, target: Block) -> Launches:
    n, launches = layer.network, []
    features = n.features(layer.number)
    for d, k in enumerate(n.entries(layer.number)):
        first, w = _factor(layer, layer.weight("w_ih", k), n.gate_rows, features, "w_ih")
        extents = n.rows, features, n.gate_rows
        launches += first + _multiply(layer, gates.from_row(d * n.rows), w, target, extents, features, add=d > 0)
    return launches


def _give_dx(network: Network) -> Launches:
    p, given = network.problem, network.d_x
    if given is None or network.direct(given):
        return []
    strides = _sequence_strides(network, given) if network.sequence else (0, *given.strides)
    source = p.batch * p.features, p.features, 1
    return cast(network.memory["dx"], given.block, (p.steps, p.batch, p.features), source, strides)


def _weight_gradients(layer: Layer, gates: Factor) -> Launches:
    n, p = layer.network, layer.network.problem
    H, features = p.hidden, n.features(layer.number)
    low = features if n.halves and layer.number else 0
    launches, x = _factor(layer, layer.x, n.rows, features, "x", low)
    extra = gates
    if p.cell.kind == "gru":
        more, extra = _factor(layer, layer.memory("extra"), p.directions * n.rows, H, "extra")
        launches += more
    for d, k in enumerate(n.entries(layer.number)):
        out = n.d_weights[k]
        launches += _outer(layer, [(0, gates.from_row(d * n.rows), x)], out.w_ih)
        more, state = _factor(layer, layer.slab("state", d, int(n.reversed(d))), n.rows, p.state, "state")
        launches += more + _outer(
            layer, _state_factors(layer, gates.from_row(d * n.rows), extra.from_row(d * n.rows), state), out.w_hh
        )
        if p.projected:
            projected = Factor((n.memory["projected"].at(d * n.rows * p.state),), p.state, p.state)
            launches += _outer(
                layer, [(0, projected, Factor((n.memory["before"].at(d * n.rows * H),), H, H))], out.w_hr
            )
        launches += _bias_gradients(layer, d, out)
        if out.peephole is not None:
            launches += _peephole_gradients(layer, d, out.peephole)
    return launches


def _state_factors(layer: Layer, gates: Factor, extra: Factor, state: Factor) -> list[tuple[int, Factor, Factor]]:
    """(first row of w_hh, gradient of the products, what they were multiplied with)."""
    cell, H = layer.network.problem.cell, layer.network.problem.hidden
    if cell.kind != "gru":
        return [(0, gates, state)]
    last = (extra, state) if cell.linear_before_reset else (gates.from_column(2 * H, H), extra)
    return [(0, gates.from_column(0, 2 * H), state), (2 * H, *last)]


def _outer(layer: Layer, products: list[tuple[int, Factor, Factor]], out: Given) -> Launches:
    """Sums of outer products over all steps, written to `out`; each product gives some of its rows."""
    n, launches = layer.network, []
    direct = n.direct(out)
    target, columns = out.block if direct else n.memory["dw"], out.shape[1]
    for first, left, right in products:
        extents = left.columns, right.columns, n.rows
        launches += _multiply(layer, left, right, target.at(first * columns), extents, columns, transposed=True)
    return (
        launches if direct else launches + cast(target, out.block, (1, *out.shape), (0, columns, 1), (0, *out.strides))
    )


def _bias_gradients(layer: Layer, d: int, out: Any) -> Launches:
    n, H = layer.network, layer.network.problem.hidden
    partial, gates, rows, cell = n.memory["partial"], layer.gates_of(d), n.gate_rows, n.problem.cell
    if cell.kind != "gru" or not cell.linear_before_reset:
        outs = [b.block for b in (out.b_ih, out.b_hh) if b is not None]
        return column_sums(gates, rows, n.rows, rows, partial, outs)
    launches = [] if out.b_ih is None else column_sums(gates, rows, n.rows, rows, partial, [out.b_ih.block])
    if out.b_hh is not None:
        extra = layer.memory("extra").at(d * n.rows * H)
        launches += column_sums(gates, rows, n.rows, 2 * H, partial, [out.b_hh.block])
        launches += column_sums(extra, H, n.rows, H, partial, [out.b_hh.block.at(2 * H)])
    return launches


def _peephole_gradients(layer: Layer, d: int, out: Given) -> Launches:
    """i and f have seen the cell state before the step, o the one after it."""
    n, launches = layer.network, []
    H, partial, before = n.problem.hidden, n.memory["partial"], int(n.reversed(d))
    target = n.memory["dw"] if not out.dense else out.block
    for row, (gate, slab) in enumerate(((0, before), (1, before), (3, 1 - before))):
        cell, gates = layer.slab("cell", d, slab), layer.gates_of(d).at(gate * H)
        launches += column_sums(gates, n.gate_rows, n.rows, H, partial, [target.at(row * H)], cell, H)
    return launches if out.dense else launches + cast(target, out.block, (1, 3, H), (0, H, 1), (0, *out.strides))


def matrix_batch(first: Block, row: int, second: Block | None, *, transposed: bool = False) -> Matrix:
    """A matrix of the first direction with, where there is a second, the distance to its own."""
    step = 0 if second is None else (second.array.offset - first.array.offset) // first.dtype.itemsize
    return first.matrix(row, step, transposed=transposed)
