"""The transforms of F(4x4, 3x3) on vectors of tiles or of weight rows, as LLVM vectors whose length comes from the
target. Imports Numba.

Interpolation at 0, +-P, +-Q and infinity. With P = 5/8 and Q = 3/2 the largest error is about a quarter of that with
the usual 1 and 2, and the input's transform is exact in binary but for its roundings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.lanes import Arithmetic, arithmetic
from dnnarray._cpu.compiled.tile import ROWS, intrinsic, load_at, splat, store_at, vector_of

TILE, REACH, TAPS = 4, 6, 3  # outputs and inputs of a tile along an axis; of a window
P, Q = 0.625, 1.5
_INT, _WORD, _BIT = ir.IntType(32), ir.IntType(64), ir.IntType(1)


# --- along one axis ---------------------------------------------------------------------------------------------------


def _input(m: Arithmetic, d: list[Any]) -> list[Any]:
    """Six inputs to six factors."""
    p2, q2 = P * P, Q * Q

    def pair(square: float, point: float) -> list[Any]:
        even, odd = m.fma(m.real(-square), d[2], d[4]), m.fma(m.real(-square), d[1], d[3])
        return [m.fma(m.real(point), odd, even), m.fma(m.real(-point), odd, even)]

    ends = [m.fma(m.real(p2 * q2), d[i], m.fma(m.real(-p2 - q2), d[i + 2], d[i + 4])) for i in (0, 1)]
    return [ends[0], *pair(q2, P), *pair(p2, Q), ends[1]]


def _scale(point: float, other: float) -> float:
    """Of the weight's factors at +-`point`."""
    return 1 / (2 * point**2 * (point**2 - other**2))


def _weight(m: Arithmetic, g: list[Any]) -> list[Any]:
    """Three taps to six factors."""
    builder = m.builder

    def pair(point: float, other: float) -> list[Any]:
        scale = _scale(point, other)
        even = m.fma(m.real(scale * point**2), g[2], builder.fmul(m.real(scale), g[0]))
        return [m.fma(m.real(sign * scale * point), g[1], even) for sign in (1, -1)]

    return [builder.fmul(m.real(1 / (P * Q) ** 2), g[0]), *pair(P, Q), *pair(Q, P), g[2]]


def _output(m: Arithmetic, f: list[Any]) -> list[Any]:
    """Six products to four outputs."""
    builder = m.builder
    sums = [builder.fadd(f[i], f[i + 1]) for i in (1, 3)]
    differences = [builder.fsub(f[i], f[i + 1]) for i in (1, 3)]

    def blend(power: int, pair: list[Any]) -> Any:
        return m.fma(m.real(P**power), pair[0], builder.fmul(m.real(Q**power), pair[1]))

    return [
        builder.fadd(f[0], builder.fadd(sums[0], sums[1])),
        blend(1, differences),
        blend(2, sums),
        builder.fadd(f[5], blend(3, differences)),
    ]


def _weight_gradient(m: Arithmetic, f: list[Any]) -> list[Any]:
    """Six sums of products to three taps: `_weight` transposed."""
    builder, scales = m.builder, (_scale(P, Q), _scale(Q, P))
    sums = [builder.fadd(f[i], f[i + 1]) for i in (1, 3)]
    differences = [builder.fsub(f[i], f[i + 1]) for i in (1, 3)]

    def blend(power: int, pair: list[Any], rest: Any) -> Any:
        first, second = (m.real(scale * point**power) for scale, point in zip(scales, (P, Q), strict=True))
        return m.fma(first, pair[0], builder.fmul(second, pair[1]) if rest is None else m.fma(second, pair[1], rest))

    return [
        blend(0, sums, builder.fmul(m.real(1 / (P * Q) ** 2), f[0])),
        blend(1, differences, None),
        blend(2, sums, f[5]),
    ]


def _output_gradient(m: Arithmetic, d: list[Any]) -> list[Any]:
    """Four outputs' gradients to six factors: `_output` transposed."""

    def pair(point: float) -> list[Any]:
        even, odd = (m.fma(m.real(point**2), d[i + 2], d[i]) for i in (0, 1))
        return [m.fma(m.real(sign * point), odd, even) for sign in (1, -1)]

    return [d[0], *pair(P), *pair(Q), d[3]]


# --- lanes ------------------------------------------------------------------------------------------------------------


def _shuffle(builder: ir.IRBuilder, a: Any, b: Any, lanes: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_INT, len(lanes)), lanes))


