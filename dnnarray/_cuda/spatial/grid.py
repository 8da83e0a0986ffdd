"""What the plans of `grid_sample` share: settings, and how its kernels are told of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from dnnarray._cuda.core.arguments import Nested
from dnnarray._cuda.core.plan import SHORT, TYPES, Config
from dnnarray._cuda.spatial.shared import five_strides, three_extents
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

MODES = {"nearest": 1, "bilinear": 2, "bicubic": 4}
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
_THREADS_WANTED = 1 << 19  # a few for each that the largest cards hold at a time
_MOST_CHANNELS = 16  # of a thread
SlopeView = Annotated[Sequence[int], Nested("dnnarray::SlopeView", "23q")]  # of grid_slopes.cuh


@frozen
class GridConfig(Config):
    """Compile-time settings that all kernels of `grid_sample` have in common."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int


def options(problem: GridSampleProblem) -> tuple[tuple[str, int, int, bool, int], str]:
    """The settings that all kernels of sampling have, and what names them in a symbol."""
    rank, corners = problem.x.ndim - 2, problem.align_corners
    settings = (TYPES[problem.x.dtype], MODES[problem.mode], PADDINGS[problem.padding_mode], corners, rank)
    return settings, f"{SHORT[problem.x.dtype]}_{problem.mode}_{problem.padding_mode}{'_corners' * corners}_rank{rank}"


def too_long(problem: GridSampleProblem, device: Device) -> str | None:
    return "spatial extents from 2**31 on" if max(problem.x.shape[2:]) >= 2**31 else None


def split_channels(channels: int, places: int) -> int:
    """Channels of a thread, where neighbouring threads have neighbouring places."""
    return max(1, min(_MOST_CHANNELS, channels * places // _THREADS_WANTED))


def slope_view(problem: GridSampleProblem, y: Spec) -> tuple[int, ...]:
    """The members of ``struct SlopeView``: extents and strides of the image, of what is sampled from it, and of the
    grid."""
    x, grid = problem.x, problem.inputs[-1]
    extents = (*x.shape[:2], *three_extents(x.shape[2:]), *three_extents(y.shape[2:]))
    return (*extents, *five_strides(x), *five_strides(y), *five_strides(grid, grid.ndim - 1))
