"""What a task of a convolution without im2col reads: a block of the image, zero-padded and split into the phases of the
stride. Imports Numba."""

from __future__ import annotations

from dnnarray._cpu.compiled.conv.copies import box_of, clear, copy
from dnnarray._cpu.compiled.conv.plan import (
    BLOCK_AT,
    BLOCK_IMAGES_AT,
    C_AT,
    CHANNEL_TASKS_AT,
    COVERED_AT,
    FLAT_AT,
    ITEM_AT,
    LANES_AT,
    N_AT,
    OUT_AT,
    PHASE_AT,
    SPACE_AT,
    STRIDE_AT,
    XC_AT,
    XD_AT,
    XH_AT,
    XN_AT,
    XW_AT,
)
from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.tile import apart, routine, write_word


@device(counted=False)
def _load_row(like, source, step, begin, end, stride, target, count, item, width):
    """`count` elements of a row from position `begin` to `end` of those, 0 before and behind; `source` is where the
    first would be."""
    clear(like, target, begin, item)
    clear(like, target + end * item, count - end, item)
    copy(like, source + begin * stride * step, stride * step, target + begin * item, item, end - begin, item, width)


@device(counted=False)
def _load_rows(like, x, xs, geo, low, first, last, target):
    """A row of the channels from `first` to `last`, all phases of the stride, from position `low` on; x is 0 for a row
    outside of the image."""
    item, width, stride, phase = geo[ITEM_AT], geo[LANES_AT], geo[STRIDE_AT + 2], geo[PHASE_AT + 1] * geo[PHASE_AT + 2]
    channel = geo[STRIDE_AT] * geo[STRIDE_AT + 1] * stride * geo[PHASE_AT] * phase * item
    count, extent = geo[PHASE_AT + 2], geo[SPACE_AT + 2]
    for s in range(stride):
        begin = min(max((stride - 1 - low - s) // stride, 0), count)
        end = max(min((extent - low - s + stride - 1) // stride, count), begin)
        for c in range(first, last):
            into = target + c * channel + s * phase * item
            if x == 0:
                clear(like, into, count, item)
            else:
                source = x + c * xs[XC_AT] + (low + s) * xs[XW_AT]
                _load_row(like, source, xs[XW_AT], begin, end, stride, into, count, item, width)


@routine
def load_image(like, x, xs, geo, images, low, extents, image):
    """Copy what the block reads: [image][channel][phase d][d][phase h][phase w][h][w]."""
    apart()
    item, sd, sh = geo[ITEM_AT], geo[STRIDE_AT], geo[STRIDE_AT + 1]
    row = geo[PHASE_AT + 2] * item
    area = row * geo[PHASE_AT + 1] * geo[STRIDE_AT + 2]
    plane = area * sh
    whole = plane * sd * geo[PHASE_AT] * geo[C_AT]
    # Without a stride no more than is read; with one the phases' ends, too, which other pixels' gaps reach.
    depth = geo[PHASE_AT] * sd if sd > 1 else extents[0] - 1 + geo[COVERED_AT]
    height = geo[PHASE_AT + 1] * sh if sh > 1 else extents[1] - 1 + geo[COVERED_AT + 1]
    together = 1 if xs[XW_AT] <= xs[XC_AT] else geo[C_AT]  # channels: memory is read as it lies
    for i in range(images):
        for c in range(0, geo[C_AT], together):
            for d in range(depth):
                for h in range(height):
                    at_d, at_h = low[0] + d, low[1] + h
                    inside = 0 <= at_d < geo[SPACE_AT] and 0 <= at_h < geo[SPACE_AT + 1]
                    source = x + i * xs[XN_AT] + at_d * xs[XD_AT] + at_h * xs[XH_AT] if inside else 0
                    target = (
                        image + i * whole + (d % sd * geo[PHASE_AT] + d // sd) * plane + h % sh * area + h // sh * row
                    )
                    _load_rows(like, source, xs, geo, low[2], c, c + together, target)


@routine
def place_pixels(geo, images, extents, table):
    """Write the byte offset of each pixel in the image; flat, there is nothing to write. Gives the number of pixels,
    gaps included."""
    apart()
    item = geo[ITEM_AT]
    row = geo[PHASE_AT + 2]
    plane = row * geo[PHASE_AT + 1] * geo[STRIDE_AT + 1] * geo[STRIDE_AT + 2]
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


@device(counted=False)
def task_box(task, geo, start, extents):
    """Fill in the first pixel and the extents of a task; gives (its share of the channels, first image, images)."""
    channel = task % geo[CHANNEL_TASKS_AT]
    image = box_of(task // geo[CHANNEL_TASKS_AT], geo, OUT_AT, BLOCK_AT, start, extents) * geo[BLOCK_IMAGES_AT]
    return channel, image, min(geo[BLOCK_IMAGES_AT], geo[N_AT] - image)