def _phases(builder: ir.IRBuilder, v: list[Any]) -> list[Any]:
    """Every fourth element of four vectors, from the first, the second, the third and the fourth on."""
    count = v[0].type.count

    def halves(a: Any, b: Any) -> list[Any]:
        return [_shuffle(builder, a, b, list(range(i, 2 * count, 2))) for i in (0, 1)]

    (even, odd), (even_next, odd_next) = halves(v[0], v[1]), halves(v[2], v[3])
    (first, third), (second, fourth) = halves(even, even_next), halves(odd, odd_next)
    return [first, second, third, fourth]


def _interleaved(builder: ir.IRBuilder, v: list[Any]) -> list[Any]:
    """The four vectors whose phases are these."""
    count = v[0].type.count

    def zipped(a: Any, b: Any) -> list[Any]:
        half = count // 2
        return [
            _shuffle(builder, a, b, [i + offset * half + side * count for i in range(half) for side in (0, 1)])
            for offset in (0, 1)
        ]

    even, odd = zipped(v[0], v[2]), zipped(v[1], v[3])
    return [*zipped(even[0], odd[0]), *zipped(even[1], odd[1])]


def _at(builder: ir.IRBuilder, address: Any, step: Any, index: int) -> Any:
    return builder.add(address, builder.mul(step, _WORD(index))) if index else address


def _masked_load(builder: ir.IRBuilder, vector: ir.VectorType, item: int) -> Callable[[Any, Any], Any]:
    """``load(address, mask)``: 0 in the lanes left out, whose memory is not touched."""
    pointer, masks = ir.PointerType(vector), ir.VectorType(_BIT, vector.count)
    name = f"llvm.masked.load.v{vector.count}f{8 * item}.p0"
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [pointer, _INT, masks, vector]), name
    )
    return lambda address, mask: builder.call(
        function, [builder.inttoptr(address, pointer), _INT(item), mask, ir.Constant(vector, None)]
    )


# --- what kernels call ------------------------------------------------------------------------------------------------


def _rows_intrinsic(masked: bool) -> Any:
    def typed(
        typing: Any,
        like: Any,
        source: Any,
        step: Any,
        top: Any,
        bottom: Any,
        left: Any,
        right: Any,
        target: Any,
        pitch: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            m, vector, item = arithmetic(context, builder, signature.args[0])
            _, source, step, top, bottom, left, right, target, pitch = arguments
            lanes = ir.Constant(ir.VectorType(_WORD, vector.count), list(range(vector.count)))
            load, bits = _masked_load(builder, vector, item), ir.VectorType(_BIT, vector.count)

            def row(i: int) -> Any:
                address = _at(builder, source, step, i)
                if not masked:
                    return load_at(builder, address, vector, item)
                inside = builder.and_(
                    builder.icmp_signed("<=", top, _WORD(i)), builder.icmp_signed("<", _WORD(i), bottom)
                )
                return load(address, builder.and_(columns, splat(builder, inside, bits)))

            columns = builder.and_(
                builder.icmp_signed(">=", lanes, splat(builder, left, lanes.type)),
                builder.icmp_signed("<", lanes, splat(builder, right, lanes.type)),
            )
            for i, value in enumerate(_input(m, [row(i) for i in range(REACH)])):
                store_at(builder, value, _at(builder, target, pitch, i), item)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 8), generate

    return intrinsic(typed)


# A vector's width of six rows, `step` bytes apart, to six rows at `target`: (like, source, step, top, bottom, left,
# right, target, pitch). The masked form takes rows outside of [top, bottom) and lanes outside of [left, right) for 0
# and does not read them; the other takes all to be inside.
transform_rows = _rows_intrinsic(masked=False)
transform_edge_rows = _rows_intrinsic(masked=True)


@intrinsic
def transform_columns(typing: Any, like: Any, source: Any, target: Any, pitch: Any) -> Any:
    """One row of a vector of tiles, side by side, to their six factors: vectors `pitch` bytes apart."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        m, vector, item = arithmetic(context, builder, signature.args[0])
        _, source, target, pitch = arguments

        def loaded(first: int) -> list[Any]:
            places = [builder.add(source, _WORD((first + i * vector.count) * item)) for i in range(TILE)]
            return _phases(builder, [load_at(builder, place, vector, item) for place in places])

        for i, value in enumerate(_input(m, [*loaded(0), *loaded(TILE)[: REACH - TILE]])):
            store_at(builder, value, _at(builder, target, pitch, i), item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), generate


@intrinsic
def transform_back(typing: Any, like: Any, products: Any, pitch: Any, target: Any, step: Any) -> Any:
    """The 36 products of a vector of tiles, `pitch` bytes apart, to four rows of outputs, `step` bytes apart."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        m, vector, item = arithmetic(context, builder, signature.args[0])
        _, products, pitch, target, step = arguments

        def column(j: int) -> list[Any]:
            return _output(
                m, [load_at(builder, _at(builder, products, pitch, i * REACH + j), vector, item) for i in range(REACH)]
            )

        columns = [column(j) for j in range(REACH)]
        for i in range(TILE):
            row = _interleaved(builder, _output(m, [c[i] for c in columns]))
            for j, value in enumerate(row):
                store_at(
                    builder, value, builder.add(_at(builder, target, step, i), _WORD(j * vector.count * item)), item
                )
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate


