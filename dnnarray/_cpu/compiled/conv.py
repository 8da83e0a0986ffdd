"""Convolution by the matrix micro-kernel, without im2col: drivers and kernels. Imports Numba.

A task is a block of output pixels. Its inputs are copied once into an image of their own, zero-padded and split into the phases of the
stride, in which each tap of the window is one shift of the whole block. The micro-kernel then takes runs of neighbouring pixels as vectors
and the weight as scalars, and adds up over channels and taps in registers. Where the pixels of a tile are not neighbours (a row of
the image ends inside of it), they are either gathered or computed together with the gap between the rows, whichever is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dnnarray._cpu import conv as numpy_conv
from dnnarray._cpu.compiled.conv_plan import (
    BEFORE_AT,
    BLOCK_AT,
    BLOCK_IMAGES_AT,
    C_AT,
    CHANNEL_ROWS_AT,
    CHANNEL_TASKS_AT,
    COVERED_AT,
    DEPTH_AT,
    FLAT_AT,
    GROUPS_AT,
    IMAGE_ELEMENTS_AT,
    ITEM_AT,
    K_AT,
    LANES_AT,
    LONG_AT,
    N_AT,
    OUT_AT,
    PACKED_ELEMENTS_AT,
    PARTS_AT,
    PHASE_AT,
    RESULT_PIXELS_AT,
    ROWS_AT,
    SCRATCH_AT,
    SLACK_AT,
    SPACE_AT,
    STEP_COUNT_AT,
    STRIDE_AT,
    TABLE_AT,
    TASKS_AT,
    TILES_AT,
    WEIGHT_ROWS_AT,
    WIDTH_AT,
    WINDOW_AT,
    XC_AT,
    XD_AT,
    XG_AT,
    XH_AT,
    XN_AT,
    XW_AT,
    YD_AT,
    YG_AT,
    YH_AT,
    YK_AT,
    YN_AT,
    YW_AT,
    buffers,
    plan,
)
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, driver, kernel
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import (
    DOTS,
    apart,
    copy_vector,
    dots,
    long_tile,
    read,
    read_word,
    routine,
    tile,
    write,
    write_word,
)
from dnnarray._cpu.conv_blocks import Shape, Way, carve, image_view, never, weight_view
from dnnarray._cpu.conv_shifted import shifted_cost
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry

_PACK, _MACS = 2, 16  # elements of a light operation: an element of the weight packed; so many multiply-adds


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
    item, width, stride, phase = geo[ITEM_AT], geo[LANES_AT], geo[STRIDE_AT + 2], geo[PHASE_AT + 2]
    channel = geo[STRIDE_AT] * geo[STRIDE_AT + 1] * geo[STRIDE_AT + 2] * geo[PHASE_AT] * geo[PHASE_AT + 1] * geo[PHASE_AT + 2] * item
    reach = (extent - 1) * stride + geo[COVERED_AT + 2]
    for c in range(geo[C_AT]):
        for first in range(min(stride, reach)):
            into = target + c * channel + first * phase * item
            count = (reach - first + stride - 1) // stride
            if x == 0:
                _zero(like, into, count, item)
            else:
                _load_row(like, x + c * xs[XC_AT], xs[XW_AT], low + first, geo[SPACE_AT + 2], into, count, stride, item, width)


@routine
def _load_image(like, x, xs, geo, images, low, extents, image):
    """Copy what the block reads: [image][channel][phase d][d][phase h][h][phase w][w]."""
    apart()
    item, sd, sh = geo[ITEM_AT], geo[STRIDE_AT], geo[STRIDE_AT + 1]
    row = geo[STRIDE_AT + 2] * geo[PHASE_AT + 2] * item
    plane = row * sh * geo[PHASE_AT + 1]
    whole = plane * sd * geo[PHASE_AT] * geo[C_AT]
    for i in range(images):
        for d in range((extents[0] - 1) * sd + geo[COVERED_AT]):
            for h in range((extents[1] - 1) * sh + geo[COVERED_AT + 1]):
                at_d, at_h = low[0] + d, low[1] + h
                inside = 0 <= at_d < geo[SPACE_AT] and 0 <= at_h < geo[SPACE_AT + 1]
                source = x + i * xs[XN_AT] + at_d * xs[XD_AT] + at_h * xs[XH_AT] if inside else 0
                target = image + i * whole + ((d % sd) * geo[PHASE_AT] + d // sd) * plane + ((h % sh) * geo[PHASE_AT + 1] + h // sh) * row
                _load_plane_row(like, source, xs, geo, low[2], extents[2], target)


@routine
def _place_tiles(geo, images, extents, table):
    """Write the byte offset of each pixel in the image; flat, there is nothing to write. Gives the number of pixels, gaps included."""
    apart()
    item = geo[ITEM_AT]
    row = geo[STRIDE_AT + 2] * geo[PHASE_AT + 2]
    plane = row * geo[STRIDE_AT + 1] * geo[PHASE_AT + 1]
    whole = plane * geo[STRIDE_AT] * geo[PHASE_AT] * geo[C_AT]
    if geo[FLAT_AT]:
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
    width, item = geo[WIDTH_AT], geo[ITEM_AT]
    for first in range(0, count, width):
        if geo[FLAT_AT]:
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
    item, width = geo[ITEM_AT], geo[WIDTH_AT]
    result_row = geo[RESULT_PIXELS_AT] * item
    for number in range(tiles):
        base = read_word(bases + number * 8)
        offsets = taps if base >= 0 else packed_taps
        target = result + number * width * item
        for row in range(0, k, geo[ROWS_AT]):
            rows = min(geo[ROWS_AT], k - row)
            source, into = weight + row * weight_row, target + row * result_row
            if geo[LONG_AT]:
                long_tile(like, rows, source, item, geo[ROWS_AT] * item, abs(base), offsets, steps, into, result_row, add)
            else:
                tile(like, rows, source, item, geo[ROWS_AT] * item, abs(base), offsets, steps, into, result_row, add)


@routine
def _store(like, geo, result, k, images, extents, y, ys):
    """The block's pixels from the result's rows to y, without the gaps."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    result_row = geo[RESULT_PIXELS_AT] * item
    row, plane = extents[2], extents[1] * extents[2]
    if geo[FLAT_AT]:
        row = geo[STRIDE_AT + 2] * geo[PHASE_AT + 2]
        plane = row * geo[STRIDE_AT + 1] * geo[PHASE_AT + 1]
    rows, run = extents[1], extents[2]
    if row == run and ys[YH_AT] == run * ys[YW_AT]:  # the rows lie one behind the other on both sides
        rows, run = 1, rows * run
    for i in range(images):
        for d in range(extents[0]):
            for h in range(rows):
                source = result + (i * extents[0] * plane + d * plane + h * row) * item
                target = y + i * ys[YN_AT] + d * ys[YD_AT] + h * ys[YH_AT]
                if ys[YW_AT] <= ys[YK_AT]:
                    for c in range(k):
                        _copy(like, source + c * result_row, item, target + c * ys[YK_AT], ys[YW_AT], run, item, width)
                else:
                    for w in range(run):
                        _copy(like, source + w * item, result_row, target + w * ys[YW_AT], ys[YK_AT], k, item, width)


