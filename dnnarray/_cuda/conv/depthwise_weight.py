"""`depthwise`: the gradient of the weight, partial sums in a first launch and their sum in a second, always in the same order."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dnnarray._cuda.common.channels import whole_lines
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.conv.depthwise_common import Correlation, PartialSums, axes, is_flat
from dnnarray._cuda.conv.depthwise_weight_patch import weighed_by_patches, weighs_patches
from dnnarray._cuda.conv.depthwise_weight_rows import weighed_by_rows, weighs_rows
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64, Spec

_UNITS = 132  # multiprocessors that the sums are divided for: the scratch memory must not depend on the device
_WARPS, _VECTOR = 8, 4
_GROUP, _STRIP, _BLOCKS = 8, 4, 4  # rows of the window in a block, columns of a thread, blocks of a multiprocessor
_ROW_START, _PASS = 1.2e-6, 0.5e-6  # seconds of the direct way: until a row's first values are there, of a warp's pass over columns
_WALKED = 3  # the side of the window
_WALK_STRIP, _WALK_BLOCKS = 7, 2  # columns of a thread, blocks of a multiprocessor
_WALK_LANES = {32: 1.0, 48: 1.0, 24: 1.1, 16: 1.25}  # threads with neighbouring words, and what bytes cost then
_WALK_START = 6  # rows that a walk's beginning and end take the time of
_TILE_STRIP = 7  # odd, so that the next strip stands in other banks
_TILE_BYTES, _TILE_BLOCKS = {3: 72 << 10, 5: 108 << 10, 7: 108 << 10}, {3: 6, 5: 2, 7: 2}  # by the side of the window, measured


@frozen
class DepthwiseWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight.cu``."""

    element: str
    plain: bool
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    most_threads: int


