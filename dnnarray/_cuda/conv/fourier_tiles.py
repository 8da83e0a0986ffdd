"""Planes cut into overlapping tiles for Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from dnnarray._cuda.conv.arguments import FloatIn, FloatOut
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, Int, Nested
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Triple
from dnnarray._records import frozen

_THREADS, _STEPS, _PIECES = 128, 8, 4

TileAxes = Annotated[Sequence[int], Nested("dnnarray::TileAxes", "21i")]


@frozen
class FourierTilesConfig(Config):
    """Compile-time settings of ``kernels/conv/fourier_tiles.cu``."""

    threads: int


@frozen
class FourierTilesArguments(Arguments, restrict=True):
    """What ``kernels/conv/fourier_tiles.cu`` is called with; the strides are along groups, two more axes, and space."""

    x: FloatIn
    out: FloatOut
    pieces: Extent
    parts: Int
    outers: Int
    inners: Int
    x_strides: Extents
    axes: TileAxes


def fourier_tiles(
    x: Operand,
    strides: tuple[int, ...],
    rows: Triple,
    cut: tuple[Triple, Triple, Triple],
    axes: list[tuple[int, int, int, int]],
    out: Operand,
) -> Plan:
    """Tiles of planes by their strides along groups, two more axes of these extents, and space.

    `cut` are the places of a tile, the distance from tile to tile, and the tiles; `axes` are (taken, extent, dilation,
    before)."""
    size, step, tiles = cut
    parts = -(-math.prod(size) // (_THREADS * _STEPS))
    pieces = math.prod(rows) * math.prod(tiles) * parts
    each = zip(tiles, size, step, axes, strict=True)
    of_axes = [
        (n, places, taken, apart, extent, dilation, before)
        for n, places, apart, (taken, extent, dilation, before) in each
    ]
    arguments = FourierTilesArguments(
        x.array, out.array, pieces=pieces, parts=parts, outers=rows[1], inners=rows[2], x_strides=strides,
        axes=[number for axis in of_axes for number in axis],
    )  # fmt: skip
    kernel = Kernel("conv/fourier_tiles.cu", "conv_fourier_tiles", FourierTilesConfig(_THREADS), ("conv/fourier",))
    return planned(kernel, (-(-pieces // _PIECES), 1, 1), _THREADS, arguments)
