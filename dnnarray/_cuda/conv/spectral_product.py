"""Products of spectra, summed over an axis: a small matrix product for each frequency."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import FloatIn, FloatOut
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, Int
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._records import frozen

_THREADS = 128
_TILE_I, _TILE_J = (8, 4, 2, 1), (4, 2, 1)  # sums of a thread


@frozen
class SpectralProductConfig(Config):
    """Compile-time settings of ``kernels/conv/spectral_product.cu``."""

    tile_i: int
    tile_j: int
    threads: int


@frozen
class SpectralProductArguments(Arguments, restrict=True):
    """What ``kernels/conv/spectral_product.cu`` is called with; the strides are along groups and the two axes of each
    array."""

    left: FloatIn
    right: FloatIn
    out: FloatOut
    frequencies: Extent
    groups: Int
    ni: Extent
    nj: Extent
    nl: Extent
    left_strides: Extents
    right_strides: Extents
    out_strides: Extents
    adds: Int


def spectral_product(
    left: Operand,
    right: Operand,
    out: Operand,
    frequencies: int,
    counts: tuple[int, ...],
    steps: tuple[int, ...],
    adds: bool,
) -> Plan:
    """Sums over the last of `counts` (groups, i, j, l); `steps` are those of left, right and out along their axes, in
    spectra."""
    groups, ni, nj, nl = counts
    tile_i = next(n for n in _TILE_I if n <= ni)
    tile_j = next(n for n in _TILE_J if n <= nj)
    strides = [s * frequencies for s in steps]
    arguments = SpectralProductArguments(
        left.array,
        right.array,
        out.array,
        frequencies=frequencies,
        groups=groups,
        ni=ni,
        nj=nj,
        nl=nl,
        left_strides=strides[:3],
        right_strides=strides[3:6],
        out_strides=strides[6:],
        adds=adds,
    )
    config = SpectralProductConfig(tile_i, tile_j, _THREADS)
    kernel = Kernel("conv/spectral_product.cu", f"conv_spectral_product_{tile_i}x{tile_j}", config)
    blocks = -(-frequencies // _THREADS) * groups * -(-ni // tile_i) * -(-nj // tile_j)
    return planned(kernel, (blocks, 1, 1), _THREADS, arguments)
