"""Steps of pooling on vectors in memory: the usual average, of windows of 2 by 2 side by side, and what pixels need
whose channels are the lanes. Imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.conv.copies import runs_of
from dnnarray._cpu.compiled.memory import behind
from dnnarray._cpu.compiled.tile import apart, intrinsic, lanes, load_at, routine, splat, store_at, vector_of

_TOGETHER = 4  # vectors of channels that are done at once: their chains of instructions run side by side
_FEW = 4  # channels that are worth a vector where there are not enough for the longest

_INT, _WORD = ir.IntType(32), ir.IntType(64)


@intrinsic
def _mean_of_four(typing: Any, like: Any, top: Any, bottom: Any, out: Any) -> Any:
    """A vector of means from two vectors of each row: rows are added first, then every second sum to its neighbour."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = vector_of(context, signature.args[0])
        _, top, bottom, out = arguments
        count = vector.count
        sums = []
        for at in (0, count * item):
            rows = (load_at(builder, builder.add(row, _WORD(at)), vector, item) for row in (top, bottom))
            sums.append(builder.fadd(*rows))
        kind = ir.VectorType(_INT, count)
        even, odd = (
            builder.shuffle_vector(*sums, ir.Constant(kind, list(range(first, 2 * count, 2)))) for first in (0, 1)
        )
        mean = builder.fmul(builder.fadd(even, odd), ir.Constant(vector, [0.25] * count))
        store_at(builder, mean, out, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), generate


@routine
def means_of_four(like, top, row_step, out, count, item, lanes):
    """`count` means, a vector of them at least, of the rows at `top` and one `row_step` further; the last vector
    overlaps the one before it."""
    apart()
    for at in range(0, count - lanes, lanes):
        _mean_of_four(like, top + 2 * at * item, top + row_step + 2 * at * item, out + at * item)
    at = count - lanes
    _mean_of_four(like, top + 2 * at * item, top + row_step + 2 * at * item, out + at * item)


# --- channels as lanes ------------------------------------------------------------------------------------------------


def _each_part(
    builder: ir.IRBuilder, longest: ir.VectorType, channels: Any, body: Callable[[ir.VectorType, Any], None]
) -> None:
    """`body(vector, first)` for all channels: by several of the longest vectors at once, by one where fewer are left,
    by shorter ones where there are no more."""
    end, many = builder.append_basic_block("all_channels"), longest.count * _TOGETHER
    groups = builder.sdiv(channels, _WORD(many))
    with cgutils.for_range(builder, groups) as group:
        body(ir.VectorType(longest.element, many), builder.mul(group.index, _WORD(many)))
    done = builder.mul(groups, _WORD(many))
    left = builder.sub(channels, done)
    for span in sorted({longest.count, min(_FEW, longest.count), 1}, reverse=True):
        fits, shorter = (builder.append_basic_block(f"{name}{span}") for name in ("channels_of", "fewer_than"))
        builder.cbranch(builder.icmp_signed(">=", channels, _WORD(span)), fits, shorter)
        builder.position_at_end(fits)
        with cgutils.for_range(builder, runs_of(builder, span, left)) as part:  # the last one ends with the channels
            at = builder.add(done, builder.mul(part.index, _WORD(span)))
            latest = builder.sub(channels, _WORD(span))
            body(ir.VectorType(longest.element, span), builder.select(builder.icmp_signed("<", at, latest), at, latest))
        builder.branch(end)
        builder.position_at_end(shorter)
    builder.branch(end)
    builder.position_at_end(end)


@intrinsic
def first_largest(
    typing: Any,
    like: Any,
    x: Any,
    rows: Any,
    row: Any,
    taps: Any,
    tap: Any,
    place: Any,
    place_row: Any,
    place_tap: Any,
    best: Any,
    where: Any,
    channels: Any,
) -> Any:
    """Of each channel of a window at x the largest element, and in `where` (32 bits) the place of the first such, of
    the last NaN; -1 in a window of nothing."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, longest, item = vector_of(context, signature.args[0])
        _, x, rows, row, taps, tap, place, place_row, place_tap, best, where, channels = arguments
        anything = builder.icmp_signed(">", builder.mul(rows, taps), _WORD(0))
        start = builder.select(anything, builder.trunc(place, _INT), _INT(-1))

        def part(vector: ir.VectorType, first: Any) -> None:
            places = ir.VectorType(_INT, vector.count)
            largest, found = cgutils.alloca_once(builder, vector), cgutils.alloca_once(builder, places)
            builder.store(ir.Constant(vector, [float("-inf")] * vector.count), largest)
            builder.store(splat(builder, start, places), found)
            source = behind(builder, x, (first, _WORD(item)))
            with cgutils.for_range(builder, rows) as r, cgutils.for_range(builder, taps) as s:
                value = load_at(builder, behind(builder, source, (r.index, row), (s.index, tap)), vector, item)
                here = builder.trunc(behind(builder, place, (r.index, place_row), (s.index, place_tap)), _INT)
                old = builder.load(largest)
                larger = builder.or_(builder.fcmp_ordered(">", value, old), builder.fcmp_unordered("uno", value, value))
                builder.store(builder.select(larger, value, old), largest)
                builder.store(builder.select(larger, splat(builder, here, places), builder.load(found)), found)
            store_at(builder, builder.load(largest), behind(builder, best, (first, _WORD(item))), item)
            store_at(builder, builder.load(found), behind(builder, where, (first, _WORD(4))), 4)

        _each_part(builder, longest, channels, part)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 11), generate


@intrinsic
def any_outside(typing: Any, places: Any, start: Any, rows: Any, row: Any, taps: Any, channels: Any) -> Any:
    """1 if any of the places (64 bits) of the channels of a window is none of its own, which are runs of `taps` from
    `start` on, nor -1 for nothing; else 0."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        places, start, rows, row, taps, channels = arguments
        found = cgutils.alloca_once_value(builder, _WORD(0))

        def part(vector: ir.VectorType, first: Any) -> None:
            place = load_at(builder, behind(builder, places, (first, _WORD(8))), vector, 8)
            inside = cgutils.alloca_once(builder, ir.VectorType(ir.IntType(1), vector.count))
            builder.store(builder.icmp_signed("==", place, splat(builder, _WORD(-1), vector)), inside)
            with cgutils.for_range(builder, rows) as r:
                before = builder.sub(place, splat(builder, behind(builder, start, (r.index, row)), vector))
                here = builder.icmp_unsigned("<", before, splat(builder, taps, vector))
                builder.store(builder.or_(builder.load(inside), here), inside)
            missed = builder.bitcast(builder.not_(builder.load(inside)), ir.IntType(vector.count))
            any_missed = builder.icmp_unsigned("!=", missed, ir.Constant(missed.type, 0))
            builder.store(builder.or_(builder.load(found), builder.zext(any_missed, _WORD)), found)

        _each_part(builder, ir.VectorType(_WORD, lanes(8)), channels, part)
        return builder.load(found)

    return types.int64(*[types.int64] * 6), generate


