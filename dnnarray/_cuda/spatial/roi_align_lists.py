"""The algorithm ``roi_align_lists``: the gradient by the taps of all samples sorted by pixel, then a gather for each
pixel."""

from __future__ import annotations

import math

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import Array, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.lists import Lists
from dnnarray._cuda.spatial.roi_align_taps import roi_align_taps
from dnnarray._cuda.spatial.shared import channels_last, order_of
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._select import Cost, Device


def _lists(problem: RoiAlignProblem) -> Lists:
    grad, x = problem.inputs[0], problem.x
    bins, taps = math.prod(problem.output_size), 4 * problem.sampling_ratio**2
    pixels = x.shape[0] * math.prod(x.shape[2:])
    return Lists(1, grad.shape[0] * bins, taps, pixels, arithmetic_of(x.dtype), 4, x.shape[0], bins)


def run(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """The taps of all samples sorted by pixel, then a gather for each pixel."""
    grad, x, boxes = problem.inputs
    if not x.size:
        return Program(())
    orders = (order_of(x.like(grad.shape)), order_of(x), tuple(range(boxes.ndim)))
    if not grad.size:
        return Program((zero(Array(3), x.nbytes, aligned),), orders)
    planner, found, last = Planner(problem, aligned), _lists(problem), channels_last(x)
    planner.add(
        roi_align_taps(problem, grad.shape[0], planner.inputs[2], found.targets_of, found.weights), *found.plans(last)
    )
    planner.add(found.gather(device, aligned, x.dtype, x.shape[1], last, planner.inputs[0], planner.outputs[0]))
    return planner.program(orders)


def rejects(problem: RoiAlignProblem, device: Device) -> str | None:
    """Why the number of taps is not known, or not the same for all channels, or None."""
    if problem.mode == "max" or not problem.sampling_ratio:
        return "the taps depend on the data: the maximum, or a number of samples by the size of the box"
    found = _lists(problem)
    if max(found.sources * found.taps, found.targets + 1) >= 2**31:
        return "2**31 taps or pixels"
    in_order = order_of(problem.x) in ((0, 1, 2, 3), (0, 2, 3, 1))
    return None if in_order else "x lies neither in C order nor with the channels last"


def workspace(problem: RoiAlignProblem) -> int:
    return 0 if problem.mode == "max" or not problem.sampling_ratio else _lists(problem).end


def cost(problem: RoiAlignProblem, device: Device) -> Cost:
    """The sort is as dear as 150 bytes a tap, a look-up as 6 bytes."""
    found = _lists(problem)
    taps = found.sources * found.taps
    return Cost(problem.flops, problem.bytes + taps * (150 + 6 * problem.x.shape[1]), launches=9)
