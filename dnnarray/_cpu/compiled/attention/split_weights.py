"""The softmax of attention between products on the matrix unit: while the unit multiplies, the vectors turn scores into
weights. Imports Numba.

Scores lie in tiles of 16 keys by 16 queries, [lane group of queries][key][query], and become the right side of the next
product: weights in three pieces. A product of four tiles with four keeps the unit busy for some 380 cycles in which
hardly anything else is done; between its instructions stand those that make the weights of one tile, some 230 cycles of
work for the vectors. A processor looks a few hundred instructions ahead, so that they must be as near to each other as
this.

A weight is exp(score - ground). The ground is the largest score of a query at some key, and rises only when a later one
is more than 8 above it, so that sums seldom have to shrink: the largest weight is from 1 to exp(8). Those below
exp(-70), some 2^-101, become 0 in the sum and in the product alike: all others and their three pieces are normal
numbers (the last bit of the least is worth 2^-124), which the unit takes as they are, and what is left out is below
2^-77 of a float32's last bit beside the largest weight. The pieces are the bits themselves, 8 and 8 and 8 from the top,
which add up to the weight without a rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.lanes import Arithmetic
from dnnarray._cpu.compiled.split_tile import BLOCK, LINE, SIDE, TILE
from dnnarray._cpu.compiled.split_tile import _Product as Product
from dnnarray._cpu.compiled.split_tile import _Tiles as Tiles
from dnnarray._cpu.compiled.tile import intrinsic, load_at, store_at

GROUPS = 4  # of lanes: 64 queries side by side
_WORD = ir.IntType(64)
_INTS, _FLOATS = (ir.VectorType(kind, SIDE) for kind in (ir.IntType(32), ir.FloatType()))
_PAIRS, _APART = SIDE // 2, 3  # of keys in a tile of scores; product instructions between two of them
_LEAST = -70.0  # of the exponents
_RISE = 8.0  # that a score may be above the ground


def _plus(builder: ir.IRBuilder, address: Any, step: int) -> Any:
    return builder.add(address, _WORD(step)) if step else address


def _load(builder: ir.IRBuilder, address: Any, step: int = 0) -> Any:
    return load_at(builder, _plus(builder, address, step), _FLOATS, 4)


class _Weights:
    """The weights of one tile of scores after the other, `unit` saying which."""

    def __init__(
        self, builder: ir.IRBuilder, unit: Any, strips: Any, scores: Any, weights: Any, ground: Any, total: Any
    ) -> None:
        self.builder, self.math = builder, Arithmetic(builder, _FLOATS, 4)
        self.scores = builder.add(scores, builder.mul(unit, _WORD(TILE)))
        half = builder.mul(builder.and_(unit, _WORD(1)), _WORD(TILE // 2))
        self.weights = builder.add(builder.add(weights, builder.mul(builder.lshr(unit, _WORD(1)), _WORD(BLOCK))), half)
        group = builder.mul(builder.udiv(unit, strips), _WORD(LINE))
        self.total, self.level = builder.add(total, group), _load(builder, builder.add(ground, group))

    def emit(self) -> Iterator[None]:
        """All of it, in portions."""
        total = self.math.real(0.0)
        for pair in range(_PAIRS):
            found = [self._weight(_load(self.builder, self.scores, (2 * pair + i) * LINE)) for i in range(2)]
            for weight in found:
                total = self.builder.fadd(total, weight)
            self._put(found, pair)
            if pair == _PAIRS - 1:
                store_at(self.builder, self.builder.fadd(_load(self.builder, self.total), total), self.total, 4)
            for _ in range(_APART):
                yield

    def _weight(self, score: Any) -> Any:
        """exp(score - ground), or 0: no score is far above the ground, so that there is no end above, and 2^n is added
        to the exponent as it stands."""
        builder, math = self.builder, self.math
        x = builder.fsub(score, self.level)
        p, count = math.reduced(x)
        power = builder.shl(count, math.integer(23))
        bits = builder.add(math.bits(builder.fadd(math.real(1.0), p)), power)
        seen = builder.fcmp_ordered(">=", x, math.real(_LEAST))
        return builder.bitcast(builder.select(seen, bits, math.integer(0)), _FLOATS)

    def _put(self, found: list[Any], pair: int) -> None:
        """The pieces of two keys' weights as a row of each piece's tile."""
        builder, math = self.builder, self.math
        rest, upper = found, math.integer(0xFFFF0000)
        for piece in range(3):
            bits = [math.bits(value) for value in rest]
            low, high = builder.lshr(bits[0], math.integer(16)), builder.and_(bits[1], upper)
            store_at(builder, builder.or_(low, high), _plus(builder, self.weights, piece * TILE + pair * LINE), 4)
            tops = [builder.bitcast(builder.and_(b, upper), _FLOATS) for b in bits]
            rest = [builder.fsub(value, top) for value, top in zip(rest, tops, strict=True)]


@intrinsic
def multiply_and_exponentials(
    typing: Any,
    left: Any,
    left_strip: Any,
    right: Any,
    right_strip: Any,
    blocks: Any,
    sums: Any,
    down_step: Any,
    across_step: Any,
    add: Any,
    unit: Any,
    units: Any,
    strips: Any,
    scores: Any,
    weights: Any,
    ground: Any,
    total: Any,
) -> Any:
    """Two strips of each side over some blocks, tile (i, j) of the sums at ``sums + i down_step + j across_step``,
    added to what is there where `add`; beside each block the weights of one tile of scores, from `unit` on to `units`.
    Gives the next unit. `strips` is the number of tiles of a lane group."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        left, left_strip, right, right_strip, blocks, sums, down_step, across_step, add, unit, units, *places = (
            arguments
        )
        product, place = Product(builder, 2, 2), cgutils.alloca_once_value(builder, unit)
        with builder.if_else(add) as (there, new):
            with there:
                product.move("tileloadd64", sums, down_step, across_step)
            with new:
                product.clear()
        with cgutils.for_range(builder, blocks, intp=_WORD) as block:
            at, now = builder.mul(block.index, _WORD(BLOCK)), builder.load(place)
            firsts = ((left, left_strip), (right, right_strip))
            sides = [
                (Tiles(product.strips(builder.add(a, at), step, 2), _WORD(LINE)), _WORD(TILE)) for a, step in firsts
            ]
            with builder.if_else(builder.icmp_signed("<", now, units)) as (beside, alone):
                with beside:
                    product.block(sides, _Weights(builder, now, *places).emit())
                    builder.store(builder.add(now, _WORD(1)), place)
                with alone:
                    product.block(sides)
        product.move("tilestored64", sums, down_step, across_step)
        return builder.load(place)

    return types.int64(*[types.int64] * 8, types.boolean, *[types.int64] * 7), generate


