"""One step of each recurrent cell, forward and backward, on NumPy arrays: the table `CELLS`.

A step works on the `n` sequences that are still running. The forward turns the input's share of the pre-activations
into the activated gates, in place, and the old state into the new one, in place. The backward turns the same gates into
the gradient of the pre-activations, in place, and the gradient of the new state into that of the old one. So the loops
over time, layers and directions know nothing of the kind of cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu.products import spread
from dnnarray._cpu.sums import of_rows
from dnnarray._problems.rnn import Cell, RecurrentProblem, RNNWeights
from dnnarray._records import frozen

_FEW_ROWS = 64


@dataclass
class Layer:
    """The weights of one layer and direction as the steps want them; `bias` is added to the input's share beforehand.

    `bias_n` is what stays beside the state in the n gate of a GRU; `gradient` collects the peephole's gradient.
    """

    cell: Cell
    hidden: int
    w_ih: np.ndarray
    w_hh: np.ndarray
    bias: np.ndarray | None
    bias_n: np.ndarray | None
    w_hr: np.ndarray | None
    peephole: np.ndarray | None
    gradient: Any = None


def layer(problem: RecurrentProblem, weights: Any) -> Layer:
    """Prepare one entry of the weights. They stay as they are: BLAS reads a transposed matrix as fast as a copy of
    it."""
    w = RNNWeights(*weights)
    given = [b for b in (w.b_ih, w.b_hh) if b is not None]
    bias = given[0] + given[1] if len(given) == 2 else given[0] if given else None
    bias_n = None
    if problem.cell.kind == "gru" and problem.cell.linear_before_reset and w.b_hh is not None:
        n = slice(2 * problem.hidden, None)
        bias, bias_n = np.array(bias), w.b_hh[n]
        bias[n] = 0 if w.b_ih is None else w.b_ih[n]
    return Layer(problem.cell, problem.hidden, w.w_ih, w.w_hh, bias, bias_n, w.w_hr, w.peephole)


class Tape(NamedTuple):
    """What the backward needs of the forward, a row per time step and sequence: the activated gates, the old states,
    one more.

    `c` and `extra` are None where the cell has no use for them. `extra` of an LSTM is tanh(c), which the backward turns
    into the state before the projection. `extra` of a GRU is, with `linear_before_reset`, the n gate's product with the
    state, which the backward turns into its gradient; without, it is r * h."""

    gates: np.ndarray
    h: np.ndarray
    c: Any
    extra: Any

    def _cut(self, where: Any) -> Tape:
        c, extra = (None if a is None else a[where] for a in (self.c, self.extra))
        return Tape(self.gates[where], self.h[where], c, extra)

    def rows(self, start: int, stop: int) -> Tape:
        return self._cut(slice(start, stop))

    def of(self, direction: int, rows: int) -> Tape:
        """The first rows of a direction, of a tape that has the directions as its first axis."""
        return self._cut((direction, slice(rows)))


def _split(gates: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    hidden = gates.shape[1] // count
    return tuple(gates[:, k * hidden : (k + 1) * hidden] for k in range(count))


def _sigmoid(x: np.ndarray) -> None:
    """In place, through tanh: it cannot overflow, and NumPy has it vectorised."""
    x *= 0.5
    np.tanh(x, out=x)
    x *= 0.5
    x += 0.5


def _tanh_slope(t: np.ndarray) -> np.ndarray:
    """1 - t^2 of t = tanh(x), without the rounding of a square near 1."""
    slope = 1 - t
    slope *= 1 + t
    return slope


def _product(h: np.ndarray, w: np.ndarray) -> np.ndarray:
    """``h @ w.T``; for a few rows with the weights on the left, where BLAS is up to 1.8 times as fast."""
    return _times(w, h.T).T if 1 < len(h) <= _FEW_ROWS else _times(h, w.T)


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return spread(a, b, np.empty((len(a), b.shape[1]), a.dtype), np.matmul)


# --- rnn --------------------------------------------------------------------------------------------------------------


def _rnn_forward(w: Layer, gates: np.ndarray, h: np.ndarray, c: Any, tape: Tape | None) -> None:
    gates += _product(h, w.w_hh)
    if w.cell.activation == "tanh":
        np.tanh(gates, out=gates)
    else:
        np.maximum(gates, 0, out=gates)
    h[...] = gates


def _rnn_backward(w: Layer, tape: Tape, dh: np.ndarray, dc: Any) -> None:
    gates = tape.gates
    slope = _tanh_slope(gates) if w.cell.activation == "tanh" else gates > 0
    np.multiply(dh, slope, out=gates)
    spread(gates, w.w_hh, dh, np.matmul)


def one_product(w: Layer, tape: Tape) -> list[tuple[slice, np.ndarray, np.ndarray]]:
    return [(slice(None), tape.gates, tape.h)]


# --- gru --------------------------------------------------------------------------------------------------------------


def _gru_forward(w: Layer, gates: np.ndarray, h: np.ndarray, c: Any, tape: Tape | None) -> None:
    H = w.hidden
    r, z, n = _split(gates, 3)
    if w.cell.linear_before_reset:
        products = _product(h, w.w_hh)
        gates[:, : 2 * H] += products[:, : 2 * H]
        _sigmoid(gates[:, : 2 * H])
        extra = products[:, 2 * H :]
        if w.bias_n is not None:
            extra += w.bias_n
        n += r * extra
    else:
        gates[:, : 2 * H] += _product(h, w.w_hh[: 2 * H])
        _sigmoid(gates[:, : 2 * H])
        extra = r * h
        n += _product(extra, w.w_hh[2 * H :])
    np.tanh(n, out=n)
    if tape is not None:
        tape.extra[...] = extra
    h -= n
    h *= z
    h += n


def _gru_backward(w: Layer, tape: Tape, dh: np.ndarray, dc: Any) -> None:
    H, extra = w.hidden, tape.extra
    r, z, n = _split(tape.gates, 3)
    d_z = dh * (tape.h - n) * z * (1 - z)
    d_n = dh * (1 - z) * _tanh_slope(n)
    dh *= z
    if w.cell.linear_before_reset:
        d_r = d_n * extra
        extra[...] = d_n * r
        dh += _times(extra, w.w_hh[2 * H :])
    else:
        d_extra = _times(d_n, w.w_hh[2 * H :])
        d_r = d_extra * tape.h
        dh += d_extra * r
    np.multiply(d_r, r * (1 - r), out=r)
    z[...], n[...] = d_z, d_n
    dh += _times(tape.gates[:, : 2 * H], w.w_hh[: 2 * H])


def gru_products(w: Layer, tape: Tape) -> list[tuple[slice, np.ndarray, np.ndarray]]:
    gates, n = slice(None, 2 * w.hidden), slice(2 * w.hidden, None)
    last = (tape.extra, tape.h) if w.cell.linear_before_reset else (tape.gates[:, n], tape.extra)
    return [(gates, tape.gates[:, gates], tape.h), (n, *last)]


# --- lstm -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _lstm_vectors(hidden: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Scale and shift that make one tanh over i f g o into the sigmoids and the tanh: sigmoid(x) = tanh(x/2)/2 +
    1/2."""
    return (
        np.repeat(np.array([0.5, 0.5, 1, 0.5], dtype), hidden),
        np.repeat(np.array([0.5, 0.5, 0, 0.5], dtype), hidden),
    )


