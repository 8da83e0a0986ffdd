"""Recurrent networks and their single steps: plans."""

from __future__ import annotations

import math
from functools import partial

from dnnarray._cuda.plan import Program
from dnnarray._cuda.rnn_layers import Recurrence, backward, forward
from dnnarray._cuda.rnn_network import Network
from dnnarray._cuda.rnn_persistent import best_tile, persistent, rejects
from dnnarray._cuda.rnn_steps import STEPS
from dnnarray._problems.rnn import GATES, RecurrentProblem
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT16, HALF

_EFFICIENCY = 0.5  # products with few rows


def _run(recurrence: Recurrence, precision: str, back: bool, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    network = Network(problem, back)
    launches = (backward if back else forward)(network, recurrence, precision)
    return Program(tuple(launches))


def _workspace(back: bool, problem: RecurrentProblem) -> int:
    return Network(problem, back).size


def _halves(problem: RecurrentProblem) -> bool:
    """Whether what goes into a layer stays in half types: its parts are of their range, but for float16 behind a relu."""
    cell = problem.cell
    return not (cell.kind == "rnn" and cell.activation == "relu" and problem.outputs[0].dtype == FLOAT16)  # type: ignore[union-attr]


def _run_persistent(back: bool, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    network = Network(problem, back, _halves(problem))
    launches = (backward if back else forward)(network, persistent(device), "highest")
    return Program(tuple(launches))


def _workspace_persistent(back: bool, problem: RecurrentProblem) -> int:
    return Network(problem, back, _halves(problem)).size


def _half(problem: RecurrentProblem, device: Device) -> str | None:
    """TF32 would round the state of a half-type network, which is float32."""
    return "the state of half types is kept in float32" if problem.outputs[0].dtype in HALF else None  # type: ignore[union-attr]


def _cost(problem: RecurrentProblem, device: Device) -> Cost:
    launches = problem.steps * problem.layers * problem.passes * 2
    return Cost(problem.flops, problem.bytes, _EFFICIENCY, launches, "float64" if problem.dtype.itemsize == 8 else "float32")


def _cost_persistent(problem: RecurrentProblem, device: Device) -> Cost:
    tiles = best_tile(problem, device, False), best_tile(problem, device, True)
    seconds = sum(math.inf if t is None else t.seconds * problem.steps * problem.layers for t in tiles[: 1 + (problem.passes > 1)])
    return Cost(problem.flops, problem.bytes, _EFFICIENCY, math.ceil(seconds / device.launch), "bfloat16_mma")


def _methods(back: bool, sequence: bool) -> tuple[Method, ...]:
    summary = "a matrix product and a kernel for each time step"
    steps = Method("steps", partial(_run, STEPS, "highest", back), summary, workspace=partial(_workspace, back), cost=_cost)
    if not sequence:
        return (steps,)
    resident = Method(
        "persistent", partial(_run_persistent, back), "all time steps of a layer in one launch", rejects,
        partial(_workspace_persistent, back), _cost_persistent,
    )  # fmt: skip
    return (resident, steps)


ALGORITHMS: dict[str, tuple[Method, ...]] = {}
for _kind in GATES:
    for _name in (_kind, f"{_kind}_cell"):
        ALGORITHMS[_name] = _methods(False, _name == _kind)
        ALGORITHMS[f"{_name}_backward"] = _methods(True, _name == _kind)
