"""From the sums of the parts to the coefficients of each channel, and to the statistics."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_launches import FINISH, Launches, lanes
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Flag, Pointer, SharesIn, wide
from dnnarray._records import frozen


@frozen
class ChannelFinishConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_finish.cu``."""

    element: str
    lanes: int


@frozen(kw_only=True)
class ChannelFinishArguments(Arguments, restrict=("x", "partial", "coefficients")):
    """What ``kernels/norm/channel_finish.cu`` is called with; the first value of a statistic is its batch times
    `batch_pitch` plus its channel times `channel_pitch` elements from `x`."""

    x: In
    partial: SharesIn
    coefficients: OutArithmetic
    weight: AnyType
    bias: AnyType
    given_mean: AnyType
    given_rstd: AnyType
    variance: AnyType
    running_mean: AnyType
    running_var: AnyType
    mean_of: OutArithmetic
    rstd_of_statistic: OutArithmetic
    next_mean: AnyTypeOut
    next_var: AnyTypeOut
    wide_weight: Flag
    wide_bias: Flag
    wide_mean: Flag
    wide_rstd: Flag
    wide_variance: Flag
    wide_running_mean: Flag
    wide_running_var: Flag
    last: Flag
    statistics: Extent
    parts: Extent
    channels: Extent
    members: Extent
    batch_pitch: Extent
    channel_pitch: Extent
    count: Double
    share: Double
    momentum: Double
    eps: Double


def channel_finish(c: Launches, found: bool, results: tuple[Pointer, ...] = ()) -> Plan:
    """Coefficients, and `results`: mean, rstd and the next running statistics; `found` says that the parts of x were
    summed."""
    v, g, specs, x = c.view, c.given, c.specs, c.x
    members, parts, (count, share) = v.channels // v.groups, c.parts, c.count
    each = lanes(parts * members if found else 1, v.statistics)
    kernel = Kernel(
        "norm/channel_finish.cu",
        f"norm_channel_finish_{SHORT[x.dtype]}_{each}",
        ChannelFinishConfig(TYPES[x.dtype], each),
    )
    mean, rstd, next_mean, next_var = (*results, None, None, None, None)[:4]
    arguments = ChannelFinishArguments(
        x=g.x,
        partial=c.partial if found else None,
        coefficients=c.coefficients,
        weight=g.weight,
        bias=g.bias,
        given_mean=g.mean,
        given_rstd=g.rstd,
        variance=g.variance,
        running_mean=g.running_mean,
        running_var=g.running_var,
        mean_of=mean,
        rstd_of_statistic=rstd,
        next_mean=next_mean,
        next_var=next_var,
        wide_weight=wide(specs.weight, x),
        wide_bias=wide(specs.bias, x),
        wide_mean=wide(specs.mean, x),
        wide_rstd=wide(specs.rstd, x),
        wide_variance=wide(specs.variance, x),
        wide_running_mean=wide(specs.running_mean, x),
        wide_running_var=wide(specs.running_var, x),
        last=int(v.last),
        statistics=v.statistics,
        parts=parts,
        channels=v.channels,
        members=members,
        batch_pitch=v.channels * v.inner,
        channel_pitch=1 if v.last else v.inner,
        count=count,
        share=share,
        momentum=float(c.problem.momentum),
        eps=float(c.problem.eps),
    )
    return planned(kernel, (blocks_of(v.statistics, FINISH // each), 1, 1), FINISH, arguments, early=True)
