"""Recurrent networks: rnn, gru, lstm and their single steps: the problems."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from dnnarray._errors import ArrayTypeError, OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem, leaves
from dnnarray._problems.rnn_results import (
    CellGradients,
    HiddenOutput,
    LSTMCellGradients,
    LSTMGradients,
    LSTMState,
    RNNGradients,
    RNNOutput,
    TapedHiddenOutput,
    TapedRNNOutput,
)
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, HALF, Spec

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


class RNNWeights(NamedTuple):
    """Weights of one layer and direction of a recurrent network.

    With I input features, H hidden units, P = H (or the extent of the projection) and G gates: 1 for `rnn`, 3 for `gru`
    in the order r z n, 4 for `lstm` in the order i f g o, as in PyTorch.

    Parameters
    ----------
    w_ih : array (G*H, I)
        From the input to the gates.
    w_hh : array (G*H, P)
        From the state to the gates.
    b_ih, b_hh : array (G*H,), optional
        The two biases; they differ only for a `gru` with ``linear_before_reset=True``.
    w_hr : array (P, H), optional
        Projection of the LSTM's output and state.
    peephole : array (3, H), optional
        LSTM weights from the cell state to the gates, in the order i f o.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> w = dnn.RNNWeights(np.ones((5, 3)), np.ones((5, 5)))
    >>> w.b_ih is None
    True
    """

    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None
    w_hr: Any = None
    peephole: Any = None


@frozen
class Cell:
    """One step of a recurrent network: its kind and its options."""

    kind: str
    activation: str = "tanh"
    linear_before_reset: bool = True
    clip: float | None = None


@frozen(kw_only=True)
class RecurrentProblem(Problem):
    """`layers` times `directions` cells over a sequence; a single step is a sequence of length 1.

    `state` is the extent of h, `hidden` that of c and of each gate: they differ with a projection. `taped` says that
    the forward returns what the backward wants of it, or that the backward is given it. `gradients` are the fields of a
    backward's result."""

    cell: Cell
    steps: int
    batch: int
    features: int
    hidden: int
    state: int
    layers: int = 1
    directions: int = 1
    reverse: bool = False
    batch_first: bool = False
    packed: bool = False
    dropout: float = 0.0
    projected: bool = False
    has_cell_state: bool = False
    dtype: Any = FLOAT32
    taped: bool = False
    gradients: tuple[str, ...] = ()

    @property
    def needs_seed(self) -> bool:
        return self.dropout > 0

    @property
    def width(self) -> int:
        """Features of the output: the states of all directions side by side."""
        return self.directions * self.state

    @property
    def x(self) -> Spec:
        """The input of the first layer."""
        spec: Spec = self.inputs[1 if self.gradients else 0]
        return spec

    @property
    def of_weights(self) -> bool:
        """Whether the gradients of weights are wanted."""
        return any(
            spec is not None for field, spec in zip(self.fields, self.outputs, strict=True) if field == "weights"
        )

    @property
    def passes(self) -> int:
        """How often the products of the forward are done: once more without a tape, once on the way back, once for the
        weights' gradients."""
        return (not self.taped) + 1 + self.of_weights if self.gradients else 1

    @property
    def unread(self) -> frozenset[int]:
        """A tape holds what the forward made of the first states, and of x where the gradients of the weights do not
        ask for that itself."""
        if not (self.gradients and self.taped):
            return frozenset()
        states = range(3, len(self.inputs) - 2)
        return frozenset(states if self.of_weights else (1, *states))

    @property
    def flops(self) -> int:
        inputs = self.features + (self.layers - 1) * self.width + self.layers * self.state
        per_row = inputs * GATES[self.cell.kind] * self.hidden
        per_row += self.layers * self.state * self.hidden if self.projected else 0
        unwanted = (
            self.features * GATES[self.cell.kind] * self.hidden if self.gradients and self.outputs[0] is None else 0
        )
        return 2 * self.steps * self.batch * self.directions * (self.passes * per_row - unwanted)

    def tape(self) -> dict[str, tuple[int, ...]]:
        """The arrays that a tape holds one after the other, by name and number of the layer; a row for each step of
        each sequence.

        Of each direction: the activated gates, the states before the step, and what else the cell's gradient takes
        (`Tape` of the CPU engine says what). Then the output of each layer but the last."""
        rows, extents = self.steps * self.batch, {"gates": GATES[self.cell.kind] * self.hidden, "h": self.state}
        extents |= {"c": self.hidden} if self.has_cell_state else {}
        extents |= {"extra": self.hidden} if self.cell.kind != "rnn" else {}
        plan: dict[str, tuple[int, ...]] = {}
        for number in range(self.layers):
            plan |= {f"{name}{number}": (self.directions, rows, extent) for name, extent in extents.items()}
        return plan | {f"y{number}": (rows, self.width) for number in range(self.layers - 1)}

    @property
    def fields(self) -> tuple[str, ...]:
        """Of a gradient, whose weights are one field of the result and outputs of their own."""
        if not self.gradients:
            return super().fields
        x, weights, *states = self.gradients
        return (x, *(weights,) * (len(self.outputs) - 1 - len(states)), *states)

    @property
    def tape_spec(self) -> Spec:
        """The tape as one array."""
        return Spec((sum(map(math.prod, self.tape().values())),), self.dtype)


