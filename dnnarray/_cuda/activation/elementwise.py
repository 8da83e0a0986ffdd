"""The algorithm ``elementwise``: a formula, or its gradient, over the flat memory of the arrays."""

from __future__ import annotations

from dnnarray._cuda.activation.shared import NOTHING
from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.common.formula import Formula, formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._problems.activation import ElementwiseProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec


@frozen
class ElementwiseConfig(Config):
    """Compile-time settings of ``kernels/activation/elementwise.cu``."""

    element: str
    activation: str
    gradient: bool
    vector: int
    threads: int


@frozen
class ElementwiseArguments(Arguments, restrict=True):
    """What ``kernels/activation/elementwise.cu`` is called with; `grad` is absent in a forward, `x` is the result where
    the gradient goes by that."""

    grad: In
    x: In
    y: Out
    size: Extent
    p: Double
    q: Double


def elementwise(f: Formula, spec: Spec, aligned: bool, grad: Array | None, x: Array, y: Array) -> Plan:
    """y = f(x), or the gradient in front of the activation, f'(x) grad, of arrays that lie alike."""
    dtype, vector = spec.dtype, vector_length(spec.dtype, aligned)
    config = ElementwiseConfig(TYPES[dtype], f.type, grad is not None, vector, THREADS)
    name = f"{f.name}_elementwise_{'forward' if grad is None else 'backward'}_{SHORT[dtype]}x{vector}"
    kernel = Kernel("activation/elementwise.cu", name, config, ("core/activation",))
    arguments = ElementwiseArguments(grad, x, y, size=spec.size, p=f.p, q=f.q)
    return planned(kernel, (blocks_of(spec.size, THREADS * vector), 1, 1), THREADS, arguments)


def run(problem: ElementwiseProblem, device: Device, aligned: bool) -> Program:
    spec = problem.result
    if spec.size == 0:
        return NOTHING
    planner = Planner(problem, aligned)
    *grad, x = [array for array in planner.inputs if array is not None]
    f = formula(problem.activation, spec.dtype, problem.by_result)
    planner.add(ahead_if_small(elementwise(f, spec, aligned, grad[0] if grad else None, x, planner.outputs[0])))
    return planner.program(tuple(order_of(spec) if read else None for read in problem.reads))
