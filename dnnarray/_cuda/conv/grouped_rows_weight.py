"""The first stage of a weight's gradient of groups of at most eight channels, walking down the rows of images."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, FloatOut, PixelStrides, conv_axes, pixel_strides
from dnnarray._cuda.conv.grouped_rows import MOST_WARPS, row_split
from dnnarray._cuda.core.arguments import Arguments, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen


@frozen
class GroupedRowsWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_rows_weight.cu``."""

    element: str
    side: int
    most_threads: int


@frozen
class GroupedRowsWeightArguments(Arguments, restrict=True):
    """What ``kernels/conv/grouped_rows_weight.cu`` is called with; the fields are those of `GroupedRowsArguments`."""

    dy: In
    x: In
    partial: FloatOut
    batch: Int
    groups: Int
    size: Int
    ranges: Int
    rows: Int
    columns: Int
    y_strides: PixelStrides
    x_strides: PixelStrides
    axes: ConvAxes


def row_sums(g: Geometry, dy: Operand, x: Operand, partial: Operand) -> Plan:
    """The first stage: `splits` partial sums."""
    found, side = row_split(g), g.window[1]
    assert found is not None
    config = GroupedRowsWeightConfig(TYPES[x.dtype], side, 32 * MOST_WARPS)
    kernel = Kernel(
        "conv/grouped_rows_weight.cu", f"conv_grouped_rows_weight_{SHORT[x.dtype]}_s{side}", config, ("conv/geometry",)
    )
    arguments = GroupedRowsWeightArguments(
        dy.array,
        x.array,
        partial.array,
        batch=g.n,
        groups=g.groups,
        size=g.c,
        ranges=found.ranges,
        rows=found.rows,
        columns=found.columns,
        y_strides=pixel_strides(dy.strides),
        x_strides=pixel_strides(x.strides),
        axes=conv_axes(g),
    )
    return planned(
        kernel, (found.splits * found.ranges, 1, 1), 32 * found.vectors, arguments, shared_memory=found.shared_memory
    )