# --- weights ----------------------------------------------------------------------------------------------------------


def _entries(op: str, weights: Any, directions: int) -> tuple[RNNWeights, ...]:
    """The list of weights, each entry as `RNNWeights`, their number checked."""
    each = "an RNNWeights for each layer and direction"
    if isinstance(weights, Spec):
        fail(ArrayTypeError, op, "weights", "an array", f"a list: {each}")
    if isinstance(weights, RNNWeights) or any(isinstance(w, Spec) for w in weights):
        fail(
            ArrayTypeError, op, "weights", "the arrays of one RNNWeights", f"a list: {each}", "Write [RNNWeights(...)]."
        )
    if not weights or len(weights) % directions:
        expected = f"{each}: " + (
            "an even number of them, forward and reversed in turn" if directions == 2 else "one or more"
        )
        fail(ShapeError, op, "weights", f"of length {len(weights)}", expected)
    return tuple(_entry(op, f"weights[{k}]", w) for k, w in enumerate(weights))


def _entry(op: str, name: str, value: Any) -> RNNWeights:
    """One `RNNWeights`; a plain tuple of the same arrays will do."""
    arrays = isinstance(value, (tuple, list)) and all(w is None or isinstance(w, Spec) for w in value)
    if not arrays or not 2 <= len(value) <= len(RNNWeights._fields) or value[0] is None or value[1] is None:
        got = (
            "None"
            if value is None
            else "an array"
            if isinstance(value, Spec)
            else f"of length {len(value)}, None or nested"
        )
        fail(ArrayTypeError, op, name, got, "an RNNWeights with w_ih, w_hh and up to 4 optional arrays")
    return RNNWeights(*value)


def _label(k: int, directions: int) -> str:
    """Layer and direction of the entry `k`, for messages."""
    return f"layer {k // directions}" + (", reversed" if k % directions else ", forward" if directions == 2 else "")


def _named(prefix: str, label: str, entry: RNNWeights) -> Iterator[tuple[str, str, Spec]]:
    """(field, name in messages, spec) of each array of an entry."""
    for field, spec in zip(RNNWeights._fields, entry, strict=True):
        if spec is not None:
            yield field, f"{prefix}.{field}" + (f" ({label})" if label else ""), spec


def _extents(op: str, kind: str, prefix: str, entry: RNNWeights) -> tuple[int, int]:
    """(H, P) of an entry: from the rows of w_hh and from the projection."""
    gates = GATES[kind]
    for name, spec in ((f"{prefix}.w_ih", entry.w_ih), (f"{prefix}.w_hh", entry.w_hh)):
        checks.rank(op, name, spec, 2, "gates * hidden, inputs")
    rows = entry.w_hh.shape[0]
    if rows % gates:
        fail(
            ShapeError,
            op,
            f"{prefix}.w_hh",
            f"of shape {entry.w_hh.shape}",
            f"a multiple of {gates} rows ({gates} gates times H)",
        )
    hidden = rows // gates
    if entry.w_hr is None:
        return hidden, hidden
    checks.rank(op, f"{prefix}.w_hr", entry.w_hr, 2, "P H")
    return hidden, entry.w_hr.shape[0]


