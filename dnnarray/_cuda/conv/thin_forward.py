"""Settings and arguments of ``kernels/conv/thin_forward.cu``: the convolution of inputs of few channels;
`small_channels_plans` plans the launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides, PixelStrides, ResultOut
from dnnarray._cuda.core.arguments import Arguments, Double, In, Int
from dnnarray._cuda.core.plan import Config
from dnnarray._records import frozen


@frozen
class ThinForwardConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_forward.cu``."""

    element: str
    part: str
    parts: int
    scaled: bool
    result: str
    activation: str
    bias: bool
    residual: bool
    columns: int
    even: bool


@frozen
class ThinForwardArguments(Arguments, restrict=True):
    """What ``kernels/conv/thin_forward.cu`` is called with; the strides of the weight are along K, C and the window."""

    x: In
    weight: In
    bias: In
    residual: In
    y: ResultOut
    regions: Int
    channels: Int
    outs: Int
    regions_h: Int
    regions_w: Int
    w_strides: ImageStrides
    y_strides: PixelStrides
    axes: ConvAxes
    p: Double
    q: Double
