"""The algorithm ``prelu``: a slope of each channel for negative elements, in one pass."""

from __future__ import annotations

from dnnarray._cuda.activation.shared import NOTHING, result
from dnnarray._cuda.common.channels import THREADS, View, channel_mode, too_scattered, view
from dnnarray._cuda.core.arguments import Arguments, Channels, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._problems.activation import PReLUProblem
from dnnarray._records import frozen
from dnnarray._select import Device


@frozen
class PReLUConfig(Config):
    """Compile-time settings of ``kernels/activation/prelu.cu``."""

    element: str
    channel: int
    vector: int
    threads: int


@frozen
class PReLUArguments(Arguments, restrict=True):
    """What ``kernels/activation/prelu.cu`` is called with."""

    x: In
    weight: In
    y: Out
    size: Extent
    view: Channels


def by_channel(problem: PReLUProblem) -> View | None:
    """x seen by the channels that the weight has slopes for, or None where they do not lie beside each other."""
    x = result(problem)
    return view(x.shape, order_of(x), [a for a in range(x.ndim) if a not in problem.shared])


def slope_order(problem: PReLUProblem) -> tuple[int, ...]:
    """The axes of the weight in the order in which the axes of x that they belong to lie in memory."""
    x, weight = result(problem), problem.inputs[-1]
    if weight.ndim <= 1:
        return tuple(range(weight.ndim))
    first, order = x.ndim - weight.ndim, order_of(x)
    return tuple(a - first for a in order if a >= first) if first >= 0 else tuple(range(weight.ndim))


def rejects(problem: PReLUProblem, device: Device) -> str | None:
    if by_channel(problem) is None:
        return (
            f"the weight repeats along an axis of x between two along which it does not, {problem.slope_shape} "
            "in memory"
        )
    weight = problem.inputs[-1]
    return too_scattered(weight.shape, order_of(weight), slope_order(problem))


def run(problem: PReLUProblem, device: Device, aligned: bool) -> Program:
    x, v = result(problem), by_channel(problem)
    assert v is not None
    if x.size == 0:
        return NOTHING
    planner, vector, (size, *channels) = Planner(problem, aligned), vector_length(x.dtype, aligned), v.sizes
    (x_in, weight), mode = planner.inputs, channel_mode(v, vector)
    config = PReLUConfig(TYPES[x.dtype], mode, vector, THREADS)
    kernel = Kernel("activation/prelu.cu", f"prelu_{SHORT[x.dtype]}x{vector}_channel{mode}", config, ("core/channels",))
    arguments = PReLUArguments(x_in, weight, planner.outputs[0], size=size, view=channels)
    planner.add(ahead_if_small(planned(kernel, (blocks_of(size, THREADS * vector), 1, 1), THREADS, arguments)))
    return planner.program((order_of(x), slope_order(problem)))