def _check_entry(
    op: str, kind: str, prefix: str, label: str, entry: RNNWeights, inputs: int, hidden: int, state: int
) -> None:
    """The arrays of an entry have the shapes that I = `inputs`, H = `hidden` and P = `state` ask for."""
    gates = GATES[kind]
    wanted = {
        "w_ih": ((gates * hidden, inputs), f"{gates}*H I"),
        "w_hh": ((gates * hidden, state), f"{gates}*H " + ("H" if entry.w_hr is None else "P")),
        "b_ih": ((gates * hidden,), f"{gates}*H"),
        "b_hh": ((gates * hidden,), f"{gates}*H"),
        "w_hr": ((state, hidden), "P H"),
        "peephole": ((3, hidden), "3 H"),
    }
    for field, name, spec in _named(prefix, label, entry):
        if kind != "lstm" and field in ("w_hr", "peephole"):
            fail(OptionError, op, name, "an array", "None", "Only lstm has projections and peepholes.")
        checks.shape(op, name, spec, *wanted[field])


def _check_same_projection(op: str, entries: Sequence[RNNWeights], directions: int) -> None:
    """All layers have a projection or none has."""
    for k, entry in enumerate(entries):
        if (entry.w_hr is None) != (entries[0].w_hr is None):
            got, expected = ("None", "an array (P H)") if entry.w_hr is None else ("an array", "None")
            fail(ShapeError, op, f"weights[{k}].w_hr ({_label(k, directions)})", got, f"{expected}, as in weights[0]")


def _check_dtypes(
    op: str, x: Spec, prefixes: Sequence[str], entries: Sequence[RNNWeights], **states: Spec | None
) -> None:
    named = {name: spec for p, e in zip(prefixes, entries, strict=True) for _, name, spec in _named(p, "", e)}
    checks.same_dtype(op, x=x, **named, **states)


# --- options ----------------------------------------------------------------------------------------------------------


def _rnn_cell(op: str, activation: Any) -> Cell:
    return Cell("rnn", activation=checks.choice(op, "activation", activation, ("tanh", "relu")))


def _gru_cell(op: str, linear_before_reset: Any) -> Cell:
    return Cell("gru", linear_before_reset=checks.boolean(op, "linear_before_reset", linear_before_reset))


def _lstm_cell(op: str, cell_clip: Any) -> Cell:
    return Cell("lstm", clip=None if cell_clip is None else checks.number(op, "cell_clip", cell_clip, above=0))


# kind -> the check of the options that only this kind has
_CELLS: dict[str, Callable[..., Cell]] = {"rnn": _rnn_cell, "gru": _gru_cell, "lstm": _lstm_cell}


def _directions(op: str, bidirectional: Any, reverse: Any) -> tuple[int, bool]:
    both, reverse = checks.boolean(op, "bidirectional", bidirectional), checks.boolean(op, "reverse", reverse)
    if both and reverse:
        fail(OptionError, op, "reverse", "True", "False with bidirectional=True", "Both directions run anyway.")
    return (2 if both else 1), reverse


# --- sequences --------------------------------------------------------------------------------------------------------


