"""The loops over layers, directions and time of recurrent networks, forward and backward, on NumPy arrays.

Sequences are held as rows: one row for each time step and each sequence still running in it, the longest sequence
first, so that a step works on the leading rows of the state. Without lengths that is the array itself. Steps past a
sequence's end have no row: they cannot touch the state, nor can what stands in them (NaN, say) reach a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu.philox import bernoulli_keep
from dnnarray._cpu.products import multiply, spread, whole
from dnnarray._cpu.rnn.cells import CELLS, Layer, Tape, layer
from dnnarray._cpu.sums import of_rows
from dnnarray._problems.rnn import GATES, RecurrentProblem, RNNWeights

# gate elements computed ahead from the input by one matrix product: large for BLAS, small against the memory
_BLOCK = 1 << 20
_ALIGNMENT = 64


# --- rows and memory --------------------------------------------------------------------------------------------------


def block_steps(problem: RecurrentProblem) -> int:
    """Time steps whose gates are computed from the input in one go."""
    return max(1, _BLOCK // max(1, problem.batch * GATES[problem.cell.kind] * problem.hidden))


class Packing:
    """Where the rows of each time step are, and which sequence each row belongs to."""

    def __init__(self, problem: RecurrentProblem, lengths: np.ndarray | None) -> None:
        T, N = problem.steps, problem.batch
        self.order: np.ndarray | None = None
        counts: Any = [N] * T
        if lengths is not None:
            longest_first = -lengths.astype(np.int64)
            self.order = np.argsort(longest_first, kind="stable")
            counts = np.searchsorted(longest_first[self.order], -np.arange(T), side="left").tolist()
        self.starts = [0]
        for n in counts:
            self.starts.append(self.starts[-1] + n)
        self.rows = self.starts[-1]
        self._batch_first = problem.batch_first
        self._block = block_steps(problem)

    def blocks(self, backwards: bool = False) -> Iterator[range]:
        """The time steps in blocks whose gates fit `_BLOCK`, in the order in which the network takes them."""
        steps = range(len(self.starts) - 1)
        steps = steps[::-1] if backwards else steps
        return (steps[k : k + self._block] for k in range(0, len(steps), self._block))

    def span(self, steps: range) -> tuple[int, int]:
        """First and last row of a block of steps."""
        low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1])
        return self.starts[low], self.starts[high + 1]

    def _steps(self) -> Iterator[tuple[slice, tuple[int, np.ndarray]]]:
        """The rows of each time step, and where they stand in an array with the time axis first."""
        for t, (start, stop) in enumerate(zip(self.starts, self.starts[1:], strict=False)):
            yield slice(start, stop), (t, self.order[: stop - start])  # type: ignore[index]

    def time_first(self, array: np.ndarray) -> np.ndarray:
        return array.swapaxes(0, 1) if self._batch_first else array

    def as_rows(self, array: np.ndarray) -> np.ndarray | None:
        """The rows of an array (T N K, or N T K) where its memory is in this form already, else None."""
        if self.order is not None or self._batch_first or not array.flags.c_contiguous:
            return None
        return array.reshape(self.rows, array.shape[2])

    def gather(self, array: np.ndarray, rows: np.ndarray) -> None:
        """Copy an array into rows."""
        array = self.time_first(array)
        if self.order is None:
            rows.reshape(array.shape)[...] = array
        else:
            for at, where in self._steps():
                rows[at] = array[where]

    def scatter(self, rows: np.ndarray, array: np.ndarray) -> None:
        """Copy rows back into an array, 0 where there is no row."""
        array = self.time_first(array)
        if self.order is None:
            array[...] = rows.reshape(array.shape)
            return
        array[...] = 0
        for at, where in self._steps():
            array[where] = rows[at]

    def sort(self, state: np.ndarray | None, out: np.ndarray) -> None:
        """A state (or 0) with its sequences in the order of the rows."""
        out[...] = 0 if state is None else state if self.order is None else state[self.order]

    def unsort(self, state: np.ndarray, out: np.ndarray) -> None:
        out[slice(None) if self.order is None else self.order] = state


def carve(scratch: np.ndarray | None, plan: dict[str, tuple[int, ...]], dtype: np.dtype) -> dict[str, np.ndarray]:
    """The arrays of `plan` one after the other in `scratch`, the first from the first cache line on that begins in
    it."""
    scratch = np.empty(0, np.uint8) if scratch is None else scratch  # an empty batch needs none
    arrays, at = {}, -scratch.__array_interface__["data"][0] % _ALIGNMENT
    for name, shape in plan.items():
        nbytes = math.prod(shape) * dtype.itemsize
        arrays[name] = scratch[at : at + nbytes].view(dtype).reshape(shape)
        at += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return arrays


def unrolled(tape: np.ndarray, problem: RecurrentProblem) -> dict[str, np.ndarray]:
    """The arrays that lie on a tape."""
    arrays, at = {}, 0
    for name, shape in problem.tape().items():
        arrays[name] = tape[at : at + math.prod(shape)].reshape(shape)
        at += math.prod(shape)
    return arrays


def workspace(plan: dict[str, tuple[int, ...]], dtype: np.dtype) -> int:
    """Bytes that `carve` needs."""
    needed = sum(-(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT for shape in plan.values())
    return needed + _ALIGNMENT - 1 if needed else 0


# --- forward ----------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What all loops of one call share. `memory` is the carved scratch, `states` are h0 and, for an LSTM, c0."""

    problem: RecurrentProblem
    packing: Packing
    memory: dict[str, np.ndarray]
    weights: Any
    states: tuple[np.ndarray | None, ...]
    seed: int = 0
    offset: int = 0

    def backwards(self, k: int) -> bool:
        """Whether the entry `k` of the weights runs from the last time step to the first."""
        return self.problem.reverse or k % self.problem.directions == 1

    def columns(self, k: int) -> slice:
        """The features of the entry `k` within the output of its layer."""
        d, P = k % self.problem.directions, self.problem.state
        return slice(d * P, (d + 1) * P)

    def entries(self, number: int) -> range:
        """The entries of the weights of layer `number`."""
        return range(number * self.problem.directions, (number + 1) * self.problem.directions)

    def tape(self, number: int) -> Tape:
        """That of a layer: [direction][row][element]."""
        memory = self.memory
        return Tape(
            memory[f"gates{number}"], memory[f"h{number}"], memory.get(f"c{number}"), memory.get(f"extra{number}")
        )

    def slopes(self, number: int) -> Tape:
        """The tape of a layer with the places of the arrays that its gradient changes: in scratch memory where the tape
        is the caller's."""
        given = self.tape(number)
        return given._replace(
            gates=self.memory.get("slopes", given.gates), extra=self.memory.get("extra_slopes", given.extra)
        )


