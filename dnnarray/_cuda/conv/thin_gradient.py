"""Settings and arguments of ``kernels/conv/thin_gradient.cu``: the gradient of an input of few channels;
`small_channels_plans` plans the launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides
from dnnarray._cuda.core.arguments import Arguments, In, Int, Out
from dnnarray._cuda.core.plan import Config
from dnnarray._records import frozen


@frozen
class ThinGradientConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_gradient.cu``."""

    element: str
    part: str
    parts: int
    scaled: bool
    channels: int
    columns: int
    stride: int
    height: int
    width: int
    rows: int


@frozen
class ThinGradientArguments(Arguments, restrict=True):
    """What ``kernels/conv/thin_gradient.cu`` is called with; the strides of the weight are along K, C and the
    window."""

    dy: In
    weight: In
    dx: Out
    images: Int
    outs: Int
    regions_h: Int
    regions_w: Int
    w_strides: ImageStrides
    axes: ConvAxes
