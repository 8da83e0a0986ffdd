"""The samples of boxes along both sides."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Extent, In, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.roi import RoiArguments, roi
from dnnarray._cuda.spatial.shared import THREADS, grid_1d
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen

SamplesOut = Annotated[Array, Pointer("dnnarray::BoxSample<dnnarray::arithmetic_t<Config::Element>>", False)]
ImagesOut = Annotated[Array, Pointer("int", False)]


@frozen
class RoiAlignSidesConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_sides.cu``."""

    element: str
    aligned: bool
    threads: int


@frozen(kw_only=True)
class RoiAlignSidesArguments(RoiArguments, restrict=True):
    """What ``kernels/spatial/roi_align_sides.cu`` is called with; `rows` is p as whole steps of a warp."""

    boxes: In
    samples: SamplesOut
    image_of: ImagesOut
    count: Extent
    rows: Extent
    ratio: Extent


def box_samples(problem: RoiAlignProblem) -> int:
    """Samples of a box along both sides."""
    return problem.sampling_ratio * (padded_rows(problem) + problem.output_size[1])


def padded_rows(problem: RoiAlignProblem) -> int:
    """Rows of bins, a multiple of what a warp takes at a time."""
    return -(-problem.output_size[0] // 4) * 4


def roi_align_sides(problem: RoiAlignProblem, boxes: int, given: Array, samples: Array, image_of: Array) -> Plan:
    """The launch that finds them, and the image of each box."""
    dtype, number = problem.x.dtype, boxes * box_samples(problem)
    name = f"roi_align_sides_{SHORT[dtype]}{'_aligned' * problem.aligned}"
    kernel = Kernel("spatial/roi_align_sides.cu", name, RoiAlignSidesConfig(TYPES[dtype], problem.aligned, THREADS))
    arguments = RoiAlignSidesArguments(
        boxes=given,
        samples=samples,
        image_of=image_of,
        count=boxes,
        rows=padded_rows(problem),
        ratio=problem.sampling_ratio,
        **roi(problem),
    )
    return planned(kernel, grid_1d(number), THREADS, arguments)
