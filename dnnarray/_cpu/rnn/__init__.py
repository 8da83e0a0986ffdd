"""Recurrent networks: rnn, gru, lstm and their single steps, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, matrix_unit
from dnnarray._cpu.rnn.sequence import (
    BY_STEPS,
    Gradients,
    Layers,
    Packing,
    Run,
    block_steps,
    carve,
    drop,
    run_layer,
    unrolled,
    workspace,
)
from dnnarray._problems.rnn import GATES, RecurrentProblem, RNNWeights
from dnnarray._select import Cost, Device, Method

Plan = dict[str, tuple[int, ...]]
_FIELDS = len(RNNWeights._fields)
_STEP_CALLS = {"rnn": 6, "gru": 18, "lstm": 14}  # NumPy calls of one time step, for the estimate of the time
_GEMM_EFFICIENCY = 0.5  # the product with the state has few rows, and reads all weights for them


# --- memory -----------------------------------------------------------------------------------------------------------


def _copied(problem: RecurrentProblem, spec: Any) -> bool:
    """Whether a sequence must be copied to be rows: any but a dense one of the layout T N K without lengths."""
    return problem.packed or problem.batch_first or spec.strides is not None


def _states(problem: RecurrentProblem, *names: str) -> Plan:
    extents = (problem.state, problem.hidden)
    return {name: (problem.batch, extents[i]) for i, name in enumerate(names) if i == 0 or problem.has_cell_state}


def _forward_plan(problem: RecurrentProblem) -> Plan:
    """Scratch of the forward: the state and the input as rows; without a tape also a block of gates and up to two
    layers."""
    rows, width = problem.steps * problem.batch, problem.width
    block = min(problem.steps, block_steps(problem)) * problem.batch
    plan = _states(problem, "h", "c")
    if not problem.taped:
        plan["gates"] = (block, GATES[problem.cell.kind] * problem.hidden)
        plan |= {f"y{i}": (rows, width) for i in range(min(problem.layers - 1, 2))}
    if _copied(problem, problem.inputs[0]):
        plan["x"] = (rows, problem.features)
    if _copied(problem, problem.outputs[0]):
        plan["y"] = (rows, width)
    return plan


def _backward_plan(problem: RecurrentProblem) -> Plan:
    """Scratch of the backward: what the forward keeps, or what changes of it if that was given, and two gradients as
    rows."""
    rows = problem.steps * problem.batch
    plan = _states(problem, "dh", "dc")
    plan |= _slopes_plan(problem) if problem.taped else _states(problem, "h", "c") | problem.tape()
    plan |= {f"dy{i}": (rows, problem.width) for i in range(min(problem.layers, 2))}
    x = None if 1 in problem.unread else problem.x
    for name, spec in (("x", x), ("dx", problem.outputs[0])):
        plan |= {name: (rows, problem.features)} if spec is not None and _copied(problem, spec) else {}
    return plan


def _slopes_plan(problem: RecurrentProblem) -> Plan:
    """Where a layer's gates, and what else changes on its tape, become gradients."""
    tape = problem.tape()
    return {"slopes": tape["gates0"]} | ({"extra_slopes": tape["extra0"]} if "extra0" in tape else {})


def _side_by_side(problem: RecurrentProblem, *names: str) -> Plan:
    """States of all directions of a layer."""
    return {name: (problem.directions, *shape) for name, shape in _states(problem, *names).items()}


def by_pieces(problem: RecurrentProblem, features: int) -> bool:
    """Whether the matrix unit is faster with the products of a layer's inputs, all of its steps."""
    rows, columns = problem.steps * problem.batch, GATES[problem.cell.kind] * problem.hidden
    if not rows * features or matrix_unit.refuses(problem.dtype.name) is not None:
        return False
    return matrix_unit.product_flops(rows, columns, features) < 2.0 * rows * columns * features


def rows_at_once(problem: RecurrentProblem, taped: bool) -> int:
    """The most rows whose gates are computed from the input in one go."""
    return (problem.steps if taped else min(problem.steps, block_steps(problem))) * problem.batch


