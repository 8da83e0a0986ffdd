"""The algorithm ``prelu_backward``: both gradients in one pass, then the second stage of the sums for the weight."""

from __future__ import annotations

from dnnarray._cuda.activation.prelu import by_channel, rejects, slope_order
from dnnarray._cuda.activation.shared import NOTHING, result
from dnnarray._cuda.common.channels import THREADS, SumsArguments, lies, partial_bytes, sums, whole_lines
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.arguments import In, Out, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems.activation import PReLUProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["rejects", "run", "workspace"]


@frozen
class PReLUBackwardConfig(Config):
    """Compile-time settings of ``kernels/activation/prelu_backward.cu``."""

    element: str
    columns: int
    vector: int
    threads: int


@frozen
class PReLUBackwardArguments(SumsArguments, restrict=True):
    """What ``kernels/activation/prelu_backward.cu`` is called with; `dx` is absent where only the sums are wanted."""

    grad: In
    x: In
    weight: In
    dx: Out
    partial: OutArithmetic


def run(problem: PReLUProblem, device: Device, aligned: bool) -> Program:
    x, weight, v = result(problem), result(problem, 1), by_channel(problem)
    assert v is not None
    if weight.size == 0:
        return NOTHING
    planner, dtype, order, slope = Planner(problem, aligned), x.dtype, order_of(x), slope_order(problem)
    (grad, x_in, weight_in), (dx, dweight), s = planner.inputs, planner.outputs, sums(v, dtype, aligned)
    partial = planner.take(arithmetic_of(dtype), s.view.channels * s.parts).array
    config = PReLUBackwardConfig(TYPES[dtype], s.columns, s.vector, THREADS)
    kernel = Kernel("activation/prelu_backward.cu", f"prelu_backward_{SHORT[dtype]}x{s.vector}_{s.name}", config)
    arguments = PReLUBackwardArguments(grad=grad, x=x_in, weight=weight_in, dx=dx, partial=partial, **s.arguments)
    planner.launch(kernel, (s.blocks, 1, 1), THREADS, arguments)
    if dweight is not None:
        turned = not lies(weight, slope)
        target = planner.take(dtype, weight.size).array if turned else dweight
        planner.add(add_parts(partial, target, dtype, s.view.channels, s.parts))
        if turned:
            planner.add(reorder(weight, slope, target, dweight))
    return planner.program((order, order, slope))


def workspace(problem: PReLUProblem) -> int:
    x, weight, v = result(problem), result(problem, 1), by_channel(problem)
    assert v is not None
    turned = problem.outputs[1] is not None and not lies(weight, slope_order(problem))
    return partial_bytes(v, x.dtype) + (whole_lines(weight.nbytes) if turned else 0)
