"""Results of convolution from the tiles that Fourier transforms leave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from dnnarray._cuda.conv.arguments import FloatIn, FloatOut
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, Float, Int, Nested
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Triple
from dnnarray._records import frozen

_THREADS = 128

ResultAxes = Annotated[Sequence[int], Nested("dnnarray::ResultAxes", "15i")]


@frozen
class FourierResultConfig(Config):
    """Compile-time settings of ``kernels/conv/fourier_result.cu``."""

    threads: int


@frozen
class FourierResultArguments(Arguments, restrict=True):
    """What ``kernels/conv/fourier_result.cu`` is called with; the strides of y are along two axes, the second of extent
    `inner`, and space."""

    source: FloatIn
    y: FloatOut
    total: Extent
    inner: Int
    y_strides: Extents
    axes: ResultAxes
    scale: Float


def fourier_result(
    source: Operand,
    y: Operand,
    rows: tuple[int, int],
    strides: tuple[int, ...],
    cut: tuple[Triple, Triple, Triple],
    extents: Triple,
    spread: Triple,
) -> Plan:
    """Results along two axes of these extents and space; `cut` are the places of a tile, the distance from tile to
    tile, and the tiles."""
    size, step, tiles = cut
    of_axes = zip(tiles, size, extents, step, spread, strict=True)
    total = math.prod(rows) * math.prod(extents)
    arguments = FourierResultArguments(
        source.array,
        y.array,
        total=total,
        inner=rows[1],
        y_strides=strides,
        axes=[number for axis in of_axes for number in axis],
        scale=1.0 / math.prod(size),
    )
    kernel = Kernel("conv/fourier_result.cu", "conv_fourier_result", FourierResultConfig(_THREADS), ("conv/fourier",))
    return planned(kernel, (-(-total // _THREADS), 1, 1), _THREADS, arguments)
