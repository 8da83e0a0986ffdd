"""Convolution of single channels (depthwise, without stride): each output vector is a sum of shifted input vectors.
Imports Numba.

A task is a block of rows of one channel, copied once into a zero-padded image of its own. No matrix product: a tap's
weight, the same in all lanes, multiplies the image at the tap's offset, and the sums of a few neighbouring vectors stay
in registers until they are written. 3x3 windows have a kernel of their own, which mostly needs no copy, and those of
four rows and more without dilation go by strips."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import clear, copy_rows, run_start, runs_of
from dnnarray._cpu.compiled.conv.depthwise_nine import nine_sums
from dnnarray._cpu.compiled.conv.depthwise_strips import STRIP_ROWS, STRIP_VECTORS, strips_of_many, strips_of_one
from dnnarray._cpu.compiled.kernel import Integers1, Out1, kernel
from dnnarray._cpu.compiled.lanes import arithmetic
from dnnarray._cpu.compiled.memory import address, aligned
from dnnarray._cpu.compiled.tile import apart, intrinsic, lanes, load_at, routine, splat, store_at
from dnnarray._problems.conv_geometry import Geometry

_BLOCK_ELEMENTS = 1 << 15  # of the image of a task
_VECTORS = 4  # sums in registers, where a row is as long
_MACS = 16  # for an element of a light operation
_WORD = ir.IntType(64)

# Where the kernel finds its numbers.
(
    GROUPS_AT,
    K_AT,
    H_AT,
    W_AT,
    OUT_H_AT,
    OUT_W_AT,
    BEFORE_H_AT,
    BEFORE_W_AT,
    REACH_AT,
    TAPS_AT,
    ROWS_AT,
    BLOCKS_AT,
    PITCH_AT,
    ITEM_AT,
    WIDE_AT,
    NINE_AT,
    BESIDE_W_AT,
    DIRECT_AT,
    STRIP_AT,
    TALL_AT,
) = range(20)
_XN, _XG, _, _, _XH, _XW, _YN, _YG, _YK, _, _YH, _YW = range(12)  # byte strides


def fits(g: Geometry, x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the kernel does this: planes of one channel whose rows lie dense and fill a vector."""
    planar = g.out[0] == g.space[0] == g.window[0] == 1 and g.before[0] == 0
    unit = g.stride == (1, 1, 1) and min(g.before) >= 0
    dense = x.strides[5] == y.strides[5] == y.itemsize and x.flags.aligned
    return g.c == 1 and planar and unit and dense and min(g.out[2], g.space[2]) >= lanes(y.itemsize)


# --- vectors ----------------------------------------------------------------------------------------------------------


def _sums_intrinsic(vectors: int) -> Any:
    """Rows of window sums, `vectors` vectors at a time."""

    def typed(
        typing: Any,
        like: Any,
        image: Any,
        step: Any,
        weights: Any,
        offsets: Any,
        taps: Any,
        target: Any,
        target_step: Any,
        rows: Any,
        count: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            m, vector, item = arithmetic(context, builder, signature.args[0])
            _, image, step, weights, offsets, taps, target, target_step, rows, count = arguments
            span = vectors * vector.count

            def weight(tap: Any) -> Any:
                return splat(
                    builder,
                    load_at(builder, builder.add(weights, builder.mul(tap, _WORD(item))), vector.element, item),
                    vector,
                )

            def added(sums: list[Any], factor: Any, place: Any) -> list[Any]:
                places = [builder.add(place, _WORD(v * vector.count * item)) for v in range(vectors)]
                return [
                    m.fma(factor, load_at(builder, p, vector, item), total)
                    for p, total in zip(places, sums, strict=True)
                ]

            held = [cgutils.alloca_once(builder, vector) for _ in range(vectors)]
            with cgutils.for_range(builder, rows) as row:
                first, into = (
                    builder.add(a, builder.mul(row.index, s)) for a, s in ((image, step), (target, target_step))
                )
                with cgutils.for_range(builder, runs_of(builder, span, count)) as run:
                    at = builder.mul(run_start(builder, run.index, span, count), _WORD(item))
                    for place in held:
                        builder.store(m.real(0.0), place)
                    with cgutils.for_range(builder, taps) as tap:
                        offset = load_at(builder, builder.add(offsets, builder.mul(tap.index, _WORD(8))), _WORD, 8)
                        place = builder.add(builder.add(first, at), offset)
                        for total, value in zip(
                            held, added([builder.load(h) for h in held], weight(tap.index), place), strict=True
                        ):
                            builder.store(value, total)
                    for v, total in enumerate(held):
                        store_at(
                            builder,
                            builder.load(total),
                            builder.add(builder.add(into, at), _WORD(v * vector.count * item)),
                            item,
                        )
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 9), generate

    return intrinsic(typed)


_sums_of_one, _sums_of_many = (_sums_intrinsic(v) for v in (1, _VECTORS))


# --- the kernel -------------------------------------------------------------------------------------------------------


@routine
def load_rows(like, geo, x, row_step, low, rows, image):
    """The rows of the image that a block reads, from row `low` of the plane on; what lies beside them is 0 already."""
    apart()
    item, pitch = geo[ITEM_AT], geo[PITCH_AT]
    begin = min(max(-low, 0), rows)
    end = max(min(geo[H_AT] - low, rows), begin)
    clear(like, image, begin * pitch, item)
    clear(like, image + end * pitch * item, (rows - end) * pitch, item)
    into = image + (begin * pitch + geo[BEFORE_W_AT]) * item
    copy_rows(like, x + (low + begin) * row_step, row_step, into, pitch * item, end - begin, geo[W_AT])


