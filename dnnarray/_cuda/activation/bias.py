"""The algorithm ``bias``: a bias, a residual and an activation in one pass."""

from __future__ import annotations

from dnnarray._cuda.activation.shared import NOTHING, result
from dnnarray._cuda.common.channels import THREADS, View, channel_mode, view
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Channels, Double, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._problems.activation import BiasActivationProblem
from dnnarray._records import frozen
from dnnarray._select import Device


@frozen
class BiasConfig(Config):
    """Compile-time settings of ``kernels/activation/bias.cu``."""

    element: str
    activation: str
    residual: bool
    channel: int
    vector: int
    threads: int


@frozen
class BiasArguments(Arguments, restrict=True):
    """What ``kernels/activation/bias.cu`` is called with."""

    x: In
    bias: In
    residual: In
    y: Out
    size: Extent
    view: Channels
    p: Double
    q: Double


def by_channel(problem: BiasActivationProblem) -> View:
    """x seen by channels. The gradient of the residual alone is in the memory order of x too, until it is brought to
    its own."""
    x = result(problem)
    v = view(x.shape, order_of(x), [a for a in range(x.ndim) if a not in problem.others])
    assert v is not None
    return v


def run(problem: BiasActivationProblem, device: Device, aligned: bool) -> Program:
    x = result(problem)
    if x.size == 0:
        return NOTHING
    planner, f, dtype, vector = (
        Planner(problem, aligned),
        formula(problem.activation, x.dtype),
        x.dtype,
        vector_length(x.dtype, aligned),
    )
    size, *channels = by_channel(problem).sizes
    mode, with_residual = channel_mode(by_channel(problem), vector), problem.inputs[2] is not None
    name = f"bias_{f.name}{'_residual' * with_residual}_{SHORT[dtype]}x{vector}_channel{mode}"
    config = BiasConfig(TYPES[dtype], f.type, with_residual, mode, vector, THREADS)
    kernel = Kernel("activation/bias.cu", name, config, ("core/activation", "core/channels"))
    x_in, bias, residual = planner.inputs
    arguments = BiasArguments(x_in, bias, residual, planner.outputs[0], size=size, view=channels, p=f.p, q=f.q)
    planner.launch(kernel, (blocks_of(size, THREADS * vector), 1, 1), THREADS, arguments)
    order = order_of(x)
    return planner.program((order, (0,), order) if with_residual else (order, (0,)))
