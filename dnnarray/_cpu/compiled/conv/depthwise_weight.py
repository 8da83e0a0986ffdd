"""The gradient of 3x3 depthwise weights: nine inner products of a plane of the gradient with shifts of the image, side
by side. Imports Numba.

A plane, or as many of its rows as the cache holds, is copied once to a zero-padded image. Each vector of the gradient
is then read once and multiplied by the image at all nine taps, whose sums stay in registers; the sums of a block are
added to those of the channel."""

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
def _block(like, geo, x, grad, strides, row, image, sums):
    """A block of rows of a plane."""
    apart()
    rows = min(geo[ROWS_AT], geo[OUT_H_AT] - row)
    load_rows(like, geo, x, strides[_XH], row - geo[BEFORE_H_AT], rows + geo[REACH_AT] - 1, image)
    source, step = grad + row * strides[_YH], geo[PITCH_AT] * geo[ITEM_AT]
    _nine_products(like, image, step, source, strides[_YH], rows, geo[OUT_W_AT], sums)


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
    item, zero = geo[ITEM_AT], like.dtype.type(0)
    for part in range(start, stop):
        image, first, last = (
            images + part * elements * item,
            geo[GROUPS_AT] * part // parts,
            geo[GROUPS_AT] * (part + 1) // parts,
        )
        clear(zero, image, elements, item)
        clear(zero, sums + first * _TAPS * width * item, (last - first) * _TAPS * width, item)
        for n in range(count):
            for group in range(first, last):
                plane, gradient = (
                    x + n * strides[_XN] + group * strides[_XG],
                    grad + n * strides[_YN] + group * strides[_YG],
                )
                for block in range(geo[BLOCKS_AT]):
                    own = sums + group * _TAPS * width * item
                    _block(zero, geo, plane, gradient, strides, block * geo[ROWS_AT], image, own)
        for tap in range(first * _TAPS, last * _TAPS):
            total = zero
            for lane in range(width):
                total += read(zero, sums + (tap * width + lane) * item)
            write(zero, weight + tap * item, total)


def nine_weight_gradient(g: Geometry, x: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """The gradient as (channels, taps), for what `fits_nine`."""
    geo, _, elements = row_plan(g, x.itemsize)
    parts = min(threads.cores(), g.groups)
    images, sums = aligned(parts, elements, x.dtype), aligned(g.groups, _TAPS * lanes(x.itemsize), x.dtype)
    weight, strides = np.empty((g.groups, _TAPS), x.dtype), np.array(x.strides + grad.strides, np.int64)
    width = sums.shape[1] // _TAPS
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
