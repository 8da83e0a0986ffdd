"""Settings and arguments of ``kernels/conv/parts_tma_sm90.cu``: convolution of parts of half types; `parts` plans the launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, FloatIn, FloatOut, ImageStrides, ScaleIn
from dnnarray._cuda.core.arguments import Arguments, Box, Double, Extent, Int
from dnnarray._cuda.core.plan import Config
from dnnarray._records import frozen


@frozen
class PartsTmaSm90Config(Config):
    """Compile-time settings of ``kernels/conv/parts_tma_sm90.cu``."""

    element: str
    activation: str
    bias: bool
    residual: bool
    tile_m: int
    tile_n: int
    stages: int
    transposed: bool
    axes: int
    parts: int
    scaled: bool
    pairs: bool


@frozen
class PartsTmaSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/parts_tma_sm90.cu`` is called with; of one part, the maps of the second are not used."""

    x: Box
    x_later: Box
    weight: Box
    weight_later: Box
    x_scale: ScaleIn
    weight_scale: ScaleIn
    bias: FloatIn
    residual: FloatIn
    y: FloatOut
    rows: Extent
    blocks: Int
    channels: Int
    backwards: Int
    tiles_m: Extent
    tiles_n: Extent
    groups: Extent
    outs: Int
    y_strides: ImageStrides
    axes: ConvAxes
    p: Double
    q: Double
