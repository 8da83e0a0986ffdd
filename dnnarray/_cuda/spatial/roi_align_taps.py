"""The pixels and weights of all taps of boxes."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.core.arguments import Extent, In, OutArithmetic, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.roi import RoiArguments, roi
from dnnarray._cuda.spatial.shared import THREADS, grid_1d
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen

Pixels = Annotated[Array, Pointer("unsigned", False)]


@frozen
class RoiAlignTapsConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_taps.cu``."""

    element: str
    aligned: bool
    threads: int


@frozen(kw_only=True)
class RoiAlignTapsArguments(RoiArguments, restrict=True):
    """What ``kernels/spatial/roi_align_taps.cu`` is called with."""

    boxes: In
    pixels: Pixels
    weights: OutArithmetic
    count: Extent
    ratio: Extent


def roi_align_taps(problem: RoiAlignProblem, boxes: int, given: Array, pixels: Array, weights: Array) -> Plan:
    """The launch with a thread for each sample."""
    dtype, ratio = problem.x.dtype, problem.sampling_ratio
    name = f"roi_align_taps_{SHORT[dtype]}{'_aligned' * problem.aligned}"
    kernel = Kernel("spatial/roi_align_taps.cu", name, RoiAlignTapsConfig(TYPES[dtype], problem.aligned, THREADS))
    samples = boxes * math.prod(problem.output_size) * ratio**2
    arguments = RoiAlignTapsArguments(
        boxes=given, pixels=pixels, weights=weights, count=boxes, ratio=ratio, **roi(problem)
    )
    return planned(kernel, grid_1d(samples), THREADS, arguments)
