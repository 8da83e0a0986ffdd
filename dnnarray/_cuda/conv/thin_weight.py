"""Settings and arguments of ``kernels/conv/thin_weight.cu``: the gradient of a weight for inputs of few channels;
`small_channels_plans` plans the launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut
from dnnarray._cuda.core.arguments import Arguments, In, Int
from dnnarray._cuda.core.plan import Config
from dnnarray._records import frozen


@frozen
class ThinWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/thin_weight.cu``."""

    element: str
    part: str
    parts: int
    scaled: bool
    columns: int
    matrices: int
    threads: int


@frozen
class ThinWeightArguments(Arguments, restrict=True):
    """What ``kernels/conv/thin_weight.cu`` is called with."""

    dy: In
    x: In
    partial: FloatOut
    regions: Int
    channels: Int
    outs: Int
    regions_h: Int
    regions_w: Int
    axes: ConvAxes
