"""The last pass of ``channels``, which applies the coefficients of each channel; by itself the algorithm
``channel_apply`` of given statistics."""

from __future__ import annotations

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, InArithmetic, Out
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_launches import Launches, layout, side_of
from dnnarray._cuda.norm.shared import NOTHING, AnyType, Flag, Pointer, orders, wide
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_THREADS = 128
_SIDE = 128  # threads beside each other along the channels, at the most: rows as long as they can be
_BLOCKS = (
    132 * 128,
    132 * 64,
    132 * 32,
)  # blocks, channels last: of float and wider; of half types, and of their gradients
_ROWS = 32  # bytes of a column for whose rows a thread keeps its coefficients, at the most
_BATCH, _WIDE_BATCH = 3, 4  # vectors of each array that a thread has under way, channels last: of half types, of others


@frozen
class ChannelApplyConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_apply.cu``."""

    element: str
    activation: str
    gradient: bool
    last: bool
    given: bool
    fixed: bool
    residual: bool
    more: bool
    settled: bool
    plain: bool
    straddle: int
    wide: bool
    vector: int
    side: int
    batch: int
    threads: int


@frozen(kw_only=True)
class ChannelApplyArguments(Arguments, restrict=("x", "grad", "residual", "mean", "variance", "weight", "bias")):
    """What ``kernels/norm/channel_apply.cu`` is called with: coefficients from the launches before, or statistics and
    parameters as they were given."""

    x: In
    grad: In
    residual: In
    mean: AnyType
    variance: AnyType
    weight: AnyType
    bias: AnyType
    coefficients: InArithmetic
    slopes: InArithmetic
    out: Out
    more: Out
    wide_mean: Flag
    wide_variance: Flag
    wide_weight: Flag
    wide_bias: Flag
    size: Extent
    batch: Extent
    channels: Extent
    inner: Extent
    rows_step: Extent
    steps: Extent
    inner_divisor: Extent
    instances_divisor: Extent
    eps: Double
    p: Double
    q: Double


def _kernel(
    c: Launches, gradient: bool, residual: bool, more: bool, given: bool, settled: bool
) -> tuple[Kernel, ChannelApplyConfig]:
    v, specs, x = c.view, c.specs, c.x
    activation = formula(None, x.dtype) if settled else c.formula
    vector = vector_length(x.dtype, c.aligned, *(v.channels,) * v.last)
    config = ChannelApplyConfig(
        TYPES[x.dtype],
        activation.type,
        gradient,
        v.last,
        given,
        gradient and specs.variance is not None,
        residual,
        more,
        settled,
        plain=not given or all(s is None or wide(s, x) for s in (specs.mean, specs.variance, specs.weight, specs.bias)),
        straddle=0 if v.last or v.inner % vector == 0 else 1 if v.inner >= vector else 2,
        wide=x.size >= 1 << 31 and not v.last,
        vector=vector,
        side=side_of(v, vector, _SIDE) if v.last else 1,
        batch=1 if not v.last else _BATCH - (gradient and residual) if x.dtype.itemsize == 2 else _WIDE_BATCH,
        threads=_THREADS,
    )
    words = {
        "backward": gradient,
        "given": given,
        "fixed": config.fixed,
        "residual": residual,
        "more": more,
        "settled": settled,
        "mixed": not config.plain,
        "wide": config.wide,
        f"straddle{config.straddle}": config.straddle > 0,
    }
    name = "_".join([*(w for w, on in words.items() if on), layout(v, config.side)])
    symbol = f"norm_channel_apply_{name}_{SHORT[x.dtype]}x{vector}_{activation.name}"
    return Kernel("norm/channel_apply.cu", symbol, config, ("core/activation",)), config


def channel_apply(
    c: Launches, gradient: bool, out: Pointer, more: Pointer = None, given: bool = False, settled: Pointer = None
) -> Plan:
    """The last pass; with `given` straight from the statistics among the inputs, with `settled`, the gradient before
    the activation, from that."""
    v, g, specs, x = c.view, c.given, c.specs, c.x
    residual = g.residual if not gradient or (c.problem.activation and not settled) else None
    kernel, config = _kernel(c, gradient, bool(residual), bool(more), given, bool(settled))
    steps, tiles = _THREADS // config.side, blocks_of(v.channels // config.vector, config.side)
    wanted = _BLOCKS[0 if x.dtype.itemsize > 2 else 1 + gradient]
    each = min(
        max(blocks_of(v.inner * v.batch * tiles, steps * wanted), config.batch), _ROWS * (4 // x.dtype.itemsize or 1)
    )
    rows = each * steps
    blocks = tiles * blocks_of(v.inner, rows) * v.batch if v.last else blocks_of(v.size, _THREADS * config.vector)
    mean, variance, weight, bias = (g.mean, g.variance, g.weight, g.bias) if given else (None,) * 4
    arguments = ChannelApplyArguments(
        x=g.x,
        grad=settled or g.grad,
        residual=residual,
        coefficients=None if given else c.coefficients,
        slopes=None if given else c.slopes,
        out=out,
        more=more,
        mean=mean,
        variance=variance,
        weight=weight,
        bias=bias,
        wide_mean=wide(specs.mean, x),
        wide_variance=wide(specs.variance, x),
        wide_weight=wide(specs.weight, x),
        wide_bias=wide(specs.bias, x),
        size=v.size,
        batch=v.batch,
        channels=v.channels,
        inner=v.inner,
        rows_step=rows,
        steps=blocks_of(v.inner, rows),
        inner_divisor=divisor(v.inner),
        instances_divisor=divisor(v.instances),
        eps=float(c.problem.eps),
        p=c.formula.p,
        q=c.formula.q,
    )
    return planned(kernel, (blocks, 1, 1), _THREADS, arguments, early=not given)


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """The result from given statistics, in one launch."""
    c = Launches(problem, aligned)
    if not c.view.size:
        return NOTHING
    return Program((channel_apply(c, False, c.arrays.outputs[0], given=True),), orders(problem, c.x))
