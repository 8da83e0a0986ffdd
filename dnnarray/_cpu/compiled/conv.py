"""Convolution by the matrix micro-kernel, without im2col: drivers and kernels. Imports Numba.

A task is a block of output pixels. Its inputs are copied once into an image of their own, zero-padded and split into the phases of the
stride, in which each tap of the window is one shift of the whole block. The micro-kernel then takes runs of neighbouring pixels as vectors
and the weight as scalars, and adds up over channels and taps in registers. Where the pixels of a tile are not neighbours (a row of
the image ends inside of it), they are either gathered or computed together with the gap between the rows, whichever is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu import conv as numpy_conv
from dnnarray._cpu import threads
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, driver, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import (
    DOTS,
    LONG_VECTORS,
    ROWS,
    VECTORS,
    apart,
    copy_vector,
    dots,
    lanes,
    long_tile,
    read,
    read_word,
    routine,
    tile,
    write,
    write_word,
)
from dnnarray._cpu.conv_blocks import Shape, Way, block_extents, carve, image_view, never, weight_view
from dnnarray._cpu.conv_shifted import shifted_cost
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry, Triple

_BLOCK_ELEMENTS = 1 << 15  # of a block's image or result: they share the second-level cache with a slice of the weight
_MIN_PIXELS = 192  # of a block: what the weight's trip from memory is shared among
_STEPS = 512  # channels times taps of one pass over the pixels: a tile of the weight then stays in the first-level cache
_WEIGHT_ELEMENTS = 1 << 15  # of the weight between two passes over the pixels
_GATHER = 1.2  # cycles to gather an element, against those of a vector's multiply-add
_TASKS_PER_CORE = 4  # where the extents allow it: the parts are cut beforehand, and cores are not equally fast
_LEAST_ROWS = 4  # tiles of the weight in a task, or its image costs more than its products
_PACK, _MACS = 2, 16  # elements of a light operation: an element of the weight packed; so many multiply-adds

# Where the kernel finds its numbers; three entries for the axes D H W where it says so.
_N, _GROUPS, _C, _K, _ITEM, _LANES, _WIDTH, _LONG, _FLAT, _STEP_COUNT, _WEIGHT_ROWS, _ROWS, _PARTS, _SCRATCH, _TABLE = range(15)
_SPACE, _OUT, _STRIDE, _BEFORE, _COVERED, _PHASE, _BLOCK = range(15, 36, 3)  # axes
_BLOCK_IMAGES = 36
_CHANNEL_TASKS, _IMAGE_ELEMENTS, _PACKED_ELEMENTS, _RESULT_PIXELS, _CHANNEL_ROWS, _TASKS, _TILES, _DEPTH, _SLACK, _WINDOW = range(37, 47)
_COUNT = 49
_XN, _XG, _XC, _XD, _XH, _XW, _YN, _YG, _YK, _YD, _YH, _YW = range(12)  # byte strides


# --- the kernel -------------------------------------------------------------------------------------------------------


@routine
def _copy(like, source, source_step, target, target_step, count, item, width):
    """`count` elements from addresses `source_step` apart to addresses `target_step` apart."""
    apart()
    if source_step == item and target_step == item and count >= width:
        last = (count - width) * item  # the last vector overlaps the one before it
        for at in range(0, last, width * item):
            copy_vector(like, source + at, target + at)
        copy_vector(like, source + last, target + last)
        return
    for j in range(count):
        write(like, target + j * target_step, read(like, source + j * source_step))


@device
def _zero(like, target, count, item):
    for j in range(count):
        write(like, target + j * item, like)


@routine
def _load_row(like, source, step, low, extent, target, count, stride, item, width):
    """`count` elements of a row at positions low + stride * j, 0 outside of [0, extent)."""
    apart()
    begin = min(max((stride - 1 - low) // stride, 0), count)
    end = max(min((extent - low + stride - 1) // stride, count), begin)
    _zero(like, target, begin, item)
    _zero(like, target + end * item, count - end, item)
    _copy(like, source + (low + begin * stride) * step, stride * step, target + begin * item, item, end - begin, item, width)


@device
def _load_plane_row(like, x, xs, geo, low, extent, target):
    """The rows of all channels at one position of the outer axes; `x` is None-like (0) outside of the image."""
    item, width, stride, phase = geo[_ITEM], geo[_LANES], geo[_STRIDE + 2], geo[_PHASE + 2]
    channel = geo[_STRIDE] * geo[_STRIDE + 1] * geo[_STRIDE + 2] * geo[_PHASE] * geo[_PHASE + 1] * geo[_PHASE + 2] * item
    reach = (extent - 1) * stride + geo[_COVERED + 2]
    for c in range(geo[_C]):
        for first in range(min(stride, reach)):
            into = target + c * channel + first * phase * item
            count = (reach - first + stride - 1) // stride
            if x == 0:
                _zero(like, into, count, item)
            else:
                _load_row(like, x + c * xs[_XC], xs[_XW], low + first, geo[_SPACE + 2], into, count, stride, item, width)


@routine
def _load_image(like, x, xs, geo, images, low, extents, image):
    """Copy what the block reads: [image][channel][phase d][d][phase h][h][phase w][w]."""
    apart()
    item, sd, sh = geo[_ITEM], geo[_STRIDE], geo[_STRIDE + 1]
    row = geo[_STRIDE + 2] * geo[_PHASE + 2] * item
    plane = row * sh * geo[_PHASE + 1]
    whole = plane * sd * geo[_PHASE] * geo[_C]
    for i in range(images):
        for d in range((extents[0] - 1) * sd + geo[_COVERED]):
            for h in range((extents[1] - 1) * sh + geo[_COVERED + 1]):
                at_d, at_h = low[0] + d, low[1] + h
                inside = 0 <= at_d < geo[_SPACE] and 0 <= at_h < geo[_SPACE + 1]
                source = x + i * xs[_XN] + at_d * xs[_XD] + at_h * xs[_XH] if inside else 0
                target = image + i * whole + ((d % sd) * geo[_PHASE] + d // sd) * plane + ((h % sh) * geo[_PHASE + 1] + h // sh) * row
                _load_plane_row(like, source, xs, geo, low[2], extents[2], target)


@routine
def _place_tiles(geo, images, extents, table):
    """Write the byte offset of each pixel in the image; flat, there is nothing to write. Gives the number of pixels, gaps included."""
    apart()
    item = geo[_ITEM]
    row = geo[_STRIDE + 2] * geo[_PHASE + 2]
    plane = row * geo[_STRIDE + 1] * geo[_PHASE + 1]
    whole = plane * geo[_STRIDE] * geo[_PHASE] * geo[_C]
    if geo[_FLAT]:
        return (extents[0] - 1) * plane + (extents[1] - 1) * row + extents[2]
    count = 0
    for i in range(images):
        for d in range(extents[0]):
            for h in range(extents[1]):
                for w in range(extents[2]):
                    write_word(table + count * 8, (i * whole + d * plane + h * row + w) * item)
                    count += 1
    return count


@routine
def _gather(like, image, pixels, count, taps, steps, packed, width, item):
    """The pixels of one tile at all taps, side by side; the last pixel again where there are no more."""
    apart()
    for t in range(steps):
        source, target = image + read_word(taps + t * 8), packed + t * width * item
        for j in range(width):
            write(like, target + j * item, read(like, source + read_word(pixels + min(j, count - 1) * 8)))


@routine
def _tile_bases(like, geo, image, count, pixels, taps, steps, packed, bases):
    """Write the address from which each tile reads its vectors, negative where it had to be gathered to `packed`."""
    apart()
    width, item = geo[_WIDTH], geo[_ITEM]
    for first in range(0, count, width):
        if geo[_FLAT]:
            base = image + first * item
        else:
            some, at = min(width, count - first), pixels + first * 8
            base = image + read_word(at)
            if some < width or read_word(at + (width - 1) * 8) - read_word(at) != (width - 1) * item:
                _gather(like, image, at, some, taps, steps, packed, width, item)
                base = -packed
                packed += steps * width * item
        write_word(bases, base)
        bases += 8


@routine
def _multiply(like, geo, weight, weight_row, k, bases, tiles, taps, packed_taps, steps, result, add):
    """All tiles of the block for `k` rows of the weight, over the channels and taps of one pass."""
    apart()
    item, width = geo[_ITEM], geo[_WIDTH]
    result_row = geo[_RESULT_PIXELS] * item
    for number in range(tiles):
        base = read_word(bases + number * 8)
        offsets = taps if base >= 0 else packed_taps
        target = result + number * width * item
        for row in range(0, k, geo[_ROWS]):
            rows = min(geo[_ROWS], k - row)
            source, into = weight + row * weight_row, target + row * result_row
            if geo[_LONG]:
                long_tile(like, rows, source, item, geo[_ROWS] * item, abs(base), offsets, steps, into, result_row, add)
            else:
                tile(like, rows, source, item, geo[_ROWS] * item, abs(base), offsets, steps, into, result_row, add)


@routine
def _store(like, geo, result, k, images, extents, y, ys):
    """The block's pixels from the result's rows to y, without the gaps."""
    apart()
    item, width = geo[_ITEM], geo[_LANES]
    result_row = geo[_RESULT_PIXELS] * item
    row, plane = extents[2], extents[1] * extents[2]
    if geo[_FLAT]:
        row = geo[_STRIDE + 2] * geo[_PHASE + 2]
        plane = row * geo[_STRIDE + 1] * geo[_PHASE + 1]
    rows, run = extents[1], extents[2]
    if row == run and ys[_YH] == run * ys[_YW]:  # the rows lie one behind the other on both sides
        rows, run = 1, rows * run
    for i in range(images):
        for d in range(extents[0]):
            for h in range(rows):
                source = result + (i * extents[0] * plane + d * plane + h * row) * item
                target = y + i * ys[_YN] + d * ys[_YD] + h * ys[_YH]
                if ys[_YW] <= ys[_YK]:
                    for c in range(k):
                        _copy(like, source + c * result_row, item, target + c * ys[_YK], ys[_YW], run, item, width)
                else:
                    for w in range(run):
                        _copy(like, source + w * item, result_row, target + w * ys[_YW], ys[_YK], k, item, width)


@device
def _task(task, geo, start, extents):
    """Fill in the first pixel and the extents of a task; gives (its share of the channels, first image, images)."""
    channel = task % geo[_CHANNEL_TASKS]
    task //= geo[_CHANNEL_TASKS]
    for axis in range(2, -1, -1):
        size = geo[_BLOCK + axis]
        number = (geo[_OUT + axis] + size - 1) // size
        start[axis] = task % number * size
        extents[axis] = min(size, geo[_OUT + axis] - start[axis])
        task //= number
    image = task * geo[_BLOCK_IMAGES]
    return channel, image, min(geo[_BLOCK_IMAGES], geo[_N] - image)


@device
def _channels(share, geo):
    """(first group, last + 1, first output channel in it, output channels) of a task."""
    if geo[_GROUPS] > 1:
        return share * geo[_GROUPS] // geo[_CHANNEL_TASKS], (share + 1) * geo[_GROUPS] // geo[_CHANNEL_TASKS], 0, geo[_K]
    first = share * geo[_CHANNEL_ROWS]
    return 0, 1, first, min(geo[_CHANNEL_ROWS], geo[_K] - first)


@device
def _block(like, geo, image, count, pixels, taps, packed_taps, packed, bases, weight, k, result):
    """Channels and taps in passes of `_STEP_COUNT`, the rows of the weight in slices that stay in the cache."""
    item = geo[_ITEM]
    depth, tiles = geo[_DEPTH], (count + geo[_WIDTH] - 1) // geo[_WIDTH]
    for step in range(0, depth, geo[_STEP_COUNT]):
        steps, some = min(geo[_STEP_COUNT], depth - step), taps + step * 8
        _tile_bases(like, geo, image, count, pixels, some, steps, packed, bases)
        for row in range(0, k, geo[_WEIGHT_ROWS]):
            source, into = weight + (row * depth + step * geo[_ROWS]) * item, result + row * geo[_RESULT_PIXELS] * item
            rows = min(geo[_WEIGHT_ROWS], k - row)
            _multiply(like, geo, source, depth * item, rows, bases, tiles, some, packed_taps, steps, into, step > 0)


@kernel
def correlate(
    start: int, stop: int, x: int, y: int, strides: Integers1, weight: int, taps: int, geo: Integers1, like: Out1, scratch: int, table: int
) -> None:
    """The tasks of the parts from `start` to `stop`; x, y, weight (packed), taps, scratch and table are addresses."""
    item = geo[_ITEM]
    zero = like.dtype.type(0)
    xs = ys = strides
    low, extents = np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        image = scratch + part * geo[_SCRATCH] * item
        packed = image + geo[_IMAGE_ELEMENTS] * item
        result = packed + geo[_PACKED_ELEMENTS] * item
        packed_taps = table + part * geo[_TABLE] * 8
        bases = packed_taps + geo[_STEP_COUNT] * 8
        pixels = bases + geo[_TILES] * 8
        for t in range(geo[_STEP_COUNT]):
            write_word(packed_taps + t * 8, t * geo[_WIDTH] * item)
        for task in range(part, geo[_TASKS], geo[_PARTS]):
            channel, first, images = _task(task, geo, low, extents)
            target = y + first * ys[_YN] + low[0] * ys[_YD] + low[1] * ys[_YH] + low[2] * ys[_YW]
            for axis in range(3):
                low[axis] = low[axis] * geo[_STRIDE + axis] - geo[_BEFORE + axis]
            count = _place_tiles(geo, images, extents, pixels)
            group, last, k0, k = _channels(channel, geo)
            while group < last:
                _load_image(zero, x + group * xs[_XG] + first * xs[_XN], xs, geo, images, low, extents, image)
                rows = weight + (group * ((geo[_K] + geo[_ROWS] - 1) // geo[_ROWS] * geo[_ROWS]) + k0) * geo[_DEPTH] * item
                _block(zero, geo, image, count, pixels, taps, packed_taps, packed, bases, rows, k, result)
                _store(zero, geo, result, k, images, extents, target + group * ys[_YG] + k0 * ys[_YK], ys)
                group += 1


@kernel
def pack_weight(start: int, stop: int, weight: int, strides: Integers1, geo: Integers1, like: Out1, packed: int) -> None:
    """Blocks of output channels as the micro-kernel reads them: [group][block][channel and tap][row of the block], 0 in missing rows."""
    item, rows, window = geo[_ITEM], geo[_ROWS], geo[_WINDOW : _WINDOW + 3]
    zero = like.dtype.type(0)
    blocks = (geo[_K] + rows - 1) // rows
    for number in range(start, stop):
        group, block = number // blocks, number % blocks
        target = packed + number * geo[_DEPTH] * rows * item
        for row in range(rows):
            k, into = block * rows + row, target + row * item
            source = weight + group * strides[0] + k * strides[1]
            for c in range(geo[_C]):
                for t in range(window[0]):
                    for r in range(window[1]):
                        for s in range(window[2]):
                            at = source + c * strides[2] + t * strides[3] + r * strides[4] + s * strides[5]
                            write(zero, into, read(zero, at) if k < geo[_K] else zero)
                            into += rows * item


# --- the gradient of a depthwise weight -------------------------------------------------------------------------------


@routine
def _load_gradient(like, geo, grad, ys, extents, target, count):
    """The block's gradient as the image's pixels lie, 0 in the gaps and up to a whole vector."""
    apart()
    item, width = geo[_ITEM], geo[_LANES]
    row = geo[_STRIDE + 2] * geo[_PHASE + 2]
    plane = row * geo[_STRIDE + 1] * geo[_PHASE + 1]
    _zero(like, target, (count + width - 1) // width * width, item)
    for d in range(extents[0]):
        for h in range(extents[1]):
            source = grad + d * ys[_YD] + h * ys[_YH]
            _copy(like, source, ys[_YW], target + (d * plane + h * row) * item, item, extents[2], item, width)


@routine
def _add_dots(like, geo, image, gradient, count, taps, sums, target):
    """Add the inner products of the gradient with the image at each tap; taps beyond the last are those of the last."""
    apart()
    item, width = geo[_ITEM], geo[_LANES]
    for first in range(0, geo[_DEPTH], DOTS):
        dots(like, gradient, image, taps + first * 8, (count + width - 1) // width, sums)
        for i in range(min(DOTS, geo[_DEPTH] - first)):
            at = target + (first + i) * item
            total = read(like, at)
            for j in range(width):
                total += read(like, sums + (i * width + j) * item)
            write(like, at, total)


@kernel
def depthwise_weight(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    weight: int,
    taps: int,
    geo: Integers1,
    like: Out1,
    scratch: int,
    parts: int,
) -> None:
    """The gradient of the weight, [group][tap], where a group has one channel and one output: block after block, each group by one part."""
    item, xs, ys = geo[_ITEM], strides, strides
    zero = like.dtype.type(0)
    low, extents = np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        image = scratch + part * geo[_SCRATCH] * item
        gradient = image + geo[_IMAGE_ELEMENTS] * item
        sums = gradient + geo[_RESULT_PIXELS] * item
        for group in range(part, geo[_GROUPS], parts):
            target = weight + group * geo[_DEPTH] * item
            _zero(zero, target, geo[_DEPTH], item)
            for task in range(0, geo[_TASKS], geo[_CHANNEL_TASKS]):
                _, first, images = _task(task, geo, low, extents)
                source = grad + group * ys[_YG] + first * ys[_YN] + low[0] * ys[_YD] + low[1] * ys[_YH] + low[2] * ys[_YW]
                for axis in range(3):
                    low[axis] = low[axis] * geo[_STRIDE + axis] - geo[_BEFORE + axis]
                count = _place_tiles(geo, images, extents, 0)
                _load_image(zero, x + group * xs[_XG] + first * xs[_XN], xs, geo, images, low, extents, image)
                _zero(zero, gradient - geo[_SLACK] * item, geo[_SLACK], item)
                _load_gradient(zero, geo, source, ys, extents, gradient, count)
                _add_dots(zero, geo, image, gradient, count, taps, sums, target)


# --- the plan ---------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """How a geometry is cut into tasks, for elements of one size."""

    numbers: np.ndarray  # what the kernels call `geo`
    taps: np.ndarray  # byte offset of each channel and tap in the image
    parts: int
    shapes: tuple[Shape, ...]  # of scratch: the packed weight, each part's memory, each part's table of 64-bit integers


def _even(extent: int, size: int) -> int:
    """The size nearest to `size` that cuts the extent into nearly equal blocks."""
    return -(-extent // max(round(extent / size), 1))


def _blocking(g: Geometry, flat: bool) -> tuple[int, Triple]:
    """Images and output extents of a block."""
    n, *extents = block_extents(g, max(_BLOCK_ELEMENTS // max(g.c * math.prod(g.stride), g.k), _MIN_PIXELS))
    d, h, w = (_even(m, b) for m, b in zip(g.out, extents, strict=True))
    return 1 if flat else _even(g.n, n), (d, h, w)


@lru_cache(maxsize=1024)
def plan(g: Geometry, itemsize: int) -> Plan:
    """The plan for a geometry that has no extent of 0."""
    long = g.k == 1
    rows, width = (1, LONG_VECTORS * lanes(itemsize)) if long else (ROWS, VECTORS * lanes(itemsize))
    flat = _is_flat(g, width)
    n, extents = _blocking(g, flat)
    phases = [-(-m // s) for m, s in zip(g.reach(extents), g.stride, strict=True)]
    line = phases[2] * g.stride[2]
    plane = line * phases[1] * g.stride[1]
    volume = plane * phases[0] * g.stride[0]
    pixels = (extents[0] - 1) * plane + (extents[1] - 1) * line + extents[2] if flat else n * math.prod(extents)
    tiles, depth = -(-pixels // width), g.c * g.taps
    steps = -(-depth // -(-depth // _STEPS))
    blocks = -(-g.n // n) * math.prod(-(-m // b) for m, b in zip(g.out, extents, strict=True))
    shares, channel_rows = _channel_shares(g, blocks, rows)
    parts = min(threads.cores(), blocks * shares)
    image, packed, result = (
        _lines(m) for m in (n * g.c * volume + width, 0 if flat else tiles * steps * width, channel_rows * tiles * width)
    )
    memory, table = image + packed + result + _lines(DOTS * lanes(itemsize)), steps + tiles + (0 if flat else pixels)
    numbers = np.zeros(_COUNT, np.int64)
    numbers[[_N, _GROUPS, _C, _K, _ITEM, _LANES, _WIDTH, _LONG, _FLAT]] = (
        g.n,
        g.groups,
        g.c,
        g.k,
        itemsize,
        lanes(itemsize),
        width,
        long,
        flat,
    )
    numbers[[_STEP_COUNT, _WEIGHT_ROWS, _ROWS, _DEPTH]] = steps, max(_WEIGHT_ELEMENTS // steps // rows, 1) * rows, rows, depth
    numbers[[_PARTS, _SCRATCH, _TABLE, _TASKS, _TILES]] = parts, memory, table, blocks * shares, tiles
    numbers[[_BLOCK_IMAGES, _CHANNEL_TASKS, _CHANNEL_ROWS]] = n, shares, channel_rows
    numbers[[_IMAGE_ELEMENTS, _SLACK, _PACKED_ELEMENTS, _RESULT_PIXELS]] = image, image - n * g.c * volume, packed, tiles * width
    axes = {
        _SPACE: g.space,
        _OUT: g.out,
        _STRIDE: g.stride,
        _BEFORE: g.before,
        _COVERED: g.reach((1, 1, 1)),
        _PHASE: phases,
        _BLOCK: extents,
    }
    for at, values in (axes | {_WINDOW: g.window}).items():
        numbers[at : at + 3] = values
    weight = g.groups * -(-g.k // rows) * rows * depth
    return Plan(
        numbers,
        _taps(g, volume, (plane, line, 1), phases) * itemsize,
        parts,
        ((weight,), (parts * memory + ALIGNMENT,), (2 * parts, table)),
    )


def _lines(elements: int) -> int:
    """Whole cache lines, whatever the element."""
    return -(-elements // ALIGNMENT) * ALIGNMENT


def _taps(g: Geometry, volume: int, steps: Sequence[int], phases: Sequence[int]) -> np.ndarray:
    """The offset of each channel and tap in the image, in elements: a tap stands in its phase of the stride. The last one again, for `dots`."""
    total = np.arange(g.c).reshape(-1, 1, 1, 1) * volume
    for axis, (step, phase, stride, dilation) in enumerate(zip(steps, phases, g.stride, g.dilation, strict=True)):
        position = np.arange(g.window[axis]) * dilation
        offset = (position % stride * phase + position // stride) * step
        total = total + offset.reshape([-1 if i == axis else 1 for i in range(3)])
    return np.pad(total.reshape(-1).astype(np.int64), (0, DOTS - 1), mode="edge")


def _channel_shares(g: Geometry, blocks: int, rows: int) -> tuple[int, int]:
    """Into how many tasks the channels of a block are split, so that the cores have enough of them, and the output channels of one."""
    wanted = -(-_TASKS_PER_CORE * threads.cores() // blocks)
    if g.groups > 1:
        return min(wanted, g.groups), g.k
    most = max(g.k // (_LEAST_ROWS * rows), 1)
    channels = -(-g.k // (min(wanted, most) * rows)) * rows
    return -(-g.k // channels), channels


def _is_flat(g: Geometry, width: int) -> bool:
    """Whether to compute the gaps between the rows of the image rather than to gather the tiles that span them."""
    line = -(-g.reach(g.out)[2] // g.stride[2]) * g.stride[2]
    gathered = 0.0 if g.out[2] % width == 0 else min(width / g.out[2], 1.0)
    return (line / g.out[2] - 1) * g.k < gathered * _GATHER * width


def _correlate(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    weight, memory, table = buffers
    p = plan(g, y.itemsize)
    blocks = g.groups * -(-g.k // int(p.numbers[_ROWS]))
    x, w = _aligned(x), _aligned(w)
    pack_weight(blocks, address(w), np.array(w.strides, np.int64), p.numbers, weight, address(weight), work=_PACK * weight.size)
    strides = np.array(x.strides + y.strides, np.int64)
    addresses = (
        address(x),
        address(y),
        strides,
        address(weight),
        address(p.taps),
        p.numbers,
        memory,
        _line(memory),
        address(table),
    )
    correlate(p.parts, *addresses, work=g.macs // _MACS)


def _line(memory: np.ndarray) -> int:
    """The first cache line in memory that is a line longer than needed."""
    return -(-address(memory) // ALIGNMENT) * ALIGNMENT


def _aligned(array: np.ndarray) -> np.ndarray:
    return array if array.flags.aligned else array.copy()


def buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch for elements of any size."""
    return [max(pair, key=math.prod) for pair in zip(plan(g, 4).shapes, plan(g, 8).shapes, strict=True)]


