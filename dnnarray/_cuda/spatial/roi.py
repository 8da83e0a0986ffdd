"""What the plans of `roi_align` share: settings, and records of arguments."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, Extents
from dnnarray._cuda.core.plan import SHORT, TYPES
from dnnarray._cuda.spatial.shared import channels_last, strides_of
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec


@frozen(kw_only=True)
class RoiArguments(Arguments):
    """What all kernels of `roi_align` have in common: extents of x, of which `height` and `width` are a plane's, and of
    the bins, p rows of q."""

    images: Extent
    height: Extent
    width: Extent
    p: Extent
    q: Extent
    scale: Double


@frozen(kw_only=True)
class StridedRoiArguments(RoiArguments):
    """The same with arrays of any order: `count` boxes, and strides along images or boxes, channels, rows and
    columns."""

    channels: Extent
    count: Extent
    ratio: Extent
    x_strides: Extents
    y_strides: Extents


def settings(problem: RoiAlignProblem) -> tuple[tuple[str, bool, bool, bool], str]:
    """The settings that the kernels for any order have, and what names them in a symbol."""
    x, maximum = problem.x, problem.mode == "max"
    last = channels_last(x)
    return (TYPES[x.dtype], maximum, problem.aligned, last), (
        f"{SHORT[x.dtype]}_{problem.mode}{'_aligned' * problem.aligned}{'_last' * last}"
    )


def roi(problem: RoiAlignProblem) -> dict[str, Any]:
    """The fields of `RoiArguments`."""
    (images, _, height, width), (p, q) = problem.x.shape, problem.output_size
    return {"images": images, "height": height, "width": width, "p": p, "q": q, "scale": float(problem.spatial_scale)}


def strided_roi(problem: RoiAlignProblem, pooled: Spec) -> dict[str, Any]:
    """The fields of `StridedRoiArguments`."""
    strides = {"x_strides": strides_of(problem.x), "y_strides": strides_of(pooled)}
    return (
        roi(problem)
        | strides
        | {"channels": problem.x.shape[1], "count": pooled.shape[0], "ratio": problem.sampling_ratio}
    )


def looked_up(each: int, problem: RoiAlignProblem, device: Device) -> Cost:
    """A look-up of a pixel costs as much as `each` bytes."""
    y = problem.outputs[0]
    assert y is not None
    return Cost(problem.flops, y.nbytes + each * y.size * 4 * (problem.sampling_ratio or 2) ** 2)
