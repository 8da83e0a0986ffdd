"""Steps of a softmax that runs down the lanes of vectors, on vectors in memory: what a loop over lanes is not reliably
turned into. Imports Numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.scalar import _EXP_DOUBLE as EXP_DOUBLE
from dnnarray._cpu.compiled.scalar import _EXP_SINGLE as EXP_SINGLE
from dnnarray._cpu.compiled.tile import intrinsic, load_at, splat, store_at, vector_of

_BIT, _INT, _WORD = ir.IntType(1), ir.IntType(32), ir.IntType(64)

# What exp takes (from a plain 0 to infinity), the number whose addition rounds to an integer, ln(2) in two parts, and
# the bits of mantissa and bias.
_SINGLE = (-104.0, 89.0, 1.5 * 2**23, 0.693359375, -2.12194440e-4, 23, 127)
_DOUBLE = (-746.0, 710.0, 1.5 * 2**52, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 52, 1023)


class Arithmetic:
    """Vectors of one type in a builder."""

    def __init__(self, builder: ir.IRBuilder, vector: ir.VectorType, item: int) -> None:
        self.builder, self.vector = builder, vector
        self.integers = ir.VectorType(ir.IntType(8 * item), vector.count)
        name = f"llvm.fmuladd.v{vector.count}f{8 * item}"
        self._fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
        self.single = item == 4
        self.limits = _SINGLE if self.single else _DOUBLE

    def real(self, value: float) -> ir.Constant:
        return ir.Constant(self.vector, [value] * self.vector.count)

    def integer(self, value: int) -> ir.Constant:
        return ir.Constant(self.integers, [value] * self.vector.count)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.call(self._fma, [a, b, c])

    def bits(self, x: Any) -> Any:
        return self.builder.bitcast(x, self.integers)

    def larger(self, a: Any, b: Any) -> Any:
        """b where it is larger or not a number, else a."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def power_of_two(self, n: Any, mantissa: int, bias: int) -> Any:
        builder = self.builder
        return builder.bitcast(builder.shl(builder.add(n, self.integer(bias)), self.integer(mantissa)), self.vector)

    def _held(self, x: Any, low: float, high: float) -> Any:
        """x between the limits; NaN stays NaN."""
        builder = self.builder
        x = builder.select(builder.fcmp_ordered("<", x, self.real(low)), self.real(low), x)
        return builder.select(builder.fcmp_ordered(">", x, self.real(high)), self.real(high), x)

    def reduced(self, x: Any) -> tuple[Any, Any]:
        """(p, n): exp(x) = (1 + p) 2^n, as `scalar.exp` does it, for x in the range of normal numbers."""
        builder = self.builder
        _, _, magic, ln2, rest, _, _ = self.limits
        rounded = self.fma(x, self.real(1.4426950408889634), self.real(magic))
        n = builder.fneg(builder.fsub(rounded, self.real(magic)))
        r = self.fma(n, self.real(rest), self.fma(n, self.real(ln2), x))
        first, *others = (self.real(c) for c in (EXP_SINGLE if self.single else EXP_DOUBLE))
        tail = first
        for coefficient in others:
            tail = self.fma(tail, r, coefficient)
        return self.fma(builder.fmul(r, r), tail, r), builder.sub(self.bits(rounded), self.bits(self.real(magic)))

    def exp(self, x: Any) -> Any:
        """e to the x."""
        builder = self.builder
        low, high, _, _, _, mantissa, bias = self.limits
        p, count = self.reduced(self._held(x, low, high))
        half = builder.ashr(count, self.integer(1))
        return builder.fmul(
            builder.fmul(builder.fadd(self.real(1.0), p), self.power_of_two(half, mantissa, bias)),
            self.power_of_two(builder.sub(count, half), mantissa, bias),
        )

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x))."""
        one = self.real(1.0)
        return self.builder.fdiv(one, self.builder.fadd(one, self.exp(self.builder.fneg(x))))

    def tanh(self, x: Any) -> Any:
        """(e - 1) / (e + 1) of e = exp(2 x), e - 1 without cancellation near 0; beyond |x| = 20 it is 1."""
        builder = self.builder
        p, count = self.reduced(self._held(builder.fadd(x, x), -40.0, 40.0))
        scale = self.power_of_two(count, *self.limits[-2:])
        less = self.fma(p, scale, builder.fsub(scale, self.real(1.0)))
        return builder.fdiv(less, builder.fadd(less, self.real(2.0)))


class Lanes(Arithmetic):
    """Arithmetic on vectors of which the first lanes stand in memory, all of them where `count` is None."""

    def __init__(self, builder: ir.IRBuilder, vector: ir.VectorType, item: int, count: Any) -> None:
        super().__init__(builder, vector, item)
        self.item, self.mask = item, None
        if count is not None:
            words = ir.VectorType(_WORD, vector.count)
            self.mask = builder.icmp_signed(
                "<", ir.Constant(words, list(range(vector.count))), splat(builder, count, words)
            )

    def whole(self, address: Any) -> Any:
        """A vector all of whose lanes stand in memory."""
        return load_at(self.builder, address, self.vector, self.item)

    def load(self, address: Any) -> Any:
        if self.mask is None:
            return self.whole(address)
        function = self._masked("load", self.vector, lambda pointer, mask: [pointer, _INT, mask, self.vector])
        pointer = self.builder.inttoptr(address, ir.PointerType(self.vector))
        return self.builder.call(function, [pointer, _INT(self.item), self.mask, ir.Constant(self.vector, None)])

    def store(self, value: Any, address: Any) -> None:
        if self.mask is None:
            store_at(self.builder, value, address, self.item)
            return
        function = self._masked("store", ir.VoidType(), lambda pointer, mask: [self.vector, pointer, _INT, mask])
        self.builder.call(
            function, [value, self.builder.inttoptr(address, ir.PointerType(self.vector)), _INT(self.item), self.mask]
        )

    def _masked(
        self, verb: str, result: ir.Type, parameters: Callable[[ir.Type, ir.Type], list[ir.Type]]
    ) -> ir.Function:
        name = f"llvm.masked.{verb}.v{self.vector.count}f{8 * self.item}.p0"
        kind = ir.FunctionType(result, parameters(ir.PointerType(self.vector), ir.VectorType(_BIT, self.vector.count)))
        return cgutils.get_or_insert_function(self.builder.module, kind, name)


def arithmetic(context: Any, builder: ir.IRBuilder, like: types.Float) -> tuple[Arithmetic, ir.VectorType, int]:
    _, vector, item = vector_of(context, like)
    return Arithmetic(builder, vector, item), vector, item


def _down(builder: ir.IRBuilder, count: Any, start: Any, body: Any) -> Any:
    """Loop over `count` rows, at least one, with a vector held in a register: ``body(row, value)`` gives the next
    value. Gives the last."""
    before = builder.block
    loop, done = builder.append_basic_block("down"), builder.append_basic_block("bottom")
    builder.branch(loop)
    builder.position_at_end(loop)
    row, value = builder.phi(count.type), builder.phi(start.type)
    row.add_incoming(count.type(0), before)
    value.add_incoming(start, before)
    following, result = builder.add(row, count.type(1)), body(row, value)
    row.add_incoming(following, loop)
    value.add_incoming(result, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    return result


@intrinsic
def raise_top(typing: Any, like: Any, scores: Any, step: Any, count: Any, top: Any) -> Any:
    """The vector at `top` becomes the largest of itself and of `count` vectors, `step` bytes apart; a NaN may get
    lost."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        math, vector, item = arithmetic(context, builder, signature.args[0])
        _, scores, step, count, top = arguments

        def body(row: Any, value: Any) -> Any:
            return math.larger(value, load_at(builder, builder.add(scores, builder.mul(row, step)), vector, item))

        store_at(builder, _down(builder, count, load_at(builder, top, vector, item), body), top, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate


@intrinsic
def exponentials(typing: Any, like: Any, scores: Any, step: Any, count: Any, ground: Any, total: Any) -> Any:
    """Each of `count` vectors, `step` bytes apart, becomes exp(score - ground); their sum is added to `total`, at the
    end: sums of sums are more exact."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        math, vector, item = arithmetic(context, builder, signature.args[0])
        _, scores, step, count, ground, total = arguments
        level = load_at(builder, ground, vector, item)

        def body(row: Any, value: Any) -> Any:
            address = builder.add(scores, builder.mul(row, step))
            weight = math.exp(builder.fsub(load_at(builder, address, vector, item), level))
            store_at(builder, weight, address, item)
            return builder.fadd(value, weight)

        found = _down(builder, count, math.real(0.0), body)
        store_at(builder, builder.fadd(load_at(builder, total, vector, item), found), total, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 5), generate


@intrinsic
def score_gradients(
    typing: Any, like: Any, scores: Any, slopes: Any, step: Any, count: Any, ground: Any, delta: Any, share: Any
) -> Any:
    """Each of `count` vectors of scores, `step` bytes apart, becomes the weight p = exp(score - ground) share, and that
    of `slopes` p (slope - delta)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        math, vector, item = arithmetic(context, builder, signature.args[0])
        _, scores, slopes, step, count, ground, delta, share = arguments
        level, shift, factor = (load_at(builder, address, vector, item) for address in (ground, delta, share))

        def body(row: Any, value: Any) -> Any:
            offset = builder.mul(row, step)
            places = [builder.add(address, offset) for address in (scores, slopes)]
            score, slope = (load_at(builder, place, vector, item) for place in places)
            weight = builder.fmul(math.exp(builder.fsub(score, level)), factor)
            store_at(builder, weight, places[0], item)
            store_at(builder, builder.fmul(weight, builder.fsub(slope, shift)), places[1], item)
            return value

        _down(builder, count, level, body)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 7), generate


@intrinsic
def multiply(typing: Any, like: Any, target: Any, factor: Any) -> Any:
    """The vector at `target` times that at `factor`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        _, vector, item = arithmetic(context, builder, signature.args[0])
        a, b = (load_at(builder, address, vector, item) for address in arguments[1:])
        store_at(builder, builder.fmul(a, b), arguments[1], item)
        return context.get_dummy_value()

    return types.void(like, types.int64, types.int64), generate


@intrinsic
def settle(typing: Any, like: Any, top: Any, ground: Any, shrink: Any, total: Any) -> Any:
    """From the new maximum at `top` and the old one at `shrink`: `ground`, the factor of earlier sums at `shrink`, and
    `total` times that."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        math, vector, item = arithmetic(context, builder, signature.args[0])
        new, old, sums = (load_at(builder, arguments[i], vector, item) for i in (1, 3, 4))
        nothing = builder.fcmp_ordered("==", new, math.real(float("-inf")))
        level = builder.select(nothing, math.real(0.0), new)
        factor = math.exp(builder.fsub(old, level))
        for value, address in (
            (level, arguments[2]),
            (factor, arguments[3]),
            (builder.fmul(sums, factor), arguments[4]),
        ):
            store_at(builder, value, address, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 4), generate
