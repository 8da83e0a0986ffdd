"""The algorithm ``roi_align_planes``: the samples of all boxes along both sides, then a block for each plane of x in
shared memory."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, Pointer
from dnnarray._cuda.core.extents import arithmetic_of, round_up
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial import roi_align_rows
from dnnarray._cuda.spatial.lists import planes_threads
from dnnarray._cuda.spatial.roi_align_sides import box_samples, padded_rows, roi_align_sides
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_LISTED = 4096 + 128  # bytes of the list of boxes in kernels/spatial/roi_align_planes.cu
Samples = Annotated[Array, Pointer("dnnarray::BoxSample<dnnarray::arithmetic_t<Config::Element>>", True)]
Images = Annotated[Array, Pointer("int", True)]


@frozen
class RoiAlignPlanesConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_planes.cu``."""

    element: str
    maximum: bool
    ratio: int
    vector: int
    threads: int


@frozen
class RoiAlignPlanesArguments(Arguments, restrict=True):
    """What ``kernels/spatial/roi_align_planes.cu`` is called with; `rows` is p as whole steps of a warp."""

    x: In
    samples: Samples
    image_of: Images
    y: Out
    channels: Extent
    height: Extent
    width: Extent
    count: Extent
    p: Extent
    q: Extent
    rows: Extent


def run(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """The samples of all boxes along both sides, then a block for each plane of x."""
    x, y, ratio = problem.x, problem.outputs[0], problem.sampling_ratio
    assert y is not None
    if not y.size:
        return Program(())
    planner, boxes = Planner(problem, aligned), y.shape[0]
    image_of, sides = Array(3), Array(3, round_up(4 * boxes, 16))
    planner.add(roi_align_sides(problem, boxes, planner.inputs[1], sides, image_of))
    vector, threads = vector_length(x.dtype, aligned, math.prod(x.shape[2:])), planes_threads(_plane_bytes(problem))
    config = RoiAlignPlanesConfig(TYPES[x.dtype], problem.mode == "max", ratio, vector, threads)
    name = f"roi_align_planes_{SHORT[x.dtype]}_{problem.mode}_{ratio}_x{vector}_{threads}"
    p, q = problem.output_size
    arguments = RoiAlignPlanesArguments(
        planner.inputs[0],
        sides,
        image_of,
        planner.outputs[0],
        channels=x.shape[1],
        height=x.shape[2],
        width=x.shape[3],
        count=boxes,
        p=p,
        q=q,
        rows=padded_rows(problem),
    )
    kernel = Kernel("spatial/roi_align_planes.cu", name, config)
    planner.launch(kernel, (x.shape[0] * x.shape[1], 1, 1), threads, arguments, shared_memory=_plane_bytes(problem))
    return planner.program()


def _plane_bytes(problem: RoiAlignProblem) -> int:
    """A plane and a row of zeros."""
    height, width = problem.x.shape[2:]
    return round_up((height + 1) * width * problem.x.dtype.itemsize, 16)


def workspace(problem: RoiAlignProblem) -> int:
    boxes = problem.inputs[-1].shape[0]
    return round_up(4 * boxes, 16) + 2 * arithmetic_of(problem.x.dtype).itemsize * boxes * box_samples(problem)


def rejects(problem: RoiAlignProblem, device: Device) -> str | None:
    """As for rows, and a plane must fit."""
    limit = max(device.shared_memory, 48 << 10) - _LISTED
    if _plane_bytes(problem) > limit:
        return f"a plane of x takes {_plane_bytes(problem):,} bytes and a block has {limit:,} bytes of shared memory"
    if problem.inputs[-1].shape[0] >= 1 << 31:
        return "2**31 boxes"
    return roi_align_rows.rejects(problem, device)


def cost(problem: RoiAlignProblem, device: Device) -> Cost:
    """All of x is read, by as many multiprocessors as there are planes."""
    x = problem.x
    idle = max(device.units / max(x.shape[0] * x.shape[1], 1), 1)
    return Cost(problem.flops, 1.5 * problem.bytes * idle, launches=2)
