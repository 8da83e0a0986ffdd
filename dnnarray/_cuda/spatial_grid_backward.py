"""The gradient of `grid_sample`: plans for lists of taps sorted by pixel, for sums in shared memory, for scattered sums, and for the slopes of the places."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program
from dnnarray._cuda.positional import NOTHING, pointers
from dnnarray._cuda.spatial.scatter import scattered, scattering
from dnnarray._cuda.spatial.shared import (
    THREADS,
    channels_last,
    five_strides,
    grid_1d,
    order_of,
    shares,
    three_extents,
)
from dnnarray._cuda.spatial_grid import options, sizes, split_channels, too_long
from dnnarray._cuda.spatial_grid_lists import lists, lists_bytes, lists_cost, no_lists, taps, zeros
from dnnarray._cuda.spatial_grid_slopes import slopes
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT64, Spec

_FULL = 1024  # threads of a multiprocessor that have all the registers they want
_LANES = 16  # threads of a place, at most
_REDUCED = 128  # bytes of shared memory beside the sums of a plane


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
    orders = (order_of(grad), order_of(x), tuple(range(grid.ndim)))
    if not grad.size:
        return Program(zeros(problem, aligned), orders)
    plans, (_, (of_x, of_grid), scratch) = [], pointers(problem)
    if of_x != NOTHING:
        terms = math.prod(grad.shape[2:]) * taps(problem)
        plans += scattered(x, of_x, scratch, fixed, grad, Array(0), terms, aligned, partial(_scatter, problem, fixed))
    if of_grid != NOTHING:
        plans.append(slopes(problem, aligned) if problem.moves else zero(of_grid, grid.nbytes, aligned))
    return Program(tuple(plans), orders)


@frozen
class GradientsConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_gradients.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    lanes: int
    threads: int


def _plane_sums(problem: GridSampleProblem) -> int:
    """Bytes of the sums of a plane."""
    return 8 * math.prod(problem.x.shape[2:])


def _threads(problem: GridSampleProblem, device: Device) -> int:
    """Of a block: as many as fill the registers with the blocks whose sums fit beside each other; many taps take many registers."""
    blocks = device.shared_memory // (_plane_sums(problem) + _REDUCED)
    return max(min(_FULL // max(blocks, 1) // 256 * 256, _FULL if taps(problem) <= 4 else 512), 256)


def _lanes(problem: GridSampleProblem) -> int:
    """Threads of a place."""
    return min(_LANES, 1 << (problem.x.shape[1] - 1).bit_length())


def gradients(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a block for each plane of the image, with its sums in shared memory, and threads for each place."""
    grad, x, grid = problem.inputs
    orders = tuple(tuple(range(s.ndim)) for s in problem.inputs)
    if not grad.size:
        return Program(zeros(problem, aligned), orders)
    (settings, name), channels, nearest = options(problem), x.shape[1], problem.mode == "nearest"
    lanes, threads = 1 if nearest else _lanes(problem), _threads(problem, device)
    config = GradientsConfig(*settings, lanes, threads)
    kernel = Kernel("spatial/grid_sample_gradients.cu", f"grid_sample_gradients_{name}_{lanes}_{threads}", config, ("sampling",))
    inputs, (of_x, of_grid), _ = pointers(problem)
    planes = 0 if of_x == NOTHING else x.shape[0] * channels
    others = 0 if of_grid == NOTHING else grid.size if nearest else grid.size // grid.shape[-1] * lanes
    bits = (math.prod(grad.shape[2:]) * taps(problem)).bit_length()
    strides = (x.shape[0], channels, *sizes(problem, Spec(grad.shape, grad.dtype)), *five_strides(grid, grid.ndim - 1))
    arguments = (*inputs, of_x, of_grid, planes, bits, *strides)
    return Program((Plan(kernel, (planes + -(-others // threads), 1, 1), threads, arguments, _plane_sums(problem)),), orders)


def _no_gradients(problem: GridSampleProblem, device: Device) -> str | None:
    """The sums of a plane must fit, with room to count, and the planes lie one behind the other."""
    limit = max(device.shared_memory, 48 << 10) - _REDUCED
    if problem.x.dtype == FLOAT64:
        return "float64 has more digits than the sums in shared memory"
    if _plane_sums(problem) > limit:
        return f"the sums of a plane take {_plane_sums(problem):,} bytes and a block has {limit:,} bytes of shared memory"
    if math.prod(problem.inputs[0].shape[2:]) * taps(problem) >= 1 << 31:
        return "2**31 taps of an image"
    return None if order_of(problem.x) == tuple(range(problem.x.ndim)) else "x does not lie in C order"


def _gradients_cost(problem: GridSampleProblem, device: Device) -> Cost:
    """A scattered addition in shared memory costs as much as 12 bytes, on as many multiprocessors as there are planes."""
    grad, x, _ = problem.inputs
    idle = max(device.units / max(x.shape[0] * x.shape[1], 1), 1)
    added = 12 * grad.size * taps(problem) * idle
    return Cost(problem.flops, problem.bytes + (added if problem.outputs[0] is not None else 0))


def _scatter_cost(scratch: int, problem: GridSampleProblem, device: Device) -> Cost:
    """A scattered addition costs as much as 50 bytes where neighbours lie apart, 16 where they are channels of a pixel."""
    grad, x, _ = problem.inputs
    if problem.outputs[0] is None:
        return Cost(problem.flops, problem.bytes)
    added = grad.size * taps(problem) * (16 if channels_last(x) else 50)
    return Cost(problem.flops, problem.bytes + added + 4 * scratch, launches=4)


ALGORITHMS = {
    "grid_sample_backward": (
        Method("lists", lists, "lists of taps sorted by pixel", rejects=no_lists, workspace=lists_bytes, cost=lists_cost),
        Method("planes", gradients, "sums of whole planes in shared memory", rejects=_no_gradients, cost=_gradients_cost),
        *scattering("grid_sample_scatter", grid_sample_backward, _scatter_cost, too_long),
    ),
}
