"""The algorithm ``channel_block``: batch, group and instance norm of small arrays, with a statistic in the registers of
a block."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int, Out, OutArithmetic
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.norm.blocks import BlockConfig, begun, cost, launched, rejects_of, workspace
from dnnarray._cuda.norm.channel_view import operands, shares, specs_of, view_of
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Arrays, Flag, wide_bits
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["cost", "rejects", "run", "workspace"]


@frozen
class ChannelBlockConfig(BlockConfig):
    """Compile-time settings of ``kernels/norm/channel_block.cu`` and ``channel_block_cluster.cu``."""


@frozen(kw_only=True)
class ChannelBlockArguments(Arguments, restrict=("x", "y", "residual")):
    """What ``kernels/norm/channel_block.cu`` is called with; `wide` has a bit for each of weight, bias, running mean
    and variance. What is read by few comes last."""

    x: In
    y: Out
    residual: In
    weight: AnyType
    bias: AnyType
    mean_of: OutArithmetic
    rstd_of: OutArithmetic
    vectors: Int
    each: Int
    each_divisor: Extent
    pitch: Int
    span: Int
    wide: Flag
    members: Int
    share: Double
    eps: Double
    running_mean: AnyType
    running_var: AnyType
    next_mean: AnyTypeOut
    next_var: AnyTypeOut
    count: Double
    momentum: Double
    p: Double
    q: Double


def rejects(problem: NormProblem, device: Device) -> str | None:
    return rejects_of(problem, device, cluster=False)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    return launch(problem, device, aligned, "channel_block", ChannelBlockArguments)


def launch(
    problem: NormProblem, device: Device, aligned: bool, stem: str, record: type[ChannelBlockArguments]
) -> Program:
    """The launch of the kernel for a block, or of that for a cluster."""
    specs, arrays = specs_of(problem), Arrays(problem)
    g, begin, found = operands(problem, arrays.inputs), begun(problem, device, aligned), view_of(problem)
    y, mean, rstd, next_mean, next_var = (*arrays.outputs, None, None, None, None)[:5]
    arguments = record(
        **begin.arguments,
        x=g.x,
        y=y,
        residual=g.residual,
        weight=g.weight,
        bias=g.bias,
        mean_of=mean,
        rstd_of=rstd,
        wide=wide_bits(specs.x, specs.weight, specs.bias, specs.running_mean, specs.running_var),
        running_mean=g.running_mean,
        running_var=g.running_var,
        next_mean=next_mean,
        next_var=next_var,
        count=shares(problem)[0],
        momentum=float(problem.momentum),
    )
    return launched(problem, stem, begin, ChannelBlockConfig(*begin.settings), arguments, found.batch)
