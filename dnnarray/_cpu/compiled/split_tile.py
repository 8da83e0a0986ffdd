"""Products of float32 matrices on a matrix unit that takes bfloat16 (AMX): numbers in three pieces, tiles of 16 rows of
64 bytes. Imports Numba.

A float32 is the sum of three bfloat16 (8 bits of 24 each), and of the nine products of two such sums the six that are
not below its last bit are added up in float32 (Henry, Tang, Heinecke: Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations, 2019). The unit adds each 16 products of a tile in two short chains and
those to the sum, so that long sums round less than in one chain.

What the pieces cannot hold is told, not computed: numbers from 2^128 - 2^119 on with infinity and NaN, and tiny ones,
for the unit takes all below 2^-126 for 0: a float32 from 2^-103 on ends there, and so do its pieces. A sum of 0 may be
one of products that were taken for 0 where a number is below 2^-51.

A block of 32 steps of a depth is three tiles, one for each piece: on the left side [row][step], on the right side [pair
of steps][column][of the pair]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.tile import intrinsic, load_at, store_at

SIDE = 16  # rows or columns of a tile of sums
DEPTH = 32  # steps of a block
TILE = 1024  # bytes
PIECES = 3
BLOCK = PIECES * TILE
LINE = 64  # bytes of a tile's row

_BYTE, _HALF, _INT, _WORD = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOATS, _INTS, _HALVES, _MASK = (ir.VectorType(kind, SIDE) for kind in (ir.FloatType(), _INT, _HALF, ir.IntType(1)))
_LEFT, _RIGHT = 4, 6  # first registers of the two sides; the sums are before them
# (piece of the left side, of the right side): each differs from the one before on one side, which alone is loaded.
_PRODUCTS = ((0, 2), (0, 0), (0, 1), (1, 1), (1, 0), (2, 0))
_LARGE = 0x7F7F8000  # bits of the least number too large
_TINY, _SMALL, _TINY_SUM = ((127 - power) << 23 for power in (103, 51, 90))  # those of 2^-103, ...
_GREAT = (127 + 50) << 23  # those of 2^50
TOLD = 0xFFFF  # what is told of 16 lanes; the 16 bits above say in which of them numbers are small, or sums 0


def _constant(value: int) -> ir.Constant:
    return ir.Constant(_INTS, [value] * SIDE)


def _plus(builder: ir.IRBuilder, address: Any, step: int) -> Any:
    return builder.add(address, _WORD(step)) if step else address


def _call(builder: ir.IRBuilder, name: str, *arguments: Any) -> None:
    kind = ir.FunctionType(ir.VoidType(), [a.type for a in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), arguments)


def _pointer(builder: ir.IRBuilder, address: Any) -> Any:
    return builder.inttoptr(address, ir.PointerType(_BYTE))


# --- the unit ---------------------------------------------------------------------------------------------------------


@intrinsic
def configure(typing: Any) -> Any:
    """Give all eight registers of this thread 16 rows of 64 bytes, until `release`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        settings = bytearray(LINE)
        settings[0] = 1  # the palette
        settings[16:32] = LINE.to_bytes(2, "little") * 8
        settings[48:56] = bytes([SIDE]) * 8
        place = cgutils.global_constant(
            builder.module, "dnnarray_tiles", ir.Constant(ir.ArrayType(_BYTE, LINE), settings)
        )
        _call(builder, "ldtilecfg", builder.bitcast(place, ir.PointerType(_BYTE)))
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def release(typing: Any) -> Any:
    """Give the registers back: a thread that holds them costs the system 8 KB at each change of threads."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _call(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


class _Tiles(NamedTuple):
    """Where the tiles of a few strips lie: the first of each strip, the bytes from row to row."""

    strips: list[Any]
    row: Any

    def each(self, builder: ir.IRBuilder, name: str, first: int, offset: Any) -> None:
        """Load or store the tiles so far behind the first ones, by the registers from `first` on."""
        for i, strip in enumerate(self.strips):
            _call(builder, name, _BYTE(first + i), _pointer(builder, builder.add(strip, offset)), self.row)


class _Product:
    """The body for so many tiles down and across: one or two of each, or four down and one across."""

    def __init__(self, builder: ir.IRBuilder, down: int, across: int) -> None:
        self.builder, self.down, self.across = builder, down, across
        self.registers = [(i, j, i * across + j) for i in range(down) for j in range(across)]

    def strips(self, first: Any, step: Any, count: int) -> list[Any]:
        return [self.builder.add(first, self.builder.mul(step, _WORD(i))) for i in range(count)]

    def emit(
        self, sums: Any, add: Any, beside: Any, blocks: Any, sides: Callable[[Any], Sequence[tuple[_Tiles, Any]]]
    ) -> None:
        """`sides(block)` gives the tiles of both sides and the bytes from piece to piece of each. What is at `sums` is
        added at the end: in one chain with it long sums would round more."""
        builder = self.builder
        self.clear()
        with cgutils.for_range(builder, blocks, intp=_WORD) as block:
            self.block(sides(block.index))
        with builder.if_else(add) as (there, new):
            with there:
                self._store(beside)
                self._add(beside, sums)
            with new:
                self._store(sums)

    def clear(self) -> None:
        for _, _, register in self.registers:
            _call(self.builder, "tilezero", _BYTE(register))

    def move(self, name: str, sums: Any, down_step: Any, across_step: Any) -> None:
        """Load or store the sums, tile (i, j) at ``sums + i down_step + j across_step``."""
        across = [self.strips(first, across_step, self.across) for first in self.strips(sums, down_step, self.down)]
        _Tiles([tile for row in across for tile in row], _WORD(LINE)).each(self.builder, name, 0, _WORD(0))

    def _store(self, sums: Any) -> None:
        self.move("tilestored64", sums, _WORD(2 * TILE), _WORD(TILE))

    def _add(self, source: Any, target: Any) -> None:
        builder = self.builder
        with cgutils.for_range(builder, _WORD(SIDE), intp=_WORD) as line:
            at = builder.mul(line.index, _WORD(LINE))
            for i, j, _ in self.registers:
                one, other = (_plus(builder, builder.add(a, at), (2 * i + j) * TILE) for a in (source, target))
                store_at(
                    builder,
                    builder.fadd(load_at(builder, one, _FLOATS, 4), load_at(builder, other, _FLOATS, 4)),
                    other,
                    4,
                )

    def block(self, sides: Sequence[tuple[_Tiles, Any]], meanwhile: Iterator[None] | None = None) -> None:
        """The products of a block; each step of `meanwhile` emits something that the vectors do between two of them."""
        if self.down > 2:
            self._long_block(*sides)
            return
        before: tuple[int | None, int | None] = (None, None)
        for pieces in _PRODUCTS:
            for first, (tiles, step), piece, there in zip((_LEFT, _RIGHT), sides, pieces, before, strict=True):
                if piece != there:
                    tiles.each(self.builder, "tileloadd64", first, self.builder.mul(step, _WORD(piece)))
            before = pieces
            for i, j, register in self.registers:
                _call(self.builder, "tdpbf16ps", _BYTE(register), _BYTE(_LEFT + i), _BYTE(_RIGHT + j))
                next(meanwhile or iter(()), None)

    def _long_block(self, left: tuple[_Tiles, Any], right: tuple[_Tiles, Any]) -> None:
        """More strips than registers are left for: their tiles take three by turns."""
        builder, (lefts, step), (rights, right_step), last = self.builder, left, right, _RIGHT + 1
        before = None
        for piece, other in _PRODUCTS:
            if other != before:
                rights.each(builder, "tileloadd64", last, builder.mul(right_step, _WORD(other)))
            before = other
            for i, strip in enumerate(lefts.strips):
                register = _LEFT + i % (last - _LEFT)
                _Tiles([strip], lefts.row).each(builder, "tileloadd64", register, builder.mul(step, _WORD(piece)))
                _call(builder, "tdpbf16ps", _BYTE(i), _BYTE(register), _BYTE(last))


_SIZES = tuple((i, j) for i in (1, 2) for j in (1, 2))  # tiles down and across
_LONG_SIZES = (*_SIZES, (3, 1), (4, 1))


def _for_each_size(
    builder: ir.IRBuilder, down: Any, across: Any, sizes: Sequence[tuple[int, int]], emit: Callable[[_Product], None]
) -> None:
    """The body for the strips of each side that a call has."""
    end = builder.append_basic_block("multiplied")
    switch = builder.switch(builder.add(builder.mul(down, _WORD(2)), across), end)
    for i, j in sizes:
        block = builder.append_basic_block(f"tiles{i}x{j}")
        switch.add_case(_WORD(2 * i + j), block)
        builder.position_at_end(block)
        emit(_Product(builder, i, j))
        builder.branch(end)
    builder.position_at_end(end)


@intrinsic
def multiply_tiles(
    typing: Any,
    down: Any,
    across: Any,
    left: Any,
    left_strip: Any,
    right: Any,
    right_strip: Any,
    blocks: Any,
    sums: Any,
    add: Any,
    beside: Any,
) -> Any:
    """One or two strips of each side over some blocks: tile (i, j) of the sums lies at ``sums + (2 i + j) TILE``; what
    is there is added where `add`, at the end and by vectors, for each of the unit's additions to a long sum would be
    rounded as that is. Room for four tiles lies at `beside`.

    The blocks of a strip follow each other, strips lie `left_strip` and `right_strip` bytes apart.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        down, across, left, left_strip, right, right_strip, blocks, sums, add, beside = arguments

        def emit(product: _Product) -> None:
            def sides(block: Any) -> Sequence[tuple[_Tiles, Any]]:
                at = builder.mul(block, _WORD(BLOCK))
                firsts = ((left, left_strip, product.down), (right, right_strip, product.across))
                return [
                    (_Tiles(product.strips(builder.add(a, at), step, n), _WORD(LINE)), _WORD(TILE))
                    for a, step, n in firsts
                ]

            product.emit(sums, add, beside, blocks, sides)

        _for_each_size(builder, down, across, _SIZES, emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 8, types.boolean, types.int64), generate


