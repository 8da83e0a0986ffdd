"""The gradient of a weight by its definition: a block for each element."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides, SourceIn, conv_axes
from dnnarray._cuda.core.arguments import Arguments, Extent, Out, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

GradientIn = Annotated[Array | None, Pointer("Config::Gradient", True)]


@frozen
class DirectWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/direct_weight.cu``."""

    source: str
    gradient: str
    element: str
    repair: bool
    threads: int


@frozen
class DirectWeightArguments(Arguments, restrict=True):
    """What ``kernels/conv/direct_weight.cu`` is called with; the strides of dw are along K, C and the window."""

    dy: GradientIn
    x: SourceIn
    dw: Out
    images: Extent
    outs: Extent
    channels: Extent
    y_strides: ImageStrides
    x_strides: ImageStrides
    w_strides: ImageStrides
    axes: ConvAxes


def direct_weight(g: Geometry, dy: Operand, x: Operand, dw: Operand, repair: bool) -> Plan:
    """All elements of a weight's gradient, or with `repair` those that are NaN."""
    config = DirectWeightConfig(TYPES[x.dtype], TYPES[dy.dtype], TYPES[dw.dtype], repair, THREADS)
    words = ["conv_direct_weight", *(SHORT[o.dtype] for o in (x, dy, dw)), *["repair"] * repair]
    kernel = Kernel("conv/direct_weight.cu", "_".join(words), config, ("conv/geometry",))
    arguments = DirectWeightArguments(
        dy.array, x.array, dw.array, images=g.n, outs=g.k, channels=g.c, y_strides=dy.strides, x_strides=x.strides,
        w_strides=dw.strides, axes=conv_axes(g),
    )  # fmt: skip
    return planned(kernel, (g.groups * g.k * g.c * g.taps, 1, 1), THREADS, arguments)
