"""`depthwise`: the gradient of the weight by blocks that walk down channels-last images, whose rows TMA
brings (sm_90)."""

from __future__ import annotations

from typing import Any

from dnnarray._cuda.conv.depthwise_common import SIDES, Correlation, Memory, PartialSums, is_flat
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Structure, TensorMap
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, HALF, INT32, Spec

_UNITS = 132  # multiprocessors that the sums are divided for: the scratch memory must not depend on the device
_THREADS, _CHANNELS = 384, 32  # of a block: threads, channels of dy
_MULTIPLIED = (3, 5)  # windows of half types with two outputs for each channel
_QUAD = 32  # columns of a lane's four strips, of half types
_ROWS = {3: 2, 5: 2, 7: 1}  # of a step, by the side of the window: measured
_STRIP, _WARPS = 7, 8  # columns of a warp, of float32
_MOST_STAGES, _SHARED, _SHARED_OF_CUBES = (
    16,
    120_000,
    220_000,
)  # steps under way and their bytes: with more of them images are slower
_BARRIERS = 2 * _MOST_STAGES * 8
_BEYOND = 8 * _CHANNELS * 2  # bytes: lanes of half types read up to a strip behind the last pixel
_FEWEST = 8  # rows of a block
_MOST_ROWS = 1 << 24  # of all images


@frozen
class DepthwiseWeightBandConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_band_sm90.cu``."""

    element: str
    depth: int
    planes: int
    side: int
    rows: int
    multiplier: int
    together: int


@frozen
class DepthwiseWeightStripConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_strip_sm90.cu``."""

    side: int
    strip: int


@frozen
class _Tile:
    """Columns of dy, images and planes of dy of a tile, rows of a step, and pixels of a row of x and of dy in shared
    memory."""

    wide: int
    groups: int
    planes: int
    rows: int
    pitch_x: int
    pitch_dy: int


def wgrad_takes_rows(c: Correlation) -> bool:
    """Whether rows by TMA can do it, on a device that has one."""
    g, side = c.g, c.g.window[2]
    if set(g.stride) != {1} or set(g.dilation) != {1} or not c.whole_vectors or _rows(g)[1] < 1:
        return False
    if g.n * max(g.space[0] * g.space[1], g.out[0] * g.out[1]) >= _MOST_ROWS:
        return False
    square = is_flat(g) and g.window[1] == side
    if c.x.dtype == FLOAT32:
        return square and c.plain and side in SIDES[1:]
    if c.plain:  # 3 x 3 goes faster by walks
        return c.x.dtype in HALF and ((square and side in SIDES[1:]) or g.window == (3, 3, 3))
    return c.x.dtype in HALF and square and g.k == 2 and side in _MULTIPLIED


def _rows(g: Geometry) -> tuple[int, int]:
    """The first row of x that some window sees, and how many there are."""
    first = max(0, -g.before[1])
    return first, min(g.space[1], g.out[1] + g.window[1] - 1 - g.before[1]) - first


def _pitch(pixels: int) -> int:
    """Pixels of a row in shared memory, at least so many: 4 modulo 8, so that the next row is in other banks."""
    return pixels + (4 - pixels) % 8


def _map(memory: Memory, spec: Spec, array: Array, box: tuple[int, ...]) -> TensorMap:
    """Half types swizzled; float32 as it is, and by another name, since the engine would round it."""
    n, _, d, h, w = (s * spec.dtype.itemsize for s in memory.strides(spec.shape))
    *space, channels = (
        spec.shape[i] for i in (*(i for i in range(1, spec.ndim) if i != memory.channel), memory.channel)
    )
    depth, height, width = (1, 1, *space)[-3:]
    dtype, row = (INT32, 0) if spec.dtype == FLOAT32 else (spec.dtype, box[0] * spec.dtype.itemsize)
    return TensorMap(array, dtype, (channels, width, height, depth, spec.shape[0]), (w, h, d or n, n), box, row=row)


def wgrad_by_rows(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums:
    """`pointers` are of dy, x and the partial sums."""
    g, size = c.g, c.x.dtype.itemsize
    dy, x, partial = pointers
    tile = _tile_of_strips(g) if size == 4 else _tile_of_bands(g)
    reached, chunks = tile.planes + g.window[0] - 1, -(-c.channels // _CHANNELS)
    columns, depths = -(-g.out[2] // tile.wide), -(-g.out[0] // tile.planes)
    first, rows = _rows(g)
    tiles, steps = -(-g.n // tile.groups) * columns * depths, -(-rows // tile.rows)
    parts = max(1, min(_UNITS // chunks, tiles * steps // _FEWEST))
    stage = tile.groups * tile.rows * (tile.planes * tile.pitch_dy + reached * tile.pitch_x // g.k) * _CHANNELS * size
    stages = min(_MOST_STAGES, (_SHARED_OF_CUBES if g.window[0] > 1 else _SHARED) // stage)
    maps = (
        _map(c.memory, c.y, dy, (_CHANNELS, tile.pitch_dy, tile.rows, tile.planes, tile.groups)),
        _map(c.memory, c.x, x, (_CHANNELS // g.k, tile.pitch_x, tile.rows, reached, tile.groups)),
    )
    laid = (tile.wide, tile.groups, stages, tile.pitch_x, tile.pitch_dy)
    numbers = Structure(
        (), (c.channels, int(c.flip), parts, tiles, *laid, first, steps, columns, depths, g.out[1], *g.before)
    )
    kernel = _strips(g) if size == 4 else _bands(c, tile, chunks)
    return PartialSums(
        Plan(kernel, (parts * chunks, 1, 1), _THREADS, (*maps, partial, numbers), stages * stage + _BARRIERS + _BEYOND),
        parts,
    )


def _tile_of_bands(g: Geometry) -> _Tile:
    planes, rows = 2 if g.window[0] > 1 else 1, _ROWS[g.window[2]]
    wide = _QUAD if g.out[2] <= _QUAD else 2 * _QUAD
    return _Tile(wide, 4 * _QUAD // wide // rows, planes, rows, _pitch(wide + g.window[2] - 1), _pitch(wide))


def _bands(c: Correlation, tile: _Tile, chunks: int) -> Kernel:
    depth, side, k = c.g.window[0], c.g.window[2], c.g.k
    together = 2 - chunks % 2  # blocks of a cluster
    config = DepthwiseWeightBandConfig(TYPES[c.x.dtype], depth, tile.planes, side, tile.rows, k, together)
    name = (
        f"conv_depthwise_weight_band_{SHORT[c.x.dtype]}_s{side}{'x3' * (depth > 1)}{'_multiplied' * (k > 1)}"
        f"_x{together}"
    )
    return Kernel("conv/depthwise_weight_band_sm90.cu", name, config)


def _tile_of_strips(g: Geometry) -> _Tile:
    across = next((n for n in (1, 2, 4) if n * _STRIP >= g.out[2]), _WARPS)
    wide = across * _STRIP
    return _Tile(wide, _WARPS // across, 1, 1, wide + g.window[2] - 1, wide)


def _strips(g: Geometry) -> Kernel:
    side = g.window[2]
    return Kernel(
        "conv/depthwise_weight_strip_sm90.cu",
        f"conv_depthwise_weight_strip_s{side}",
        DepthwiseWeightStripConfig(side, _STRIP),
    )
