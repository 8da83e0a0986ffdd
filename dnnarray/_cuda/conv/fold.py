"""Images from the columns of their windows: each element of an image gathers its terms."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.common.channels import THREADS
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import ConvAxes, ImageStrides, conv_axes
from dnnarray._cuda.conv.columns import Columns, channels_at_once
from dnnarray._cuda.conv.shared import NO_EPILOGUE, Setting
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Int, Out, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

ColumnIn = Annotated[Array | None, Pointer("Config::Column", True)]


@frozen
class FoldConfig(Config):
    """Compile-time settings of ``kernels/conv/fold.cu``."""

    element: str
    column: str
    activation: str
    bias: bool
    last: bool
    vector: int
    threads: int


@frozen
class FoldArguments(Arguments, restrict=True):
    """What ``kernels/conv/fold.cu`` is called with."""

    columns: ColumnIn
    bias: In
    y: Out
    total: Extent
    groups: Int
    channels: Int
    y_strides: ImageStrides
    step_image: Extent
    step_pixel: Extent
    step_group: Extent
    step_channel: Extent
    step_tap: Extent
    axes: ConvAxes
    p: Double
    q: Double


def fold_plan(g: Geometry, columns: Columns, aligned: bool, source: Operand, y: Operand, n: int, e: Epilogue = NO_EPILOGUE) -> Plan:
    """`n` images from their columns."""
    vector = channels_at_once(y.dtype, aligned, g, columns.last, y.strides)
    f = formula(e.activation, y.dtype)
    config = FoldConfig(TYPES[y.dtype], TYPES[source.dtype], f.type, e.bias is not None, columns.last, vector, THREADS)
    words = ["conv_fold", SHORT[source.dtype], "to", f"{SHORT[y.dtype]}x{vector}", "last" if columns.last else "first", e.name]
    kernel = Kernel("conv/fold.cu", "_".join(words), config, ("activation", "conv/geometry"))
    total = n * g.groups * g.c * math.prod(g.space)
    arguments = FoldArguments(
        source.array, e.bias, y.array, total=total, groups=g.groups, channels=g.c, y_strides=y.strides, step_image=columns.image,
        step_pixel=columns.pixel, step_group=columns.group, step_channel=columns.channel, step_tap=columns.tap, axes=conv_axes(g), p=f.p, q=f.q,
    )  # fmt: skip
    return planned(kernel, (-(-total // (THREADS * vector)), 1, 1), THREADS, arguments)


def fold(setting: Setting, columns: Columns, source: Operand, y: Operand, n: int, e: Epilogue) -> Plan:
    """`fold_plan` as a step of an algorithm."""
    return fold_plan(setting.g, columns, setting.steps.aligned, source, y, n, e)
