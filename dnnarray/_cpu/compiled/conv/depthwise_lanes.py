"""Convolution of single channels (depthwise) whose channels lie side by side: they are the lanes of the vectors.
Imports Numba.

A tap's weights, one for each channel, multiply the pixels that the tap meets, straight from the image; the sums of a
few pixels stay in registers. Nothing is copied, and taps beside the image are left out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.conv.copies import aligned_array, run_start, runs_of
from dnnarray._cpu.compiled.conv.drivers import correlations
from dnnarray._cpu.compiled.kernel import Integers1, Out1, device, kernel
from dnnarray._cpu.compiled.lanes import Arithmetic
from dnnarray._cpu.compiled.memory import address, behind
from dnnarray._cpu.compiled.tile import apart, intrinsic, lanes, load_at, routine, splat, store_at, vector_of
from dnnarray._cpu.conv.blocks import Way
from dnnarray._cpu.conv.depthwise import LEAST_LANES, lanes_cost, rejects_lanes
from dnnarray._problems.conv_geometry import Geometry

_PIXELS, _FEW_PIXELS = 6, 3  # whose sums are in registers; of rows that are short
_WHOLE = 3, 5, 7  # taps of a row that are done together, where they lie as far apart as the pixels
VECTORS = 2  # in registers, for a tap of the weight's gradient
_TASK = 1 << 14  # elements of the results of a task
_MACS = 16  # for an element of a light operation
_WORD, _INT = ir.IntType(64), ir.IntType(32)

# Where the kernels find their numbers; three entries each for the axes D H W, then single ones.
SPACE, OUT, STRIDE, BEFORE, WINDOW, DILATION = range(0, 18, 3)
GROUPS, ITEM, ROWS, BLOCKS, LONG, TOGETHER = range(18, 24)
XN, _, _, XD, XH, XW, YN, _, _, YD, YH, YW = range(12)  # byte strides


# --- vectors ----------------------------------------------------------------------------------------------------------


def vectors_of(
    context: Any, builder: ir.IRBuilder, like: types.Float, long: bool
) -> tuple[Arithmetic, ir.VectorType, int]:
    """Vectors as long as the target has them, or of the fewest lanes that there are channels for."""
    element, vector, item = vector_of(context, like)
    vector = vector if long else ir.VectorType(element, LEAST_LANES)
    return Arithmetic(builder, vector, item), vector, item


class _Sums:
    """Window sums of neighbouring pixels in registers."""

    def __init__(self, builder: ir.IRBuilder, m: Arithmetic, vector: ir.VectorType, item: int, pixels: int) -> None:
        self.builder, self.m, self.vector, self.item = builder, m, vector, item
        self.held = [cgutils.alloca_once(builder, vector) for _ in range(pixels)]

    def load(self, place: Any) -> Any:
        return load_at(self.builder, place, self.vector, self.item)

    def add(self, p: int, factor: Any, value: Any) -> None:
        self.builder.store(self.m.fma(factor, value, self.builder.load(self.held[p])), self.held[p])

    def add_tap(self, source: Any, x_pixel: Any, weight: Any) -> None:
        """A tap of all pixels."""
        factor = self.load(weight)
        for p in range(len(self.held)):
            self.add(p, factor, self.load(behind(self.builder, source, (_WORD(p), x_pixel))))

    def add_row(self, source: Any, x_pixel: Any, weight: Any, w_tap: Any, taps: int) -> None:
        """A row of so many taps, which lie as far apart as the pixels do: a pixel of the image is loaded once for all
        taps that meet it."""
        factors = [self.load(behind(self.builder, weight, (_WORD(s), w_tap))) for s in range(taps)]
        for i in range(len(self.held) + taps - 1):
            value = self.load(behind(self.builder, source, (_WORD(i), x_pixel)))
            for s in range(taps):
                if 0 <= i - s < len(self.held):
                    self.add(i - s, factors[s], value)


def _sums_intrinsic(pixels: int, long: bool, whole: int = 0) -> Any:
    """Window sums of `count` pixels, at least `pixels`, of all channels, added to what is in y or not; `whole` taps
    along the row at once, if any are said."""

    def typed(
        typing: Any,
        like: Any,
        x: Any,
        x_pixel: Any,
        planes: Any,
        plane: Any,
        rows: Any,
        row: Any,
        taps: Any,
        tap: Any,
        w: Any,
        w_plane: Any,
        w_row: Any,
        w_tap: Any,
        y: Any,
        y_pixel: Any,
        count: Any,
        channels: Any,
        add: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            m, vector, item = vectors_of(context, builder, signature.args[0], long)
            (
                _,
                x,
                x_pixel,
                planes,
                plane,
                rows,
                row,
                taps,
                tap,
                w,
                w_plane,
                w_row,
                w_tap,
                y,
                y_pixel,
                count,
                channels,
                add,
            ) = arguments
            add = builder.icmp_signed("!=", add, _WORD(0))
            runs = builder.sdiv(taps, _WORD(whole)) if whole else _WORD(0)
            sums = _Sums(builder, m, vector, item, pixels)

            def add_rows(source: Any, weight: Any) -> None:
                with cgutils.for_range(builder, planes) as t, cgutils.for_range(builder, rows) as r:
                    line = behind(builder, source, (t.index, plane), (r.index, row))
                    factors = behind(builder, weight, (t.index, w_plane), (r.index, w_row))
                    if whole:
                        with cgutils.for_range(builder, runs) as run:
                            s = builder.mul(run.index, _WORD(whole))
                            sums.add_row(
                                behind(builder, line, (s, tap)),
                                x_pixel,
                                behind(builder, factors, (s, w_tap)),
                                w_tap,
                                whole,
                            )
                    with cgutils.for_range(builder, taps, builder.mul(runs, _WORD(max(whole, 1)))) as s:
                        sums.add_tap(
                            behind(builder, line, (s.index, tap)), x_pixel, behind(builder, factors, (s.index, w_tap))
                        )

            with cgutils.for_range(builder, runs_of(builder, pixels, count)) as run:
                first = run_start(builder, run.index, pixels, count)
                source, target = behind(builder, x, (first, x_pixel)), behind(builder, y, (first, y_pixel))
                with cgutils.for_range(builder, runs_of(builder, vector.count, channels)) as part:
                    begin = run_start(builder, part.index, vector.count, channels)
                    at = builder.mul(begin, _WORD(item))
                    places = [behind(builder, builder.add(target, at), (_WORD(p), y_pixel)) for p in range(pixels)]
                    before = [sums.load(place) for place in places]
                    for value, place in zip(before, sums.held, strict=True):
                        builder.store(builder.select(add, value, m.real(0.0)), place)
                    add_rows(builder.add(source, at), builder.add(w, at))
                    # The last run overlaps the one before: what was added there is in y already.
                    words = ir.VectorType(_WORD, vector.count)
                    seen = splat(builder, builder.sub(builder.mul(part.index, _WORD(vector.count)), begin), words)
                    fresh = builder.icmp_signed(">=", ir.Constant(words, list(range(vector.count))), seen)
                    fresh = builder.or_(
                        fresh, splat(builder, builder.not_(add), ir.VectorType(ir.IntType(1), vector.count))
                    )
                    for value, total, place in zip(before, sums.held, places, strict=True):
                        store_at(builder, builder.select(fresh, builder.load(total), value), place, item)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 17), generate

    return intrinsic(typed)


_long_many, _long_few, _long_one = (_sums_intrinsic(p, True) for p in (_PIXELS, _FEW_PIXELS, 1))
_short_many, _short_few, _short_one = (_sums_intrinsic(p, False) for p in (_PIXELS, _FEW_PIXELS, 1))
_three_many, _five_many, _seven_many = (_sums_intrinsic(_PIXELS, True, whole) for whole in _WHOLE)
_three_few, _five_few, _seven_few = (_sums_intrinsic(_FEW_PIXELS, True, whole) for whole in _WHOLE)


# --- the kernel ------------------------------------------------------------------------------------------------------


@device(counted=False)
def begin_of(at: Any, step: Any) -> Any:
    """The first i with at + i * step no less than 0."""
    return max(-(at // step), 0)


@device(counted=False)
def end_of(at: Any, step: Any, extent: Any, count: Any) -> Any:
    """The first i, `count` at most, with at + i * step no less than `extent`."""
    return min(max(-((at - extent) // step), 0), count)


@routine
def _pixels(like, geo, strides, x, planes, rows, taps, w, y, count, add):
    """`count` pixels of a row whose first tap reads the image at x, with so many taps along each axis from the one at w
    on."""
    apart()
    channels, w_tap = geo[GROUPS], geo[GROUPS] * geo[ITEM]
    w_row, plane, row = w_tap * geo[WINDOW + 2], strides[XD] * geo[DILATION], strides[XH] * geo[DILATION + 1]
    x_pixel, x_tap, w_plane, y_pixel = (
        strides[XW] * geo[STRIDE + 2],
        strides[XW] * geo[DILATION + 2],
        w_row * geo[WINDOW + 1],
        strides[YW],
    )
    numbers = (
        x,
        x_pixel,
        planes,
        plane,
        rows,
        row,
        taps,
        x_tap,
        w,
        w_plane,
        w_row,
        w_tap,
        y,
        y_pixel,
        count,
        channels,
        add,
    )
    together = geo[TOGETHER] if taps >= geo[TOGETHER] else 0
    if count >= _PIXELS:
        if together == 3:
            _three_many(like, *numbers)
        elif together == 5:
            _five_many(like, *numbers)
        elif together == 7:
            _seven_many(like, *numbers)
        elif geo[LONG]:
            _long_many(like, *numbers)
        else:
            _short_many(like, *numbers)
    elif count >= _FEW_PIXELS:
        if together == 3:
            _three_few(like, *numbers)
        elif together == 5:
            _five_few(like, *numbers)
        elif together == 7:
            _seven_few(like, *numbers)
        elif geo[LONG]:
            _long_few(like, *numbers)
        else:
            _short_few(like, *numbers)
    elif geo[LONG]:
        _long_one(like, *numbers)
    else:
        _short_one(like, *numbers)


@device(counted=False)
def _taps_of(like, geo, strides, x, planes, rows, w, y, pixel, count, first, stop, add):
    """The taps from `first` to `stop` along the row, of `count` pixels from `pixel` on; x, w and y are those of the
    row's position 0, tap 0 and pixel 0."""
    at = pixel * geo[STRIDE + 2] - geo[BEFORE + 2] + first * geo[DILATION + 2]
    weights = w + first * geo[GROUPS] * geo[ITEM]
    _pixels(
        like,
        geo,
        strides,
        x + at * strides[XW],
        planes,
        rows,
        stop - first,
        weights,
        y + pixel * strides[YW],
        count,
        add,
    )