def run_layer(
    run: Run, number: int, x: np.ndarray, y: np.ndarray, finals: tuple[np.ndarray, ...], taped: bool = False
) -> None:
    """One layer over the rows `x` into the rows `y`; the last states go to `finals` (empty where they are not
    wanted)."""
    for k in run.entries(number):
        state = _first_state(run, k)
        tape = run.tape(number).of(k % run.problem.directions, run.packing.rows) if taped else None
        _run_direction(run, layer(run.problem, run.weights[k]), x, y[:, run.columns(k)], state, run.backwards(k), tape)
        for last, final in zip(state, finals, strict=False):
            run.packing.unsort(last, final[k])  # type: ignore[arg-type]


def _first_state(run: Run, k: int) -> tuple[np.ndarray, np.ndarray | None]:
    """h and c before the first step, in the scratch."""
    state = [run.memory[name] for name in ("h", "c") if name in run.memory]
    for given, own in zip(run.states, state, strict=True):
        run.packing.sort(None if given is None else given[k], own)
    return state[0], state[1] if len(state) == 2 else None


def _run_direction(
    run: Run,
    w: Layer,
    x: np.ndarray,
    y: np.ndarray,
    state: tuple[np.ndarray, np.ndarray | None],
    backwards: bool,
    tape: Tape | None,
) -> None:
    """All time steps of one direction; the state is changed in place."""
    forward, starts, (h, c) = CELLS[w.cell.kind].forward, run.packing.starts, state
    for steps in run.packing.blocks(backwards):
        low, high = run.packing.span(steps)
        gates = run.memory["gates"][: high - low] if tape is None else tape.gates[low:high]
        spread(x[low:high], w.w_ih.T, gates)
        if w.bias is not None:
            gates += w.bias
        for t in steps:
            start, stop = starts[t], starts[t + 1]
            h_t, c_t = h[: stop - start], None if c is None else c[: stop - start]
            row = None if tape is None else _remember(tape.rows(start, stop), h_t, c_t)
            forward(w, gates[start - low : stop - low], h_t, c_t, row)
            y[start:stop] = h_t


def _remember(row: Tape, h: np.ndarray, c: np.ndarray | None) -> Tape:
    row.h[...] = h
    if c is not None:
        row.c[...] = c
    return row


def drop(run: Run, number: int, rows: np.ndarray) -> None:
    """Dropout behind layer `number`, or its gradient, in place.

    The random number of an element has its flat index among the outputs T N width of all layers: no memory order, no
    lengths and no blocking changes the mask."""
    problem, packing = run.problem, run.packing
    if not problem.dropout:
        return
    size = problem.batch * problem.width
    base = run.offset + number * problem.steps * size
    scale = 1 / (1 - problem.dropout) if problem.dropout < 1 else 0.0
    for steps in packing.blocks():
        keep = bernoulli_keep(run.seed, base + steps[0] * size, len(steps) * size, problem.dropout)
        for t, keep_t in zip(steps, keep.reshape(len(steps), problem.batch, problem.width), strict=True):
            start, stop = packing.starts[t], packing.starts[t + 1]
            rows[start:stop] *= keep_t if packing.order is None else keep_t[packing.order[: stop - start]]
    rows[: packing.rows] *= scale


