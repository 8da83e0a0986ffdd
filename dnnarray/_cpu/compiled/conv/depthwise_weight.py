"""The gradient of 3x3 depthwise weights: nine inner products of a plane of the gradient with shifts of the image, side
by side. Imports Numba.

A plane, or as many of its rows as the cache holds, is copied once to a zero-padded image. Each vector of the gradient
is then read once and multiplied by the image at all nine taps, whose sums stay in registers for a short run of vectors;
the sums of a few runs are added up in memory, and those sums in float64, so that the error does not grow with the
extents."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import clear, run_start, runs_of
from dnnarray._cpu.compiled.conv.depthwise import (
    BEFORE_H_AT,
    BLOCKS_AT,
    GROUPS_AT,
    ITEM_AT,
    NINE_AT,
    OUT_H_AT,
    OUT_W_AT,
    PITCH_AT,
    REACH_AT,
    ROWS_AT,
    fits,
    load_rows,
    row_plan,
)
from dnnarray._cpu.compiled.kernel import Integers1, Out1, kernel
from dnnarray._cpu.compiled.lanes import arithmetic
from dnnarray._cpu.compiled.memory import address, aligned
from dnnarray._cpu.compiled.tile import apart, intrinsic, lanes, load_at, read, routine, splat, store_at, write
from dnnarray._problems.conv_geometry import Geometry

_TAPS = 9
_MACS = 16  # for an element of a light operation
_CHAIN = 64  # vectors whose products are added up in registers
_HELD = 16  # images whose sums are added up before float64 takes them
_WORD = ir.IntType(64)
_XN, _XG, _XH, _YN, _YG, _YH = 0, 1, 4, 6, 7, 10  # byte strides


def fits_nine(g: Geometry, x: np.ndarray, grad: np.ndarray) -> bool:
    """Whether the kernel does this: what `fits` the depthwise convolution, with a window of 3x3 and one output for each
    channel."""
    return fits(g, x, grad) and grad.flags.aligned and g.k == 1 and bool(row_plan(g, x.itemsize)[0][NINE_AT])


@intrinsic
def _nine_products(
    typing: Any, like: Any, image: Any, step: Any, grad: Any, grad_step: Any, rows: Any, count: Any, sums: Any
) -> Any:
    """Add to nine vectors at `sums` the products of the gradient's rows with the image at each tap, lane by lane."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        m, vector, item = arithmetic(context, builder, signature.args[0])
        _, image, step, grad, grad_step, rows, count, sums = arguments
        words = ir.VectorType(_WORD, vector.count)
        lane = ir.Constant(words, list(range(vector.count)))
        totals = [cgutils.alloca_once_value(builder, m.real(0.0)) for _ in range(_TAPS)]
        with cgutils.for_range(builder, rows) as row:
            offset = builder.mul(row.index, grad_step)
            line, source = builder.add(image, builder.mul(row.index, step)), builder.add(grad, offset)
            with cgutils.for_range(builder, runs_of(builder, vector.count, count)) as run:
                first = run_start(builder, run.index, vector.count, count)
                at = builder.mul(first, _WORD(item))
                # The last run of a row overlaps the one before: what was counted there is 0 here.
                seen = builder.sub(builder.mul(run.index, _WORD(vector.count)), first)
                value = load_at(builder, builder.add(source, at), vector, item)
                value = builder.select(builder.icmp_signed(">=", lane, splat(builder, seen, words)), value, m.real(0.0))
                for t, total in enumerate(totals):
                    place = builder.add(
                        builder.add(line, builder.mul(step, _WORD(t // 3))), builder.add(at, _WORD(t % 3 * item))
                    )
                    builder.store(m.fma(value, load_at(builder, place, vector, item), builder.load(total)), total)
        for t, total in enumerate(totals):
            place = builder.add(sums, _WORD(t * vector.count * item))
            store_at(builder, builder.fadd(load_at(builder, place, vector, item), builder.load(total)), place, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 7), generate


@routine
def _block(like, geo, x, grad, strides, row, image, sums, tall, width):
    """A block of rows of a plane: the products of `tall` rows, or of a span of one, are added up in registers."""
    apart()
    rows = min(geo[ROWS_AT], geo[OUT_H_AT] - row)
    load_rows(like, geo, x, strides[_XH], row - geo[BEFORE_H_AT], rows + geo[REACH_AT] - 1, image)
    source, down = grad + row * strides[_YH], strides[_YH]
    item, step, wide, span = geo[ITEM_AT], geo[PITCH_AT] * geo[ITEM_AT], geo[OUT_W_AT], _CHAIN * width
    for first in range(0, rows, tall):
        line, at = image + first * step, source + first * down
        for begin in range(0, wide - width + 1, span):
            count = span if begin + span + width <= wide else wide - begin
            _nine_products(
                like, line + begin * item, step, at + begin * item, down, min(tall, rows - first), count, sums
            )


@routine
def _collect(like, sums, width, weight, item):
    """Move the sums of a channel, lane by lane, to its weights in float64."""
    apart()
    for tap in range(_TAPS):
        total, own = read(np.float64(0), weight + tap * 8), sums + tap * width * item
        for lane in range(width):
            total += read(like, own + lane * item)
        write(np.float64(0), weight + tap * 8, total)
    clear(like, sums, _TAPS * width, item)


@kernel
def nine_weight(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    weight: int,
    geo: Integers1,
    like: Out1,
    images: int,
    elements: int,
    sums: int,
    count: int,
    width: int,
    parts: int,
) -> None:
    """The gradient of the weight, [channel][tap], over `count` images: each part has channels of its own, and `sums`
    nine vectors for each channel."""
    item, zero, none = geo[ITEM_AT], like.dtype.type(0), np.float64(0)
    tall = max(_CHAIN * width // (geo[OUT_W_AT] + width - 1), 1)
    for part in range(start, stop):
        image, first, last = (
            images + part * elements * item,
            geo[GROUPS_AT] * part // parts,
            geo[GROUPS_AT] * (part + 1) // parts,
        )
        clear(zero, image, elements, item)
        clear(zero, sums + first * _TAPS * width * item, (last - first) * _TAPS * width, item)
        clear(none, weight + first * _TAPS * 8, (last - first) * _TAPS, 8)
        for n in range(count):
            due = (n + 1) % _HELD == 0 or n + 1 == count
            for group in range(first, last):
                plane = x + n * strides[_XN] + group * strides[_XG]
                gradient = grad + n * strides[_YN] + group * strides[_YG]
                own = sums + group * _TAPS * width * item
                for block in range(geo[BLOCKS_AT]):
                    _block(zero, geo, plane, gradient, strides, block * geo[ROWS_AT], image, own, tall, width)
                    if due or geo[BLOCKS_AT] > 1:
                        _collect(zero, own, width, weight + group * _TAPS * 8, item)


def nine_weight_gradient(g: Geometry, x: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """The gradient as (channels, taps) in float64, for what `fits_nine`."""
    geo, _, elements = row_plan(g, x.itemsize)
    parts = min(threads.cores(), g.groups)
    width = lanes(x.itemsize)
    images, sums = aligned(parts, elements, x.dtype), aligned(g.groups, _TAPS * width, x.dtype)
    weight, strides = np.empty((g.groups, _TAPS)), np.array(x.strides + grad.strides, np.int64)
    nine_weight(
        parts,
        address(x),
        address(grad),
        strides,
        address(weight),
        geo,
        images.reshape(-1),
        address(images),
        images.shape[1],
        address(sums),
        g.n,
        width,
        parts,
        work=g.macs // _MACS,
    )
    return weight