@routine
def _edge(like, geo, strides, x, planes, rows, w, y, begin, end):
    """The pixels from `begin` to `end` of a row, whose windows reach over the edge: a few together with the taps that
    all of them have, then the others."""
    apart()
    step, before, dilation, width, window = (
        geo[STRIDE + 2],
        geo[BEFORE + 2],
        geo[DILATION + 2],
        geo[SPACE + 2],
        geo[WINDOW + 2],
    )
    p = begin
    while p < end:
        left = end - p
        count = _PIXELS if left >= _PIXELS else _FEW_PIXELS if left >= _FEW_PIXELS else 1
        low = begin_of(p * step - before, dilation)
        high = max(end_of((p + count - 1) * step - before, dilation, width, window), low)
        _taps_of(like, geo, strides, x, planes, rows, w, y, p, count, low, high, 0)
        for q in range(p, p + count):
            first, stop = begin_of(q * step - before, dilation), end_of(q * step - before, dilation, width, window)
            if first < min(low, stop):
                _taps_of(like, geo, strides, x, planes, rows, w, y, q, 1, first, min(low, stop), 1)
            if max(high, first) < stop:
                _taps_of(like, geo, strides, x, planes, rows, w, y, q, 1, max(high, first), stop, 1)
        p += count


@routine
def _row(like, geo, strides, x, w, y, depth, height):
    """A row of outputs of an image at x, whose first windows begin at this depth and height."""
    apart()
    step, before, dilation, window = geo[STRIDE + 2], geo[BEFORE + 2], geo[DILATION + 2], geo[WINDOW + 2]
    t, r = begin_of(depth, geo[DILATION]), begin_of(height, geo[DILATION + 1])
    planes = max(end_of(depth, geo[DILATION], geo[SPACE], geo[WINDOW]) - t, 0)
    rows = max(end_of(height, geo[DILATION + 1], geo[SPACE + 1], geo[WINDOW + 1]) - r, 0)
    x += (depth + t * geo[DILATION]) * strides[XD] + (height + r * geo[DILATION + 1]) * strides[XH]
    w += (t * geo[WINDOW + 1] + r) * window * geo[GROUPS] * geo[ITEM]
    count = geo[OUT + 2]
    low = min(begin_of(-before, step), count)
    high = max(end_of((window - 1) * dilation - before, step, geo[SPACE + 2], count), low)
    _edge(like, geo, strides, x, planes, rows, w, y, 0, low)
    if high > low:
        _taps_of(like, geo, strides, x, planes, rows, w, y, low, high - low, 0, window, 0)
    _edge(like, geo, strides, x, planes, rows, w, y, high, count)


