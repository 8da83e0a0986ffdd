"""The algorithm ``channel_tile_backward``: gradients of batch norm of half types by saved statistics, with whole
channels in the registers of a block."""

from __future__ import annotations

from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of, divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.norm.channel_tile import VECTOR, columns_of, rejects, tile_of
from dnnarray._cuda.norm.channel_view import operands, shares, specs_of, view_of
from dnnarray._cuda.norm.shared import AnyType, AnyTypeOut, Arrays, Flag, orders, wide_bits
from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen
from dnnarray._select import Device

__all__ = ["rejects", "run"]


@frozen
class ChannelTileBackwardConfig(Config):
    """Compile-time settings of ``kernels/norm/channel_tile_backward.cu``."""

    element: str
    vector: int
    vectors: int
    threads: int


@frozen(kw_only=True)
class ChannelTileBackwardArguments(Arguments, restrict=("grad", "x", "dx")):
    """What ``kernels/norm/channel_tile_backward.cu`` is called with; `wide` has a bit for each of weight, bias, mean
    and rstd."""

    grad: In
    x: In
    dx: Out
    weight: AnyType
    mean_of: AnyType
    rstd_of: AnyType
    dweight: AnyTypeOut
    dbias: AnyTypeOut
    wide: Flag
    pieces: Extent
    columns: Extent
    tile: Extent
    width_of: Extent
    width_divisor: Extent
    share: Double


def run(problem: NormProblem, device: Device, aligned: bool) -> Program:
    """One launch."""
    specs, arrays, c = specs_of(problem), Arrays(problem), columns_of(view_of(problem))
    x, g, how = specs.x, operands(problem, arrays.inputs), tile_of(c, True)
    assert how is not None
    name = (
        f"norm_channel_tile_backward_{SHORT[x.dtype]}x{VECTOR}x{how.vectors}x{how.threads}"
        f"_{formula(problem.activation, x.dtype).name}"
    )
    dx, dweight, dbias = (*arrays.outputs, None)[:3]
    arguments = ChannelTileBackwardArguments(
        grad=g.grad,
        x=g.x,
        dx=dx,
        weight=g.weight,
        mean_of=g.mean,
        rstd_of=g.rstd,
        dweight=dweight,
        dbias=dbias,
        wide=wide_bits(x, specs.weight, specs.bias, specs.mean, specs.rstd),
        pieces=c.pieces,
        columns=c.total,
        tile=how.columns,
        width_of=c.width,
        width_divisor=divisor(c.width),
        share=shares(problem)[1],
    )
    config = ChannelTileBackwardConfig(TYPES[x.dtype], VECTOR, how.vectors, how.threads)
    kernel = Kernel("norm/channel_tile_backward.cu", name, config, ("core/activation",))
    plan = planned(kernel, (blocks_of(c.total, how.columns), 1, 1), how.threads, arguments)
    return Program((plan,), orders(problem, x))
