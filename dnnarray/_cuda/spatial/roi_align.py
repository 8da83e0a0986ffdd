"""The algorithm ``roi_align``: a thread for a bin of a channel, or of neighbouring ones."""

from __future__ import annotations

from functools import partial

from dnnarray._cuda.core.arguments import In, Out
from dnnarray._cuda.core.plan import Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.roi import StridedRoiArguments, looked_up, settings, strided_roi
from dnnarray._cuda.spatial.shared import THREADS, channels_last, grid_1d, order_of
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Device

cost = partial(looked_up, 10)


@frozen
class RoiAlignConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align.cu``."""

    element: str
    maximum: bool
    aligned: bool
    channels_last: bool
    vector: int
    threads: int


@frozen(kw_only=True)
class RoiAlignArguments(StridedRoiArguments, restrict=True):
    """What ``kernels/spatial/roi_align.cu`` is called with."""

    x: In
    boxes: In
    y: Out


def run(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    x, boxes = problem.inputs
    y = problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    planner, (own, name) = Planner(problem, aligned), settings(problem)
    last = channels_last(x) and channels_last(y)
    vector = vector_length(x.dtype, aligned, x.shape[1]) if last else 1
    kernel = Kernel("spatial/roi_align.cu", f"roi_align_{name}_x{vector}", RoiAlignConfig(*own, vector, THREADS))
    (x_in, boxes_in), out = planner.inputs, planner.outputs[0]
    arguments = RoiAlignArguments(x=x_in, boxes=boxes_in, y=out, **strided_roi(problem, y))
    planner.launch(kernel, grid_1d(y.size // vector), THREADS, arguments)
    return planner.program((order_of(x), tuple(range(boxes.ndim))))