@device
def _task(task, geo, start, extents):
    """Fill in the first pixel and the extents of a task; gives (its share of the channels, first image, images)."""
    channel = task % geo[CHANNEL_TASKS_AT]
    task //= geo[CHANNEL_TASKS_AT]
    for axis in range(2, -1, -1):
        size = geo[BLOCK_AT + axis]
        number = (geo[OUT_AT + axis] + size - 1) // size
        start[axis] = task % number * size
        extents[axis] = min(size, geo[OUT_AT + axis] - start[axis])
        task //= number
    image = task * geo[BLOCK_IMAGES_AT]
    return channel, image, min(geo[BLOCK_IMAGES_AT], geo[N_AT] - image)


@device
def _channels(share, geo):
    """(first group, last + 1, first output channel in it, output channels) of a task."""
    if geo[GROUPS_AT] > 1:
        return share * geo[GROUPS_AT] // geo[CHANNEL_TASKS_AT], (share + 1) * geo[GROUPS_AT] // geo[CHANNEL_TASKS_AT], 0, geo[K_AT]
    first = share * geo[CHANNEL_ROWS_AT]
    return 0, 1, first, min(geo[CHANNEL_ROWS_AT], geo[K_AT] - first)


@device
def _block(like, geo, image, count, pixels, taps, packed_taps, packed, bases, weight, k, result):
    """Channels and taps in passes of `STEP_COUNT_AT`, the rows of the weight in slices that stay in the cache."""
    item = geo[ITEM_AT]
    depth, tiles = geo[DEPTH_AT], (count + geo[WIDTH_AT] - 1) // geo[WIDTH_AT]
    for step in range(0, depth, geo[STEP_COUNT_AT]):
        steps, some = min(geo[STEP_COUNT_AT], depth - step), taps + step * 8
        _tile_bases(like, geo, image, count, pixels, some, steps, packed, bases)
        for row in range(0, k, geo[WEIGHT_ROWS_AT]):
            source, into = weight + (row * depth + step * geo[ROWS_AT]) * item, result + row * geo[RESULT_PIXELS_AT] * item
            rows = min(geo[WEIGHT_ROWS_AT], k - row)
            _multiply(like, geo, source, depth * item, rows, bases, tiles, some, packed_taps, steps, into, step > 0)


