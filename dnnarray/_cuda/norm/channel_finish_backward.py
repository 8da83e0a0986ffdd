"""From the sums of the parts to the coefficients of the gradient of x, and to the gradients of the parameters."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, OutArithmetic
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_launches import FINISH, Launches, lanes
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Flag, Pointer, SharesIn, wide
from dnnarray._records import frozen


@frozen
class ChannelFinishBackwardConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_finish_backward.cu``."""

    element: str
    lanes: int
    over: int


@frozen(kw_only=True)
class ChannelFinishBackwardArguments(Arguments, restrict=("x", "partial", "coefficients", "slopes")):
    """What ``kernels/norm/channel_finish_backward.cu`` is called with; `fixed` says that the statistics were given,
    `blocks` how many blocks are of statistics."""

    x: In
    partial: SharesIn
    coefficients: OutArithmetic
    slopes: OutArithmetic
    weight: AnyType
    given_mean: AnyType
    given_rstd: AnyType
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    dmean: AnyTypeOut
    dvariance: AnyTypeOut
    wide_weight: Flag
    wide_bias: Flag
    wide_mean: Flag
    wide_rstd: Flag
    wide_variance: Flag
    fixed: Flag
    last: Flag
    statistics: Extent
    parts: Extent
    channels: Extent
    members: Extent
    batch_pitch: Extent
    channel_pitch: Extent
    blocks: Extent
    share: Double


def channel_finish_backward(
    c: Launches, results: tuple[Pointer, Pointer, Pointer, Pointer], both: bool = False
) -> Plan:
    """Coefficients of the gradient of x, and `results`, the gradients of weight, bias, mean and variance that are
    wanted; `both` says what the sums are around."""
    v, g, specs, x = c.view, c.given, c.specs, c.x
    parts, members = c.parts if v.size else 0, v.channels // v.groups
    each, over = lanes(parts * members, v.statistics), lanes(parts * v.batch, v.channels)
    config = ChannelFinishBackwardConfig(TYPES[x.dtype], each, over)
    kernel = Kernel(
        "norm/channel_finish_backward.cu", f"norm_channel_finish_backward_{SHORT[x.dtype]}_{each}_{over}", config
    )
    blocks, (dweight, dbias, dmean, dvariance) = blocks_of(v.statistics, FINISH // each), results
    arguments = ChannelFinishBackwardArguments(
        x=g.x if both else None,
        partial=c.partial_gradient,
        coefficients=c.coefficients,
        slopes=c.slopes,
        weight=g.weight,
        given_mean=g.mean if c.direct else None,
        given_rstd=g.rstd if c.direct else None,
        dweight=dweight,
        dbias=dbias,
        dmean=dmean,
        dvariance=dvariance,
        wide_weight=wide(specs.weight, x),
        wide_bias=wide(specs.bias, x),
        wide_mean=wide(specs.mean, x),
        wide_rstd=wide(specs.rstd, x),
        wide_variance=wide(specs.variance, x),
        fixed=int(specs.variance is not None),
        last=int(v.last),
        statistics=v.statistics,
        parts=parts,
        channels=v.channels,
        members=members,
        batch_pitch=v.channels * v.inner,
        channel_pitch=1 if v.last else v.inner,
        blocks=blocks,
        share=c.count[1],
    )
    grid = (blocks + (blocks_of(v.channels, FINISH // over) if any(results) else 0), 1, 1)
    return planned(kernel, grid, FINISH, arguments, early=True)
