"""Settings and arguments of ``kernels/conv/grouped_tma_sm90.cu``; `grouped_tma` plans the launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides, PixelStrides, ResultOut
from dnnarray._cuda.core.arguments import Arguments, Box, Double, Extent, In, Int
from dnnarray._cuda.core.plan import Config
from dnnarray._records import frozen


@frozen
class GroupedTmaSm90Config(Config):
    """Compile-time settings of ``kernels/conv/grouped_tma_sm90.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    transposed: bool
    axes: int
    real: int
    across: int
    stages: int
    consumers: int


@frozen
class GroupedTmaSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/grouped_tma_sm90.cu`` is called with; the strides of the weight are along K, C and the window."""

    windows: Box
    x: In
    weight: In
    bias: In
    residual: In
    y: ResultOut
    rows: Extent
    pitch: Int
    tiles_m: Int
    tiles_n: Int
    outs: Int
    form: Int
    turned: Int
    w_strides: ImageStrides
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes
    p: Double
    q: Double
