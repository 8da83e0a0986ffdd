"""The algorithm ``gated``: a gated linear unit, or its gradients, in one pass."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.activation.shared import NOTHING, result
from dnnarray._cuda.common.channels import THREADS, lies, too_scattered, whole_lines
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._problems.activation import GatedProblem
from dnnarray._problems.base import leaves
from dnnarray._records import frozen
from dnnarray._select import Device


@frozen
class GatedConfig(Config):
    """Compile-time settings of ``kernels/activation/gated.cu``."""

    element: str
    activation: str
    of_gate: bool
    of_x: bool
    rows: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class GatedArguments(Arguments, restrict=True):
    """What ``kernels/activation/gated.cu`` is called with: `y` in a forward; `grad`, `dgate` and `dx` in a gradient."""

    grad: In = None
    gate: In = None
    x: In = None
    y: Out = None
    dgate: Out = None
    dx: Out = None
    size: Extent
    row: Extent
    pitch: Extent


def _launch(planner: Planner, problem: GatedProblem, arguments: GatedArguments) -> None:
    dtype = problem.inputs[0].dtype
    f, rows = formula(problem.activation, dtype), arguments.pitch != arguments.row
    vector = vector_length(dtype, planner.aligned, arguments.row)
    of_gate, of_x = arguments.dgate is not None, arguments.dx is not None
    gradients = {
        (False, False): "forward",
        (True, True): "backward",
        (True, False): "backward_gate",
        (False, True): "backward_x",
    }
    name = f"{f.name}_gated_{gradients[of_gate, of_x]}_{'rows_' * rows}{SHORT[dtype]}x{vector}"
    config = GatedConfig(TYPES[dtype], f.type, of_gate, of_x, rows, vector, THREADS)
    kernel = Kernel("activation/gated.cu", name, config, ("core/activation",))
    planner.launch(kernel, (blocks_of(arguments.size, THREADS * vector), 1, 1), THREADS, arguments)


def _halves(problem: GatedProblem, aligned: bool) -> Program:
    """The gate and x are the halves of one array: two rows side by side for each index of the slower axes."""
    x, axis = leaves(problem.inputs)[-1], problem.axis
    order = order_of(x)
    if x.size == 0 or axis is None:
        return NOTHING
    planner = Planner(problem, aligned)
    row = math.prod(x.shape[a] for a in order[order.index(axis) :]) // 2
    sizes: dict[str, Any] = {"size": x.size // 2, "row": row, "pitch": 2 * row}
    *grad, both = (Operand(a, x.dtype) for a in planner.inputs)
    out = Operand(planner.outputs[0], x.dtype)
    if grad:
        arrays: dict[str, Any] = {
            "grad": grad[0].array,
            "x": both.array,
            "gate": both.at(row),
            "dx": out.array,
            "dgate": out.at(row),
        }
    else:
        arrays = {"x": both.array, "gate": both.at(row), "y": out.array}
    _launch(planner, problem, GatedArguments(**arrays, **sizes))
    return planner.program((order,) * len(problem.inputs))


def run(problem: GatedProblem, device: Device, aligned: bool) -> Program:
    """Of two arrays the gradient is in the memory order of x; that of the gate is brought to its own order where it has
    another."""
    if problem.op.startswith("glu"):
        return _halves(problem, aligned)
    backward = problem.op.endswith("_backward")
    x = result(problem, 1 if backward else 0)
    if x.size == 0:
        return NOTHING
    planner, order = Planner(problem, aligned), order_of(x)
    sizes: dict[str, Any] = {"size": x.size, "row": x.size, "pitch": x.size}
    if not backward:
        gate_in, x_in = planner.inputs
        _launch(planner, problem, GatedArguments(gate=gate_in, x=x_in, y=planner.outputs[0], **sizes))
        return planner.program((order,) * 2)
    (grad, gate_in, x_in), (dgate, dx), gate = planner.inputs, planner.outputs, result(problem)
    turned = dgate is not None and not lies(gate, order)
    target = planner.take(gate.dtype, gate.size).array if turned else dgate
    _launch(planner, problem, GatedArguments(grad=grad, gate=gate_in, x=x_in, dgate=target, dx=dx, **sizes))
    if turned:
        planner.add(reorder(gate, order, target, dgate))
    return planner.program((order,) * 3)


def workspace(problem: GatedProblem) -> int:
    gate, x = result(problem), result(problem, 1)
    return 0 if problem.outputs[0] is None or lies(gate, order_of(x)) else whole_lines(gate.nbytes)


def rejects(problem: GatedProblem, device: Device) -> str | None:
    gate, x = result(problem), result(problem, 1)
    return None if problem.outputs[0] is None else too_scattered(x.shape, order_of(gate), order_of(x))
