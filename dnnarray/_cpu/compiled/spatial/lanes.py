"""Resizing of images whose channels lie side by side: they are the lanes of the vectors. Imports Numba.

Along each axis an element of the result is the weighted sum of a few elements of the source, with one weight for all
channels. A row of the source is resized along its length just before it is wanted, with those at the same place of
neighbouring planes summed before that where there are three axes; the last few such rows wait in a ring for the sums
that make rows of the result. Where there are fewer rows than before, they are summed first. The gradient has the same
form, with the taps transposed: each element of it gathers its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.conv.copies import run_start, runs_of
from dnnarray._cpu.compiled.kernel import In1, Integers1, Out1, device, kernel
from dnnarray._cpu.compiled.lanes import Lanes
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import apart, intrinsic, load_at, read_word, routine, splat, vector_of
from dnnarray._cpu.spatial.resize import taps_of
from dnnarray._problems.spatial_resize import Resize
from dnnarray._records import frozen

_VECTORS = 4  # whose sums are in registers at a time
_USUAL = 1, 2, 4  # taps whose weights are in registers too
_RING = 1 << 17  # bytes of rows that wait: half of a small second-level cache
_WORD = ir.IntType(64)

# Where the kernel finds its numbers: extents of source and result, channels, bytes of an element and of a row that
# waits, rows that wait, taps of each axis, columns of a block, how many blocks, whether planes and rows are taken as
# they are, whether rows are summed first, and bytes of a row of sums.
_H, _W, _D, _O, _P, _Q, _C, _ITEM, _STEP, _SLOTS, _TD, _TH, _TW, _COLUMNS, _BLOCKS, _PLAIN, _DIRECT, _SHRINKS, _SPAN = (
    range(19)
)
# Where its tables lie: byte offsets and weights of the taps of planes, rows and columns; which rows those are; of each
# block the first and the last column that it reads, and where its own without any tap stand in the table of those;
# _NONE is in the place of planes and rows without any.
_PLANES, _PLANE_WEIGHTS, _ROWS, _ROW_WEIGHTS, _PLACES, _PLACE_WEIGHTS, _WHICH, _BLOCK, _UNREAD = range(19, 28)
_NONE = -1

Array = np.ndarray


# --- weighted sums of runs --------------------------------------------------------------------------------------------


class _Runs:
    """Runs of elements at these addresses, and a weight of each in all lanes."""

    def __init__(
        self, builder: ir.IRBuilder, vector: ir.VectorType, item: int, base: Any, offsets: Any, weights: Any
    ) -> None:
        self.builder, self.vector, self.item = builder, vector, item
        self.base, self.offsets, self.weights = base, offsets, weights

    def tap(self, k: Any) -> tuple[Any, Any]:
        """The address and the weight of a tap."""
        builder = self.builder
        offset = load_at(builder, builder.add(self.offsets, builder.mul(k, _WORD(8))), _WORD, 8)
        place = builder.add(self.weights, builder.mul(k, _WORD(self.item)))
        return builder.add(self.base, offset), splat(
            builder, load_at(builder, place, self.vector.element, self.item), self.vector
        )


def _sum_few(m: Lanes, taps: list[tuple[Any, Any]], at: list[Any], out: Any) -> None:
    """The sums of vectors at these offsets, all taps in registers; light ones come first, as small sums round less."""
    builder = m.builder
    for offset in at:
        total = None
        for run, weight in taps:
            value = m.load(builder.add(run, offset))
            total = builder.fmul(weight, value) if total is None else m.fma(weight, value, total)
        m.store(total, builder.add(out, offset))


def _sum_many(m: Lanes, runs: _Runs, count: Any, at: list[Any], out: Any, sums: list[Any]) -> None:
    """The same of any number of taps, one after the other."""
    builder = m.builder
    run, weight = runs.tap(_WORD(0))
    for offset, place in zip(at, sums, strict=False):
        builder.store(builder.fmul(weight, m.load(builder.add(run, offset))), place)
    with cgutils.for_range(builder, builder.sub(count, _WORD(1))) as k:
        run, weight = runs.tap(builder.add(k.index, _WORD(1)))
        for offset, place in zip(at, sums, strict=False):
            builder.store(m.fma(weight, m.load(builder.add(run, offset)), builder.load(place)), place)
    for offset, place in zip(at, sums, strict=False):
        m.store(builder.load(place), builder.add(out, offset))


def _each_vector(
    builder: ir.IRBuilder,
    vector: ir.VectorType,
    item: int,
    count: Any,
    emit: Callable[[Lanes, list[Any]], None],
    tail: Lanes,
) -> None:
    """``emit(lanes, offsets)`` for all vectors of a run of `count` elements: some at a time, the others one by one,
    then what is left in `tail`."""
    whole, width = Lanes(builder, vector, item, None), vector.count * item
    vectors = builder.udiv(count, _WORD(vector.count))
    together, single = builder.udiv(vectors, _WORD(_VECTORS)), builder.urem(vectors, _WORD(_VECTORS))
    with cgutils.for_range(builder, together) as some:
        first = builder.mul(some.index, _WORD(_VECTORS * width))
        emit(whole, [builder.add(first, _WORD(v * width)) for v in range(_VECTORS)])
    begin = builder.mul(together, _WORD(_VECTORS * width))
    with cgutils.for_range(builder, single) as one:
        emit(whole, [builder.add(begin, builder.mul(one.index, _WORD(width)))])
    with builder.if_then(builder.icmp_unsigned("!=", builder.mul(vectors, _WORD(vector.count)), count)):
        emit(tail, [builder.mul(vectors, _WORD(width))])


def _sums_intrinsic(usual: int) -> Any:
    """Sums of so many weighted runs, or of any number where it is 0: `pixels` times `count` elements, one after the
    other, whose taps follow each other too."""

    def typed(
        typing: Any, like: Any, base: Any, offsets: Any, weights: Any, taps: Any, out: Any, pixels: Any, count: Any
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, vector, item = vector_of(context, signature.args[0])
            _, base, offsets, weights, taps, out, pixels, count = arguments
            tail = Lanes(builder, vector, item, builder.urem(count, _WORD(vector.count)))
            sums = [] if usual else [cgutils.alloca_once(builder, vector) for _ in range(_VECTORS)]
            with cgutils.for_range(builder, pixels) as pixel:
                first = builder.mul(pixel.index, _WORD(usual) if usual else taps)
                here = [
                    builder.add(table, builder.mul(first, _WORD(size)))
                    for table, size in ((offsets, 8), (weights, item))
                ]
                runs = _Runs(builder, vector, item, base, *here)
                target = builder.add(out, builder.mul(builder.mul(pixel.index, count), _WORD(item)))
                held = [runs.tap(_WORD(k)) for k in range(usual)]

                def emit(m: Lanes, at: list[Any]) -> None:
                    if usual:
                        _sum_few(m, held, at, target)
                    else:
                        _sum_many(m, runs, taps, at, target, sums)

                _each_vector(builder, vector, item, count, emit, tail)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 7), generate

    return intrinsic(typed)


_sum_any, _sum_one, _sum_two, _sum_four = (_sums_intrinsic(usual) for usual in (0, *_USUAL))


@routine
def weighted(like, base, offsets, weights, taps, out, pixels, count):
    """`pixels` runs of `count` elements at `out`, each the sum of so many runs at offsets from `base`."""
    apart()
    if taps == 1:
        _sum_one(like, base, offsets, weights, taps, out, pixels, count)
    elif taps == 2:
        _sum_two(like, base, offsets, weights, taps, out, pixels, count)
    elif taps == 4:
        _sum_four(like, base, offsets, weights, taps, out, pixels, count)
    else:
        _sum_any(like, base, offsets, weights, taps, out, pixels, count)


@intrinsic
def half_sums(typing: Any, like: Any, row: Any, offsets: Any, weights: Any, taps: Any, out: Any, count: Any) -> Any:
    """`count` elements, a vector at least, each the sum of weighted elements of a row at offsets from its begin, or two
    elements further than those of the one before."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        _, row, offsets, weights, taps, out, count = arguments
        m, runs, lanes = (
            Lanes(builder, vector, item, None),
            _Runs(builder, vector, item, row, offsets, weights),
            vector.count,
        )
        even = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [i + (i >= lanes) for i in range(0, 2 * lanes, 2)])
        place = cgutils.alloca_once(builder, vector)
        with cgutils.for_range(builder, runs_of(builder, lanes, count)) as part:
            at = builder.mul(run_start(builder, part.index, lanes, count), _WORD(item))

            def product(k: Any, add: bool) -> None:
                source, weight = runs.tap(k)
                source = builder.add(source, builder.add(at, at))
                # The second begins with the last element of the first: nothing behind the last element is read.
                value = builder.shuffle_vector(
                    m.load(source), m.load(builder.add(source, _WORD((lanes - 1) * item))), even
                )
                builder.store(m.fma(weight, value, builder.load(place)) if add else builder.fmul(weight, value), place)

            product(_WORD(0), False)
            with cgutils.for_range(builder, builder.sub(taps, _WORD(1))) as k:
                product(builder.add(k.index, _WORD(1)), True)
            m.store(builder.load(place), builder.add(out, at))
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 6), generate