SHIFTED = Way("shifted", "", never, buffers, _correlate, shifted_cost)


def _driver(operation: Callable[..., None]) -> Callable[..., None]:
    @driver(pack_weight, correlate)
    def run(problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, *arrays: Any) -> None:
        operation(SHIFTED, problem, outputs, scratch, *arrays)

    return run


def weight_buffers(g: Geometry) -> Sequence[Shape]:
    """Scratch of the gradient of a depthwise weight."""
    return buffers(g)[1:2]


@driver(depthwise_weight)
def conv_backward_weight(problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, grad: np.ndarray, x: np.ndarray) -> None:
    g, result = problem.geometry, outputs[0]
    if 0 in g.sizes:
        result[...] = 0
        return
    (memory,), p = carve(scratch, weight_buffers(g), result.dtype), plan(g, result.itemsize)
    source, upstream = (image_view(_aligned(a), problem.layout, g.groups) for a in (x, grad))
    weight, strides = np.empty((g.groups, g.taps), result.dtype), np.array(source.strides + upstream.strides, np.int64)
    addresses = (address(source), address(upstream), strides, address(weight), address(p.taps), p.numbers, memory, _line(memory))
    parts = min(p.parts, g.groups)
    depthwise_weight(parts, *addresses, parts, work=g.macs // _MACS)
    if np.isfinite(np.sum(weight)):
        target = weight_view(result, problem.layout, g.groups, problem.flip)
        target[...] = weight.reshape(target.shape)
    else:  # gaps between the rows times what is no number: the definition says where it belongs
        numpy_conv.conv_backward_weight(numpy_conv.DIRECT, problem, outputs, None, grad, x)


conv = _driver(numpy_conv.conv)
conv_backward_input = _driver(numpy_conv.conv_backward_input)
conv_transpose = _driver(numpy_conv.conv_transpose)
