"""The pixels and weights of all taps of places."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, In, OutArithmetic, Pointer
from dnnarray._cuda.core.plan import Array, Kernel, Plan
from dnnarray._cuda.core.planner import Planner, planned
from dnnarray._cuda.spatial.grid import MODES, GridConfig, options
from dnnarray._cuda.spatial.shared import (
    THREADS,
    grid_1d,
    three_extents,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen

Pixels = Annotated[Array, Pointer("unsigned", False)]


@frozen
class GridSampleTapsConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample_taps.cu``."""

    threads: int


@frozen
class GridSampleTapsArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_taps.cu`` is called with."""

    grid: In
    pixels: Pixels
    weights: OutArithmetic
    places: Extent
    extents: Extents


def taps(problem: GridSampleProblem) -> int:
    """Contributions of a place to a channel."""
    return MODES[problem.mode] ** (problem.x.ndim - 2)


def grid_sample_taps(problem: GridSampleProblem, places: int, pixels: Array, weights: Array) -> Plan:
    """The launch with a thread for each place."""
    x, (settings, name) = problem.x, options(problem)
    kernel = Kernel(
        "spatial/grid_sample_taps.cu",
        f"grid_sample_taps_{name}",
        GridSampleTapsConfig(*settings, THREADS),
        ("spatial/sampling",),
    )
    arguments = GridSampleTapsArguments(Array(2), pixels, weights, places=places, extents=three_extents(x.shape[2:]))
    return planned(kernel, grid_1d(places), THREADS, arguments)


def zeros(problem: GridSampleProblem, aligned: bool) -> tuple[Plan, ...]:
    """The launches where there is no place."""
    results = zip(Planner(problem, aligned).outputs, problem.outputs, strict=True)
    return tuple(zero(out, spec.nbytes, aligned) for out, spec in results if spec is not None and spec.size)
