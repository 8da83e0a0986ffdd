"""The sums of the slopes over ranges of channels."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.grid import GridConfig, options
from dnnarray._cuda.spatial.shared import (
    THREADS,
    grid_1d,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen


@frozen
class GridSampleSlopesFinishConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample_slopes_finish.cu``."""

    threads: int


@frozen
class GridSampleSlopesFinishArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_slopes_finish.cu`` is called with."""

    grid: In
    sums: InArithmetic
    dgrid: Out
    ranges: Extent
    places: Extent
    height: Extent
    width: Extent


def grid_sample_slopes_finish(problem: GridSampleProblem, sums: Array, target: Array, ranges: int, places: int) -> Plan:
    """The launch with a thread for each place."""
    (settings, name), (height, width) = options(problem), problem.x.shape[2:]
    config = GridSampleSlopesFinishConfig(*settings, THREADS)
    kernel = Kernel(
        "spatial/grid_sample_slopes_finish.cu", f"grid_sample_slopes_finish_{name}", config, ("spatial/sampling",)
    )
    arguments = GridSampleSlopesFinishArguments(
        Array(2), sums, target, ranges=ranges, places=places, height=height, width=width
    )
    return planned(kernel, grid_1d(places), THREADS, arguments)