@kernel
def correlate(
    start: int, stop: int, x: int, y: int, strides: Integers1, weight: int, taps: int, geo: Integers1, like: Out1, scratch: int, table: int
) -> None:
    """The tasks of the parts from `start` to `stop`; x, y, weight (packed), taps, scratch and table are addresses."""
    item = geo[ITEM_AT]
    zero = like.dtype.type(0)
    xs = ys = strides
    low, extents = np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        image = scratch + part * geo[SCRATCH_AT] * item
        packed = image + geo[IMAGE_ELEMENTS_AT] * item
        result = packed + geo[PACKED_ELEMENTS_AT] * item
        packed_taps = table + part * geo[TABLE_AT] * 8
        bases = packed_taps + geo[STEP_COUNT_AT] * 8
        pixels = bases + geo[TILES_AT] * 8
        for t in range(geo[STEP_COUNT_AT]):
            write_word(packed_taps + t * 8, t * geo[WIDTH_AT] * item)
        for task in range(part, geo[TASKS_AT], geo[PARTS_AT]):
            channel, first, images = _task(task, geo, low, extents)
            target = y + first * ys[YN_AT] + low[0] * ys[YD_AT] + low[1] * ys[YH_AT] + low[2] * ys[YW_AT]
            for axis in range(3):
                low[axis] = low[axis] * geo[STRIDE_AT + axis] - geo[BEFORE_AT + axis]
            count = _place_tiles(geo, images, extents, pixels)
            group, last, k0, k = _channels(channel, geo)
            while group < last:
                _load_image(zero, x + group * xs[XG_AT] + first * xs[XN_AT], xs, geo, images, low, extents, image)
                rows = weight + (group * ((geo[K_AT] + geo[ROWS_AT] - 1) // geo[ROWS_AT] * geo[ROWS_AT]) + k0) * geo[DEPTH_AT] * item
                _block(zero, geo, image, count, pixels, taps, packed_taps, packed, bases, rows, k, result)
                _store(zero, geo, result, k, images, extents, target + group * ys[YG_AT] + k0 * ys[YK_AT], ys)
                group += 1


@kernel
def pack_weight(start: int, stop: int, weight: int, strides: Integers1, geo: Integers1, like: Out1, packed: int) -> None:
    """Blocks of output channels as the micro-kernel reads them: [group][block][channel and tap][row of the block], 0 in missing rows."""
    item, rows, window = geo[ITEM_AT], geo[ROWS_AT], geo[WINDOW_AT : WINDOW_AT + 3]
    zero = like.dtype.type(0)
    blocks = (geo[K_AT] + rows - 1) // rows
    for number in range(start, stop):
        group, block = number // blocks, number % blocks
        target = packed + number * geo[DEPTH_AT] * rows * item
        for row in range(rows):
            k, into = block * rows + row, target + row * item
            source = weight + group * strides[0] + k * strides[1]
            for c in range(geo[C_AT]):
                for t in range(window[0]):
                    for r in range(window[1]):
                        for s in range(window[2]):
                            at = source + c * strides[2] + t * strides[3] + r * strides[4] + s * strides[5]
                            write(zero, into, read(zero, at) if k < geo[K_AT] else zero)
                            into += rows * item


# --- the gradient of a depthwise weight -------------------------------------------------------------------------------


@routine
def _load_gradient(like, geo, grad, ys, extents, target, count):
    """The block's gradient as the image's pixels lie, 0 in the gaps and up to a whole vector."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    row = geo[STRIDE_AT + 2] * geo[PHASE_AT + 2]
    plane = row * geo[STRIDE_AT + 1] * geo[PHASE_AT + 1]
    _zero(like, target, (count + width - 1) // width * width, item)
    for d in range(extents[0]):
        for h in range(extents[1]):
            source = grad + d * ys[YD_AT] + h * ys[YH_AT]
            _copy(like, source, ys[YW_AT], target + (d * plane + h * row) * item, item, extents[2], item, width)


@routine
def _add_dots(like, geo, image, gradient, count, taps, sums, target):
    """Add the inner products of the gradient with the image at each tap; taps beyond the last are those of the last."""
    apart()
    item, width = geo[ITEM_AT], geo[LANES_AT]
    for first in range(0, geo[DEPTH_AT], DOTS):
        dots(like, gradient, image, taps + first * 8, (count + width - 1) // width, sums)
        for i in range(min(DOTS, geo[DEPTH_AT] - first)):
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
    item, xs, ys = geo[ITEM_AT], strides, strides
    zero = like.dtype.type(0)
    low, extents = np.empty(3, np.int64), np.empty(3, np.int64)
    for part in range(start, stop):
        image = scratch + part * geo[SCRATCH_AT] * item
        gradient = image + geo[IMAGE_ELEMENTS_AT] * item
        sums = gradient + geo[RESULT_PIXELS_AT] * item
        for group in range(part, geo[GROUPS_AT], parts):
            target = weight + group * geo[DEPTH_AT] * item
            _zero(zero, target, geo[DEPTH_AT], item)
            for task in range(0, geo[TASKS_AT], geo[CHANNEL_TASKS_AT]):
                _, first, images = _task(task, geo, low, extents)
                source = grad + group * ys[YG_AT] + first * ys[YN_AT] + low[0] * ys[YD_AT] + low[1] * ys[YH_AT] + low[2] * ys[YW_AT]
                for axis in range(3):
                    low[axis] = low[axis] * geo[STRIDE_AT + axis] - geo[BEFORE_AT + axis]
                count = _place_tiles(geo, images, extents, 0)
                _load_image(zero, x + group * xs[XG_AT] + first * xs[XN_AT], xs, geo, images, low, extents, image)
                _zero(zero, gradient - geo[SLACK_AT] * item, geo[SLACK_AT], item)
                _load_gradient(zero, geo, source, ys, extents, gradient, count)
                _add_dots(zero, geo, image, gradient, count, taps, sums, target)


# --- drivers ----------------------------------------------------------------------------------------------------------


def _correlate(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    weight, memory, table = buffers
    p = plan(g, y.itemsize)
    blocks = g.groups * -(-g.k // int(p.numbers[ROWS_AT]))
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
