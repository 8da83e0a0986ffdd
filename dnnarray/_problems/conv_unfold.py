"""Unfold and fold: the problems. Both are data movement over the `Geometry` of a convolution."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dnnarray._errors import ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._problems.conv import extent, image, is_pixel_major
from dnnarray._problems.conv_geometry import Geometry, geometry
from dnnarray._records import frozen
from dnnarray._spec import Spec


@frozen(kw_only=True)
class UnfoldProblem(Problem):
    """Columns of windows from an image, or the image that sums them up."""

    geometry: Geometry
    layout: str

    @property
    def flops(self) -> int:
        g = self.geometry
        return g.n * g.c * g.taps * g.pixels


def _geometry(
    op: str, name: str, x: Spec, kernel_size: Any, stride: Any, padding: Any, dilation: Any, layout: str
) -> Geometry:
    n, c, space = image(op, name, x, layout)
    rank = len(space)
    window = checks.per_axis(op, "kernel_size", kernel_size, rank, 1)
    strides = checks.per_axis(op, "stride", stride, rank, 1)
    dilations = checks.per_axis(op, "dilation", dilation, rank, 1)
    pads = checks.padding(op, padding, space, window, strides, dilations)
    covered = checks.effective_window(window, dilations)
    out = tuple(extent(op, name, i, *a) for i, a in enumerate(zip(space, pads, covered, strides, strict=True)))
    return geometry(n, 1, c, 1, space, window, out, strides, dilations, pads, is_pixel_major(x, layout))


def _columns(g: Geometry, layout: str) -> tuple[int, int, int]:
    if layout == "channels_first":
        return g.n, g.c * g.taps, g.pixels
    return g.n, g.pixels, g.taps * g.c


def unfold(
    op: str, x: Spec, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any, layout: Any
) -> UnfoldProblem:
    """Image to columns."""
    layout = checks.layout(op, layout)
    checks.floating(op, "x", x)
    g = _geometry(op, "x", x, kernel_size, stride, padding, dilation, layout)
    return UnfoldProblem(op=op, inputs=(x,), outputs=(Spec(_columns(g, layout), x.dtype),), geometry=g, layout=layout)


def unfold_backward(op: str, grad: Spec, x: Spec, **options: Any) -> UnfoldProblem:
    """Columns of gradients back to the image."""
    forward = unfold(op, x, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, x), outputs=(x.like(),), shapes=frozenset((1,)))


def _rank(output_size: Any, kernel_size: Any) -> int:
    """Spatial axes: as many as `output_size`, else `kernel_size`, has entries; two, as in PyTorch, where both are
    integers."""
    return next((len(v) for v in (output_size, kernel_size) if isinstance(v, (tuple, list))), 2)


def fold(
    op: str, x: Spec, *, output_size: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, layout: Any
) -> UnfoldProblem:
    """Columns to the image that sums them up."""
    layout = checks.layout(op, layout)
    checks.floating(op, "x", x)
    axes = "N C*window L" if layout == "channels_first" else "N L window*C"
    checks.rank(op, "x", x, 3, axes)
    rank = _rank(output_size, kernel_size)
    if not 1 <= rank <= 3:
        fail(ShapeError, op, "output_size", repr(output_size), "one to three extents")
    space = checks.per_axis(op, "output_size", output_size, rank, 0)
    window = checks.per_axis(op, "kernel_size", kernel_size, rank, 1)
    columns = x.shape[1 if layout == "channels_first" else 2]
    taps = math.prod(window)
    if columns % taps:
        fail(
            ShapeError,
            op,
            "x",
            f"of shape {x.shape}",
            f"({axes}), a multiple of the {taps} elements of the window beside L",
        )
    result = Spec(checks.join_layout(x.shape[0], columns // taps, space, layout), x.dtype)
    g = _geometry(op, "output_size", result, window, stride, padding, dilation, layout)
    checks.shape(op, "x", x, _columns(g, layout), axes, f"{g.pixels} windows fit into output_size {space}.")
    return UnfoldProblem(op=op, inputs=(x,), outputs=(result,), geometry=g, layout=layout)


def fold_backward(op: str, grad: Spec, x: Spec, **options: Any) -> UnfoldProblem:
    """The image's gradient as columns."""
    forward = fold(op, x, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, x), outputs=(x.like(),), shapes=frozenset((1,)))
