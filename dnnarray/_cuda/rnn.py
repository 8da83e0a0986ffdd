"""Recurrent networks and their single steps: plans.

Two ways through the time steps, each with the products over all steps at once by cuBLAS: ``persistent``, one launch for a layer, and ``steps``,
a product and a kernel for each step. With TF32 in the products, where float32 may be rounded, they are methods of their own.
"""

from __future__ import annotations

import math
from functools import partial

from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.rnn_layers import backward, forward
from dnnarray._cuda.rnn_network import Network
from dnnarray._cuda.rnn_persistent import best_tile, persistent, rejects
from dnnarray._cuda.rnn_steps import STEPS
from dnnarray._problems.rnn import GATES, RecurrentProblem
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT16, FLOAT32, HALF

_EFFICIENCY = 0.5  # products with few rows
_STEP_LAUNCHES = 5  # the time of a step, a product and a kernel that wait for each other, in launches
_UNITS = {"highest": {8: "float64", 4: "float32", 2: "bfloat16_mma"}, "high": {4: "tf32_mma"}}


def _itemsize(problem: RecurrentProblem) -> int:
    return problem.x.dtype.itemsize


def _halves(problem: RecurrentProblem) -> bool:
    """Whether what goes into a layer stays in half types: its parts are of their range, but for float16 behind a relu."""
    cell, dtype = problem.cell, problem.x.dtype
    return dtype in HALF and not (cell.kind == "rnn" and cell.activation == "relu" and dtype == FLOAT16)


def _refuses(precision: str, problem: RecurrentProblem) -> str | None:
    """What no algorithm of this precision takes."""
    if problem.taped:
        return "it keeps no tape: the gradient runs the forward again"
    if precision == "high" and problem.x.dtype != FLOAT32:
        return "TF32 is for float32"
    return None


# --- step by step -----------------------------------------------------------------------------------------------------


def _run_steps(back: bool, precision: str, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    return Program(tuple((backward if back else forward)(Network(problem, back), STEPS, precision)))


def _cost_steps(back: bool, precision: str, problem: RecurrentProblem, device: Device) -> Cost:
    launches = problem.steps * problem.layers * problem.passes * _STEP_LAUNCHES
    return Cost(problem.flops, problem.bytes, _EFFICIENCY, launches, _UNITS[precision].get(max(4, _itemsize(problem))))


# --- in one launch ----------------------------------------------------------------------------------------------------


def _run_persistent(back: bool, precision: str, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    network = Network(problem, back, _halves(problem))
    return Program(tuple((backward if back else forward)(network, persistent(device), precision)))


def _rejects_persistent(precision: str, problem: RecurrentProblem, device: Device) -> str | None:
    return _refuses(precision, problem) or rejects(problem, device, precision)


def _workspace(halves: bool, back: bool, problem: RecurrentProblem) -> int:
    return Network(problem, back, halves and _halves(problem)).size


def _cost_persistent(back: bool, precision: str, problem: RecurrentProblem, device: Device) -> Cost:
    tiles = [best_tile(problem, device, direction, precision) for direction in (False, True)[: 1 + back]]
    seconds = sum(math.inf if t is None else t.seconds * problem.steps * problem.layers for t in tiles)
    return Cost(problem.flops, problem.bytes, _EFFICIENCY, math.ceil(seconds / device.launch), _UNITS[precision].get(_itemsize(problem)))


# --- table ------------------------------------------------------------------------------------------------------------


def _steps(back: bool, precision: str, name: str) -> Method:
    return Method(
        name, partial(_run_steps, back, precision), "a matrix product and a kernel for each time step",
        lambda problem, device: _refuses(precision, problem), partial(_workspace, False, back),
        partial(_cost_steps, back, precision), precision=precision,
    )  # fmt: skip


def _persistent(back: bool, precision: str, name: str) -> Method:
    return Method(
        name, partial(_run_persistent, back, precision), "all time steps of a layer in one launch",
        partial(_rejects_persistent, precision), partial(_workspace, True, back), partial(_cost_persistent, back, precision),
        precision=precision,
    )  # fmt: skip


def _methods(back: bool, sequence: bool) -> tuple[Method, ...]:
    steps = _steps(back, "highest", "steps"), _steps(back, "high", "steps_tf32")
    return (_persistent(back, "highest", "persistent"), _persistent(back, "high", "persistent_tf32"), *steps) if sequence else steps


ALGORITHMS: dict[str, tuple[Method, ...]] = {}
for _kind in GATES:
    for _name in (_kind, f"{_kind}_cell"):
        ALGORITHMS[_name] = _methods(False, _name == _kind)
        ALGORITHMS[f"{_name}_backward"] = _methods(True, _name == _kind)
