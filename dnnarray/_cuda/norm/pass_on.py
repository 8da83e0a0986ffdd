"""The algorithm ``pass_on``: where only the sum of an addition has a gradient, both terms get that one, and the
parameters get 0."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.fold import fold
from dnnarray._cuda.norm.layer import gradients, no_gradient, of_parameters, operands, specs_of
from dnnarray._cuda.norm.shared import Arrays, discarded, orders
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128


@frozen
class PassOnConfig(Config):
    """Compile-time settings of ``kernels/norm/pass_on.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class PassOnArguments(Arguments, restrict=True):
    """What ``kernels/norm/pass_on.cu`` is called with."""

    grad: In
    dx: Out
    dresidual: Out
    n: Extent


def rejects(problem: NormProblem, device: Device) -> str | None:
    return None if no_gradient(problem) else "the norm has a gradient, not the sum alone"


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    specs, arrays = specs_of(problem), Arrays(problem)
    x = specs.x
    dx, dresidual, dweight, dbias = gradients(problem, arrays)
    plans: list[Plan] = []
    if x.size and not discarded(problem):
        vector = vector_length(x.dtype, aligned)
        kernel = Kernel(
            "norm/pass_on.cu", f"norm_pass_on_{SHORT[x.dtype]}x{vector}", PassOnConfig(TYPES[x.dtype], vector, _THREADS)
        )
        arguments = PassOnArguments(operands(problem, arrays.inputs).grad_sum, dx, dresidual, x.size)
        plans.append(planned(kernel, (blocks_of(x.size, _THREADS * vector), 1, 1), _THREADS, arguments))
    columns = max((s.size for s in of_parameters(problem) if s is not None), default=0)
    if columns:
        plans.append(fold(x, (None, None), (dweight, dbias), 0, columns, (specs.weight, specs.bias)))
    return Program(tuple(plans), orders(problem, x))