@intrinsic
def multiply_shifts(
    typing: Any,
    down: Any,
    across: Any,
    left: Any,
    offsets: Any,
    row: Any,
    piece: Any,
    right: Any,
    right_strip: Any,
    blocks: Any,
    sums: Any,
    add: Any,
    beside: Any,
) -> Any:
    """The same with a left side of which block b lies at ``left + offsets[b]``: shifts of an image, whose rows lie
    `row` bytes apart, its pieces `piece`.

    The rows of a second strip follow those of the first; up to four go with one strip of the right side.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        down, across, left, offsets, row, piece, right, right_strip, blocks, sums, add, beside = arguments

        def emit(product: _Product) -> None:
            def sides(block: Any) -> Sequence[tuple[_Tiles, Any]]:
                at = builder.add(left, load_at(builder, builder.add(offsets, builder.mul(block, _WORD(8))), _WORD, 8))
                lefts = product.strips(at, builder.mul(row, _WORD(SIDE)), product.down)
                rights = product.strips(
                    builder.add(right, builder.mul(block, _WORD(BLOCK))), right_strip, product.across
                )
                return (_Tiles(lefts, row), piece), (_Tiles(rights, _WORD(LINE)), _WORD(TILE))

            product.emit(sums, add, beside, blocks, sides)

        _for_each_size(builder, down, across, _LONG_SIZES, emit)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 10, types.boolean, types.int64), generate


# --- pieces -----------------------------------------------------------------------------------------------------------


class _Watch:
    """The least, the least but 0 and the largest size of the numbers that went by in a loop, lane by lane."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder
        self.least, self.least_but_0, self.largest = (cgutils.alloca_once(builder, _INTS) for _ in range(3))
        for place, first in ((self.least, 0xFFFFFFFF), (self.least_but_0, 0xFFFFFFFF), (self.largest, 0)):
            builder.store(_constant(first), place)

    def see(self, value: Any) -> None:
        builder = self.builder
        size = builder.and_(builder.bitcast(value, _INTS), _constant(0x7FFFFFFF))
        before = builder.sub(size, _constant(1))  # that of 0 is the largest there is
        for place, new, which in ((self.least, size, "<"), (self.least_but_0, before, "<"), (self.largest, size, ">")):
            old = builder.load(place)
            builder.store(builder.select(builder.icmp_unsigned(which, new, old), new, old), place)

    def below(self, bits: int) -> Any:
        """The lanes that saw a number but 0 below that of these bits."""
        return self.builder.icmp_unsigned("<", self.builder.load(self.least_but_0), _constant(bits - 1))

    def zero(self) -> Any:
        """The lanes that saw 0."""
        return self.builder.icmp_unsigned("==", self.builder.load(self.least), _constant(0))

    def result(self, tiny: int, above: Any, large: int = _LARGE) -> Any:
        """`TOLD` of the lanes that saw less than `tiny`, or `large` and more, and the lanes `above` in the bits
        above."""
        builder = self.builder
        large = builder.icmp_unsigned(">=", builder.load(self.largest), _constant(large))
        told, other = (
            builder.zext(builder.bitcast(m, _HALF), _WORD) for m in (builder.or_(self.below(tiny), large), above)
        )
        return builder.or_(told, builder.shl(other, _WORD(SIDE)))


