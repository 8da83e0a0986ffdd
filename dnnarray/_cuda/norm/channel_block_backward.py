"""The algorithm ``channel_block_backward``: gradients of batch, group and instance norm of small arrays, with a
statistic in the registers of a block."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.norm.blocks import BlockConfig, begun, cost, launched, rejects_of, share_of, workspace
from dnnarray._cuda.norm.channel_view import operands, specs_of, view_of
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Arrays, Flag, wide_bits
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["cost", "rejects", "run", "workspace"]


@frozen
class ChannelBlockBackwardConfig(BlockConfig):
    """Compile-time settings of ``kernels/norm/channel_block_backward.cu`` and ``channel_block_backward_cluster.cu``."""

    rows: int
    apart: bool


@frozen(kw_only=True)
class ChannelBlockBackwardArguments(Arguments, restrict=("grad", "x", "dx", "residual", "dresidual")):
    """What ``kernels/norm/channel_block_backward.cu`` is called with; `wide` has a bit for each of weight, bias, mean
    and rstd."""

    grad: In
    x: In
    dx: Out
    residual: In
    dresidual: Out
    weight: AnyType
    bias: AnyType
    given_mean: AnyType
    given_rstd: AnyType
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    vectors: Int
    each: Int
    each_divisor: Extent
    pitch: Int
    span: Int
    wide: Flag
    members: Int
    rows: Extent
    share: Double
    eps: Double
    p: Double
    q: Double


def rejects(problem: NormProblem, device: Device) -> str | None:
    return rejects_of(problem, device, cluster=False)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    return launch(problem, device, aligned, "channel_block_backward", ChannelBlockBackwardArguments)


def launch(
    problem: NormProblem, device: Device, aligned: bool, stem: str, record: type[ChannelBlockBackwardArguments]
) -> Program:
    """The launch of the kernel for a block, or of that for a cluster."""
    specs, arrays, found, share = (
        specs_of(problem),
        Arrays(problem),
        view_of(problem),
        share_of(problem, device, aligned),
    )
    apart = share.blocks > 1 and found.batch > 1  # a cluster shares out batch indices
    g, begin = operands(problem, arrays.inputs), begun(problem, device, aligned, "_apart" * apart)
    dx, dweight, dbias, dresidual = (*arrays.outputs, None)[:4]
    arguments = record(
        **begin.arguments,
        grad=g.grad,
        x=g.x,
        dx=dx,
        residual=g.residual if problem.activation else None,
        dresidual=dresidual,
        weight=g.weight,
        bias=g.bias,
        given_mean=g.mean,
        given_rstd=g.rstd,
        dweight=dweight,
        dbias=dbias,
        wide=wide_bits(specs.x, specs.weight, specs.bias, specs.mean, specs.rstd),
        rows=found.batch,
    )
    settings: tuple[Any, ...] = (*begin.settings, share.rows, apart)
    return launched(problem, stem, begin, ChannelBlockBackwardConfig(*settings), arguments)
