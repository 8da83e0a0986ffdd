"""The algorithm ``affine_grid``: a thread for neighbouring places of a few rows."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent, Extents, In, Out
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.affine import AffineArguments, affine_kernel, axes, neighbours
from dnnarray._cuda.spatial.shared import (
    THREADS,
    grid_1d,
    three_extents,
)
from dnnarray._problems.spatial_grid import AffineGridProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_ROWS = 4  # of a thread
_THREADS_WANTED = 1 << 19  # a few for each that the largest cards hold at a time


@frozen(kw_only=True)
class AffineGridArguments(AffineArguments, restrict=True):
    """What ``kernels/spatial/affine_grid.cu`` is called with; `divisors` are those of the steps along the axes that
    threads take."""

    theta: In
    grid: Out
    threads: Extent
    divisors: Extents


def run(problem: AffineGridProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for neighbouring places of a few rows."""
    theta, grid = problem.inputs[0], problem.outputs[0]
    if grid is None or not grid.size:
        return Program(())
    (depth, height, width), places = three_extents(problem.space), neighbours(problem, theta)
    images = theta.shape[0] * depth * (width // places)  # threads that hold a row of all images
    rows = _ROWS if images * height >= _ROWS * _THREADS_WANTED else 1
    shape = (depth, -(-height // rows), width // places)
    threads = images * shape[1]
    planner = Planner(problem, aligned)
    arguments = AffineGridArguments(
        theta=planner.inputs[0],
        grid=planner.outputs[0],
        threads=threads,
        divisors=[divisor(n) for n in shape],
        **axes(problem),
    )
    planner.launch(
        affine_kernel(problem, "affine_grid", theta, aligned, places, rows), grid_1d(threads), THREADS, arguments
    )
    return planner.program((tuple(range(theta.ndim)),))
