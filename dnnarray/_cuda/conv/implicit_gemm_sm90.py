"""Convolution of half types whose windows threads gather into shared memory, products by wgmma."""

from __future__ import annotations

import math

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv import tiling
from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, ResultOut, conv_axes, pixel_strides
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, Extents, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_THREADS = 384
_CHUNK = 8  # elements of a half type in 16 bytes


@frozen
class ImplicitConfig(Config):
    """Compile-time settings of ``kernels/conv/implicit_gemm_sm90.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    tile_m: int
    tile_n: int
    stages: int
    transposed: bool


@frozen
class ImplicitGemmSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_gemm_sm90.cu`` is called with; channels, columns and the strides of x are counted in
    chunks."""

    x: In
    weight: In
    bias: In
    residual: In
    y: ResultOut
    rows: Extent
    channels: Int
    total: Int
    tiles_m: Extent
    tiles_n: Extent
    groups: Extent
    outs: Int
    w_group: Extent
    w_row: Extent
    window_strides: Extents
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes
    p: Double
    q: Double


def implicit_gemm_sm90(
    g: Geometry, x: Operand, w: Operand, y: Operand, e: Epilogue, units: int, transposed: bool
) -> Plan:
    """One correlation; a `transposed` weight lies as the gradient of the input meets it."""
    tile, f, rows = tiling.choose(g, units).tile, formula(e.activation, x.dtype), g.n * g.pixels
    config = ImplicitConfig(
        TYPES[x.dtype], TYPES[y.dtype], f.type, e.bias is not None, e.residual is not None, *tile.settings, transposed
    )
    words = ["conv_implicit_gemm_sm90", SHORT[x.dtype], "to", SHORT[y.dtype], tile.name, e.name] + [
        "transposed"
    ] * transposed
    kernel = Kernel("conv/implicit_gemm_sm90.cu", "_".join(words), config, ("core/activation", "conv/geometry"))
    tiles, (w_row, _, *window) = tiling.counts(g, rows, tile), w.strides
    arguments = ImplicitGemmSm90Arguments(
        x.array,
        w.array,
        e.bias,
        e.residual,
        y.array,
        rows=rows,
        channels=g.c // _CHUNK,
        total=g.taps * g.c // _CHUNK,
        tiles_m=tiles[0],
        tiles_n=tiles[1],
        groups=tiles[2],
        outs=g.k,
        w_group=w_row * (g.c if transposed else g.k),
        w_row=w_row,
        window_strides=window,
        x_strides=[s // _CHUNK for s in pixel_strides(x.strides)],
        y_strides=pixel_strides(y.strides),
        axes=conv_axes(g),
        p=f.p,
        q=f.q,
    )
    return planned(kernel, (min(math.prod(tiles), units), 1, 1), _THREADS, arguments, shared_memory=tile.shared_memory)
