"""The gradient of `roi_align`: plans for lists of taps sorted by pixel, and for scattered sums."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program
from dnnarray._cuda.spatial_common import THREADS, arithmetic, channels_last, grid_1d, order_of, scattered, scattering, strides_of
from dnnarray._cuda.spatial_lists import Lists
from dnnarray._cuda.spatial_roi import settings, sizes
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method


@frozen
class TapsConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_taps.cu``."""

    element: str
    aligned: bool
    threads: int


@frozen
class ScatterConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_scatter.cu``."""

    element: str
    maximum: bool
    aligned: bool
    channels_last: bool
    fixed: bool
    threads: int


def _lists(problem: RoiAlignProblem) -> Lists:
    grad, x = problem.inputs[0], problem.x
    bins, taps = math.prod(problem.output_size), 4 * problem.sampling_ratio**2
    pixels = x.shape[0] * math.prod(x.shape[2:])
    return Lists(1, grad.shape[0] * bins, taps, pixels, arithmetic(x), 4, x.shape[0], bins)


def lists(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """The taps of all samples sorted by pixel, then a gather for each pixel."""
    grad, x, boxes = problem.inputs
    if not x.size:
        return Program(())
    orders = (order_of(x.like(grad.shape)), order_of(x), tuple(range(boxes.ndim)))
    if not grad.size:
        return Program((zero(Array(3), x.nbytes, aligned),), orders)
    found, last = _lists(problem), channels_last(x)
    name = f"roi_align_taps_{SHORT[x.dtype]}{'_aligned' * problem.aligned}"
    kernel = Kernel("spatial/roi_align_taps.cu", name, TapsConfig(TYPES[x.dtype], problem.aligned, THREADS))
    sizes = (x.shape[0], *x.shape[2:], grad.shape[0], *problem.output_size, problem.sampling_ratio, float(problem.spatial_scale))
    samples = grad.shape[0] * math.prod(problem.output_size) * problem.sampling_ratio**2
    taps = Plan(kernel, grid_1d(samples), THREADS, (Array(2), found.targets_of, found.weights, *sizes))
    gather = found.gather(device, aligned, x.dtype, x.shape[1], last, Array(0), Array(3))
    return Program((taps, *found.plans(last), gather), orders)


def _no_lists(problem: RoiAlignProblem, device: Device) -> str | None:
    """The number of taps must be known, and the same for all channels."""
    if problem.mode == "max" or not problem.sampling_ratio:
        return "the taps depend on the data: the maximum, or a number of samples by the size of the box"
    found = _lists(problem)
    if max(found.sources * found.taps, found.targets + 1) >= 2**31:
        return "2**31 taps or pixels"
    in_order = order_of(problem.x) in ((0, 1, 2, 3), (0, 2, 3, 1))
    return None if in_order else "x lies neither in C order nor with the channels last"


def _lists_bytes(problem: RoiAlignProblem) -> int:
    return 0 if problem.mode == "max" or not problem.sampling_ratio else _lists(problem).end


def _lists_cost(problem: RoiAlignProblem, device: Device) -> Cost:
    """The sort is as dear as 150 bytes a tap, a look-up as 6 bytes."""
    found = _lists(problem)
    taps = found.sources * found.taps
    return Cost(problem.flops, problem.bytes + taps * (150 + 6 * problem.x.shape[1]), launches=9)


def _scatter_cost(scratch: int, problem: RoiAlignProblem, device: Device) -> Cost:
    """A scattered addition costs as much as 30 bytes where neighbours lie apart, 8 where they are channels of a pixel."""
    added = problem.inputs[0].size * 4 * (problem.sampling_ratio or 2) ** 2
    each = 8 if strides_of(problem.x)[1] == 1 else 30
    return Cost(problem.flops, problem.bytes + added * each + 4 * scratch, launches=4)


def _scatter(problem: RoiAlignProblem, fixed: bool, sums: Any, flags: Any, largest: Any, bits: int) -> Plan:
    grad = problem.inputs[0]
    own, name = settings(problem)
    kernel = Kernel("spatial/roi_align_scatter.cu", f"roi_align_scatter_{name}{'_fixed' * fixed}", ScatterConfig(*own, fixed, THREADS))
    arguments = (Array(0), Array(1), Array(2), sums, flags, largest, bits, *sizes(problem, grad))
    return Plan(kernel, grid_1d(grad.size), THREADS, arguments)


def roi_align_backward(fixed: bool, problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """Scattered sums; the contributions of a bin to a pixel are no more than its gradient together."""
    grad, x, boxes = problem.inputs
    if not x.size:
        return Program(())
    orders = (order_of(grad), order_of(x), tuple(range(boxes.ndim)))
    if not grad.size:
        return Program((zero(Array(3), x.nbytes, aligned),), orders)
    terms = grad.size // grad.shape[1]
    return Program(tuple(scattered(x, Array(3), 4, fixed, grad, Array(0), terms, aligned, partial(_scatter, problem, fixed))), orders)


ALGORITHMS = {
    "roi_align_backward": (
        Method("lists", lists, "lists of taps sorted by pixel", rejects=_no_lists, workspace=_lists_bytes, cost=_lists_cost),
        *scattering(roi_align_backward, _scatter_cost, lambda problem, device: None),
    ),
}
