"""The arguments of ``kernels/conv/depthwise_strip_sm90.cu``, where TMA brings the rows; `depthwise_strip` plans the
launch."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides
from dnnarray._cuda.core.arguments import Arguments, Box, Extent, In, Int, Out
from dnnarray._records import frozen


@frozen
class DepthwiseStripSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/depthwise_strip_sm90.cu`` is called with; the fields are those of `DepthwiseStripArguments`,
    `x` a map of boxes."""

    x: Box
    weight: In
    bias: In
    residual: In
    y: Out
    batch: Int
    channels: Int
    flip: Int
    rows: Int
    chunks: Int
    parts: Int
    tiles: Int
    depth_groups: Int
    across: Int
    pitch: Int
    by_chunks: Extent
    by_parts: Extent
    by_tiles: Extent
    by_depth_groups: Extent
    by_across: Extent
    by_pitch: Extent
    x_strides: PixelStrides
    y_strides: PixelStrides
    axes: ConvAxes
