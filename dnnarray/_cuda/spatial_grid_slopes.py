"""The gradient of `grid_sample` by the places: plans for look-ups in global memory, and in planes of shared memory."""

from __future__ import annotations

import math

from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.positional import pointers
from dnnarray._cuda.spatial.lists import planes_that_fit, planes_threads
from dnnarray._cuda.spatial.shared import THREADS, channels_last, five_strides, grid_1d, strides_of
from dnnarray._cuda.spatial_grid import options, sizes
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_OWN = 8  # places of a thread
_RANGES = 8


@frozen
class SlopesConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_slopes.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    vector: int
    lanes: int
    threads: int


@frozen
class PlanesConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_slopes_planes.cu``."""

    element: str
    planes: int
    own: int
    vector: int
    threads: int


@frozen
class FinishConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_slopes_finish.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    threads: int


def slopes(problem: GridSampleProblem, aligned: bool) -> Plan:
    """One launch that looks up the image in global memory."""
    grad, x, grid = problem.inputs
    settings, name = options(problem)
    last = channels_last(x) and channels_last(grad)
    vector = vector_length(x.dtype, aligned, x.shape[1]) if last else 1
    lanes = min(8, 1 << (x.shape[1] // vector - 1).bit_length()) if channels_last(x) else 1
    config = SlopesConfig(*settings, vector, lanes, THREADS)
    kernel = Kernel("spatial/grid_sample_slopes.cu", f"grid_sample_slopes_{name}_{lanes}x{vector}", config, ("sampling",))
    places = grid.size // grid.shape[-1]
    strides = (*sizes(problem, grad), *five_strides(grid, grid.ndim - 1))
    return Plan(kernel, grid_1d(places * lanes), THREADS, (*map(Array, range(3)), _result(problem), x.shape[0], x.shape[1], *strides))


def _result(problem: GridSampleProblem) -> Array:
    """The gradient of the grid as a launch argument."""
    return pointers(problem)[1][1]


def most_ranges(problem: GridSampleProblem) -> int:
    """Ranges of channels that `Slopes` may sum up by themselves, whatever the device."""
    return max(1, min(_RANGES, problem.x.shape[1])) if problem.moves and problem.mode == "bilinear" and problem.x.ndim == 4 else 0


@frozen
class Slopes:
    """The launches that hold planes of the image in shared memory: for bilinear images that lie in C order and fit."""

    problem: GridSampleProblem
    device: Device

    @property
    def planes(self) -> int:
        """Channels of a block at a time; 0 where this is not to be done."""
        problem, (grad, x, grid) = self.problem, self.problem.inputs
        plain = all(strides_of(s) == s.c_strides for s in (grad, x, grid))
        if problem.mode != "bilinear" or x.ndim != 4 or not plain or not grad.size:
            return 0
        return planes_that_fit(self.device, x.dtype.itemsize, self._pixels, x.shape[1], self.device.units)

    @property
    def _pixels(self) -> int:
        return math.prod(self.problem.x.shape[2:])

    @property
    def _shared(self) -> int:
        return -(-self.planes * self.problem.x.dtype.itemsize * (self._pixels + 1) // 16) * 16

    @property
    def _split(self) -> tuple[int, int, int]:
        """Parts of the places of an image, ranges of channels, and channels of a range."""
        grad, x, _ = self.problem.inputs
        parts = -(-math.prod(grad.shape[2:]) // (planes_threads(self._shared) * _OWN))
        groups = -(-x.shape[1] // self.planes)
        ranges = max(1, min(groups, most_ranges(self.problem), self.device.units // (x.shape[0] * parts)))
        each = -(-groups // ranges) * self.planes
        return parts, -(-x.shape[1] // each), each

    def plans(self, aligned: bool, pixels_of: Array, weights: Array, sums: Array) -> list[Plan]:
        """Both launches; `pixels_of` and `weights` by ``grid_sample_taps.cu``."""
        grad, x, _ = self.problem.inputs
        (parts, ranges, each), planes, places = self._split, self.planes, math.prod(grad.shape[2:])
        vector, threads = vector_length(x.dtype, aligned, self._pixels), planes_threads(self._shared)
        name = f"grid_sample_slopes_planes_{SHORT[x.dtype]}_{planes}x{vector}_{threads}"
        config = PlanesConfig(TYPES[x.dtype], planes, _OWN, vector, threads)
        kernel = Kernel("spatial/grid_sample_slopes_planes.cu", name, config)
        counts = (x.shape[0], x.shape[1], self._pixels, places, parts, each)
        blocks = ranges * x.shape[0] * parts
        first = Plan(kernel, (blocks, 1, 1), threads, (Array(0), Array(1), pixels_of, weights, sums, *counts), self._shared)
        settings, name = options(self.problem)
        kernel = Kernel(
            "spatial/grid_sample_slopes_finish.cu", f"grid_sample_slopes_finish_{name}", FinishConfig(*settings, THREADS), ("sampling",)
        )
        total = x.shape[0] * places
        return [first, Plan(kernel, grid_1d(total), THREADS, (Array(2), sums, _result(self.problem), ranges, total, *x.shape[2:]))]
