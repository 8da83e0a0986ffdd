"""The algorithm ``grid_sample``: a thread for a place and some channels."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extents, In, Out
from dnnarray._cuda.core.plan import Kernel, Program, ahead_if_small, vector_length
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._cuda.spatial.grid import GridConfig, options, split_channels, too_long
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

_SHARE = 0.0125  # of the peak rate, where every tap is a sector of its own in L1
rejects = too_long


@frozen
class GridSampleConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample.cu``."""

    channels_last: bool
    once: bool
    vector: int
    threads: int


@frozen
class GridSampleArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample.cu`` is called with: how places and channels are shared out, extents of the
    image, and strides."""

    x: In
    grid: In
    y: Out
    shares: SharesView
    extents: Extents
    x_strides: Extents
    y_strides: Extents


def cost(problem: GridSampleProblem, device: Device) -> Cost:
    return Cost(problem.flops, problem.bytes, efficiency=1 if channels_last(problem.x) else _SHARE)


def run(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for a place and some channels."""
    x, y = problem.x, problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    planner, (settings, name) = Planner(problem, aligned), options(problem)
    last, channels, places = channels_last(x) and channels_last(y), x.shape[1], y.size // x.shape[1]
    vector = vector_length(x.dtype, aligned, channels) if last else 1
    per = vector if last else split_channels(channels, places)
    once = per == vector
    config = GridSampleConfig(*settings, last, once, vector, THREADS)
    kernel = Kernel(
        "spatial/grid_sample.cu",
        f"grid_sample_{name}{f'_last_x{vector}' * last}{'_once' * once}",
        config,
        ("spatial/sampling",),
    )
    share = shares(x.shape[0], channels, per, y.shape[2:], last)
    (image, places_in), out = planner.inputs, planner.outputs[0]
    arguments = GridSampleArguments(
        image,
        places_in,
        out,
        shares=share,
        extents=three_extents(x.shape[2:]),
        x_strides=five_strides(x),
        y_strides=five_strides(y),
    )
    plan = planned(kernel, grid_1d(share[0]), THREADS, arguments)
    planner.add(ahead_if_small(plan) if once else plan)
    return planner.program((order_of(x), tuple(range(x.ndim))))
