"""The algorithm ``grid_sample_gradients``: a block for each plane of the image, with its sums in shared memory, and
threads for each place."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.grid import GridConfig, SlopeView, options, slope_view
from dnnarray._cuda.spatial.grid_sample_taps import taps, zeros
from dnnarray._cuda.spatial.shared import (
    order_of,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import FLOAT64, Spec

_FULL = 1024  # threads of a multiprocessor that have all the registers they want
_LANES = 16  # threads of a place, at most
_REDUCED = 128  # bytes of shared memory beside the sums of a plane


@frozen
class GridSampleGradientsConfig(GridConfig):
    """Compile-time settings of ``kernels/spatial/grid_sample_gradients.cu``."""

    lanes: int
    threads: int


@frozen
class GridSampleGradientsArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_gradients.cu`` is called with; `dx` and `dgrid` are absent where they are not
    wanted."""

    grad: In
    x: In
    grid: In
    dx: Out
    dgrid: Out
    planes: Extent
    bits: Extent
    view: SlopeView


def _plane_sums(problem: GridSampleProblem) -> int:
    """Bytes of the sums of a plane."""
    return 8 * math.prod(problem.x.shape[2:])


def _threads(problem: GridSampleProblem, device: Device) -> int:
    """Of a block: as many as fill the registers with the blocks whose sums fit beside each other; many taps take many
    registers."""
    blocks = device.shared_memory // (_plane_sums(problem) + _REDUCED)
    return max(min(_FULL // max(blocks, 1) // 256 * 256, _FULL if taps(problem) <= 4 else 512), 256)


def _lanes(problem: GridSampleProblem) -> int:
    """Threads of a place."""
    return min(_LANES, 1 << (problem.x.shape[1] - 1).bit_length())


def run(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a block for each plane of the image, with its sums in shared memory, and threads for each place."""
    grad, x, grid = problem.inputs
    orders = tuple(tuple(range(s.ndim)) for s in problem.inputs)
    if not grad.size:
        return Program(zeros(problem, aligned), orders)
    (settings, name), channels, nearest = options(problem), x.shape[1], problem.mode == "nearest"
    lanes, threads = 1 if nearest else _lanes(problem), _threads(problem, device)
    config = GridSampleGradientsConfig(*settings, lanes, threads)
    kernel = Kernel(
        "spatial/grid_sample_gradients.cu",
        f"grid_sample_gradients_{name}_{lanes}_{threads}",
        config,
        ("spatial/grid_slopes",),
    )
    planner = Planner(problem, aligned)
    (grad_in, x_in, grid_in), (of_x, of_grid) = planner.inputs, planner.outputs
    planes = 0 if of_x is None else x.shape[0] * channels
    others = 0 if of_grid is None else grid.size if nearest else grid.size // grid.shape[-1] * lanes
    bits = (math.prod(grad.shape[2:]) * taps(problem)).bit_length()
    view = slope_view(problem, Spec(grad.shape, grad.dtype))
    arguments = GridSampleGradientsArguments(grad_in, x_in, grid_in, of_x, of_grid, planes=planes, bits=bits, view=view)
    planner.launch(
        kernel, (planes + blocks_of(others, threads), 1, 1), threads, arguments, shared_memory=_plane_sums(problem)
    )
    return planner.program(orders)


def rejects(problem: GridSampleProblem, device: Device) -> str | None:
    """Why the sums of a plane do not fit, with room to count, or the planes do not lie one behind the other; or
    None."""
    limit = max(device.shared_memory, 48 << 10) - _REDUCED
    if problem.x.dtype == FLOAT64:
        return "float64 has more digits than the sums in shared memory"
    if _plane_sums(problem) > limit:
        return (
            f"the sums of a plane take {_plane_sums(problem):,} bytes and a block has {limit:,} bytes of shared memory"
        )
    if math.prod(problem.inputs[0].shape[2:]) * taps(problem) >= 1 << 31:
        return "2**31 taps of an image"
    return None if order_of(problem.x) == tuple(range(problem.x.ndim)) else "x does not lie in C order"


def cost(problem: GridSampleProblem, device: Device) -> Cost:
    """A scattered addition in shared memory costs as much as 12 bytes, on as many multiprocessors as there are
    planes."""
    grad, x, _ = problem.inputs
    idle = max(device.units / max(x.shape[0] * x.shape[1], 1), 1)
    added = 12 * grad.size * taps(problem) * idle
    return Cost(problem.flops, problem.bytes + (added if problem.outputs[0] is not None else 0))