def _pieces(problem: RecurrentProblem, taped: bool) -> Plan:
    """Scratch of the matrix unit, for each direction; asked for only where Numba has compiled the layers."""
    layers = (problem.features, problem.width)[: problem.layers]
    inputs = [features for features in layers if by_pieces(problem, features)]
    if not inputs:
        return {}
    plan = import_module("dnnarray._cpu.compiled.split_product").split_plan
    columns = GATES[problem.cell.kind] * problem.hidden
    needed = max(plan(rows_at_once(problem, taped), columns, features).memory for features in inputs)
    return {"pieces": (problem.directions, -(-needed // problem.dtype.itemsize))}


def fused_forward_plan(problem: RecurrentProblem) -> Plan:
    """As `_forward_plan` for directions side by side; `fresh` is a state on its way."""
    plan = (
        _forward_plan(problem)
        | _side_by_side(problem, "h", "c")
        | _side_by_side(problem, "fresh")
        | _pieces(problem, problem.taped)
    )
    return plan if problem.taped else plan | {"gates": (problem.directions, *plan["gates"])}


def fused_backward_plan(problem: RecurrentProblem) -> Plan:
    """As `_backward_plan` for directions side by side. `both` holds the gradients that a GRU's weight meets."""
    plan = _backward_plan(problem) | _side_by_side(problem, "dh", "dc")
    if not problem.taped:
        plan |= _side_by_side(problem, "h", "c") | _side_by_side(problem, "fresh") | _pieces(problem, True)
    if problem.cell.kind == "gru":
        plan |= {"both": (problem.directions, problem.batch, GATES["gru"] * problem.hidden)}
    return plan


def _rows(run: Run, array: np.ndarray, name: str, *, copy: bool = False) -> np.ndarray:
    """The rows of a sequence: its own memory, or the scratch called `name`, filled from it where `copy`.

    A caller's own `out` in an unusual memory order has no scratch planned for it.
    """
    rows = run.packing.as_rows(array)
    if rows is not None:
        return rows
    rows = run.memory.get(name)
    if rows is None:
        rows = np.empty((run.packing.rows, array.shape[2]), array.dtype)
    rows = rows[: run.packing.rows]
    if copy:
        run.packing.gather(array, rows)
    return rows


# --- forward ----------------------------------------------------------------------------------------------------------


def forward(
    problem: RecurrentProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: np.ndarray,
    x: np.ndarray,
    weights: Any,
    *rest: np.ndarray | None,
    seed: int | None,
    offset: int,
    layers: Layers = BY_STEPS,
    plan: Callable[[RecurrentProblem], Plan] = _forward_plan,
) -> None:
    run = Run(
        problem,
        Packing(problem, rest[-1]),
        carve(scratch, plan(problem), x.dtype),
        weights,
        rest[:-1],
        seed or 0,
        offset,
    )
    y, *finals = outputs
    tape = _written_tape(run, finals.pop()) if problem.taped else None
    rows = _rows(run, x, "x", copy=True)
    for number in range(problem.layers):
        last = number == problem.layers - 1
        target = (
            _rows(run, y, "y")
            if last
            else run.memory[f"y{number if problem.taped else number % 2}"][: run.packing.rows]
        )
        layers.forward(run, number, rows, target, tuple(finals), taped=problem.taped)
        if not last:
            drop(run, number, target)
        rows = target
    if run.packing.as_rows(y) is None:
        run.packing.scatter(rows, y)
    if tape is not None and tape is not outputs[-1]:
        outputs[-1][...] = tape


def _written_tape(run: Run, given: np.ndarray) -> np.ndarray:
    """The tape, which the layers find in the memory by its parts; one beside a caller's own array whose elements are
    not in a row."""
    tape = given if given.flags.carray else np.empty_like(given, order="C", subok=False)
    if run.problem.packed:  # the rows past the ends
        tape[...] = 0
    run.memory.update(unrolled(tape, run.problem))
    return tape


def _step(
    problem: RecurrentProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: np.ndarray,
    x: np.ndarray,
    weights: Any,
    *states: np.ndarray,
) -> None:
    """A single step is a sequence of length 1 without the sequence among its results."""
    run = Run(
        problem,
        Packing(problem, None),
        carve(scratch, _step_plan(problem), x.dtype),
        (weights,),
        tuple(s[None] for s in states),
    )
    run_layer(run, 0, x, run.memory["y"], tuple(final[None] for final in outputs))


def _step_plan(problem: RecurrentProblem) -> Plan:
    gates = (problem.batch, GATES[problem.cell.kind] * problem.hidden)
    return _states(problem, "h", "c") | {"gates": gates, "y": (problem.batch, problem.state)}


# --- backward ---------------------------------------------------------------------------------------------------------


def _incoming(problem: RecurrentProblem, grad: Any, count: int) -> list[np.ndarray | None]:
    """The gradient of each result; an array alone is that of the first."""
    given = list(grad) if isinstance(grad, (tuple, list)) else [grad]
    return given + [None] * (count - len(given))


def backward(
    problem: RecurrentProblem,
    outputs: tuple[np.ndarray | None, ...],
    scratch: np.ndarray,
    grad: Any,
    x: np.ndarray,
    weights: Any,
    *arrays: np.ndarray | None,
    seed: int | None,
    offset: int,
    layers: Layers = BY_STEPS,
    plan: Callable[[RecurrentProblem], Plan] = _backward_plan,
) -> None:
    *rest, tape = arrays
    memory = carve(scratch, plan(problem), x.dtype)
    if tape is not None:
        memory |= unrolled(np.require(tape, requirements=("C", "A")), problem)
    run = Run(problem, Packing(problem, rest[-1]), memory, weights, tuple(rest[:-1]), seed or 0, offset)
    dy, *finals = _incoming(problem, grad, len(rest))
    _run_backward(run, outputs, dy, tuple(finals), x, layers)


def _run_backward(
    run: Run,
    outputs: tuple[np.ndarray | None, ...],
    dy: np.ndarray | None,
    finals: tuple[np.ndarray | None, ...],
    x: np.ndarray,
    by: Layers = BY_STEPS,
) -> None:
    """All layers back, from the last to the first, on the tape of the forward, which is run again where that was not
    given."""
    count, layers, M = len(run.weights), run.problem.layers, run.packing.rows
    taken = [RNNWeights(*outputs[1 + k * _FIELDS : 1 + (k + 1) * _FIELDS]) for k in range(count)]
    gradients = Gradients(taken, outputs[1 + count * _FIELDS :], finals)
    first = None if 1 in run.problem.unread else _rows(run, x, "x", copy=True)
    inputs: list[Any] = [first, *(run.memory[f"y{number}"][:M] for number in range(layers - 1))]
    rows = run.memory["dy0"][:M]
    for number, target in enumerate(
        [*inputs[1:], rows] if not run.problem.taped else ()
    ):  # nobody reads the last output: its memory is dy's
        by.forward(run, number, inputs[number], target, (), taped=True)
        if number < layers - 1:
            drop(run, number, target)
    given = None if dy is None or not by.keeps or not dy.flags.aligned else run.packing.as_rows(dy)
    if given is not None:
        rows = given
    elif dy is None:
        rows[...] = 0
    else:
        run.packing.gather(dy, rows)
    for number in reversed(range(1, layers)):
        below = run.memory[f"dy{(layers - number) % 2}"][:M]
        by.backward(run, number, inputs[number], rows, below, gradients)
        drop(run, number - 1, below)
        rows = below
    dx = outputs[0]
    target = None if dx is None else _rows(run, dx, "dx")
    by.backward(run, 0, inputs[0], rows, target, gradients)
    if dx is not None and target is not None and run.packing.as_rows(dx) is None:
        run.packing.scatter(target, dx)


def _step_backward(
    problem: RecurrentProblem,
    outputs: tuple[np.ndarray | None, ...],
    scratch: np.ndarray,
    grad: Any,
    x: np.ndarray,
    weights: Any,
    *states: np.ndarray,
) -> None:
    """The gradient of a single step: that of a sequence of length 1, with no gradient of the sequence."""
    memory = carve(scratch, _backward_plan(problem), x.dtype)
    run = Run(problem, Packing(problem, None), memory, (weights,), tuple(s[None] for s in states))
    lifted = tuple(a if a is None or 1 <= i <= _FIELDS else a[None] for i, a in enumerate(outputs))
    finals = tuple(None if g is None else g[None] for g in _incoming(problem, grad, len(states)))
    _run_backward(run, lifted, None, finals, x[None])


# --- table ------------------------------------------------------------------------------------------------------------


def _cost(problem: RecurrentProblem, device: Device) -> Cost:
    calls = problem.steps * problem.layers * problem.directions * problem.passes * _STEP_CALLS[problem.cell.kind]
    return Cost(problem.flops, problem.bytes, _GEMM_EFFICIENCY, calls)


def _method(run: Callable[..., None], plan: Callable[[RecurrentProblem], Plan], summary: str) -> tuple[Method, ...]:
    return (
        Method("steps", run, summary, workspace=lambda problem: workspace(plan(problem), problem.dtype), cost=_cost),
    )


_COMPILED = ("lstm", "gru")
_FUSED_EFFICIENCY = 0.8  # tiles of a few rows, whose weight comes from the third-level cache
_LAYER_CALLS, _BLOCK_CALLS = 30, 15  # NumPy calls around the compiled steps of a layer, and around those of a block


def _accepts(problem: RecurrentProblem, device: Device) -> str | None:
    """What the compiled steps leave to NumPy's."""
    entries = [
        w for group in problem.inputs if isinstance(group, (tuple, list)) for w in group if isinstance(w, RNNWeights)
    ]
    if problem.projected or any(w.peephole is not None for w in entries):
        return "it has neither projections nor peepholes"
    if problem.cell.clip is not None or not problem.cell.linear_before_reset:
        return "it has no clip and resets after the product"
    return None if problem.hidden else "it takes a hidden unit or more"


def _fused_cost(problem: RecurrentProblem, device: Device) -> Cost:
    blocks = -(-problem.steps // block_steps(problem))
    calls = problem.layers * problem.passes * (_LAYER_CALLS + blocks * _BLOCK_CALLS)
    return Cost(problem.flops, problem.bytes, _FUSED_EFFICIENCY, calls)


def _fused(op: str, plan: Callable[[RecurrentProblem], Plan], summary: str) -> tuple[Method, ...]:
    """The entry whose steps Numba compiles."""
    if op.removesuffix("_backward") not in _COMPILED:
        return ()

    def needed(problem: RecurrentProblem) -> int:
        return workspace(plan(problem), problem.dtype)

    return (
        compiled.method(
            "fused_steps",
            "rnn.layers",
            op,
            f"{summary}; directions and parts of the batch side by side",
            accepts=_accepts,
            cost=_fused_cost,
            workspace=needed,
        ),
    )


_FORWARD = "one matrix product for all inputs of a block of steps, then one for each step"
_BACKWARD = (
    "the forward again unless its tape is given, then step by step back; the weights' gradients are one "
    "product over all steps"
)
ALGORITHMS: dict[str, tuple[Method, ...]] = {}
for _kind in GATES:
    ALGORITHMS[_kind] = (*_method(forward, _forward_plan, _FORWARD), *_fused(_kind, fused_forward_plan, _FORWARD))
    ALGORITHMS[f"{_kind}_backward"] = (
        *_method(backward, _backward_plan, _BACKWARD),
        *_fused(f"{_kind}_backward", fused_backward_plan, _BACKWARD),
    )
    ALGORITHMS[f"{_kind}_cell"] = _method(_step, _step_plan, "one step of the loop over a sequence")
    ALGORITHMS[f"{_kind}_cell_backward"] = _method(_step_backward, _backward_plan, "the step again, then back")