@routine
def _nine_direct(like, geo, x, step, low, zeros, weights, y, row_step, rows):
    """The sums of a block whose first window begins at row `low` of the plane at x."""
    apart()
    before = geo[BEFORE_W_AT]
    nine_sums(
        like,
        x - before * geo[ITEM_AT],
        step,
        low,
        geo[H_AT],
        zeros,
        before,
        geo[BESIDE_W_AT],
        weights,
        y,
        row_step,
        rows,
        geo[OUT_W_AT],
    )


@routine
def _window_sums(like, geo, image, weights, offsets, y, row_step, rows):
    apart()
    step, count = geo[PITCH_AT] * geo[ITEM_AT], geo[OUT_W_AT]
    if geo[NINE_AT]:
        nine_sums(like, image, step, 0, rows + geo[REACH_AT] - 1, image, 0, 0, weights, y, row_step, rows, count)
    elif geo[STRIP_AT] and rows >= STRIP_ROWS:
        tall = geo[TALL_AT]
        if geo[STRIP_AT] > 1:
            strips_of_many(like, image, step, weights, tall, geo[TAPS_AT] // tall, y, row_step, rows, count)
        else:
            strips_of_one(like, image, step, weights, tall, geo[TAPS_AT] // tall, y, row_step, rows, count)
    elif geo[WIDE_AT]:
        _sums_of_many(like, image, step, weights, offsets, geo[TAPS_AT], y, row_step, rows, count)
    else:
        _sums_of_one(like, image, step, weights, offsets, geo[TAPS_AT], y, row_step, rows, count)


@kernel
def depthwise(
    start: int,
    stop: int,
    x: int,
    y: int,
    strides: Integers1,
    weight: int,
    offsets: int,
    geo: Integers1,
    like: Out1,
    images: int,
    elements: int,
    parts: int,
    tasks: int,
) -> None:
    """The parts from `start` to `stop`, each every so many blocks of rows of all images and channels; the weight is
    [group][output][tap]."""
    item, zero = geo[ITEM_AT], like.dtype.type(0)
    for part in range(start, stop):
        image = images + part * elements * item
        clear(zero, image, elements, item)
        for task in range(part, tasks, parts):
            block, plane = task % geo[BLOCKS_AT], task // geo[BLOCKS_AT]
            n, group = plane // geo[GROUPS_AT], plane % geo[GROUPS_AT]
            row = block * geo[ROWS_AT]
            rows = min(geo[ROWS_AT], geo[OUT_H_AT] - row)
            source = x + n * strides[_XN] + group * strides[_XG]
            low = row - geo[BEFORE_H_AT]
            if not geo[DIRECT_AT]:
                load_rows(zero, geo, source, strides[_XH], low, rows + geo[REACH_AT] - 1, image)
            for k in range(geo[K_AT]):
                target = y + n * strides[_YN] + group * strides[_YG] + k * strides[_YK] + row * strides[_YH]
                weights = weight + (group * geo[K_AT] + k) * geo[TAPS_AT] * item
                if geo[DIRECT_AT]:
                    _nine_direct(zero, geo, source, strides[_XH], low, image, weights, target, strides[_YH], rows)
                else:
                    _window_sums(zero, geo, image, weights, offsets, target, strides[_YH], rows)


@lru_cache(maxsize=1024)
def row_plan(g: Geometry, item: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The kernel's numbers, the byte offset of each tap in the image, and the elements of an image."""
    _, tall, wide = g.reach((1, 1, 1))
    line = max(g.out[2] + wide - 1, g.before[2] + g.space[2])
    pitch = -(-line // 16) * 16 + 16
    rows = min(max(_BLOCK_ELEMENTS // pitch - tall + 1, 1), g.out[1])
    blocks = -(-g.out[1] // rows)
    nine = g.window == (1, 3, 3) and g.dilation[1:] == (1, 1)
    span = _VECTORS * lanes(item)
    beside = max(g.out[2] + wide - 1 - g.before[2] - g.space[2], 0)  # columns
    direct = nine and g.before[2] <= 1 and beside <= 1
    strips = g.window[1] >= STRIP_ROWS and g.dilation[1:] == (1, 1)
    strip = strips * min(g.out[2] // lanes(item), STRIP_VECTORS)  # vectors
    numbers = [
        g.groups,
        g.k,
        *g.space[1:],
        *g.out[1:],
        *g.before[1:],
        tall,
        g.taps,
        rows,
        blocks,
        pitch,
        item,
        g.out[2] >= span,
        nine,
        beside,
        direct,
        strip,
        g.window[1],
    ]
    taps = np.arange(g.window[1]).reshape(-1, 1) * (g.dilation[1] * pitch) + np.arange(g.window[2]) * g.dilation[2]
    return np.array(numbers, np.int64), taps.reshape(-1) * item, (rows + tall - 1) * pitch


def correlate_planes(g: Geometry, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """y from x, for what `fits`; none of the arrays is empty."""
    geo, offsets, elements = row_plan(g, y.itemsize)
    if geo[DIRECT_AT]:
        elements = int(geo[PITCH_AT])  # a row of zeros
    tasks = g.n * g.groups * int(geo[BLOCKS_AT])
    parts = min(threads.cores(), tasks)
    images = aligned(parts, elements, y.dtype)
    weight = np.ascontiguousarray(w)
    strides = np.array(x.strides + y.strides, np.int64)
    depthwise(
        parts,
        address(x),
        address(y),
        strides,
        address(weight),
        address(offsets),
        geo,
        images.reshape(-1),
        address(images),
        images.shape[1],
        parts,
        tasks,
        work=g.macs // _MACS,
    )