def _lstm_activate(gates: np.ndarray, hidden: int) -> None:
    """In place on the leading gates that `gates` holds."""
    scale, shift = (v[: gates.shape[1]] for v in _lstm_vectors(hidden, gates.dtype))
    gates *= scale
    np.tanh(gates, out=gates)
    gates *= scale
    gates += shift


def _lstm_forward(w: Layer, gates: np.ndarray, h: np.ndarray, c: np.ndarray, tape: Tape | None) -> None:
    i, f, g, o = _split(gates, 4)
    gates += _product(h, w.w_hh)
    if w.peephole is None:
        _lstm_activate(gates, w.hidden)
    else:
        i += w.peephole[0] * c
        f += w.peephole[1] * c
        _lstm_activate(gates[:, : 3 * w.hidden], w.hidden)
    c *= f
    c += i * g
    if w.cell.clip is not None:
        np.clip(c, -w.cell.clip, w.cell.clip, out=c)
    if w.peephole is not None:
        o += w.peephole[2] * c
        _sigmoid(o)
    output = np.tanh(c)
    if tape is not None:
        tape.extra[...] = output
    output *= o
    if w.w_hr is None:
        h[...] = output
    else:
        spread(output, w.w_hr.T, h, np.matmul)


def _lstm_backward(w: Layer, tape: Tape, dh: np.ndarray, dc: np.ndarray) -> None:
    i, f, g, o = _split(tape.gates, 4)
    before, squashed = tape.c, tape.extra
    d_output = dh if w.w_hr is None else _times(dh, w.w_hr)
    d_o = d_output * squashed * o * (1 - o)
    dc += d_output * o * _tanh_slope(squashed)
    if w.w_hr is not None:
        squashed *= o
    if w.peephole is not None or w.cell.clip is not None:
        _through_cell_state(w, f * before + i * g, d_o, dc)
    d_g = dc * i * _tanh_slope(g)
    d_i = dc * g * i * (1 - i)
    d_f = dc * before * f * (1 - f)
    dc *= f
    if w.peephole is not None:
        dc += d_i * w.peephole[0]
        dc += d_f * w.peephole[1]
        w.gradient[0] += of_rows(d_i * before)
        w.gradient[1] += of_rows(d_f * before)
    i[...], f[...], g[...], o[...] = d_i, d_f, d_g, d_o
    spread(tape.gates, w.w_hh, dh, np.matmul)


def _through_cell_state(w: Layer, unclipped: np.ndarray, d_o: np.ndarray, dc: np.ndarray) -> None:
    """The peephole of o, which sees the new cell state, and the clip before it: complete `dc` in place."""
    clip = w.cell.clip
    if w.peephole is not None:
        c = unclipped if clip is None else np.clip(unclipped, -clip, clip)
        w.gradient[2] += of_rows(d_o * c)
        dc += d_o * w.peephole[2]
    if clip is not None:
        dc[np.abs(unclipped) > clip] = 0


@frozen
class CellFunctions:
    """One kind of cell.

    Attributes
    ----------
    forward : ``forward(layer, gates, h, c, tape)``, `tape` None where no gradient is wanted
    backward : ``backward(layer, tape, dh, dc)``
    products : ``products(layer, tape)`` after the backward: (rows of w_hh, gradient of their products, what they were
        multiplied with)
    """

    forward: Callable[..., None]
    backward: Callable[..., None]
    products: Callable[[Layer, Tape], list[tuple[slice, np.ndarray, np.ndarray]]]


CELLS = {
    "rnn": CellFunctions(_rnn_forward, _rnn_backward, one_product),
    "gru": CellFunctions(_gru_forward, _gru_backward, gru_products),
    "lstm": CellFunctions(_lstm_forward, _lstm_backward, one_product),
}
