"""LSTM and GRU steps: the product with the state by the micro-kernel, and what follows from it in one pass. Imports Numba.

The weight of the state is packed once for all steps of a layer and direction into panels a tile wide, so that features are the lanes and the
sequences of the batch the rows. A part of a forward step takes some of the hidden units: their columns of all gates, then their new states. Backward,
the gates' gradients come first, then their product with the weight. The loops over time, directions and layers are those of NumPy's algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import rnn as numpy_rnn
from dnnarray._cpu.compiled.conv_copy import copy, turn_rows
from dnnarray._cpu.compiled.dense import taken
from dnnarray._cpu.compiled.kernel import In1, In2, Out1, Out2, device, driver, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address, aligned
from dnnarray._cpu.compiled.scalar import const, sigmoid, tanh
from dnnarray._cpu.compiled.tile import ROWS, VECTORS, lanes, tile
from dnnarray._cpu.rnn_cells import CellFunctions, Layer, Tape, gru_products, one_product

_BATCH = 64  # sequences whose products with the state are held at a time
_MACS, _CELL = 16, 12  # multiply-adds for an element of a light operation; elements of it for a unit's gates


# --- products ---------------------------------------------------------------------------------------------------------


@kernel
def pack_turned(start: int, stop: int, weight: int, units: int, depth: int, width: int, like: Out1, packed: int) -> None:
    """The panels from `start` to `stop` of a weight (gates * units, depth): [gate][panel][depth][lane]."""
    item, zero = like.itemsize, like.dtype.type(0)
    panels = (units + width - 1) // width
    for number in range(start, stop):
        row = number // panels * units + number % panels * width
        rows = min(width, units - number % panels * width)
        source, target = weight + row * depth * item, packed + number * depth * width * item
        turn_rows(zero, source, depth * item, target, width * item, rows, depth, item, width // VECTORS)


@kernel
def pack_columns(start: int, stop: int, weight: int, units: int, depth: int, width: int, like: Out1, packed: int) -> None:
    """The panels from `start` to `stop` of the columns of a weight (depth, units): [panel][depth][lane]."""
    item, zero = like.itemsize, like.dtype.type(0)
    for number in range(start, stop):
        count = min(width, units - number * width)
        for k in range(depth):
            source, target = weight + (k * units + number * width) * item, packed + (number * depth + k) * width * item
            copy(zero, source, item, target, item, count, item, width // VECTORS)


@device
def _panel_product(like, a, a_row, rows, panel, steps, depth, width, item, out):
    """`rows` rows of a, `a_row` bytes apart, times a panel: [row][lane]."""
    for row in range(0, rows, ROWS):
        tile(like, min(ROWS, rows - row), a + row * a_row, a_row, item, panel, steps, depth, out + row * width * item, width * item, False)


@kernel
def product(
    start: int, stop: int, a: int, rows: int, depth: int, packed: int, steps: int, width: int, out: Out2, memory: Out2, place: int
) -> None:
    """The panels from `start` to `stop` of out (rows, units) = a (rows, depth) times the packed weight; a part's products are held in row `start` of memory."""
    item, zero = memory.itemsize, memory.dtype.type(0)
    own, own_at = memory[start], place + start * memory.shape[1] * memory.itemsize
    for number in range(start, stop):
        first, panel = number * width, packed + number * depth * width * item
        count = min(width, out.shape[1] - first)
        for low in range(0, rows, _BATCH):
            some = min(_BATCH, rows - low)
            _panel_product(zero, a + low * depth * item, depth * item, some, panel, steps, depth, width, item, own_at)
            for i in range(some):
                out[low + i, first : first + count] = own[i * width : i * width + count]


# --- steps ------------------------------------------------------------------------------------------------------------


@device
def _lstm_units(products, stride, gates, hidden, first, c, h):
    """The units of `c` from `first` on, of one sequence: activated gates in place, cell state in place, h, and tanh(c) in the products."""
    n = len(c)
    xi, xf, xg, xo = gates[first : first + n], gates[hidden + first : hidden + first + n], gates[2 * hidden + first : 2 * hidden + first + n], gates[3 * hidden + first : 3 * hidden + first + n]  # fmt: skip
    pi, pf, pg, po = (
        products[:n],
        products[stride : stride + n],
        products[2 * stride : 2 * stride + n],
        products[3 * stride : 3 * stride + n],
    )
    for u in range(n):
        i, f, g, o = sigmoid(xi[u] + pi[u]), sigmoid(xf[u] + pf[u]), tanh(xg[u] + pg[u]), sigmoid(xo[u] + po[u])
        new = f * c[u] + i * g
        squashed = tanh(new)
        xi[u], xf[u], xg[u], xo[u] = i, f, g, o
        c[u] = new
        h[u] = o * squashed
        pi[u] = squashed