def _sequence(
    kind: str,
    op: str,
    x: Spec,
    weights: Any,
    *rest: Spec | None,
    bidirectional: Any,
    reverse: Any,
    dropout: Any,
    layout: Any,
    return_tape: Any,
    **options: Any,
) -> RecurrentProblem:
    """The problem of `rnn`, `gru` or `lstm`; `rest` is h0, c0 (lstm only) and lengths."""
    states, lengths = dict(zip(("h0", "c0"), rest[:-1], strict=False)), rest[-1]
    cell = _CELLS[kind](op, **options)
    directions, reverse = _directions(op, bidirectional, reverse)
    dropout = checks.number(op, "dropout", dropout, 0, 1)
    batch_first = checks.choice(op, "layout", layout, ("TNC", "NTC")) == "NTC"
    entries = _entries(op, weights, directions)
    prefixes = [f"weights[{k}]" for k in range(len(entries))]
    _check_dtypes(op, x, prefixes, entries, **states)
    checks.rank(op, "x", x, 3, "N T I" if batch_first else "T N I")
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    layers = len(entries) // directions
    hidden, state = _extents(op, kind, prefixes[0], entries[0])
    _check_same_projection(op, entries, directions)
    for k, entry in enumerate(entries):
        inputs = x.shape[2] if k < directions else directions * state
        _check_entry(op, kind, prefixes[k], _label(k, directions), entry, inputs, hidden, state)
    shapes = {"h0": (len(entries), batch, state), "c0": (len(entries), batch, hidden)}
    _check_states(op, states, shapes, "layers*directions N H")
    if lengths is not None:
        checks.integers(op, "lengths", lengths)
        checks.shape(op, "lengths", lengths, (batch,), "N")
    y = x.like((*x.shape[:2], directions * state))
    finals = tuple(Spec(shapes[name], x.dtype) for name in states)
    problem = RecurrentProblem(
        op=op,
        inputs=(x, weights, *rest),
        outputs=(y, *finals),
        returns=RNNOutput if kind == "lstm" else HiddenOutput,
        cell=cell,
        steps=steps,
        batch=batch,
        features=x.shape[2],
        hidden=hidden,
        state=state,
        layers=layers,
        directions=directions,
        reverse=reverse,
        batch_first=batch_first,
        packed=lengths is not None,
        dropout=dropout if layers > 1 else 0.0,
        projected=entries[0].w_hr is not None,
        has_cell_state=kind == "lstm",
        dtype=FLOAT32 if x.dtype in HALF else x.dtype,
    )
    return _with_tape(problem) if checks.boolean(op, "return_tape", return_tape) else problem


def _with_tape(problem: RecurrentProblem) -> RecurrentProblem:
    """A forward that returns its tape as well."""
    result = TapedRNNOutput if problem.has_cell_state else TapedHiddenOutput
    return replace(problem, outputs=(*problem.outputs, problem.tape_spec), returns=result, taped=True)


def _check_array(op: str, name: str, spec: Any) -> None:
    if not isinstance(spec, Spec):
        fail(ArrayTypeError, op, name, "None" if spec is None else f"a {type(spec).__name__}", "an array")


def _check_states(op: str, states: dict[str, Spec | None], shapes: Mapping[str, tuple[int, ...]], axes: str) -> None:
    for name, spec in states.items():
        if spec is not None:
            checks.shape(op, name, spec, shapes[name], axes)


def _sequence_backward(
    kind: str, op: str, grad: Any, x: Spec, weights: Any, *arrays: Spec | None, return_tape: Any, **options: Any
) -> RecurrentProblem:
    *rest, tape = arrays
    checks.boolean(op, "return_tape", return_tape)
    forward = _sequence(kind, op, x, weights, *rest, return_tape=False, **options)
    if tape is not None:
        checks.tape(op, tape, forward.tape_spec)
    _check_gradients(op, grad, forward.outputs, ("y", "h", "c"))
    kept = [None if w is None else w.like() for entry in weights for w in RNNWeights(*entry)]
    states = [None if s is None else s.like() for s in rest[:-1]]
    result = LSTMGradients if kind == "lstm" else RNNGradients
    return replace(
        forward,
        inputs=(grad, *forward.inputs, tape),
        outputs=(x.like(), *kept, *states),
        returns=partial(_grouped, result, len(weights)),
        gradients=result._fields,
        taped=tape is not None,
    )


def _check_gradients(op: str, grad: Any, outputs: Sequence[Spec | None], names: Sequence[str]) -> None:
    """One gradient, of the first result, or a tuple with one for each, None where there is none."""
    if not isinstance(grad, (tuple, list)):
        _check_array(op, "grad", grad)
        checks.gradient(op, grad, outputs[0])
        return
    expected = "an array, or a tuple (" + ", ".join(names[: len(outputs)]) + ") of arrays and None, one array at least"
    if len(grad) > len(outputs) or all(g is None for g in grad):
        fail(
            ArrayTypeError,
            op,
            "grad",
            "a tuple of None" if len(grad) <= len(outputs) else f"a tuple of {len(grad)}",
            expected,
        )
    for name, g, output in zip(names, grad, outputs, strict=False):
        if g is not None:
            _check_array(op, f"grad.{name}", g)
            checks.gradient(op, g, output, f"grad.{name}")


