"""The algorithm ``grid_sample_scatter``: the gradient by scattered sums, of floating numbers or of 64-bit integers, and
the slopes of the places."""

from __future__ import annotations

import math
from functools import partial

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, In
from dnnarray._cuda.core.plan import Array, Kernel, Plan, Program
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._cuda.spatial.grid import GridConfig, options, split_channels, too_long
from dnnarray._cuda.spatial.grid_sample_slopes import slopes
from dnnarray._cuda.spatial.grid_sample_taps import taps, zeros
from dnnarray._cuda.spatial.roi_align_scatter import Flags, Largest, Sums
from dnnarray._cuda.spatial.scatter import scattered
from dnnarray._cuda.spatial.shared import (
    THREADS,
    SharesView,
    channels_last,
    five_strides,
    grid_1d,
    order_of,
    shares,
    three_extents,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

rejects = too_long


@frozen
class GridSampleScatterConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample_scatter.cu``."""

    channels_last: bool
    fixed: bool
    threads: int


@frozen
class GridSampleScatterArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_scatter.cu`` is called with; `flags` and `largest` belong to sums of
    integers."""

    grad: In
    grid: In
    sums: Sums
    flags: Flags
    largest: Largest
    bits: Extent
    shares: SharesView
    extents: Extents
    x_strides: Extents
    y_strides: Extents


def cost(scratch: int, problem: GridSampleProblem, device: Device) -> Cost:
    """A scattered addition costs as much as 50 bytes where neighbours lie apart, 16 where they are channels of a
    pixel."""
    grad, x, _ = problem.inputs
    if problem.outputs[0] is None:
        return Cost(problem.flops, problem.bytes)
    added = grad.size * taps(problem) * (16 if channels_last(x) else 50)
    return Cost(problem.flops, problem.bytes + added + 4 * scratch, launches=4)


def _scatter(
    problem: GridSampleProblem, fixed: bool, sums: Array, flags: Array | None, largest: Array | None, bits: int
) -> Plan:
    grad, x, _ = problem.inputs
    settings, name = options(problem)
    last, channels, places = channels_last(x), x.shape[1], grad.size // x.shape[1]
    per = 1 if last else split_channels(channels, places)
    kernel = Kernel(
        "spatial/grid_sample_scatter.cu",
        f"grid_sample_scatter_{name}{'_last' * last}{'_fixed' * fixed}",
        GridSampleScatterConfig(*settings, last, fixed, THREADS),
        ("spatial/sampling",),
    )
    share = shares(x.shape[0], channels, per, grad.shape[2:], last)
    arguments = GridSampleScatterArguments(
        Array(0),
        Array(2),
        sums,
        flags,
        largest,
        bits=bits,
        shares=share,
        extents=three_extents(x.shape[2:]),
        x_strides=five_strides(x),
        y_strides=five_strides(grad),
    )
    return planned(kernel, grid_1d(share[0]), THREADS, arguments)


def run(fixed: bool, problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """The gradient of the image by scattered sums, that of the places by a gather."""
    grad, x, grid = problem.inputs
    orders = (order_of(grad), order_of(x), tuple(range(grid.ndim)))
    if not grad.size:
        return Program(zeros(problem, aligned), orders)
    planner, terms = Planner(problem, aligned), math.prod(grad.shape[2:]) * taps(problem)
    of_x, of_grid = planner.outputs
    if of_x is not None:
        scratch = 3 + sum(out is not None for out in planner.outputs)
        planner.add(
            *scattered(x, of_x, scratch, fixed, grad, Array(0), terms, aligned, partial(_scatter, problem, fixed))
        )
    if of_grid is not None:
        planner.add(slopes(problem, of_grid, aligned) if problem.moves else zero(of_grid, grid.nbytes, aligned))
    return planner.program(orders)