@kernel
def lstm_step(
    start: int, stop: int, state: int, packed: int, steps: int, width: int, gates: Out2, c: Out2, h: Out2, extra: Out2, memory: Out2, place: int,
) -> None:  # fmt: skip
    """The panels of units from `start` to `stop`; `state` is h before the step, `gates` the input's share, `h` the new state."""
    item, zero = memory.itemsize, memory.dtype.type(0)
    rows, hidden = h.shape
    panels, size = (hidden + width - 1) // width, hidden * width * item
    own, own_at = memory[start], place + start * memory.shape[1] * memory.itemsize
    stride = _BATCH * width
    for number in range(start, stop):
        first = number * width
        last = min(first + width, hidden)
        for low in range(0, rows, _BATCH):
            some = min(_BATCH, rows - low)
            for gate in range(4):
                panel = packed + (gate * panels + number) * size
                _panel_product(
                    zero, state + low * hidden * item, hidden * item, some, panel, steps, hidden, width, item, own_at + gate * stride * item
                )
            for i in range(some):
                at = low + i
                _lstm_units(own[i * width :], stride, gates[at], hidden, first, c[at, first:last], h[at, first:last])
                if len(extra):
                    extra[at, first:last] = own[i * width : i * width + last - first]


@device
def _gru_units(products, stride, gates, hidden, first, bias, before, h):
    """As `_lstm_units`; the products of the n gate get its bias."""
    n = len(h)
    xr, xz, xn = gates[first : first + n], gates[hidden + first : hidden + first + n], gates[2 * hidden + first : 2 * hidden + first + n]
    pr, pz, pn = products[:n], products[stride : stride + n], products[2 * stride : 2 * stride + n]
    for u in range(n):
        r, z = sigmoid(xr[u] + pr[u]), sigmoid(xz[u] + pz[u])
        share = pn[u] + bias[u]
        new = tanh(xn[u] + r * share)
        xr[u], xz[u], xn[u] = r, z, new
        pn[u] = share
        h[u] = new + z * (before[u] - new)


@kernel
def gru_step(
    start: int, stop: int, state: int, packed: int, steps: int, width: int, gates: Out2, bias: In1, before: In2, h: Out2, extra: Out2, memory: Out2,
    place: int,
) -> None:  # fmt: skip
    """As `lstm_step`; `before` is the array at `state`, `bias` that of the n gate beside the state."""
    item, zero = memory.itemsize, memory.dtype.type(0)
    rows, hidden = h.shape
    panels, size = (hidden + width - 1) // width, hidden * width * item
    own, own_at = memory[start], place + start * memory.shape[1] * memory.itemsize
    stride = _BATCH * width
    for number in range(start, stop):
        first = number * width
        last = min(first + width, hidden)
        for low in range(0, rows, _BATCH):
            some = min(_BATCH, rows - low)
            for gate in range(3):
                panel = packed + (gate * panels + number) * size
                _panel_product(
                    zero, state + low * hidden * item, hidden * item, some, panel, steps, hidden, width, item, own_at + gate * stride * item
                )
            for i in range(some):
                at = low + i
                _gru_units(own[i * width :], stride, gates[at], hidden, first, bias[first:last], before[at, first:last], h[at, first:last])
                if len(extra):
                    extra[at, first:last] = own[2 * stride + i * width : 2 * stride + i * width + last - first]


@kernel
def lstm_slopes(start: int, stop: int, gates: Out2, before: In2, squashed: In2, dh: In2, dc: Out2) -> None:
    """The gates of the sequences from `start` to `stop` to the gradients of their arguments, dc to that of the cell state before the step."""
    hidden = dh.shape[1]
    for at in range(start, stop):
        row = gates[at]
        i_, f_, g_, o_ = row[:hidden], row[hidden : 2 * hidden], row[2 * hidden : 3 * hidden], row[3 * hidden : 4 * hidden]
        c_, t_, h_, d_ = before[at], squashed[at], dh[at], dc[at]
        for u in range(hidden):
            i, f, g, o, t = i_[u], f_[u], g_[u], o_[u], t_[u]
            one = const(i, 1.0)
            d = d_[u] + h_[u] * o * (one - t * t)
            i_[u] = d * g * i * (one - i)
            f_[u] = d * c_[u] * f * (one - f)
            g_[u] = d * i * (one - g * g)
            o_[u] = h_[u] * t * o * (one - o)
            d_[u] = d * f


@kernel
def gru_slopes(start: int, stop: int, gates: Out2, before: In2, extra: Out2, dh: Out2, products: Out2) -> None:
    """As `lstm_slopes`. `extra` becomes the gradient of the state's share of the n gate, dh its part that goes past the gates; `products` takes both shares."""
    hidden = dh.shape[1]
    for at in range(start, stop):
        row, both = gates[at], products[at]
        r_, z_, n_ = row[:hidden], row[hidden : 2 * hidden], row[2 * hidden : 3 * hidden]
        left, middle, right = both[:hidden], both[hidden : 2 * hidden], both[2 * hidden : 3 * hidden]
        b_, e_, d_ = before[at], extra[at], dh[at]
        for u in range(hidden):
            r, z, n, d = r_[u], z_[u], n_[u], d_[u]
            one = const(r, 1.0)
            dn = d * (one - z) * (one - n * n)
            dr, dz, de = dn * e_[u] * r * (one - r), d * (b_[u] - n) * z * (one - z), dn * r
            r_[u], z_[u], n_[u] = dr, dz, dn
            left[u], middle[u], right[u] = dr, dz, de
            e_[u] = de
            d_[u] = d * z