def _lanes(builder: ir.IRBuilder, first: Any, count: Any) -> Any:
    """The mask of `count` lanes from the `first` on."""
    ones = builder.sub(builder.shl(_INT(1), builder.trunc(count, _INT)), _INT(1))
    return builder.bitcast(builder.trunc(builder.shl(ones, builder.trunc(first, _INT)), _HALF), _MASK)


def _masked_load(builder: ir.IRBuilder, place: Any, mask: Any) -> Any:
    """The lanes of the mask, 0 in the others, whose memory is not touched."""
    pointer = ir.PointerType(_FLOATS)
    kind = ir.FunctionType(_FLOATS, [pointer, _INT, _MASK, _FLOATS])
    load = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.load.v16f32.p0")
    return builder.call(load, [builder.inttoptr(place, pointer), _INT(4), mask, ir.Constant(_FLOATS, None)])


def _masked_store(builder: ir.IRBuilder, value: Any, place: Any, mask: Any) -> None:
    pointer = ir.PointerType(_FLOATS)
    kind = ir.FunctionType(ir.VoidType(), [_FLOATS, pointer, _INT, _MASK])
    store = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.store.v16f32.p0")
    builder.call(store, [value, builder.inttoptr(place, pointer), _INT(4), mask])


def _pieces(builder: ir.IRBuilder, value: Any) -> list[Any]:
    """The bits of three bfloat16, in the upper halves of 32, that add up to the value: each the nearest to what is
    left."""
    found = []
    for _ in range(PIECES):
        bits = builder.bitcast(value, _INTS)
        piece = builder.and_(builder.add(bits, _constant(0x8000)), _constant(0xFFFF0000))
        value = builder.fsub(value, builder.bitcast(piece, _FLOATS))
        found.append(piece)
    return found