@frozen
class DepthwiseWeightTileConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_tile.cu``."""

    element: str
    side: int
    stride: int
    vector: int
    lanes: int
    strip: int
    most_threads: int


@frozen
class DepthwiseWeightWalkConfig(Config):
    """Compile-time settings of ``kernels/conv/depthwise_weight_walk.cu``."""

    element: str
    shared: bool
    side: int
    strip: int
    ahead: int
    threads: int
    blocks: int


def too_wide(g: Geometry) -> bool:
    """Whether the parts of the window are more than a grid's second axis can count."""
    return -(-g.taps // _GROUP) >= 1 << 16


def _direct(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums:
    """Any window, memory order, multiplier. `pointers` are of dy, x and the partial sums."""
    g, memory, dtype = c.g, c.memory, c.x.dtype
    vector, lanes = (min(vector_length(dtype, c.aligned, c.channels), _VECTOR), 8) if memory.last else (1, 1)
    members = g.taps // (g.window[2] if c.fast else 1)
    group = min(members, _GROUP)
    copies, chunks, rows = max(_WARPS // group, 1), -(-c.channels // (vector * lanes)), g.n * g.out[0] * g.out[1]
    splits = max(1, min(-(-rows // copies), -(-_UNITS * _BLOCKS // (chunks * -(-members // group)))))
    side, stride = (g.window[2], g.stride[2]) if c.fast else (0, 1)
    strip = _STRIP // 2 if dtype == FLOAT64 and side > 5 else _STRIP  # what the registers hold
    config = DepthwiseWeightConfig(TYPES[dtype], c.plain, side, stride, vector, lanes, strip, 32 * _WARPS)
    words = [f"conv_depthwise_weight_{SHORT[dtype]}x{vector}", *(["multiplied"] * (not c.plain)), *([f"s{side}_by_{stride}"] * c.fast)]
    kernel = Kernel("conv/depthwise_weight.cu", "_".join((*words, f"l{lanes}")), config)
    numbers = (g.n, c.channels, g.k, int(c.flip), splits, group)
    arguments: tuple[Any, ...] = (*pointers, *numbers, *memory.strides(c.x.shape), *memory.strides(c.y.shape), *axes(g, g.out, g.space))
    grid = (chunks * splits, -(-members // group), 1)
    return PartialSums(Plan(kernel, grid, 32 * group * copies, arguments), splits * copies)


def walk_of_rows(c: Correlation) -> float:
    """Seconds in which a warp of the direct way goes over its rows: the start of each, and its passes over the columns."""
    if not (c.x.size and c.y.size):
        return 0.0
    g, lanes = c.g, 8 if c.memory.last else 1
    rows = -(-g.n * g.out[0] * g.out[1] // _direct(c, (0, 0, 0)).parts)
    return rows * (_ROW_START + -(-g.out[2] // (32 // lanes * _STRIP)) * _PASS)


@lru_cache(maxsize=1024)
def _tile(g: Geometry, lanes: int, pixel: int) -> tuple[int, int, int] | None:
    """Columns and rows of the tile with the least work, its inputs included, and its bytes."""
    best, found, side = float("inf"), None, g.window[2]
    for strips in range(1, 17):
        for high in range(1, 33):
            wide = strips * _TILE_STRIP
            brought = ((wide - 1) * g.stride[2] + side) * ((high - 1) * g.stride[1] + side) + wide * high
            tiles = -(-g.out[2] // wide) * -(-g.out[1] // high)
            idle = -(-strips // (32 // lanes)) * (32 // lanes) / strips
            cost = tiles * (wide * high * idle * side / 3 + 0.5 * brought)
            if brought * pixel <= _TILE_BYTES[side] and cost < best:
                best, found = cost, (wide, high, brought * pixel)
    return found


def _tiled(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums | None:
    """From tiles in shared memory, or None where that is not for this problem."""
    g, dtype, side = c.g, c.x.dtype, c.g.window[2]
    square = c.fast and g.window[1] == side and g.stride[1] == g.stride[2] and g.dilation[1] == 1
    lanes = 16 // dtype.itemsize
    tile = _tile(g, lanes, lanes * _VECTOR * dtype.itemsize) if square and c.plain and is_flat(g) and c.whole_vectors else None
    if tile is None or dtype == FLOAT64:
        return None
    wide, high, size = tile
    chunks, copies = -(-c.channels // (lanes * _VECTOR)), max(_WARPS // side, 1)
    tiles = g.n * -(-g.out[2] // wide) * -(-g.out[1] // high)
    splits = max(1, min(tiles, _UNITS * _TILE_BLOCKS[side] // chunks))
    config = DepthwiseWeightTileConfig(TYPES[dtype], side, g.stride[2], _VECTOR, lanes, _TILE_STRIP, 32 * _WARPS)
    kernel = Kernel("conv/depthwise_weight_tile.cu", f"conv_depthwise_weight_tile_{SHORT[dtype]}_s{side}_by_{g.stride[2]}", config)
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    numbers = (g.n, c.channels, int(c.flip), splits, wide, high, xs[0], *xs[3:], ys[0], *ys[3:])
    arguments: tuple[Any, ...] = (*pointers, *numbers, *g.space[1:], *g.out[1:], *g.before[1:])
    return PartialSums(Plan(kernel, (chunks * splits, 1, 1), 32 * side * copies, arguments, size), splits * copies)


def weighs_tiles(c: Correlation) -> bool:
    """Whether tiles in shared memory can do it."""
    return _tiled(c, (0, 0, 0)) is not None


def walks(c: Correlation) -> bool:
    """Whether threads that walk down their columns can do it: words of 4 bytes, a square window without steps."""
    g, size = c.g, c.x.dtype.itemsize
    side = g.window[2]
    square = c.fast and g.window[1] == side and g.stride[1:] == (1, 1) and g.dilation[1] == 1
    words = size == 4 or (size == 2 and c.aligned and c.channels % 2 == 0 and (c.plain or g.k % 2 == 0))
    return square and words and side == _WALKED and is_flat(g) and c.memory.last


def _segments(rows: int, groups: int, blocks: int) -> int:
    """Parts of the rows of an image, so that as many blocks as run at a time have as much to do; `groups` of walks over all rows."""

    def rounds(parts: int) -> int:
        return -(-groups * parts // blocks) * (-(-rows // parts) + _WALK_START)

    return min(range(1, max(rows // 8, 1) + 1), key=rounds)


def _walked(c: Correlation, pointers: tuple[Any, Any, Any]) -> PartialSums | None:
    """By threads that walk down their columns, or None where that is not for this problem."""
    if not walks(c):
        return None
    g, dtype = c.g, c.x.dtype
    words = c.channels * dtype.itemsize // 4
    lanes = min(_WALK_LANES, key=lambda n: -(-words // n) * n * _WALK_LANES[n])
    threads = 192 if lanes % 3 == 0 or dtype.itemsize == 2 else 256  # two channels of a word take more registers
    chunks, slots, strips = -(-words // lanes), threads // lanes, -(-g.out[2] // _WALK_STRIP)
    blocks = max(1, _UNITS * _WALK_BLOCKS // chunks)
    high = -(-g.out[1] // _segments(g.out[1], -(-g.n * strips // slots), blocks))
    splits = min(-(-g.n * strips * -(-g.out[1] // high) // slots), blocks)
    config = DepthwiseWeightWalkConfig(TYPES[dtype], not c.plain, _WALKED, _WALK_STRIP, 1, threads, _WALK_BLOCKS)
    name = f"conv_depthwise_weight_walk_{SHORT[dtype]}{'_shared' * (not c.plain)}_s{_WALKED}_{threads}"
    xs, ys = (c.memory.strides(s.shape) for s in (c.x, c.y))
    numbers = (g.n, c.channels, g.k, int(c.flip), splits, lanes, high, xs[0], *xs[3:], ys[0], *ys[3:])
    arguments: tuple[Any, ...] = (*pointers, *numbers, *g.space[1:], *g.out[1:], *g.before[1:])
    return PartialSums(Plan(Kernel("conv/depthwise_weight_walk.cu", name, config), (chunks * splits, 1, 1), threads, arguments), splits)


def by_rows(c: Correlation, device: Device) -> bool:
    """Whether the copy engine brings the rows."""
    return device.capability == (9, 0) and weighs_rows(c)


def _sums(c: Correlation, pointers: tuple[Any, Any, Any], rows: bool) -> PartialSums:
    if rows:
        return weighed_by_rows(c, pointers)
    if weighs_patches(c):
        return weighed_by_patches(c, pointers)
    return _walked(c, pointers) or _tiled(c, pointers) or _direct(c, pointers)


def weight_plans(c: Correlation, dw: Spec, device: Device, pointers: tuple[Any, Any, Array, Any]) -> list[Plan]:
    """dw from y's gradient and x. `pointers` are of dy, x, dw and the scratch memory."""
    source, image, target, partial = pointers
    if not (c.x.size and c.y.size):
        return [added_up(target, target, dw, 0)]
    sums = _sums(c, (source, image, partial), by_rows(c, device))
    return [sums.plan, added_up(partial, target, dw, sums.parts)]


def weight_bytes(aligned: Correlation, unaligned: Correlation, dw: Spec) -> int:
    """The scratch memory of `weight_plans`, for pointers aligned or not, on any device."""
    if not (aligned.x.size and aligned.y.size):
        return 0
    nowhere = (Array(0), Array(0), Array(0))
    ways = {(aligned, False), (aligned, weighs_rows(aligned)), (unaligned, False)}
    parts = max(_sums(c, nowhere, bands).parts for c, bands in ways)
    return whole_lines(dw.size * parts * aligned.computed)


def added_up(partial: Any, target: Array, spec: Spec, parts: int) -> Plan:
    """The sums of `parts` neighbouring partial sums for each element of the target."""
    return add_parts(partial or None, target, spec.dtype, spec.size, parts, 8 if parts <= 64 else None)
