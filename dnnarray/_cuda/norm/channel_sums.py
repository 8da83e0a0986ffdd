"""Sums over parts of x for each channel, or of its gradient, or of both."""

from __future__ import annotations

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, InArithmetic, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_launches import COEFFICIENTS, Launches, layout, side_of
from dnnarray._cuda.norm.shared import Flag, Pointer, SharesOut
from dnnarray._records import frozen

_THREADS = 256  # of a block; half as many where sums are many or parts small
_SIDE = 32  # threads beside each other along the channels, at the most


@frozen
class ChannelSumsConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_sums.cu``."""

    element: str
    activation: str
    gradient: bool
    both: bool
    residual: bool
    more: bool
    last: bool
    vector: int
    side: int
    threads: int


@frozen(kw_only=True)
class ChannelSumsArguments(Arguments, restrict=True):
    """What ``kernels/norm/channel_sums.cu`` is called with: `more` takes the gradient before the activation, `partial`
    the sums of x, `gradients` those of the gradient; means are `mean_step` numbers apart in `coefficients`."""

    x: In
    grad: In
    residual: In
    coefficients: InArithmetic
    more: Out
    partial: SharesOut
    gradients: SharesOut
    outer: Extent
    channels: Extent
    inner: Extent
    outer_step: Extent
    inner_step: Extent
    inner_parts: Extent
    members: Extent
    mean_step: Extent
    per_batch: Flag
    p: Double
    q: Double


def channel_sums(c: Launches, gradient: bool, both: bool = False, more: Pointer = None) -> Plan:
    """Sums of x, or of the gradient, or of both; `more` takes the gradient before the activation."""
    v, s, x = c.view, c.split, c.x
    vector = vector_length(x.dtype, c.aligned, v.channels if v.last else v.inner)
    part = s.inner_step if v.last else s.outer_step * s.inner_step
    threads = _THREADS // 2 if gradient or v.per_batch else _THREADS
    while threads > 32 and not v.last and part // vector < threads:
        threads //= 2
    side = side_of(v, vector, min(_SIDE, threads)) if v.last else 1
    activation = c.formula if gradient else formula(None, x.dtype)
    residual = c.given.residual if gradient and c.problem.activation else None
    settings = (gradient, both, bool(residual), bool(more), v.last, vector, side, threads)
    words = {"both": both, "backward": gradient and not both, "residual": residual, "more": more}
    name = (
        f"{''.join(f'{w}_' for w, on in words.items() if on)}{layout(v, side)}_{SHORT[x.dtype]}x{vector}"
        f"_{threads}_{activation.name}"
    )
    config = ChannelSumsConfig(TYPES[x.dtype], activation.type, *settings)
    kernel = Kernel("norm/channel_sums.cu", f"norm_channel_sums_{name}", config, ("core/activation",))
    tiles = blocks_of(v.channels // vector, side) if v.last else v.channels
    means = c.given.mean if c.direct else c.coefficients
    arguments = ChannelSumsArguments(
        x=c.given.x,
        grad=c.given.grad if gradient else None,
        residual=residual,
        coefficients=means if gradient else None,
        more=more,
        partial=c.partial,
        gradients=c.partial_gradient,
        outer=v.outer,
        channels=v.channels,
        inner=v.inner,
        outer_step=s.outer_step,
        inner_step=s.inner_step,
        inner_parts=s.inner_parts,
        members=v.channels // v.groups,
        mean_step=1 if c.direct else COEFFICIENTS,
        per_batch=int(v.per_batch),
        p=c.formula.p,
        q=c.formula.q,
    )
    return planned(kernel, (s.parts * tiles, 1, 1), threads, arguments, early=gradient)
