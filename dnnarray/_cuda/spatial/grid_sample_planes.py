"""The algorithm ``grid_sample_planes``: a block for some channels of an image, which looks them up in planes of shared
memory."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, In, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.grid import GridConfig, options
from dnnarray._cuda.spatial.shared import (
    order_of,
    three_extents,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device

_PLANE_THREADS = 512
_PLANES_SHARED = 72 << 10  # bytes of planes that leave room for three blocks on the larger cards
_PLANES_SHARE = 0.1  # of the peak rate


@frozen
class GridSamplePlanesConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample_planes.cu``."""

    planes: int
    vector: int
    threads: int


@frozen
class GridSamplePlanesArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_planes.cu`` is called with."""

    x: In
    grid: In
    y: Out
    channels: Extent
    extents: Extents
    places: Extent


def _plane_bytes(problem: GridSampleProblem) -> int:
    return math.prod(problem.x.shape[2:]) * problem.x.dtype.itemsize


def _planes_of_block(problem: GridSampleProblem) -> int:
    """As many channels as fit, a power of two up to eight and no more than there are."""
    return next((n for n in (8, 4, 2) if n * _plane_bytes(problem) <= _PLANES_SHARED and n <= problem.x.shape[1]), 1)


def rejects(problem: GridSampleProblem, device: Device) -> str | None:
    """Why planes do not lie as they are copied, or do not fit, or None."""
    x, limit = problem.x, max(device.shared_memory, 48 << 10) - 1024
    if order_of(x) != tuple(range(x.ndim)):
        return "x does not lie in C order"
    if _plane_bytes(problem) > limit:
        return f"a plane of x takes {_plane_bytes(problem):,} bytes and a block has {limit:,} bytes of shared memory"
    return None


def cost(problem: GridSampleProblem, device: Device) -> Cost:
    """The grid is read for each block, from the second-level cache; few blocks leave multiprocessors idle."""
    x, grid = problem.x, problem.inputs[-1]
    blocks = max(x.shape[0] * -(-x.shape[1] // _planes_of_block(problem)), 1)
    idle = max(device.units / blocks, 1)
    again = grid.nbytes * blocks / max(x.shape[0], 1) / 2
    return Cost(problem.flops * idle, (problem.bytes + again) * idle, efficiency=_PLANES_SHARE)


def run(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a block for some channels of an image."""
    x, y = problem.x, problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    planner, (settings, name) = Planner(problem, aligned), options(problem)
    count, channels = _planes_of_block(problem), x.shape[1]
    vector = vector_length(x.dtype, aligned, math.prod(x.shape[2:]))
    config = GridSamplePlanesConfig(*settings, count, vector, _PLANE_THREADS)
    kernel = Kernel(
        "spatial/grid_sample_planes.cu", f"grid_sample_planes_{name}_{count}_x{vector}", config, ("spatial/sampling",)
    )
    (image, places_in), out = planner.inputs, planner.outputs[0]
    places, shared = math.prod(y.shape[2:]), -(-count * _plane_bytes(problem) // 16) * 16
    arguments = GridSamplePlanesArguments(
        image, places_in, out, channels=channels, extents=three_extents(x.shape[2:]), places=places
    )
    planner.launch(
        kernel, (x.shape[0] * blocks_of(channels, count), 1, 1), _PLANE_THREADS, arguments, shared_memory=shared
    )
    return planner.program()