@kernel
def lanes_correlate(
    start: int, stop: int, x: int, y: int, strides: Integers1, weight: int, geo: Integers1, like: Out1
) -> None:
    """The blocks of rows of outputs from `start` to `stop`; the weight is [tap][channel]."""
    zero = like.dtype.type(0)
    for task in range(start, stop):
        block, plane = task % geo[BLOCKS], task // geo[BLOCKS]
        n, d = plane // geo[OUT], plane % geo[OUT]
        depth = d * geo[STRIDE] - geo[BEFORE]
        for h in range(block * geo[ROWS], min((block + 1) * geo[ROWS], geo[OUT + 1])):
            target = y + n * strides[YN] + d * strides[YD] + h * strides[YH]
            _row(zero, geo, strides, x + n * strides[XN], weight, target, depth, h * geo[STRIDE + 1] - geo[BEFORE + 1])


# --- drivers ----------------------------------------------------------------------------------------------------------


def _together(window: int) -> int:
    """How many taps of a row are done at once: those that leave the fewest by themselves."""
    return min(_WHOLE, key=lambda taps: (window % taps, -taps))


@lru_cache(maxsize=1024)
def rows_plan(g: Geometry, item: int) -> tuple[np.ndarray, int]:
    """The kernels' numbers, and how many tasks there are."""
    rows = min(max(_TASK // (g.out[2] * g.groups), 1), g.out[1])
    blocks, long = -(-g.out[1] // rows), min(g.groups // lanes(item), VECTORS)
    together = _together(g.window[2]) if long and g.stride[2] == g.dilation[2] else 0
    numbers = (
        *g.space,
        *g.out,
        *g.stride,
        *g.before,
        *g.window,
        *g.dilation,
        g.groups,
        item,
        rows,
        blocks,
        long,
        together,
    )
    return np.array(numbers, np.int64), g.n * g.out[0] * blocks


def side_by_side(a: np.ndarray) -> np.ndarray:
    """An image (N, G, 1, D, H, W), or a copy, whose channels are neighbours in memory."""
    a = aligned_array(a)
    if a.strides[1] == a.itemsize:
        return a
    return np.ascontiguousarray(a.transpose(0, 2, 3, 4, 5, 1)).transpose(0, 5, 1, 2, 3, 4)


def _forward(g: Geometry, buffers: Sequence[np.ndarray], x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    geo, tasks = rows_plan(g, y.itemsize)
    x, target = (
        side_by_side(x),
        y if y.strides[1] == y.itemsize and y.flags.aligned else side_by_side(np.empty(y.shape, y.dtype)),
    )
    weight = np.ascontiguousarray(w.reshape(g.groups, g.taps).T)
    strides = np.array(x.strides + target.strides, np.int64)
    lanes_correlate(
        tasks, address(x), address(target), strides, address(weight), geo, weight.reshape(-1), work=g.macs // _MACS
    )
    if target is not y:
        y[...] = target


WAY = Way("depthwise_lanes", "", rejects_lanes, lambda g: (), _forward, lanes_cost)
conv, conv_backward_input, conv_transpose = correlations(WAY, lanes_correlate)
