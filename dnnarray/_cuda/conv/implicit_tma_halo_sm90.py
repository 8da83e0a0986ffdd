"""Convolution on rasters (the input of all taps stands in shared memory): the record of
``kernels/conv/implicit_tma_halo_sm90.cu``."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, ResultOut
from dnnarray._cuda.core.arguments import Arguments, Box, Double, Extent, In, Int
from dnnarray._records import frozen


@frozen
class ImplicitTmaHaloSm90Arguments(Arguments, restrict=True):
    """What ``kernels/conv/implicit_tma_halo_sm90.cu`` is called with; a ``by_`` is what a `Divisor` takes beside its
    extent."""

    x: Box
    weight: Box
    residual_map: Box
    bias: In
    residual: In
    y: ResultOut
    images: Extent
    pitch: Extent
    by_pitch: Extent
    height: Extent
    by_height: Extent
    by_plane: Extent
    reach: Int
    channels: Int
    backwards: Int
    tiles_m: Extent
    tiles_n: Extent
    groups: Extent
    outs: Int
    y_strides: PixelStrides
    axes: ConvAxes
    p: Double
    q: Double
