"""`grid_sample` and `affine_grid`: plans for sampling at given places, the scattered gradient, and grids of affine maps."""

from __future__ import annotations

import math

from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._cuda.spatial.shared import (
    THREADS,
    arithmetic,
    channels_last,
    five_strides,
    grid_1d,
    order_of,
    shares,
    strides_of,
    three_extents,
)
from dnnarray._problems.spatial_grid import AffineGridProblem, GridSampleProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import Spec

MODES = {"nearest": 1, "bilinear": 2, "bicubic": 4}
PADDINGS = {"zeros": 0, "border": 1, "reflection": 2}
_THREADS_WANTED = 1 << 19  # a few for each that the largest cards hold at a time
_MOST_CHANNELS = 16  # of a thread
_PLANE_THREADS = 512
_PLANES_SHARED = 72 << 10  # bytes of planes that leave room for three blocks on the larger cards
_GATHER_SHARE = 0.0125  # of the peak rate, where every tap is a sector of its own in L1
_PLANES_SHARE = 0.1
_ROWS = 4  # of a thread of `affine_grid`
_LONG = 1 << 30  # places from which on indices are long
_PARTS = 64  # of an image's places, at most, in the gradient of an affine map


@frozen
class SampleConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    channels_last: bool
    once: bool
    vector: int
    threads: int


@frozen
class PlanesConfig(Config):
    """Compile-time settings of ``kernels/spatial/grid_sample_planes.cu``."""

    element: str
    mode: int
    padding: int
    corners: bool
    rank: int
    planes: int
    vector: int
    threads: int


@frozen
class AffineConfig(Config):
    """Compile-time settings of ``kernels/spatial/affine_grid.cu`` and of its gradient, where `rows` is 1."""

    element: str
    index: str
    rank: int
    places: int
    rows: int
    vector: int
    threads: int


@frozen
class ThetaConfig(Config):
    """Compile-time settings of ``kernels/spatial/affine_grid_theta.cu``."""

    element: str
    rank: int
    threads: int


def options(problem: GridSampleProblem) -> tuple[tuple[str, int, int, bool, int], str]:
    """The settings that all kernels of sampling have, and what names them in a symbol."""
    rank, corners = problem.x.ndim - 2, problem.align_corners
    settings = (TYPES[problem.x.dtype], MODES[problem.mode], PADDINGS[problem.padding_mode], corners, rank)
    return settings, f"{SHORT[problem.x.dtype]}_{problem.mode}_{problem.padding_mode}{'_corners' * corners}_rank{rank}"


def too_long(problem: GridSampleProblem, device: Device) -> str | None:
    return "spatial extents from 2**31 on" if max(problem.x.shape[2:]) >= 2**31 else None


def sizes(problem: GridSampleProblem, y: Spec) -> tuple[int, ...]:
    """Extents and strides of the image and of what is sampled from it."""
    x = problem.x
    return (*three_extents(x.shape[2:]), *three_extents(y.shape[2:]), *five_strides(x), *five_strides(y))


