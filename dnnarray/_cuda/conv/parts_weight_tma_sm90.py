"""Settings and arguments of ``kernels/conv/parts_weight_tma_sm90.cu``: the gradient of a weight from parts of half types; `parts` plans the launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, ScaleIn
from dnnarray._cuda.core.arguments import Arguments, Box, Extent, Int
from dnnarray._cuda.core.plan import Config
from dnnarray._records import frozen


@frozen
class PartsWeightTmaSm90Config(Config):
    """Compile-time settings of ``kernels/conv/parts_weight_tma_sm90.cu``."""

    element: str
    tile_m: int
    tile_n: int
    stages: int
    axes: int
    parts: int
    scaled: bool


@frozen
class PartsWeightTmaSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/parts_weight_tma_sm90.cu`` is called with; of one part, the maps of the second are not used."""

    dy: Box
    dy_later: Box
    x: Box
    x_later: Box
    dy_scale: ScaleIn
    x_scale: ScaleIn
    partial: FloatOut
    rows: Extent
    tiles_m: Extent
    tiles_n: Extent
    groups: Extent
    splits: Extent
    blocks: Extent
    outs: Int
    channels: Int
    axes: ConvAxes
