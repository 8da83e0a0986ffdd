"""The algorithm ``channel_slab_backward``: gradients of batch, group and instance norm, with whole channels in the
shared memory of a block."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.norm.channel_slab import Launch, cost, rejects, workspace
from dnnarray._cuda.norm.fold import fold
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Flag, Pointer, orders, wide
from dnnarray._problems.checks import statistics_dtype
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["cost", "rejects", "run", "workspace"]


@frozen(kw_only=True)
class ChannelSlabBackwardArguments(Arguments, restrict=("grad", "x", "residual", "dx", "dresidual")):
    """What ``kernels/norm/channel_slab_backward.cu`` is called with."""

    grad: In
    x: In
    residual: In
    dx: Out
    dresidual: Out
    weight: AnyType
    bias: AnyType
    given_mean: AnyType
    given_rstd: AnyType
    variance: AnyType
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    dmean: AnyTypeOut
    dvariance: AnyTypeOut
    wide_weight: Flag
    wide_bias: Flag
    wide_mean: Flag
    wide_rstd: Flag
    wide_variance: Flag
    per_batch: Flag
    outer: Extent
    channels: Extent
    inner: Extent
    tile: Extent
    tiles: Extent
    members: Extent
    groups: Extent
    count: Double
    share: Double
    eps: Double
    p: Double
    q: Double


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch, and where statistics belong to a batch index one that sums over the batch."""
    launch = Launch(problem, device, aligned)
    v, g, specs, x = launch.view, launch.given, launch.specs, launch.x
    dx, *results = launch.arrays.outputs
    dmean, dvariance = (results.pop(0), results.pop(0)) if specs.variance is not None else (None, None)
    dweight, dbias, dresidual = (*results, None)[:3]
    parts: tuple[Pointer, Pointer] = (dweight, dbias)
    if v.per_batch:
        half = v.instances * statistics_dtype(x).itemsize
        parts = (launch.arrays.scratch() if dweight else None, launch.arrays.scratch(half) if dbias else None)
    arrays = {
        "grad": g.grad,
        "x": g.x,
        "residual": g.residual if problem.activation else None,
        "dx": dx,
        "dresidual": dresidual,
        "weight": g.weight,
        "bias": g.bias,
        "given_mean": g.mean,
        "given_rstd": g.rstd,
        "variance": g.variance,
        "dweight": parts[0],
        "dbias": parts[1],
        "dmean": dmean,
        "dvariance": dvariance,
        "wide_mean": wide(specs.mean, x),
        "wide_rstd": wide(specs.rstd, x),
        "wide_variance": wide(specs.variance, x),
    }
    plans = [launch.plan("channel_slab_backward", ChannelSlabBackwardArguments, arrays)]
    if v.per_batch and (dweight or dbias):
        plans.append(fold(x, parts, (dweight, dbias), v.batch, v.channels, (specs.weight, specs.bias)))
    return Program(tuple(plans), orders(problem, x))
