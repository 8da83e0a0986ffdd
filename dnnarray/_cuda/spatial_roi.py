"""`roi_align`: plans for pooling the samples of bins, and for the scattered gradient."""

from __future__ import annotations

import math
from functools import partial

from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.spatial_common import (
    THREADS,
    arithmetic,
    channels_last,
    grid_1d,
    order_of,
    strides_of,
)
from dnnarray._cuda.spatial_lists import planes_threads
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import Spec

_LISTED = 4096 + 128  # bytes of the list of boxes in kernels/spatial/roi_align_planes.cu
_CHANNELS = 64  # at most, that a block of the forward takes one after the other


@frozen
class PoolConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align.cu``."""

    element: str
    maximum: bool
    aligned: bool
    channels_last: bool
    vector: int
    threads: int


@frozen
class RowsConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_rows.cu``."""

    element: str
    maximum: bool
    aligned: bool
    ratio: int
    threads: int


@frozen
class PlanesConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_planes.cu``."""

    element: str
    maximum: bool
    ratio: int
    vector: int
    threads: int


@frozen
class SidesConfig(Config):
    """Compile-time settings of ``kernels/spatial/roi_align_sides.cu``."""

    element: str
    aligned: bool
    threads: int


def settings(problem: RoiAlignProblem) -> tuple[tuple[str, bool, bool, bool], str]:
    """The settings that both kernels have, and what names them in a symbol."""
    x, maximum = problem.x, problem.mode == "max"
    last = channels_last(x)
    return (TYPES[x.dtype], maximum, problem.aligned, last), (
        f"{SHORT[x.dtype]}_{problem.mode}{'_aligned' * problem.aligned}{'_last' * last}"
    )


def sizes(problem: RoiAlignProblem, pooled: Spec) -> tuple[int | float, ...]:
    """Extents, options and strides."""
    sizes = (*problem.x.shape, pooled.shape[0], *problem.output_size, problem.sampling_ratio, float(problem.spatial_scale))
    return (*sizes, *strides_of(problem.x), *strides_of(pooled))


def roi_align(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for a bin of a channel, or of neighbouring ones."""
    x, boxes = problem.inputs
    y = problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    own, name = settings(problem)
    last = channels_last(x) and channels_last(y)
    vector = vector_length(x.dtype, aligned, x.shape[1]) if last else 1
    kernel = Kernel("spatial/roi_align.cu", f"roi_align_{name}_x{vector}", PoolConfig(*own, vector, THREADS))
    plan = Plan(kernel, grid_1d(y.size // vector), THREADS, (Array(0), Array(1), Array(2), *sizes(problem, y)))
    return Program((plan,), (order_of(x), tuple(range(boxes.ndim))))


def roi_align_rows(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """One launch: a block for a box and some channels, whose warps read along rows of pixels."""
    x, y, ratio = problem.x, problem.outputs[0], problem.sampling_ratio
    assert y is not None
    if not y.size:
        return Program(())
    name = f"{SHORT[x.dtype]}_{problem.mode}{'_aligned' * problem.aligned}_{ratio}"
    config = RowsConfig(TYPES[x.dtype], problem.mode == "max", problem.aligned, ratio, THREADS)
    kernel = Kernel("spatial/roi_align_rows.cu", f"roi_align_rows_{name}", config)
    boxes, channels = y.shape[:2]
    each = max(4, min(_CHANNELS, -(-boxes * channels // (16 * device.units))))
    sizes = (*x.shape, *problem.output_size, float(problem.spatial_scale), each)
    plan = Plan(kernel, (boxes * -(-channels // each), 1, 1), THREADS, (Array(0), Array(1), Array(2), *sizes), _rows_shared(problem))
    return Program((plan,))


def _rows_shared(problem: RoiAlignProblem) -> int:
    return 2 * problem.sampling_ratio * problem.output_size[0] * (arithmetic(problem.x).itemsize + 4)


def _no_rows(problem: RoiAlignProblem, device: Device) -> str | None:
    """Bins of a few samples, in planes in C order."""
    if problem.sampling_ratio not in (1, 2, 4, 8):
        return f"sampling_ratio={problem.sampling_ratio}, not 1, 2, 4 or 8"
    if order_of(problem.x) != (0, 1, 2, 3) or max(problem.x.shape[2:]) >= 2**31:
        return "x does not lie in C order"
    return f"{problem.output_size[0]:,} rows of bins" if _rows_shared(problem) > 40 << 10 else None


def roi_align_planes(problem: RoiAlignProblem, device: Device, aligned: bool) -> Program:
    """The samples of all boxes along both sides, then a block for each plane of x."""
    x, y, ratio = problem.x, problem.outputs[0], problem.sampling_ratio
    assert y is not None
    if not y.size:
        return Program(())
    boxes, samples = y.shape[0], _box_samples(problem)
    sides = Array(3, _up(4 * boxes))
    name = f"roi_align_sides_{SHORT[x.dtype]}{'_aligned' * problem.aligned}"
    kernel = Kernel("spatial/roi_align_sides.cu", name, SidesConfig(TYPES[x.dtype], problem.aligned, THREADS))
    sizes = (x.shape[0], *x.shape[2:], boxes, *problem.output_size, _padded_rows(problem), ratio, float(problem.spatial_scale))
    first = Plan(kernel, grid_1d(boxes * samples), THREADS, (Array(1), sides, Array(3), *sizes))
    vector = vector_length(x.dtype, aligned, math.prod(x.shape[2:]))
    threads = planes_threads(_plane_bytes(problem))
    config = PlanesConfig(TYPES[x.dtype], problem.mode == "max", ratio, vector, threads)
    kernel = Kernel("spatial/roi_align_planes.cu", f"roi_align_planes_{SHORT[x.dtype]}_{problem.mode}_{ratio}_x{vector}_{threads}", config)
    numbers = (*x.shape[1:], boxes, *problem.output_size, _padded_rows(problem))
    arguments: tuple[Array | int, ...] = (Array(0), sides, Array(3), Array(2), *numbers)
    return Program((first, Plan(kernel, (x.shape[0] * x.shape[1], 1, 1), threads, arguments, _plane_bytes(problem))))


def _up(n: int) -> int:
    return -(-n // 16) * 16


def _plane_bytes(problem: RoiAlignProblem) -> int:
    """A plane and a row of zeros."""
    height, width = problem.x.shape[2:]
    return _up((height + 1) * width * problem.x.dtype.itemsize)


def _box_samples(problem: RoiAlignProblem) -> int:
    """Samples of a box along both sides."""
    return problem.sampling_ratio * (_padded_rows(problem) + problem.output_size[1])


def _padded_rows(problem: RoiAlignProblem) -> int:
    """Rows of bins, a multiple of what a warp takes at a time."""
    return -(-problem.output_size[0] // 4) * 4


def _planes_scratch(problem: RoiAlignProblem) -> int:
    boxes = problem.inputs[-1].shape[0]
    return _up(4 * boxes) + 2 * arithmetic(problem.x).itemsize * boxes * _box_samples(problem)


def _no_planes(problem: RoiAlignProblem, device: Device) -> str | None:
    """As for rows, and a plane must fit."""
    limit = max(device.shared_memory, 48 << 10) - _LISTED
    if _plane_bytes(problem) > limit:
        return f"a plane of x takes {_plane_bytes(problem):,} bytes and a block has {limit:,} bytes of shared memory"
    if problem.inputs[-1].shape[0] >= 1 << 31:
        return "2**31 boxes"
    return _no_rows(problem, device)


def _planes_cost(problem: RoiAlignProblem, device: Device) -> Cost:
    """All of x is read, by as many multiprocessors as there are planes."""
    x = problem.x
    idle = max(device.units / max(x.shape[0] * x.shape[1], 1), 1)
    return Cost(problem.flops, 1.5 * problem.bytes * idle, launches=2)


def _looked_up(each: int, problem: RoiAlignProblem, device: Device) -> Cost:
    """A look-up of a pixel costs as much as `each` bytes."""
    y = problem.outputs[0]
    assert y is not None
    return Cost(problem.flops, y.nbytes + each * y.size * 4 * (problem.sampling_ratio or 2) ** 2)


ALGORITHMS = {
    "roi_align": (
        Method(
            "planes",
            roi_align_planes,
            "warps along rows of planes in shared memory",
            rejects=_no_planes,
            workspace=_planes_scratch,
            cost=_planes_cost,
        ),
        Method("rows", roi_align_rows, "warps along rows of pixels", rejects=_no_rows, cost=partial(_looked_up, 8)),
        Method("gather", roi_align, "a thread for a bin of a channel", cost=partial(_looked_up, 10)),
    ),
}
