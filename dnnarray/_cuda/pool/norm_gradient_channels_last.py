"""The algorithm ``norm_gradient_channels_last``: norms over windows of up to 3 x 3 in channels-last memory; threads
walk down cells and hand over what they found."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry, WindowAxis, division
from dnnarray._cuda.pool.gradient import geometry_at, one_launch
from dnnarray._cuda.pool.norm_gradient import reason
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, THREADS, Division, Side
from dnnarray._problems.pool import PoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_LANES = 8  # vectors of channels of a block, 128 bytes; more where images are narrow
_WALK, _ENOUGH = 28, 528  # rows of cells that a block walks down, fewer where there would not be so many blocks


@frozen
class NormGradientChannelsLastConfig(Config):
    """Compile-time settings of ``kernels/pool/norm_gradient_channels_last.cu``."""

    element: str
    exponent: int
    window_h: int
    stride_h: int
    window_w: int
    stride_w: int
    wide: int
    threads: int


@frozen
class NormGradientChannelsLastArguments(Arguments, restrict=True):
    """What ``kernels/pool/norm_gradient_channels_last.cu`` is called with."""

    grad: In
    x: In
    dx: Out
    inner: Extent
    lanes: Division
    chunks: Division
    tiles: Division
    strips: Division
    cells: Int
    rows: Int
    h: Side
    w: Side


def plan(problem: PoolProblem, aligned: bool, g: Geometry) -> Plan:
    dtype, exponent, (_, h, w) = problem.inputs[1].dtype, int(problem.p), g.axes
    wide = vector_length(dtype, aligned, g.channels)
    inner, across, down = g.channels // wide, _cells(w), _cells(h)
    aside = (w.window - 1) // w.stride_used  # columns that a block looks at for their neighbours alone
    lanes = min(inner, max(_LANES, THREADS // (across + aside)))
    tiles, chunks = -(-across // (THREADS // lanes - aside)), -(-inner // lanes)
    blocks = g.outer * tiles * chunks
    strips = max(-(-down // _WALK), min(-(-down // 2), _ENOUGH // blocks))
    total = blocks * strips
    config = NormGradientChannelsLastConfig(
        POOL_TYPES[dtype], exponent, h.window, h.stride_used, w.window, w.stride_used, wide, THREADS
    )
    words = f"w{h.window}x{w.window}_by_{h.stride_used}x{w.stride_used}"
    symbol = f"norm_pool_norm_gradient_channels_last_{POOL_SHORT[dtype]}x{wide}_l{exponent}_{words}"
    by_chunk, by_tile, by_strip = (division(divisor, total) for divisor in (chunks, tiles, strips))
    arguments = NormGradientChannelsLastArguments(
        Array(0),
        Array(1),
        Array(2),
        inner=inner,
        lanes=division(lanes, THREADS),
        chunks=by_chunk,
        tiles=by_tile,
        strips=by_strip,
        cells=-(-across // tiles),
        rows=-(-down // strips),
        h=h.side,
        w=w.side,
    )
    kernel = Kernel("pool/norm_gradient_channels_last.cu", symbol, config, ("pool/window",))
    return planned(kernel, (total, 1, 1), THREADS, arguments)


def _cells(axis: WindowAxis) -> int:
    """Cells along an axis with elements: what lies between the first element of a window and that of the next."""
    return -(-(axis.extent + axis.before) // axis.stride_used) - axis.before // axis.stride_used


def rejects(problem: PoolProblem, device: Device) -> str | None:
    return reason(problem) or (None if geometry_at(problem).last else "memory is not channels-last")


def run(problem: PoolProblem, device: Device, aligned: bool) -> Program:
    return one_launch(problem, aligned, lambda g: plan(problem, aligned, g))
