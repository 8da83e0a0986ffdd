"""Recurrent networks and their single steps: plans."""

from __future__ import annotations

from functools import partial

from dnnarray._cuda.plan import Program
from dnnarray._cuda.rnn_layers import Recurrence, backward, forward
from dnnarray._cuda.rnn_network import Network
from dnnarray._cuda.rnn_steps import STEPS
from dnnarray._problems.rnn import GATES, RecurrentProblem
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import HALF

_EFFICIENCY = 0.5  # products with few rows


def _run(recurrence: Recurrence, precision: str, back: bool, problem: RecurrentProblem, device: Device, aligned: bool) -> Program:
    network = Network(problem, back)
    launches = (backward if back else forward)(network, recurrence, precision)
    return Program(tuple(launches))


def _workspace(back: bool, problem: RecurrentProblem) -> int:
    return Network(problem, back).size


def _half(problem: RecurrentProblem, device: Device) -> str | None:
    """TF32 would round the state of a half-type network, which is float32."""
    return "the state of half types is kept in float32" if problem.outputs[0].dtype in HALF else None  # type: ignore[union-attr]


def _cost(problem: RecurrentProblem, device: Device) -> Cost:
    launches = problem.steps * problem.layers * problem.passes * 2
    return Cost(problem.flops, problem.bytes, _EFFICIENCY, launches, "float64" if problem.dtype.itemsize == 8 else "float32")


def _methods(back: bool) -> tuple[Method, ...]:
    summary = "a matrix product and a kernel for each time step"
    steps = Method("steps", partial(_run, STEPS, "highest", back), summary, workspace=partial(_workspace, back), cost=_cost)
    return (steps,)


ALGORITHMS: dict[str, tuple[Method, ...]] = {}
for _kind in GATES:
    for _name in (_kind, f"{_kind}_cell"):
        ALGORITHMS[_name] = _methods(False)
        ALGORITHMS[f"{_name}_backward"] = _methods(True)