def split_channels(channels: int, places: int) -> int:
    """Channels of a thread, where neighbouring threads have neighbouring places."""
    return max(1, min(_MOST_CHANNELS, channels * places // _THREADS_WANTED))


def grid_sample(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for a place and some channels."""
    x, y = problem.x, problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    settings, name = options(problem)
    last, channels, places = channels_last(x) and channels_last(y), x.shape[1], y.size // x.shape[1]
    vector = vector_length(x.dtype, aligned, channels) if last else 1
    per = vector if last else split_channels(channels, places)
    once = per == vector
    config = SampleConfig(*settings, last, once, vector, THREADS)
    kernel = Kernel("spatial/grid_sample.cu", f"grid_sample_{name}{f'_last_x{vector}' * last}{'_once' * once}", config, ("sampling",))
    share = shares(x.shape[0], channels, per, y.shape[2:], last)
    strides = (*three_extents(x.shape[2:]), *five_strides(x), *five_strides(y))
    plan = Plan(kernel, grid_1d(share[0]), THREADS, (Array(0), Array(1), Array(2), *share, *strides))
    return Program((ahead_if_small(plan) if once else plan,), (order_of(x), tuple(range(x.ndim))))


def _plane_bytes(problem: GridSampleProblem) -> int:
    return math.prod(problem.x.shape[2:]) * problem.x.dtype.itemsize


def _planes_of_block(problem: GridSampleProblem) -> int:
    """As many channels as fit, a power of two up to eight and no more than there are."""
    return next((n for n in (8, 4, 2) if n * _plane_bytes(problem) <= _PLANES_SHARED and n <= problem.x.shape[1]), 1)


def _no_planes(problem: GridSampleProblem, device: Device) -> str | None:
    """Planes must lie as they are copied, and one must fit."""
    x, limit = problem.x, max(device.shared_memory, 48 << 10) - 1024
    if order_of(x) != tuple(range(x.ndim)):
        return "x does not lie in C order"
    if _plane_bytes(problem) > limit:
        return f"a plane of x takes {_plane_bytes(problem):,} bytes and a block has {limit:,} bytes of shared memory"
    return None


def _planes_cost(problem: GridSampleProblem, device: Device) -> Cost:
    """The grid is read for each block, from the second-level cache; few blocks leave multiprocessors idle."""
    x, grid = problem.x, problem.inputs[-1]
    blocks = max(x.shape[0] * -(-x.shape[1] // _planes_of_block(problem)), 1)
    idle = max(device.units / blocks, 1)
    again = grid.nbytes * blocks / max(x.shape[0], 1) / 2
    return Cost(problem.flops * idle, (problem.bytes + again) * idle, efficiency=_PLANES_SHARE)


def _gather_cost(problem: GridSampleProblem, device: Device) -> Cost:
    return Cost(problem.flops, problem.bytes, efficiency=1 if channels_last(problem.x) else _GATHER_SHARE)


def sample_planes(problem: GridSampleProblem, device: Device, aligned: bool) -> Program:
    """One launch: a block for some channels of an image."""
    x, y = problem.x, problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    settings, name = options(problem)
    count, channels = _planes_of_block(problem), x.shape[1]
    vector = vector_length(x.dtype, aligned, math.prod(x.shape[2:]))
    config = PlanesConfig(*settings, count, vector, _PLANE_THREADS)
    kernel = Kernel("spatial/grid_sample_planes.cu", f"grid_sample_planes_{name}_{count}_x{vector}", config, ("sampling",))
    arguments: tuple[Array | int, ...] = (Array(0), Array(1), Array(2), channels, *three_extents(x.shape[2:]), math.prod(y.shape[2:]))
    shared = -(-count * _plane_bytes(problem) // 16) * 16
    blocks = x.shape[0] * -(-channels // count)
    return Program((Plan(kernel, (blocks, 1, 1), _PLANE_THREADS, arguments, shared),))


# --- affine_grid ------------------------------------------------------------------------------------------------------


def _affine(problem: AffineGridProblem, source: str, theta: Spec, aligned: bool, places: int, rows: int = 1) -> Kernel:
    """A kernel over places, of which a thread owns so many at a time."""
    rank, wide = len(problem.space), theta.shape[0] * math.prod(problem.space) >= _LONG
    vector, index = vector_length(theta.dtype, aligned, places * rank), "long long" if wide else "int"
    config = AffineConfig(TYPES[theta.dtype], index, rank, places, rows, vector, THREADS)
    name = f"{source}_{SHORT[theta.dtype]}_rank{rank}_{places}x{vector}{f'_rows{rows}' * (rows > 1)}{'_wide' * wide}"
    return Kernel(f"spatial/{source}.cu", name, config)


def _places(problem: AffineGridProblem, theta: Spec) -> int:
    """Neighbours that a thread writes: one whole vector, so that those of a warp lie side by side, or four where a vector ends within a place."""
    rank, vector = len(problem.space), 16 // theta.dtype.itemsize
    places = vector // rank if vector % rank == 0 else 4
    return places if problem.space[-1] % places == 0 else 1


def _axes(problem: AffineGridProblem) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Lengths of three axes in pixels, from -1 to 1, and their inverses."""
    lengths = tuple(max(n - problem.align_corners, 1) for n in three_extents(problem.space))
    return lengths, tuple(1.0 / n for n in lengths)


def affine_grid(problem: AffineGridProblem, device: Device, aligned: bool) -> Program:
    """One launch: a thread for neighbouring places of a few rows."""
    theta, grid = problem.inputs[0], problem.outputs[0]
    if grid is None or not grid.size:
        return Program(())
    (depth, height, width), places = three_extents(problem.space), _places(problem, theta)
    images = theta.shape[0] * depth * (width // places)  # threads that hold a row of all images
    rows = _ROWS if images * height >= _ROWS * _THREADS_WANTED else 1
    shape = (depth, -(-height // rows), width // places)
    threads = images * shape[1]
    lengths, inverse = _axes(problem)
    arguments = (Array(0), Array(1), threads, depth, height, width, *map(divisor, shape), *lengths, *inverse)
    plan = Plan(_affine(problem, "affine_grid", theta, aligned, places, rows), grid_1d(threads), THREADS, arguments)
    return Program((plan,), (tuple(range(theta.ndim)),))


def _parts(problem: AffineGridProblem) -> tuple[int, int]:
    """Parts of an image's places, and the places of each."""
    places = math.prod(problem.space)
    wanted = max(1, min(_PARTS, places // 1024))
    length = -(-places // (4 * wanted)) * 4
    return -(-places // length), length


def _affine_bytes(problem: AffineGridProblem) -> int:
    theta = problem.inputs[1]
    return _parts(problem)[0] * theta.size * arithmetic(theta).itemsize


def affine_grid_backward(problem: AffineGridProblem, device: Device, aligned: bool) -> Program:
    """Sums over parts of each image's places, then over the parts; in the order of C for the gradient of theta."""
    theta = problem.inputs[1]
    if not theta.size:
        return Program(())
    (parts, length), n = _parts(problem), theta.shape[0]
    kernel = _affine(problem, "affine_grid_backward", theta, aligned, 4 if problem.space[-1] % 4 == 0 else 1)
    lengths, inverse = _axes(problem)
    arguments = (Array(0), Array(3), n, parts, length, *three_extents(problem.space), *lengths, *inverse)
    plan = Plan(kernel, (n * parts, 1, 1), THREADS, arguments)
    rank = len(problem.space)
    config = ThetaConfig(TYPES[theta.dtype], rank, THREADS)
    kernel = Kernel("spatial/affine_grid_theta.cu", f"affine_grid_theta_{SHORT[theta.dtype]}_rank{rank}", config)
    last = Plan(kernel, grid_1d(theta.size), THREADS, (Array(3), Array(2), n, parts, *strides_of(theta)), early=True)
    return Program((plan, last), ((0, *range(1, theta.ndim + rank - 1)), order_of(theta)))


ALGORITHMS = {
    "grid_sample": (
        Method("planes", sample_planes, "look-ups in planes of shared memory", rejects=_no_planes, cost=_planes_cost),
        Method("gather", grid_sample, "a thread for a place and some channels", rejects=too_long, cost=_gather_cost),
    ),
    "affine_grid": (Method("broadcast", affine_grid, "a thread for a place"),),
    "affine_grid_backward": (Method("sums", affine_grid_backward, "sums over parts of the places", workspace=_affine_bytes),),
}
