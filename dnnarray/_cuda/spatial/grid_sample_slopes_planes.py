"""The gradient by the places of bilinear images, whose planes are held in shared memory."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic, OutArithmetic, Pointer
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.grid_sample_slopes_finish import grid_sample_slopes_finish
from dnnarray._cuda.spatial.lists import planes_that_fit, planes_threads
from dnnarray._cuda.spatial.shared import (
    strides_of,
)
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_OWN = 8  # places of a thread
_RANGES = 8
PixelsOf = Annotated[Array, Pointer("unsigned", True)]


@frozen
class GridSampleSlopesPlanesConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_slopes_planes.cu``."""

    element: str
    planes: int
    own: int
    vector: int
    threads: int


@frozen
class GridSampleSlopesPlanesArguments(Arguments, restrict=True):
    """What ``kernels/spatial/grid_sample_slopes_planes.cu`` is called with: `parts` of the places, ranges of `each`
    channels."""

    grad: In
    x: In
    pixels_of: PixelsOf
    weights: InArithmetic
    sums: OutArithmetic
    batch: Extent
    channels: Extent
    pixels: Extent
    places: Extent
    parts: Extent
    each: Extent


def most_ranges(problem: GridSampleProblem) -> int:
    """Ranges of channels that `Slopes` may sum up by themselves, whatever the device."""
    return (
        max(1, min(_RANGES, problem.x.shape[1]))
        if problem.moves and problem.mode == "bilinear" and problem.x.ndim == 4
        else 0
    )


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

    def plans(self, target: Array, aligned: bool, pixels_of: Array, weights: Array, sums: Array) -> list[Plan]:
        """Both launches; `pixels_of` and `weights` by ``grid_sample_taps.cu``."""
        grad, x, _ = self.problem.inputs
        (parts, ranges, each), planes, places = self._split, self.planes, math.prod(grad.shape[2:])
        vector, threads = vector_length(x.dtype, aligned, self._pixels), planes_threads(self._shared)
        name = f"grid_sample_slopes_planes_{SHORT[x.dtype]}_{planes}x{vector}_{threads}"
        config = GridSampleSlopesPlanesConfig(TYPES[x.dtype], planes, _OWN, vector, threads)
        kernel = Kernel("spatial/grid_sample_slopes_planes.cu", name, config)
        arguments = GridSampleSlopesPlanesArguments(
            Array(0),
            Array(1),
            pixels_of,
            weights,
            sums,
            batch=x.shape[0],
            channels=x.shape[1],
            pixels=self._pixels,
            places=places,
            parts=parts,
            each=each,
        )
        first = planned(kernel, (ranges * x.shape[0] * parts, 1, 1), threads, arguments, shared_memory=self._shared)
        return [first, grid_sample_slopes_finish(self.problem, sums, target, ranges, x.shape[0] * places)]