# --- cells for NumPy's loops ------------------------------------------------------------------------------------------


class _Packed:
    """The weight of the state in panels, and memory of the parts: made at the first step of a layer and direction, kept with it."""

    def __init__(self, w: Layer, dtype: np.dtype, turned: bool) -> None:
        self.width = VECTORS * lanes(dtype.itemsize)
        weight = taken(w.w_hh)
        gates, depth = (len(weight) // w.hidden, w.hidden) if turned else (1, len(weight))
        self.panels = -(-w.hidden // self.width)
        self.array = np.zeros(gates * self.panels * depth * self.width, dtype)
        pack = pack_turned if turned else pack_columns
        pack(gates * self.panels, address(weight), w.hidden, depth, self.width, self.array, address(self.array), work=2 * weight.size)
        self.steps = np.arange(depth) * (self.width * dtype.itemsize)
        self.memory = aligned(self.panels, gates * _BATCH * self.width, dtype)
        self.nothing, self.bias = np.empty((0, 0), dtype), np.zeros(w.hidden, dtype) if w.bias_n is None else taken(w.bias_n)
        self.weight, self.table, self.place = address(self.array), address(self.steps), address(self.memory)
        self.state = np.empty((0, w.hidden), dtype)

    @classmethod
    def of(cls, w: Layer, dtype: np.dtype, turned: bool) -> _Packed:
        if w.packed is None:
            w.packed = cls(w, dtype, turned)
        return w.packed

    def new_state(self, rows: int) -> np.ndarray:
        """Where a step writes the state that others still read."""
        if len(self.state) < rows:
            self.state = np.empty((rows, self.state.shape[1]), self.state.dtype)
        return self.state[:rows]


def _lstm_forward(w: Layer, gates: np.ndarray, h: np.ndarray, c: np.ndarray, tape: Tape | None) -> None:
    p = _Packed.of(w, h.dtype, turned=True)
    new, extra = p.new_state(len(h)), p.nothing if tape is None else tape.extra
    work = h.size * (4 * w.hidden // _MACS + 4 * _CELL)
    lstm_step(p.panels, address(h), p.weight, p.table, p.width, gates, c, new, extra, p.memory, p.place, work=work)
    h[...] = new


def _gru_forward(w: Layer, gates: np.ndarray, h: np.ndarray, c: Any, tape: Tape | None) -> None:
    p = _Packed.of(w, h.dtype, turned=True)
    new, extra = p.new_state(len(h)), p.nothing if tape is None else tape.extra
    work = h.size * (3 * w.hidden // _MACS + 3 * _CELL)
    gru_step(p.panels, address(h), p.weight, p.table, p.width, gates, p.bias, h, new, extra, p.memory, p.place, work=work)
    h[...] = new


def _through_weight(w: Layer, gates: np.ndarray, out: np.ndarray) -> None:
    """out = gates w_hh."""
    p = _Packed.of(w, out.dtype, turned=False)
    rows, depth = gates.shape
    product(
        p.panels, address(gates), rows, depth, p.weight, p.table, p.width, out, p.memory, p.place, work=rows * depth * w.hidden // _MACS
    )


def _lstm_backward(w: Layer, tape: Tape, dh: np.ndarray, dc: np.ndarray) -> None:
    lstm_slopes(len(dh), tape.gates, tape.c, tape.extra, dh, dc, work=4 * dh.size)
    _through_weight(w, tape.gates, dh)


def _gru_backward(w: Layer, tape: Tape, dh: np.ndarray, dc: Any) -> None:
    shares, past = np.empty(tape.gates.shape, dh.dtype), np.empty_like(dh)
    past[...] = dh
    gru_slopes(len(dh), tape.gates, tape.h, tape.extra, past, shares, work=4 * dh.size)
    _through_weight(w, shares, dh)
    dh += past


_CELLS = {
    "lstm": CellFunctions(_lstm_forward, _lstm_backward, one_product),
    "gru": CellFunctions(_gru_forward, _gru_backward, gru_products),
}


# --- drivers ----------------------------------------------------------------------------------------------------------


def _with_cells(run: Callable[..., None]) -> Callable[..., None]:
    """NumPy's algorithm with the compiled steps, in scratch memory that kernels take as arrays."""

    def steps(problem: Any, outputs: Any, scratch: Any, *arrays: Any, **runtime: Any) -> None:
        if scratch is not None and address(scratch) % ALIGNMENT:
            scratch = aligned(1, scratch.size, scratch.dtype)[0]
        run(problem, outputs, scratch, *arrays, **runtime, cells=_CELLS)

    return steps


lstm = driver(pack_turned, lstm_step)(_with_cells(numpy_rnn.forward))
gru = driver(pack_turned, gru_step)(_with_cells(numpy_rnn.forward))
lstm_backward = driver(pack_turned, lstm_step, pack_columns, lstm_slopes, product)(_with_cells(numpy_rnn.backward))
gru_backward = driver(pack_turned, gru_step, pack_columns, gru_slopes, product)(_with_cells(numpy_rnn.backward))