@intrinsic
def transform_weight(
    typing: Any, like: Any, weight: Any, last: Any, row_step: Any, down: Any, along: Any, target: Any, pitch: Any
) -> Any:
    """The 3x3 windows of a tile's rows of the weight, the one numbered `last` again where there are no more, to 36
    vectors, `pitch` bytes apart."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, _, item = vector_of(context, signature.args[0])
        _, weight, last, row_step, down, along, target, pitch = arguments
        vector = ir.VectorType(element, ROWS)
        m = Arithmetic(builder, vector, item)

        def row(number: int) -> Any:
            exists = builder.icmp_signed("<", _WORD(number), last)
            return builder.add(weight, builder.mul(builder.select(exists, _WORD(number), last), row_step))

        rows = [row(number) for number in range(ROWS)]

        def tap(r: int, s: int) -> Any:
            value, offset = (
                ir.Constant(vector, ir.Undefined),
                builder.add(_at(builder, _WORD(0), down, r), _at(builder, _WORD(0), along, s)),
            )
            for i, start in enumerate(rows):
                value = builder.insert_element(
                    value, load_at(builder, builder.add(start, offset), element, item), _INT(i)
                )
            return value

        columns = [_weight(m, [tap(r, s) for r in range(3)]) for s in range(3)]
        for i in range(REACH):
            for j, value in enumerate(_weight(m, [c[i] for c in columns])):
                store_at(builder, value, _at(builder, target, pitch, i * REACH + j), item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 7), generate


def _line_intrinsic(transform: Callable[[Arithmetic, list[Any]], list[Any]], count: int) -> Any:
    def typed(typing: Any, like: Any, source: Any, step: Any, target: Any, pitch: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            m, vector, item = arithmetic(context, builder, signature.args[0])
            _, source, step, target, pitch = arguments
            found = transform(m, [load_at(builder, _at(builder, source, step, i), vector, item) for i in range(count)])
            for i, value in enumerate(found):
                store_at(builder, value, _at(builder, target, pitch, i), item)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 4), generate

    return intrinsic(typed)


# Vectors `step` bytes apart at `source` to vectors `pitch` bytes apart at `target`, which may be the same place: (like,
# source, step, target, pitch).
input_factors = _line_intrinsic(_input, REACH)
gradient_factors = _line_intrinsic(_output_gradient, TILE)
weight_taps = _line_intrinsic(_weight_gradient, REACH)


@intrinsic
def copy_checked(typing: Any, like: Any, source: Any, target: Any, count: Any, flags: Any) -> Any:
    """Copy `count` elements, at least a vector's; the vector at `flags` becomes NaN where one is not finite."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        m, vector, item = arithmetic(context, builder, signature.args[0])
        _, source, target, count, flags = arguments
        last = builder.sub(count, _WORD(vector.count))
        before = load_at(builder, flags, vector, item), builder.block
        loop, done = builder.append_basic_block("copy"), builder.append_basic_block("copied")
        builder.branch(loop)
        builder.position_at_end(loop)
        at, flag = builder.phi(_WORD), builder.phi(vector)
        value = load_at(builder, builder.add(source, builder.mul(at, _WORD(item))), vector, item)
        store_at(builder, value, builder.add(target, builder.mul(at, _WORD(item))), item)
        checked = m.fma(value, m.real(0.0), flag)
        beyond = builder.add(at, _WORD(vector.count))
        following = builder.select(
            builder.icmp_signed("<", beyond, last), beyond, last
        )  # the last vector overlaps the one before it
        for phi, first, value in ((at, _WORD(0), following), (flag, before[0], checked)):
            phi.add_incoming(first, before[1])
            phi.add_incoming(value, loop)
        builder.cbranch(builder.icmp_signed("<", at, last), loop, done)
        builder.position_at_end(done)
        store_at(builder, checked, flags, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate
