"""The gradient of `grid_sample` by lists: the taps of all places sorted by pixel, then a gather for each pixel; no atomics on numbers."""

from __future__ import annotations

import math
from dataclasses import replace

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.positional import NOTHING, pointers
from dnnarray._cuda.spatial.lists import Lists
from dnnarray._cuda.spatial.shared import THREADS, arithmetic, channels_last, grid_1d, order_of, strides_of, three_extents
from dnnarray._cuda.spatial_grid import MODES, options, too_long
from dnnarray._cuda.spatial_grid_slopes import Slopes, most_ranges, slopes
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device


@frozen
class TapsConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_taps.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    threads: int


def taps(problem: GridSampleProblem) -> int:
    """Contributions of a place to a channel."""
    return MODES[problem.mode] ** (problem.x.ndim - 2)


def _lists(problem: GridSampleProblem) -> Lists:
    grad, x, _ = problem.inputs
    sources, pixels, scratch = math.prod(grad.shape[2:]), math.prod(x.shape[2:]), pointers(problem)[2]
    return Lists(x.shape[0], sources, taps(problem), pixels, arithmetic(x), scratch, x.shape[0], sources)


def _fill(problem: GridSampleProblem, found: Lists) -> Plan:
    """The launch that writes the pixels and weights of all taps."""
    x, (settings, name) = problem.x, options(problem)
    kernel = Kernel("spatial/grid_sample_taps.cu", f"grid_sample_taps_{name}", TapsConfig(*settings, THREADS), ("sampling",))
    places = found.segments * found.sources
    return Plan(kernel, grid_1d(places), THREADS, (Array(2), found.targets_of, found.weights, places, *three_extents(x.shape[2:])))


def zeros(problem: GridSampleProblem, aligned: bool) -> tuple[Plan, ...]:
    """The launches where there is no place."""
    results = zip(pointers(problem)[1], problem.outputs, strict=True)
    return tuple(zero(out, spec.nbytes, aligned) for out, spec in results if spec is not None and spec.size)


def lists(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """Taps, their order by pixel and the gather for the image; the slopes of the places."""
    grad, x, grid = problem.inputs
    laid = x.like(grad.shape)  # the gradient as the gather reads it: in the memory order of x
    problem = replace(problem, inputs=(laid, x, grid))
    orders = (order_of(laid), order_of(x), tuple(range(grid.ndim)))
    if not grad.size:
        return Program(zeros(problem, aligned), orders)
    found, last, plans = _lists(problem), channels_last(x), list[Plan]()
    _, (of_x, of_grid), scratch = pointers(problem)
    of_places = problem.moves and Slopes(problem, device).planes
    if of_x != NOTHING or of_places:
        plans.append(_fill(problem, found))
    if of_x != NOTHING:
        plans += [*found.plans(last), found.gather(device, aligned, x.dtype, x.shape[1], last, Array(0), of_x)]
    if of_places:
        plans += Slopes(problem, device).plans(aligned, found.targets_of, found.weights, Array(scratch, -(-found.end // 16) * 16))
    elif of_grid != NOTHING:
        plans.append(slopes(problem, aligned) if problem.moves else zero(of_grid, grid.nbytes, aligned))
    return Program(tuple(plans), orders)


def lists_bytes(problem: GridSampleProblem) -> int:
    """Taps, their order, and the sums of the slopes over ranges of channels, no more of them than make a launch large."""
    grid, found = problem.inputs[2], _lists(problem)
    if problem.outputs[0] is None and not most_ranges(problem):
        return 0
    return -(-found.end // 16) * 16 + most_ranges(problem) * grid.size * arithmetic(problem.x).itemsize


def no_lists(problem: GridSampleProblem, device: Device) -> str | None:
    """Contributions and pixels are counted in 32 bits, and there are two layouts."""
    grad, x, _ = problem.inputs
    pixels = math.prod(x.shape[2:])
    if max(math.prod(grad.shape[2:]) * taps(problem), pixels + 1) >= 2**31:
        return "2**31 taps or pixels of an image"
    if strides_of(x) != x.c_strides and not (channels_last(x) and order_of(x) == (0, *range(2, x.ndim), 1)):
        return "x lies neither in C order nor with the channels last"
    return too_long(problem, device)


def lists_cost(problem: GridSampleProblem, device: Device) -> Cost:
    """The sort is as dear as 150 bytes a tap, a look-up as 6 bytes."""
    grad, x, _ = problem.inputs
    looked_up = grad.size * taps(problem)
    if problem.outputs[0] is None:
        return Cost(problem.flops, problem.bytes + 6 * looked_up, launches=3)
    return Cost(problem.flops, problem.bytes + 150 * looked_up / max(x.shape[1], 1) + 6 * looked_up, launches=10)
