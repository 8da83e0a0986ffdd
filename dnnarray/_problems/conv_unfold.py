"""Unfold and fold: the problems. Both are data movement over the `Geometry` of a convolution."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dnnarray._errors import ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._problems.conv import RANKS, Geometry, extent, is_pixel_major, lift
from dnnarray._spec import Spec


@dataclass(frozen=True, kw_only=True)
class UnfoldProblem(Problem):
    """Columns of windows from an image, or the image that sums them up."""

    geometry: Geometry
    layout: str

    @property
    def flops(self) -> int:
        g = self.geometry
        return g.n * g.c * g.taps * g.pixels


def _geometry(op: str, name: str, x: Spec, kernel_size: Any, stride: Any, padding: Any, dilation: Any, layout: str) -> Geometry:
    n, c, space = checks.split_layout(x, layout)
    rank = len(space)
    window = checks.per_axis(op, "kernel_size", kernel_size, rank, 1)
    strides = checks.per_axis(op, "stride", stride, rank, 1)
    dilations = checks.per_axis(op, "dilation", dilation, rank, 1)
    pads = checks.padding(op, padding, space, window, strides, dilations)
    covered = checks.effective_window(window, dilations)
    out = tuple(extent(op, name, i, *a) for i, a in enumerate(zip(space, pads, covered, strides, strict=True)))
    return Geometry(
        n=n,
        groups=1,
        c=c,
        k=1,
        space=lift(space, 1),
        window=lift(window, 1),
        out=lift(out, 1),
        stride=lift(strides, 1),
        dilation=lift(dilations, 1),
        before=lift([before for before, _ in pads], 0),
        pixel_major=is_pixel_major(x, layout),
    )


def _columns(g: Geometry, layout: str) -> tuple[int, int, int]:
    if layout == "channels_first":
        return g.n, g.c * g.taps, g.pixels
    return g.n, g.pixels, g.taps * g.c


def unfold(op: str, x: Spec, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any, layout: Any) -> UnfoldProblem:
    """Image to columns."""
    layout = checks.layout(op, layout)
    checks.floating(op, "x", x)
    checks.rank(op, "x", x, RANKS, f"{'N C *space' if layout == 'channels_first' else 'N *space C'}, one to three spatial axes")
    geometry = _geometry(op, "x", x, kernel_size, stride, padding, dilation, layout)
    output = Spec(_columns(geometry, layout), x.dtype)
    return UnfoldProblem(op=op, inputs=(x,), outputs=(output,), geometry=geometry, layout=layout)


def unfold_backward(op: str, grad: Spec, x: Spec, **options: Any) -> UnfoldProblem:
    """Columns of gradients back to the image."""
    forward = unfold(op, x, **options)
    checks.gradient(op, grad, forward.outputs[0])  # type: ignore[arg-type]
    return replace(forward, inputs=(grad, x), outputs=(x.like(),))


def _rank(output_size: Any, kernel_size: Any) -> int:
    """Spatial axes: as many as `output_size`, else `kernel_size`, has entries; two, as in PyTorch, where both are integers."""
    return next((len(v) for v in (output_size, kernel_size) if isinstance(v, (tuple, list))), 2)


def fold(op: str, x: Spec, *, output_size: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, layout: Any) -> UnfoldProblem:
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
    taps = lift(window, 1)[0] * lift(window, 1)[1] * lift(window, 1)[2]
    if columns % taps:
        fail(ShapeError, op, "x", f"of shape {x.shape}", f"{axes}, a multiple of the {taps} elements of the window on the middle axis"
             if layout == "channels_first" else f"{axes}, a multiple of the {taps} elements of the window on the last axis")  # fmt: skip
    image = Spec(checks.join_layout(x.shape[0], columns // taps, space, layout), x.dtype)
    geometry = _geometry(op, "output_size", image, window, stride, padding, dilation, layout)
    checks.shape(op, "x", x, _columns(geometry, layout), axes, f"{geometry.pixels} windows fit into output_size {space}.")
    return UnfoldProblem(op=op, inputs=(x,), outputs=(image,), geometry=geometry, layout=layout)


def fold_backward(op: str, grad: Spec, x: Spec, **options: Any) -> UnfoldProblem:
    """The image's gradient as columns."""
    forward = fold(op, x, **options)
    checks.gradient(op, grad, forward.outputs[0])  # type: ignore[arg-type]
    return replace(forward, inputs=(grad, x), outputs=(x.like(),))