def _grouped(result: Callable[..., Any], count: int, x: Any, *flat: Any) -> Any:
    """The flat gradients as (x, tuple of `count` weights, states...); None for the weights where they have none."""
    fields = len(RNNWeights._fields)
    weights = tuple(RNNWeights(*flat[k * fields : (k + 1) * fields]) for k in range(count))
    return result(x, weights if leaves(weights) else None, *flat[count * fields :])


def sequence(kind: str) -> Callable[..., RecurrentProblem]:
    """The builder for `rnn`, `gru` or `lstm`."""
    return partial(_sequence, kind)


def sequence_backward(kind: str) -> Callable[..., RecurrentProblem]:
    """The builder for the gradient of `rnn`, `gru` or `lstm`."""
    return partial(_sequence_backward, kind)


def check_lengths(problem: RecurrentProblem, *arrays: Any) -> None:
    """The lengths, the last array of a forward, lie within the sequence."""
    lengths = arrays[-1]
    if lengths is None or not lengths.size:
        return
    low, high = int(lengths.min()), int(lengths.max())
    if low < 0 or high > problem.steps:
        got = f"from {low} to {high}"
        fail(OptionError, problem.op, "lengths", got, f"from 0 to {problem.steps}, the number of time steps of x")


def check_lengths_backward(problem: RecurrentProblem, *arrays: Any) -> None:
    """`check_lengths` for the gradient, whose last array is the tape."""
    check_lengths(problem, *arrays[:-1])


# --- single steps -----------------------------------------------------------------------------------------------------


def _step(kind: str, op: str, x: Spec, weights: Any, *states: Spec, **options: Any) -> RecurrentProblem:
    """The problem of `rnn_cell`, `gru_cell` or `lstm_cell`; `states` is h and, for an LSTM, c."""
    cell = _CELLS[kind](op, **options)
    named: dict[str, Any] = dict(zip(("h", "c"), states, strict=False))
    entry = _entry(op, "weights", weights)
    _check_dtypes(op, x, ["weights"], [entry], **named)
    checks.rank(op, "x", x, 2, "N I")
    batch, features = x.shape
    hidden, state = _extents(op, kind, "weights", entry)
    _check_entry(op, kind, "weights", "", entry, features, hidden, state)
    _check_states(op, named, {"h": (batch, state), "c": (batch, hidden)}, "N H")
    return RecurrentProblem(
        op=op,
        inputs=(x, weights, *states),
        outputs=tuple(s.like() for s in states),
        returns=LSTMState if kind == "lstm" else None,
        cell=cell,
        steps=1,
        batch=batch,
        features=features,
        hidden=hidden,
        state=state,
        projected=entry.w_hr is not None,
        has_cell_state=kind == "lstm",
        dtype=FLOAT32 if x.dtype in HALF else x.dtype,
    )


def _step_backward(
    kind: str, op: str, grad: Any, x: Spec, weights: Any, *states: Spec, **options: Any
) -> RecurrentProblem:
    forward = _step(kind, op, x, weights, *states, **options)
    _check_gradients(op, grad, forward.outputs, ("h", "c"))
    kept = [None if w is None else w.like() for w in RNNWeights(*weights)]
    result = LSTMCellGradients if kind == "lstm" else CellGradients
    return replace(
        forward,
        inputs=(grad, *forward.inputs),
        outputs=(x.like(), *kept, *(s.like() for s in states)),
        returns=partial(_grouped_step, result),
        gradients=result._fields,
    )


def _grouped_step(result: Callable[..., Any], *flat: Any) -> Any:
    x, weights, *states = _grouped(lambda *parts: parts, 1, *flat)
    return result(x, weights and weights[0], *states)


def step(kind: str) -> Callable[..., RecurrentProblem]:
    """The builder for `rnn_cell`, `gru_cell` or `lstm_cell`."""
    return partial(_step, kind)


def step_backward(kind: str) -> Callable[..., RecurrentProblem]:
    """The builder for the gradient of `rnn_cell`, `gru_cell` or `lstm_cell`."""
    return partial(_step_backward, kind)