@intrinsic
def _clear(typing: Any, like: Any, out: Any, count: Any) -> Any:
    """`count` zeros."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        _, out, count = arguments

        def emit(m: Lanes, at: list[Any]) -> None:
            for offset in at:
                m.store(m.real(0.0), builder.add(out, offset))

        _each_vector(
            builder, vector, item, count, emit, Lanes(builder, vector, item, builder.urem(count, _WORD(vector.count)))
        )
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 2), generate


# --- the kernel -------------------------------------------------------------------------------------------------------


@device(counted=False)
def _resized_columns(like, geo, base, block, out):
    """The columns of a block from a row at `base`."""
    item, pixel, about = geo[_ITEM], geo[_C] * geo[_ITEM], geo[_BLOCK] + 32 * block
    first = block * geo[_COLUMNS]
    columns, taps = min(geo[_COLUMNS], geo[_Q] - first), first * geo[_TW]
    weighted(like, base, geo[_PLACES] + taps * 8, geo[_PLACE_WEIGHTS] + taps * item, geo[_TW], out, columns, geo[_C])
    for k in range(read_word(about + 16), read_word(about + 24)):  # infinity times the weight 0 is NaN
        _clear(like, out + (read_word(geo[_UNREAD] + k * 8) - first) * pixel, geo[_C])


@device(counted=False)
def _summed(like, geo, source, offsets, weights, taps, block, line):
    """What a block reads of the sum of so many rows, in `line`; gives where that row would begin."""
    about, pixel = geo[_BLOCK] + 32 * block, geo[_C] * geo[_ITEM]
    low, high = read_word(about), read_word(about + 8)
    weighted(like, source + low * pixel, offsets, weights, taps, line, 1, (high - low) * geo[_C])
    return line - low * pixel


@routine
def _resized_row(like, geo, image, o, h, block, line, out):
    """The columns of a block of row h of plane o of the result, from the image; planes that are to be summed are summed
    in `line`."""
    apart()
    base = image + h * geo[_W] * geo[_C] * geo[_ITEM]
    if geo[_PLAIN]:
        base += read_word(geo[_PLANES] + o * 8)
    else:
        taps = o * geo[_TD]
        base = _summed(
            like, geo, base, geo[_PLANES] + taps * 8, geo[_PLANE_WEIGHTS] + taps * geo[_ITEM], geo[_TD], block, line
        )
    _resized_columns(like, geo, base, block, out)


@routine
def _shrunk_row(like, geo, image, p, block, line, out):
    """The columns of a block of row p of the result, from the image, whose rows are summed first."""
    apart()
    taps = p * geo[_TH]
    base = _summed(
        like, geo, image, geo[_ROWS] + taps * 8, geo[_ROW_WEIGHTS] + taps * geo[_ITEM], geo[_TH], block, line
    )
    _resized_columns(like, geo, base, block, out)


@device(counted=False)
def _result_row(like, geo, x, y, plane, block, p, memory, waiting):
    """The columns of a block of row p of a plane of the result, counted through all images."""
    item, pixel = geo[_ITEM], geo[_C] * geo[_ITEM]
    n, o, first = plane // geo[_O], plane % geo[_O], block * geo[_COLUMNS]
    line = (memory.ctypes.data + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    ring = line + geo[_SPAN]
    image = x + n * geo[_D] * geo[_H] * geo[_W] * pixel
    out = y + ((plane * geo[_P] + p) * geo[_Q] + first) * pixel
    taps, count = p * geo[_TH], min(geo[_COLUMNS], geo[_Q] - first) * geo[_C]
    which = geo[_WHICH] + taps * 8
    if read_word(which) == _NONE or read_word(geo[_PLANES] + o * geo[_TD] * 8) == _NONE:
        _clear(like, out, count)
        return
    if geo[_DIRECT]:
        _resized_row(like, geo, image, o, read_word(which), block, line, out)
        return
    if geo[_SHRINKS]:
        _shrunk_row(like, geo, image + read_word(geo[_PLANES] + o * 8), p, block, line, out)
        return
    for k in range(geo[_TH]):
        h = read_word(which + k * 8)
        slot = h % geo[_SLOTS]
        if waiting[slot] != h:
            _resized_row(like, geo, image, o, h, block, line, ring + slot * geo[_STEP])
            waiting[slot] = h
    weighted(like, ring, geo[_ROWS] + taps * 8, geo[_ROW_WEIGHTS] + taps * item, geo[_TH], out, 1, count)


@kernel(streams=True)
def resize_lanes(start: int, stop: int, x: In1, y: Out1, geo: Integers1) -> None:
    """Rows of the result, counted through blocks of columns, planes and images."""
    zero, ends = y.dtype.type(0), (x.ctypes.data, y.ctypes.data)
    memory = np.empty(geo[_SPAN] + geo[_SLOTS] * geo[_STEP] + ALIGNMENT, np.uint8)
    waiting = np.full(geo[_SLOTS], -1)
    before = -1
    for task in range(start, stop):
        segment, p = task // geo[_P], task % geo[_P]
        if segment != before:
            waiting[:] = -1
            before = segment
        _result_row(zero, geo, *ends, segment // geo[_BLOCKS], segment % geo[_BLOCKS], p, memory, waiting)


# --- its numbers ------------------------------------------------------------------------------------------------------


def matrix(resize: Resize, transposed: bool, dtype: np.dtype) -> tuple[Array, Array]:
    """(index, weight) of the taps of each target of an axis; where nothing changes, each target's own place."""
    columns = taps_of(resize, transposed, dtype).columns or ((np.arange(resize.source), None),)
    index = np.array([i for i, _ in columns], np.int64)
    return index, np.array([np.ones(index.shape[1], dtype) if w is None else w for _, w in columns], dtype)


