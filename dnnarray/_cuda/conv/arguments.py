"""What records of convolution kernels are annotated with: the geometry, strides, and arrays of fixed element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from dnnarray._cuda.core.arguments import Nested, Pointer
from dnnarray._cuda.core.plan import Array
from dnnarray._problems.conv_geometry import Geometry

# Structs of kernels/conv/geometry.cuh; strides are in elements.
ConvAxes = Annotated[Sequence[int], Nested("dnnarray::ConvAxes", "18i")]
ImageStrides = Annotated[
    Sequence[int], Nested("dnnarray::Strides", "5q")
]  # along batch, channels and three axes of space
PixelStrides = Annotated[Sequence[int], Nested("dnnarray::PixelStrides", "4q")]  # the same of dense channels
WeightStrides = Annotated[
    Sequence[int], Nested("dnnarray::WeightStrides", "6q")
]  # along groups, outputs, inputs and the window

FloatIn = Annotated[Array | None, Pointer("float", True)]
FloatOut = Annotated[Array | None, Pointer("float", False)]
ResultOut = Annotated[Array | None, Pointer("Config::Result", False)]
SourceIn = Annotated[Array | None, Pointer("Config::Source", True)]
WeightIn = Annotated[Array | None, Pointer("Config::Weight", True)]
ScaleIn = Annotated[Array | None, Pointer("dnnarray::Scale", True)]

NO_AXES, NO_STRIDES = (0,) * 18, (0,) * 5  # of what a kernel does not look at


def conv_axes(g: Geometry) -> tuple[int, ...]:
    """The geometry as the members of ``dnnarray::ConvAxes``, axis by axis."""
    axes = zip(g.out, g.space, g.window, g.stride, g.dilation, g.before, strict=True)
    return tuple(number for axis in axes for number in axis)


def pixel_strides(strides: Sequence[int]) -> tuple[int, ...]:
    """Strides along batch, channels and space without those of the channels."""
    return (strides[0], *strides[2:])