def _split_along(
    builder: ir.IRBuilder, watch: _Watch, first: Any, step: Any, into: Any, piece_step: Any, lanes: Any
) -> None:
    """32 numbers that follow each other to a row of each piece's tile, [row][step]."""
    for half in range(2):
        value = load_at(builder, _plus(builder, first, half * LINE), _FLOATS, 4)
        watch.see(value)
        for i, piece in enumerate(_pieces(builder, value)):
            upper = builder.trunc(builder.lshr(piece, _constant(16)), _HALVES)
            place = builder.add(into, builder.mul(piece_step, _WORD(i)))
            store_at(builder, upper, _plus(builder, place, half * LINE // 2), 2)


def _split_across(
    builder: ir.IRBuilder, watch: _Watch, first: Any, step: Any, into: Any, piece_step: Any, lanes: Any
) -> None:
    """The numbers of a step and as many of the next to a row of each piece's tile, [pair of steps][column], 0 behind
    them."""
    values = [_masked_load(builder, address, lanes) for address in (first, builder.add(first, step))]
    for value in values:
        watch.see(value)
    for i, (low, high) in enumerate(zip(*(_pieces(builder, v) for v in values), strict=True)):
        place = builder.add(into, builder.mul(piece_step, _WORD(i)))
        store_at(builder, builder.or_(builder.lshr(low, _constant(16)), high), place, 4)


def _split(each: Callable[..., None], steps: int, large: int = _LARGE) -> Any:
    def typed(
        typing: Any, source: Any, step: Any, target: Any, line_step: Any, piece_step: Any, lines: Any, count: Any
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            source, step, target, line_step, piece_step, lines, count = arguments
            watch, lanes = _Watch(builder), _lanes(builder, _WORD(0), count)
            with cgutils.for_range(builder, lines, intp=_WORD) as line:
                first = builder.add(source, builder.mul(builder.mul(line.index, step), _WORD(steps)))
                each(
                    builder,
                    watch,
                    first,
                    step,
                    builder.add(target, builder.mul(line.index, line_step)),
                    piece_step,
                    lanes,
                )
            return watch.result(_TINY, watch.below(_SMALL), large)

        return types.int64(*[types.int64] * 7), generate

    return intrinsic(typed)


# So many rows of 32 steps `step` bytes apart, or twice as many steps of `count` columns so far apart (a block has 16
# lines), to pieces whose lines lie `line_step` bytes apart, and the pieces `piece_step`. Gives bits of `TOLD` where
# they cannot hold what was there, others above where a number is so small that products with it may be taken for 0.
split_along = _split(_split_along, 1)
split_across = _split(_split_across, 2)
# The same, and numbers from 2^50 on are told: sums of products of any others are finite.
split_moderate_along = _split(_split_along, 1, _GREAT)
split_moderate_across = _split(_split_across, 2, _GREAT)


@intrinsic
def put_tile(typing: Any, sums: Any, target: Any, step: Any, rows: Any) -> Any:
    """The first rows of a tile of sums to rows `step` bytes apart. Gives bits of `TOLD` in the lanes where a sum is not
    finite, or so small that what the unit took for 0 may be missed, others above where one is 0."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        sums, target, step, rows = arguments
        watch = _Watch(builder)
        with cgutils.for_range(builder, rows, intp=_WORD) as line:
            value = load_at(builder, builder.add(sums, builder.mul(line.index, _WORD(LINE))), _FLOATS, 4)
            watch.see(value)
            store_at(builder, value, builder.add(target, builder.mul(line.index, step)), 4)
        return watch.result(_TINY_SUM, watch.zero())

    return types.int64(*[types.int64] * 4), generate


@intrinsic
def see_sums(typing: Any, sums: Any, rows: Any) -> Any:
    """The same of rows that stay where they are."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        watch = _Watch(builder)
        with cgutils.for_range(builder, arguments[1], intp=_WORD) as line:
            watch.see(load_at(builder, builder.add(arguments[0], builder.mul(line.index, _WORD(LINE))), _FLOATS, 4))
        return watch.result(_TINY_SUM, watch.zero())

    return types.int64(types.int64, types.int64), generate


def _put(apart: int) -> Any:
    def spread(builder: ir.IRBuilder, value: Any, part: int) -> Any:
        """Lanes that go to a line of the target, each to its place; 0 between them."""
        taken = [SIDE // apart * part + i // apart if i % apart == 0 else SIDE for i in range(SIDE)]
        return builder.shuffle_vector(value, ir.Constant(value.type, None), ir.Constant(_INTS, taken))

    def typed(typing: Any, source: Any, target: Any, step: Any, rows: Any, first: Any, count: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            source, target, step, rows, first, count = arguments
            masks = [spread(builder, _lanes(builder, first, count), part) for part in range(apart)]
            start = builder.sub(target, builder.mul(first, _WORD(4 * apart)))
            with cgutils.for_range(builder, rows, intp=_WORD) as row:
                value = load_at(builder, builder.add(source, builder.mul(row.index, _WORD(LINE))), _FLOATS, 4)
                place = builder.add(start, builder.mul(row.index, step))
                for part, mask in enumerate(masks):
                    _masked_store(builder, spread(builder, value, part), _plus(builder, place, part * LINE), mask)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    return intrinsic(typed)


# `count` numbers, from the `first` on, of each of some rows of a tile to rows `step` bytes apart: the first of them to
# `target`, the others behind it, or to every second place there.
put_lanes = _put(1)
put_lanes_apart = _put(2)


@intrinsic
def put_pairs(typing: Any, first: Any, second: Any, target: Any, count: Any) -> Any:
    """`count` numbers of two rows side by side, by turns."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        first, second, target, count = arguments
        rows = [load_at(builder, address, _FLOATS, 4) for address in (first, second)]
        lanes = _lanes(builder, _WORD(0), count)
        for part in range(2):
            taken = [SIDE // 2 * part + i // 2 + i % 2 * SIDE for i in range(SIDE)]
            mask = builder.shuffle_vector(lanes, lanes, ir.Constant(_INTS, taken))
            _masked_store(
                builder,
                builder.shuffle_vector(*rows, ir.Constant(_INTS, taken)),
                _plus(builder, target, part * LINE),
                mask,
            )
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate
