"""The algorithm ``grid_sample_lists``: the taps of all places sorted by pixel, then a gather for each pixel; no atomics
on numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.plan import Array, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.grid import too_long
from dnnarray._cuda.spatial.grid_sample_slopes import slopes
from dnnarray._cuda.spatial.grid_sample_slopes_planes import Slopes, most_ranges
from dnnarray._cuda.spatial.grid_sample_taps import grid_sample_taps, taps, zeros
from dnnarray._cuda.spatial.lists import Lists
from dnnarray._cuda.spatial.shared import (
    arithmetic,
    channels_last,
    order_of,
    strides_of,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._select import Cost, Device


def _lists(problem: GridSampleProblem) -> Lists:
    grad, x, _ = problem.inputs
    sources, pixels = math.prod(grad.shape[2:]), math.prod(x.shape[2:])
    scratch = 3 + sum(spec is not None for spec in problem.outputs)
    return Lists(x.shape[0], sources, taps(problem), pixels, arithmetic(x), scratch, x.shape[0], sources)


def run(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """Taps, their order by pixel and the gather for the image; the slopes of the places."""
    grad, x, grid = problem.inputs
    laid = x.like(grad.shape)  # the gradient as the gather reads it: in the memory order of x
    problem = replace(problem, inputs=(laid, x, grid))
    orders = (order_of(laid), order_of(x), tuple(range(grid.ndim)))
    if not grad.size:
        return Program(zeros(problem, aligned), orders)
    planner, found, last = Planner(problem, aligned), _lists(problem), channels_last(x)
    of_x, of_grid = planner.outputs
    of_places = problem.moves and Slopes(problem, device).planes
    if of_x is not None or of_places:
        planner.add(grid_sample_taps(problem, found.segments * found.sources, found.targets_of, found.weights))
    if of_x is not None:
        planner.add(*found.plans(last), found.gather(device, aligned, x.dtype, x.shape[1], last, Array(0), of_x))
    if of_places:
        sums = Array(found.scratch, -(-found.end // 16) * 16)
        planner.add(*Slopes(problem, device).plans(of_grid, aligned, found.targets_of, found.weights, sums))
    elif of_grid is not None:
        planner.add(slopes(problem, of_grid, aligned) if problem.moves else zero(of_grid, grid.nbytes, aligned))
    return planner.program(orders)


def workspace(problem: GridSampleProblem) -> int:
    """Taps, their order, and the sums of the slopes over ranges of channels, no more of them than make a launch
    large."""
    grid, found = problem.inputs[2], _lists(problem)
    if problem.outputs[0] is None and not most_ranges(problem):
        return 0
    return -(-found.end // 16) * 16 + most_ranges(problem) * grid.size * arithmetic(problem.x).itemsize


def rejects(problem: GridSampleProblem, device: Device) -> str | None:
    """Why contributions or pixels are too many for 32 bits, or the layout is neither of two; or None."""
    grad, x, _ = problem.inputs
    pixels = math.prod(x.shape[2:])
    if max(math.prod(grad.shape[2:]) * taps(problem), pixels + 1) >= 2**31:
        return "2**31 taps or pixels of an image"
    if strides_of(x) != x.c_strides and not (channels_last(x) and order_of(x) == (0, *range(2, x.ndim), 1)):
        return "x lies neither in C order nor with the channels last"
    return too_long(problem, device)


def cost(problem: GridSampleProblem, device: Device) -> Cost:
    """The sort is as dear as 150 bytes a tap, a look-up as 6 bytes."""
    grad, x, _ = problem.inputs
    looked_up = grad.size * taps(problem)
    if problem.outputs[0] is None:
        return Cost(problem.flops, problem.bytes + 6 * looked_up, launches=3)
    return Cost(problem.flops, problem.bytes + 150 * looked_up / max(x.shape[1], 1) + 6 * looked_up, launches=10)