def light_first(index: Array, weight: Array) -> tuple[Array, Array]:
    """The taps of each target from the lightest to the heaviest: small sums round less."""
    order = np.argsort(abs(weight), axis=0, kind="stable")
    return np.take_along_axis(index, order, 0), np.take_along_axis(weight, order, 0)


@frozen
class LanesPlan:
    """How many rows there are, the taps of a column, the kernel's numbers, and the tables that these say the addresses
    of."""

    rows: int
    taps: int
    geo: Array
    tables: tuple[Array, ...]


def unread(resize: Resize, transposed: bool, dtype: np.dtype) -> Array:
    """The targets without any tap."""
    found = taps_of(resize, transposed, dtype).unread
    return np.empty(0, np.int64) if found is None else found.astype(np.int64)


class _Axis:
    """The matrix of an axis as the kernel reads it: the taps of a target next to each other."""

    def __init__(self, resize: Resize | None, transposed: bool, dtype: np.dtype) -> None:
        if resize is None:  # one element that stays as it is
            self.source, index, weight, self.unread = (
                1,
                np.zeros((1, 1), np.int64),
                np.ones((1, 1), dtype),
                np.empty(0, np.int64),
            )
        else:
            self.source = resize.target if transposed else resize.source
            index, weight = light_first(*matrix(resize, transposed, dtype))
            self.unread = unread(resize, transposed, dtype)
        self.index, self.weight = np.ascontiguousarray(index.T), np.ascontiguousarray(weight.T)
        self.target, self.taps = self.index.shape
        read = np.delete(self.weight, self.unread, axis=0)
        self.plain = self.taps == 1 and bool((read == 1).all())  # each target is one source
        self.reach = int(np.ptp(self.index, axis=1).max()) + 1

    def marked(self, table: Array) -> Array:
        """A table of the taps, with _NONE for targets without any."""
        table[self.unread] = _NONE
        return table