@intrinsic
def exponentials_of_tiles(
    typing: Any, unit: Any, units: Any, strips: Any, scores: Any, weights: Any, ground: Any, total: Any
) -> Any:
    """The weights of the tiles of scores that are left."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        unit, units, *places = arguments
        with cgutils.for_range(builder, units, start=unit, intp=_WORD) as tile:
            for _ in _Weights(builder, tile.index, *places).emit():
                pass
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


@intrinsic
def raise_tops(typing: Any, scores: Any, step: Any, rows: Any, top: Any) -> Any:
    """The largest score of each lane and its top before, `step` bytes between the lane groups' rows, whose number is
    even."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, step, rows, top = arguments
        math = Arithmetic(builder, _FLOATS, 4)
        tops = [
            [cgutils.alloca_once_value(builder, _load(builder, top, g * LINE)) for _ in range(2)] for g in range(GROUPS)
        ]
        starts = [builder.add(scores, builder.mul(step, _WORD(g))) for g in range(GROUPS)]
        with cgutils.for_range(builder, builder.lshr(rows, _WORD(1)), intp=_WORD) as pair:
            at = builder.mul(pair.index, _WORD(2 * LINE))
            for start, places in zip(starts, tops, strict=True):
                for i, place in enumerate(places):
                    score = _load(builder, builder.add(start, at), i * LINE)
                    builder.store(math.larger(builder.load(place), score), place)
        for g, (first, second) in enumerate(tops):
            store_at(builder, math.larger(builder.load(first), builder.load(second)), _plus(builder, top, g * LINE), 4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def settle_late(typing: Any, top: Any, height: Any, ground: Any, shrink: Any, total: Any, block: Any) -> Any:
    """The total of a block is added to that of all. Then the ground rises to the top of a lane where that is more than
    `_RISE` above it: `height` is what it was (-infinity before anything was seen), `shrink` becomes what earlier sums
    are to be multiplied with, and `total` is. Gives 0 where no sum shrinks."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        math, grown = Arithmetic(builder, _FLOATS, 4), _WORD(0)
        for group in range(GROUPS):
            top, height, ground, shrink, total, block = (_plus(builder, a, group * LINE) for a in arguments)
            most, old = _load(builder, top), _load(builder, height)
            new = builder.select(builder.fcmp_ordered(">", most, builder.fadd(old, math.real(_RISE))), most, old)
            level = builder.select(builder.fcmp_ordered("==", new, math.real(float("-inf"))), math.real(0.0), new)
            same = builder.fcmp_ordered("==", new, old)
            factor = builder.select(same, math.real(1.0), math.exp(builder.fsub(old, level)))
            found = builder.fmul(builder.fadd(_load(builder, total), _load(builder, block)), factor)
            for value, place in (
                (new, height),
                (level, ground),
                (factor, shrink),
                (found, total),
                (math.real(0.0), block),
            ):
                store_at(builder, value, place, 4)
            grown = builder.or_(grown, builder.zext(builder.bitcast(builder.not_(same), ir.IntType(SIDE)), _WORD))
        return grown

    return types.int64(*[types.int64] * 6), generate


def _each_row(builder: ir.IRBuilder, rows: Any, sums: Any, more: Any, change: Any) -> None:
    """Vectors of sums become what `change` makes of them and as many more."""
    with cgutils.for_range(builder, rows, intp=_WORD) as row:
        at = builder.mul(row.index, _WORD(LINE))
        place = builder.add(sums, at)
        store_at(builder, change(builder.fadd(_load(builder, place), _load(builder, builder.add(more, at)))), place, 4)


@intrinsic
def fold(typing: Any, sums: Any, more: Any, shrink: Any, rows: Any) -> Any:
    """Vectors of sums and as many more, times `shrink`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        sums, more, shrink, rows = arguments
        factor = _load(builder, shrink)
        _each_row(builder, rows, sums, more, lambda value: builder.fmul(value, factor))
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def divide(typing: Any, sums: Any, more: Any, total: Any, rows: Any) -> Any:
    """Vectors of sums and as many more over their total, or over 1 where that is 0."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        sums, more, total, rows = arguments
        math, divisor = Arithmetic(builder, _FLOATS, 4), _load(builder, total)
        divisor = builder.select(builder.fcmp_ordered("==", divisor, math.real(0.0)), math.real(1.0), divisor)
        inverse = builder.fdiv(math.real(1.0), divisor)

        def quotient(
            value: Any,
        ) -> Any:  # with what the first one lacks: as exact as a division, which takes five times as long
            first = builder.fmul(value, inverse)
            return math.fma(math.fma(builder.fneg(first), divisor, value), inverse, first)

        _each_row(builder, rows, sums, more, quotient)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
