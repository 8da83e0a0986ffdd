"""The algorithm ``bias_backward``: all gradients of a bias, a residual and an activation in one pass, then the second
stage of the sums for the bias."""

from __future__ import annotations

from dnnarray._cuda.activation.bias import by_channel
from dnnarray._cuda.activation.shared import NOTHING, result
from dnnarray._cuda.common.channels import THREADS, SumsArguments, lies, partial_bytes, sums, too_scattered, whole_lines
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.common.reorder import reorder
from dnnarray._cuda.core.arguments import Double, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems.activation import BiasActivationProblem
from dnnarray._problems.base import leaves
from dnnarray._records import frozen
from dnnarray._select import Device


@frozen
class BiasBackwardConfig(Config):
    """Compile-time settings of ``kernels/activation/bias_backward.cu``."""

    element: str
    activation: str
    residual: bool
    columns: int
    vector: int
    threads: int


@frozen
class BiasBackwardArguments(SumsArguments, restrict=True):
    """What ``kernels/activation/bias_backward.cu`` is called with; `dx` and `dresidual` are absent where they are not
    wanted."""

    grad: In
    x: In
    bias: In
    residual: In
    dx: Out
    dresidual: Out
    partial: OutArithmetic
    p: Double
    q: Double


def run(problem: BiasActivationProblem, device: Device, aligned: bool) -> Program:
    x, dresidual_spec = result(problem), problem.outputs[2]
    if result(problem, 1).size == 0:
        return NOTHING
    planner, f, dtype, order = Planner(problem, aligned), formula(problem.activation, x.dtype), x.dtype, order_of(x)
    (grad, x_in, bias, residual), (dx, dbias, dresidual) = planner.inputs, planner.outputs
    s = sums(by_channel(problem), dtype, aligned)
    partial = planner.take(arithmetic_of(dtype), s.view.channels * s.parts).array
    turned = dresidual_spec is not None and not lies(
        dresidual_spec, order
    )  # then it is dx, brought to the order of the residual
    if turned and dx is None:
        dx = planner.take(dtype, x.size).array
    read = residual is not None
    name = f"bias_backward_{f.name}{'_residual' * read}_{SHORT[dtype]}x{s.vector}_{s.name}"
    config = BiasBackwardConfig(TYPES[dtype], f.type, read, s.columns, s.vector, THREADS)
    arguments = BiasBackwardArguments(
        grad=grad,
        x=x_in,
        bias=bias,
        residual=residual,
        dx=dx,
        dresidual=None if turned else dresidual,
        partial=partial,
        p=f.p,
        q=f.q,
        **s.arguments,
    )
    planner.launch(
        Kernel("activation/bias_backward.cu", name, config, ("core/activation",)), (s.blocks, 1, 1), THREADS, arguments
    )
    if dbias is not None:
        planner.add(add_parts(partial, dbias, dtype, s.view.channels, s.parts))
    if dresidual_spec is not None and turned:
        planner.add(reorder(dresidual_spec, order, dx, dresidual))
    return planner.program((order, order, (0,), order)[: len(leaves(problem.inputs))])


def workspace(problem: BiasActivationProblem) -> int:
    x, _, residual = problem.outputs
    beside = x is None and residual is not None and not lies(residual, order_of(result(problem)))
    return partial_bytes(by_channel(problem), result(problem).dtype) + (
        whole_lines(result(problem).nbytes) if beside else 0
    )


def rejects(problem: BiasActivationProblem, device: Device) -> str | None:
    x, residual = result(problem), problem.outputs[2]
    return None if residual is None else too_scattered(x.shape, order_of(residual), order_of(x))