@intrinsic
def sum_of_named(
    typing: Any,
    like: Any,
    lines: Any,
    rows: Any,
    first: Any,
    count: Any,
    step: Any,
    place: Any,
    out: Any,
    channels: Any,
) -> Any:
    """out = the sum of those gradients whose windows have their largest element at `place`, channel by channel.

    The table `lines` has two addresses for each row of windows, of its gradients and of their places; of a row the
    windows at elements `first` and `step` on count."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, longest, item = vector_of(context, signature.args[0])
        _, lines, rows, first, count, step, place, out, channels = arguments
        here = builder.trunc(place, _INT)

        def part(vector: ir.VectorType, channel: Any) -> None:
            places, total = ir.VectorType(_INT, vector.count), cgutils.alloca_once(builder, vector)
            builder.store(ir.Constant(vector, [0.0] * vector.count), total)
            with cgutils.for_range(builder, rows) as r:
                line = behind(builder, lines, (r.index, _WORD(16)))
                gradients, named = (load_at(builder, builder.add(line, _WORD(at)), _WORD, 8) for at in (0, 8))
                with cgutils.for_range(builder, count) as s:
                    at = builder.add(behind(builder, first, (s.index, step)), channel)
                    value = load_at(builder, behind(builder, gradients, (at, _WORD(item))), vector, item)
                    there = load_at(builder, behind(builder, named, (at, _WORD(4))), places, 4)
                    old, same = builder.load(total), builder.icmp_signed("==", there, splat(builder, here, places))
                    builder.store(builder.select(same, builder.fadd(old, value), old), total)
            store_at(builder, builder.load(total), behind(builder, out, (channel, _WORD(item))), item)

        _each_part(builder, longest, channels, part)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 8), generate


@intrinsic
def sum_of_pixels(typing: Any, like: Any, source: Any, step: Any, count: Any, out: Any, channels: Any) -> Any:
    """out = the sum of so many pixels that lie a step apart."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, longest, item = vector_of(context, signature.args[0])
        _, source, step, count, out, channels = arguments

        def part(vector: ir.VectorType, first: Any) -> None:
            total = cgutils.alloca_once(builder, vector)
            builder.store(ir.Constant(vector, [0.0] * vector.count), total)
            with cgutils.for_range(builder, count) as s:
                place = behind(builder, source, (first, _WORD(item)), (s.index, step))
                builder.store(builder.fadd(builder.load(total), load_at(builder, place, vector, item)), total)
            store_at(builder, builder.load(total), behind(builder, out, (first, _WORD(item))), item)

        _each_part(builder, longest, channels, part)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 5), generate


@intrinsic
def sum_of_shares(
    typing: Any,
    like: Any,
    source: Any,
    step: Any,
    count: Any,
    divisors: Any,
    divisor_step: Any,
    factor: Any,
    out: Any,
    channels: Any,
) -> Any:
    """`sum_of_pixels`, each divided by its divisor times a factor."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, longest, item = vector_of(context, signature.args[0])
        _, source, step, count, divisors, divisor_step, factor, out, channels = arguments

        def part(vector: ir.VectorType, first: Any) -> None:
            total = cgutils.alloca_once(builder, vector)
            builder.store(ir.Constant(vector, [0.0] * vector.count), total)
            with cgutils.for_range(builder, count) as s:
                divisor = builder.fmul(
                    load_at(builder, behind(builder, divisors, (s.index, divisor_step)), element, item), factor
                )
                value = load_at(builder, behind(builder, source, (first, _WORD(item)), (s.index, step)), vector, item)
                share = builder.fdiv(value, splat(builder, divisor, vector))
                builder.store(builder.fadd(builder.load(total), share), total)
            store_at(builder, builder.load(total), behind(builder, out, (first, _WORD(item))), item)

        _each_part(builder, longest, channels, part)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 5, like, types.int64, types.int64), generate
