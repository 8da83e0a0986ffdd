"""The gradient of `grid_sample`: plans for lists of taps sorted by pixel, for scattered sums, and for the slopes of the places."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from dnnarray._cuda.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.spatial_common import (
    THREADS,
    channels_last,
    five_strides,
    grid_1d,
    order_of,
    scattered,
    scattering,
    shares,
    three_extents,
)
from dnnarray._cuda.spatial_grid import MODES, options, split_channels, too_long
from dnnarray._cuda.spatial_grid_lists import lists, lists_bytes, lists_cost, no_lists
from dnnarray._cuda.spatial_grid_slopes import slopes
from dnnarray._cuda.zero import zero
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method


@frozen
class ScatterConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_scatter.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    channels_last: bool
    fixed: bool
    threads: int


def _scatter(problem: GridSampleProblem, fixed: bool, sums: Any, flags: Any, largest: Any, bits: int) -> Plan:
    grad, x, _ = problem.inputs
    settings, name = options(problem)
    last, channels, places = channels_last(x), x.shape[1], grad.size // x.shape[1]
    per = 1 if last else split_channels(channels, places)
    kernel = Kernel(
        "spatial/grid_sample_scatter.cu",
        f"grid_sample_scatter_{name}{'_last' * last}{'_fixed' * fixed}",
        ScatterConfig(*settings, last, fixed, THREADS),
        ("sampling",),
    )
    share = shares(x.shape[0], channels, per, grad.shape[2:], last)
    strides = (*three_extents(x.shape[2:]), *five_strides(x), *five_strides(grad))
    return Plan(kernel, grid_1d(share[0]), THREADS, (Array(0), Array(2), sums, flags, largest, bits, *share, *strides))


def grid_sample_backward(fixed: bool, problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """The gradient of the image by scattered sums, that of the places by a gather."""
    grad, x, grid = problem.inputs
    plans = []
    if grad.size:
        terms = math.prod(grad.shape[2:]) * MODES[problem.mode] ** (x.ndim - 2)
        plans += scattered(x, Array(3), 5, fixed, grad, Array(0), terms, aligned, partial(_scatter, problem, fixed))
    elif x.size:
        plans.append(zero(Array(3), x.nbytes, aligned))
    if grid.size:
        plans.append(slopes(problem, aligned) if grad.size and problem.mode != "nearest" else zero(Array(4), grid.nbytes, aligned))
    return Program(tuple(plans), (order_of(grad), order_of(x), tuple(range(grid.ndim))))


def _scatter_cost(scratch: int, problem: GridSampleProblem, device: Device) -> Cost:
    """A scattered addition costs as much as 50 bytes where neighbours lie apart, 16 where they are channels of a pixel."""
    grad, x, _ = problem.inputs
    added = grad.size * MODES[problem.mode] ** (x.ndim - 2) * (16 if channels_last(x) else 50)
    return Cost(problem.flops, problem.bytes + added + 4 * scratch, launches=4)


ALGORITHMS = {
    "grid_sample_backward": (
        Method("lists", lists, "lists of taps sorted by pixel", rejects=no_lists, workspace=lists_bytes, cost=lists_cost),
        *scattering(grid_sample_backward, _scatter_cost, too_long),
    ),
}