# --- backward ---------------------------------------------------------------------------------------------------------


@dataclass
class Gradients:
    """Where the gradients of weights (by entry; of none where they are not wanted) and states go, and the incoming ones
    of the last states (or None)."""

    weights: list[RNNWeights]
    states: tuple[np.ndarray | None, ...]
    finals: tuple[np.ndarray | None, ...]


def run_layer_backward(
    run: Run, number: int, x: Any, dy: np.ndarray, dx: np.ndarray | None, gradients: Gradients
) -> None:
    """The gradients of one layer from those of its output rows `dy`; `dx` receives those of its input rows `x`, if they
    are wanted."""
    slopes = run.slopes(number)
    for kept, changed in zip(run.tape(number), slopes, strict=True):
        if changed is not kept:
            changed[...] = kept
    for k in run.entries(number):
        w, tape = layer(run.problem, run.weights[k]), slopes.of(k % run.problem.directions, run.packing.rows)
        if w.peephole is not None:
            w.gradient = np.zeros(w.peephole.shape)
        _run_direction_backward(run, w, tape, dy[:, run.columns(k)], k, gradients)
        if run.problem.of_weights:
            _weight_gradients(w, tape, x, dy[:, run.columns(k)], gradients.weights[k])
        if dx is not None:
            input_gradient(w, tape, dx, k % run.problem.directions > 0)


def input_gradient(w: Layer, tape: Tape, dx: np.ndarray, add: bool) -> None:
    """The gradient of rows of the input, or one direction's part of it."""
    for rows in _row_blocks(tape.gates):
        spread(tape.gates[rows], w.w_ih, dx[rows], partial(multiply, add=add))


def _row_blocks(gates: np.ndarray) -> Iterator[slice]:
    step = max(1, _BLOCK // max(1, gates.shape[1]))
    return (slice(k, k + step) for k in range(0, len(gates), step))


def _run_direction_backward(run: Run, w: Layer, tape: Tape, dy: np.ndarray, k: int, gradients: Gradients) -> None:
    """All time steps in the order opposite to the forward's; the rows of `dy` become the whole gradient of their
    states."""
    backward, starts = CELLS[w.cell.kind].backward, run.packing.starts
    own = [run.memory[name] for name in ("dh", "dc") if name in run.memory]
    for given, state in zip(gradients.finals, own, strict=True):
        run.packing.sort(None if given is None else given[k], state)
    dh, dc = own[0], own[1] if len(own) == 2 else None
    for steps in run.packing.blocks(not run.backwards(k)):
        for t in steps:
            start, stop = starts[t], starts[t + 1]
            dh_t = dh[: stop - start]
            dh_t += dy[start:stop]
            dy[start:stop] = dh_t
            backward(w, tape.rows(start, stop), dh_t, None if dc is None else dc[: stop - start])
    for state, out in zip(own, gradients.states, strict=True):
        if out is not None:
            run.packing.unsort(state, out[k])


def _weight_gradients(w: Layer, tape: Tape, x: np.ndarray, dh: np.ndarray, out: RNNWeights) -> None:
    """One matrix product over all time steps for each of the weights."""
    for product in weight_products(w, tape, x, out):
        sum_up(*product)
    if out.w_hr is not None:
        spread(dh.T, tape.extra, out.w_hr, whole)
    if out.peephole is not None:
        out.peephole[...] = w.gradient


def weight_products(w: Layer, tape: Tape, x: np.ndarray, out: RNNWeights) -> list[tuple[Any, ...]]:
    """(gradient of sums, what was multiplied, where the gradient of the weight goes, and those of biases), all rows of
    each."""
    products = CELLS[w.cell.kind].products(w, tape)
    same = all(left is tape.gates for _, left, _ in products)  # for both biases: they are summed up once
    biases = (out.b_ih, out.b_hh) if same else (out.b_ih,)
    found: list[tuple[Any, ...]] = [(tape.gates, x, out.w_ih, [b for b in biases if b is not None])]
    for rows, left, right in products:
        found.append((left, right, out.w_hh[rows], [] if same or out.b_hh is None else [out.b_hh[rows]]))
    return found


def sum_up(left: np.ndarray, right: np.ndarray, weight: np.ndarray, biases: list[np.ndarray]) -> None:
    """One of `weight_products`."""
    spread(left.T, right, weight)
    for i, bias in enumerate(biases):
        if i:
            bias[...] = biases[0]
        else:
            of_rows(left, bias)


# --- both -------------------------------------------------------------------------------------------------------------


class Layers(NamedTuple):
    """How the layers of a network run: what takes the part of `run_layer` and of `run_layer_backward`, and whether that
    keeps the gradient it is given."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    keeps: bool = False


BY_STEPS = Layers(run_layer, run_layer_backward)
