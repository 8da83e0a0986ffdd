"""The gradient of a depthwise weight whose channels lie side by side: they are the lanes of the vectors. Imports Numba.

The sums of a few taps stay in registers over the pixels of a row. Taps beside the image are left out, and nothing is
copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import clear, run_start, runs_of
from dnnarray._cpu.compiled.conv.depthwise_lanes import (
    BEFORE,
    BLOCKS,
    DILATION,
    GROUPS,
    ITEM,
    LONG,
    OUT,
    ROWS,
    SPACE,
    STRIDE,
    VECTORS,
    WINDOW,
    XD,
    XH,
    XN,
    XW,
    YD,
    YH,
    YN,
    YW,
    begin_of,
    end_of,
    rows_plan,
    side_by_side,
    vectors_of,
)
from dnnarray._cpu.compiled.conv.depthwise_lanes import WAY as CORRELATES
from dnnarray._cpu.compiled.kernel import Integers1, Out1, driver, kernel
from dnnarray._cpu.compiled.memory import address, aligned, behind
from dnnarray._cpu.compiled.tile import apart, intrinsic, load_at, read, routine, splat, store_at, write
from dnnarray._cpu.conv import maps as conv_maps
from dnnarray._cpu.conv.depthwise import lanes_cost, rejects_lanes
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry

_TAPS = 3  # whose sums are in registers
_CHAIN, _SUMS_CHAIN = 64, 32  # pixels of a row that are added up in registers, and such sums before float64 takes them
_MACS = 16  # for an element of a light operation
_WORD = ir.IntType(64)


# --- vectors ----------------------------------------------------------------------------------------------------------


def _products_intrinsic(taps: int, vectors: int, long: bool) -> Any:
    """Add to the sums of `taps` neighbouring taps what `count` pixels of a row give, of all channels."""

    def typed(
        typing: Any,
        like: Any,
        x: Any,
        x_pixel: Any,
        x_tap: Any,
        grad: Any,
        grad_pixel: Any,
        count: Any,
        sums: Any,
        sums_tap: Any,
        channels: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            m, vector, item = vectors_of(context, builder, signature.args[0], long)
            _, x, x_pixel, x_tap, grad, grad_pixel, count, sums, sums_tap, channels = arguments
            span, words = vectors * vector.count, ir.VectorType(_WORD, vector.count)
            held = [[cgutils.alloca_once(builder, vector) for _ in range(vectors)] for _ in range(taps)]
            order = [ir.Constant(words, list(range(v * vector.count, (v + 1) * vector.count))) for v in range(vectors)]
            parts = [_WORD(v * vector.count * item) for v in range(vectors)]
            with cgutils.for_range(builder, runs_of(builder, span, channels)) as run:
                first = run_start(builder, run.index, span, channels)
                at = builder.mul(first, _WORD(item))
                # The last run overlaps the one before: what was counted there is 0 here.
                seen = splat(builder, builder.sub(builder.mul(run.index, _WORD(span)), first), words)
                fresh = [builder.icmp_signed(">=", lane, seen) for lane in order]
                for place in (p for row in held for p in row):
                    builder.store(m.real(0.0), place)
                with cgutils.for_range(builder, count) as pixel:
                    source = behind(builder, builder.add(x, at), (pixel.index, x_pixel))
                    slopes = behind(builder, builder.add(grad, at), (pixel.index, grad_pixel))
                    values = [load_at(builder, builder.add(slopes, part), vector, item) for part in parts]
                    for s, row in enumerate(held):
                        own = behind(builder, source, (_WORD(s), x_tap))
                        for value, place, part in zip(values, row, parts, strict=True):
                            met = load_at(builder, builder.add(own, part), vector, item)
                            builder.store(m.fma(value, met, builder.load(place)), place)
                for s, row in enumerate(held):
                    for new, place, part in zip(fresh, row, parts, strict=True):
                        total = builder.add(behind(builder, builder.add(sums, at), (_WORD(s), sums_tap)), part)
                        before = load_at(builder, total, vector, item)
                        store_at(
                            builder, builder.select(new, builder.fadd(before, builder.load(place)), before), total, item
                        )
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 9), generate

    return intrinsic(typed)


_pairs_of_many, _pairs_of_one, _long_of_many, _long_of_one, _short_of_many, _short_of_one = (
    _products_intrinsic(taps, vectors, long)
    for vectors, long in ((VECTORS, True), (1, True), (1, False))
    for taps in (_TAPS, 1)
)


# --- the kernel -------------------------------------------------------------------------------------------------------


@routine
def _run_products(like, geo, strides, x, grad, low, high, taps, sums):
    """What the pixels from `low` to `high` of a row give to `taps` taps (`_TAPS` or one) from the one on that reads the
    row at x for the first pixel."""
    apart()
    x_pixel, x_tap, channels = strides[XW] * geo[STRIDE + 2], strides[XW] * geo[DILATION + 2], geo[GROUPS]
    step = channels * geo[ITEM]
    for first in range(low, high, _CHAIN):
        count, source, slope = min(high - first, _CHAIN), x + first * x_pixel, grad + first * strides[YW]
        if geo[LONG] > 1:
            if taps > 1:
                _pairs_of_many(like, source, x_pixel, x_tap, slope, strides[YW], count, sums, step, channels)
            else:
                _pairs_of_one(like, source, x_pixel, x_tap, slope, strides[YW], count, sums, step, channels)
        elif geo[LONG]:
            if taps > 1:
                _long_of_many(like, source, x_pixel, x_tap, slope, strides[YW], count, sums, step, channels)
            else:
                _long_of_one(like, source, x_pixel, x_tap, slope, strides[YW], count, sums, step, channels)
        elif taps > 1:
            _short_of_many(like, source, x_pixel, x_tap, slope, strides[YW], count, sums, step, channels)
        else:
            _short_of_one(like, source, x_pixel, x_tap, slope, strides[YW], count, sums, step, channels)


@routine
def _row_products(like, geo, strides, x, grad, sums):
    """What a row of the gradient gives to the taps of a row of the window, which read the row at x."""
    apart()
    step, before, dilation, width, count = (
        geo[STRIDE + 2],
        geo[BEFORE + 2],
        geo[DILATION + 2],
        geo[SPACE + 2],
        geo[OUT + 2],
    )
    tap, place = geo[GROUPS] * geo[ITEM], x - before * strides[XW]
    s = 0
    while s < geo[WINDOW + 2]:
        together = _TAPS if s + _TAPS <= geo[WINDOW + 2] else 1
        low = begin_of(s * dilation - before, step)
        high = end_of((s + together - 1) * dilation - before, step, width, count)
        source = place + s * dilation * strides[XW]
        if together > 1 and low < high:
            _run_products(like, geo, strides, source, grad, low, high, together, sums + s * tap)
        for single in range(s, s + together):
            own, into = place + single * dilation * strides[XW], sums + single * tap
            first = min(begin_of(single * dilation - before, step), count)
            last = max(end_of(single * dilation - before, step, width, count), first)
            if together > 1 and low < high:
                _run_products(like, geo, strides, own, grad, first, min(low, last), 1, into)
                _run_products(like, geo, strides, own, grad, max(high, first), last, 1, into)
            else:
                _run_products(like, geo, strides, own, grad, first, last, 1, into)
        s += together


@routine
def _add_to(like, sums, totals, count, item):
    """Add the sums to the totals in float64; the sums begin at 0 again."""
    apart()
    for at in range(count):
        total = totals + at * 8
        write(np.float64(0), total, read(np.float64(0), total) + read(like, sums + at * item))
    clear(like, sums, count, item)


@kernel
def lanes_gradient(
    start: int,
    stop: int,
    x: int,
    grad: int,
    strides: Integers1,
    geo: Integers1,
    like: Out1,
    memory: int,
    results: int,
    elements: int,
    tasks: int,
    parts: int,
) -> None:
    """The parts from `start` to `stop`, each every so many blocks of rows: sums [tap][channel] in `memory`, and the
    totals of all of the part in float64 in `results`."""
    zero, item = like.dtype.type(0), geo[ITEM]
    in_a_row = (geo[OUT + 2] + _CHAIN - 1) // _CHAIN
    for part in range(start, stop):
        sums, totals, held = memory + part * elements * item, results + part * elements * 8, 0
        clear(zero, sums, elements, item)
        clear(np.float64(0), totals, elements, 8)
        for task in range(part, tasks, parts):
            block, plane = task % geo[BLOCKS], task // geo[BLOCKS]
            n, d = plane // geo[OUT], plane % geo[OUT]
            depth, image = d * geo[STRIDE] - geo[BEFORE], x + n * strides[XN]
            for h in range(block * geo[ROWS], min((block + 1) * geo[ROWS], geo[OUT + 1])):
                height, slopes = (
                    h * geo[STRIDE + 1] - geo[BEFORE + 1],
                    grad + n * strides[YN] + d * strides[YD] + h * strides[YH],
                )
                for t in range(begin_of(depth, geo[DILATION]), end_of(depth, geo[DILATION], geo[SPACE], geo[WINDOW])):
                    for r in range(
                        begin_of(height, geo[DILATION + 1]),
                        end_of(height, geo[DILATION + 1], geo[SPACE + 1], geo[WINDOW + 1]),
                    ):
                        line = (
                            image
                            + (depth + t * geo[DILATION]) * strides[XD]
                            + (height + r * geo[DILATION + 1]) * strides[XH]
                        )
                        own = sums + (t * geo[WINDOW + 1] + r) * geo[WINDOW + 2] * geo[GROUPS] * item
                        _row_products(zero, geo, strides, line, slopes, own)
                held += in_a_row
                if held >= _SUMS_CHAIN:
                    _add_to(zero, sums, totals, elements, item)
                    held = 0
        _add_to(zero, sums, totals, elements, item)


# --- the driver -------------------------------------------------------------------------------------------------------


def _weight_gradient(
    g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, grad: np.ndarray, w: np.ndarray
) -> None:
    geo, tasks = rows_plan(g, x.itemsize)
    x, grad = side_by_side(x), side_by_side(grad)
    elements, parts = g.groups * g.taps, min(threads.cores(), tasks)
    memory, strides = aligned(1, parts * elements, x.dtype), np.array(x.strides + grad.strides, np.int64)
    totals = aligned(1, parts * elements, np.dtype(np.float64))
    lanes_gradient(
        parts,
        address(x),
        address(grad),
        strides,
        geo,
        memory.reshape(-1),
        address(memory),
        address(totals),
        elements,
        tasks,
        parts,
        work=g.macs // _MACS,
    )
    by_part = totals.reshape(-1)[: parts * elements].reshape(parts, g.taps, g.groups)
    w[...] = by_part.sum(0).T.reshape(w.shape)


WAY = CORRELATES._replace(
    weight_buffers=lambda g: (), weight_gradient=_weight_gradient, weight_cost=lanes_cost, rejects_weight=rejects_lanes
)


@driver(lanes_gradient)
def conv_backward_weight(
    problem: ConvProblem, outputs: Any, scratch: np.ndarray | None, grad: np.ndarray, x: np.ndarray
) -> None:
    conv_maps.conv_backward_weight(WAY, problem, outputs, scratch, grad, x)
