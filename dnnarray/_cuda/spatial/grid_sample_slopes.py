"""The gradient by the places, which looks up the image in global memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, In, Out
from dnnarray._cuda.core.plan import Array, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.grid import GridConfig, SlopeView, options, slope_view
from dnnarray._cuda.spatial.shared import (
    THREADS,
    channels_last,
    grid_1d,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen


@frozen
class GridSampleSlopesConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample_slopes.cu``."""

    vector: int
    lanes: int
    threads: int


@frozen
class GridSampleSlopesArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_slopes.cu`` is called with."""

    grad: In
    x: In
    grid: In
    dgrid: Out
    view: SlopeView


def slopes(problem: GridSampleProblem, target: Array, aligned: bool) -> Plan:
    """One launch that looks up the image in global memory."""
    grad, x, grid = problem.inputs
    settings, name = options(problem)
    last = channels_last(x) and channels_last(grad)
    vector = vector_length(x.dtype, aligned, x.shape[1]) if last else 1
    lanes = min(8, 1 << (x.shape[1] // vector - 1).bit_length()) if channels_last(x) else 1
    config = GridSampleSlopesConfig(*settings, vector, lanes, THREADS)
    kernel = Kernel(
        "spatial/grid_sample_slopes.cu", f"grid_sample_slopes_{name}_{lanes}x{vector}", config, ("spatial/grid_slopes",)
    )
    places = grid.size // grid.shape[-1]
    arguments = GridSampleSlopesArguments(Array(0), Array(1), Array(2), target, view=slope_view(problem, grad))
    return planned(kernel, grid_1d(places * lanes), THREADS, arguments)