@lru_cache(maxsize=256)
def lanes_plan(resizes: tuple[Resize, ...], transposed: bool, dtype: np.dtype, images: int, channels: int) -> LanesPlan:
    """Of up to three axes."""
    d, h, w = (_Axis(resize, transposed, dtype) for resize in (None,) * (3 - len(resizes)) + resizes)
    pixel = channels * dtype.itemsize
    shrinks = d.plain and not h.plain and h.target < h.source
    # columns that a block reads, for each of its own
    summed = -(-w.source // w.target) if shrinks or not d.plain else 0
    columns = min(max(_RING // (pixel * ((0 if shrinks else h.reach) + summed)), 1), w.target)
    columns = -(-w.target // -(-w.target // columns))
    blocks = _blocks(w, columns)
    span, step = _lines(int((blocks[:, 1] - blocks[:, 0]).max()) * pixel if summed else 0), _lines(columns * pixel)
    slots = 1 if shrinks else h.reach
    tables = (
        d.marked(d.index * (h.source * w.source * pixel)),
        d.weight,
        h.index * (w.source * pixel) if shrinks else h.index % slots * step,
        h.weight,
        w.index * pixel,
        w.weight,
        h.marked(h.index.copy()),
        blocks,
        w.unread,
    )
    numbers = (
        h.source,
        w.source,
        d.source,
        d.target,
        h.target,
        w.target,
        channels,
        dtype.itemsize,
        step,
        slots,
        d.taps,
        h.taps,
        w.taps,
        columns,
        len(blocks),
        d.plain,
        h.plain,
        shrinks,
        span,
        *(address(table) for table in tables),
    )
    return LanesPlan(images * d.target * len(blocks) * h.target, w.taps, np.array(numbers, np.int64), tables)


def _blocks(w: _Axis, columns: int) -> Array:
    """(first and last column that it reads, first and last place in the table of its own without any tap) of each block
    of columns."""
    first = np.arange(0, w.target, columns)
    ends = np.append(first[1:], w.target)
    read = [(part.min(), part.max() + 1) for part in np.split(w.index, first[1:])]
    return np.array(
        [(*r, *np.searchsorted(w.unread, (i, j))) for r, i, j in zip(read, first, ends, strict=True)], np.int64
    )


def _lines(size: int) -> int:
    """Bytes of a row in memory of its own: whole cache lines, and one more, so that rows do not all begin in one set of
    a cache."""
    return -(-size // ALIGNMENT) * ALIGNMENT + ALIGNMENT
