"""The gradient of a float32 weight from the sums of its parts, and by its definition where an infinity became NaN in
parts."""

from __future__ import annotations

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.conv.arguments import ConvAxes, FloatIn, FloatOut, ImageStrides, ScaleIn, conv_axes
from dnnarray._cuda.core.arguments import Arguments, Extent, Int
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen


@frozen
class PartsWeightSumsConfig(Config):
    """Compile-time settings of ``kernels/conv/parts_weight_sums.cu``."""

    scaled: bool
    threads: int


@frozen
class PartsWeightSumsArguments(Arguments, restrict=True):
    """What ``kernels/conv/parts_weight_sums.cu`` is called with; the strides of out are along K, C and the window."""

    partial: FloatIn
    out: FloatOut
    dy: FloatIn
    x: FloatIn
    dy_scale: ScaleIn
    x_scale: ScaleIn
    size: Extent
    splits: Extent
    images: Int
    outs: Int
    channels: Int
    w_strides: ImageStrides
    y_strides: ImageStrides
    x_strides: ImageStrides
    axes: ConvAxes


def parts_weight_sums(
    g: Geometry,
    splits: int,
    partial: Operand,
    small: tuple[Operand, Array],
    large: tuple[Operand, Array],
    weight: Operand,
    scaled: bool,
) -> Plan:
    """`small` and `large` are images with the `Scale` of their parts."""
    (dy, dy_scale), (x, x_scale), size = small, large, g.groups * g.k * g.c * g.taps
    kernel = Kernel(
        "conv/parts_weight_sums.cu",
        f"conv_parts_weight_sums{'_scaled' * scaled}",
        PartsWeightSumsConfig(scaled, THREADS),
        ("conv/geometry",),
    )
    arguments = PartsWeightSumsArguments(
        partial.array,
        weight.array,
        dy.array,
        x.array,
        dy_scale,
        x_scale,
        size=size,
        splits=splits,
        images=g.n,
        outs=g.k,
        channels=g.c,
        w_strides=weight.strides,
        y_strides=dy.strides,
        x_strides=x.strides,
        axes=conv_axes(g),
    )
    return planned(kernel, (-(-size // THREADS), 1, 1), THREADS, arguments, early=True)
