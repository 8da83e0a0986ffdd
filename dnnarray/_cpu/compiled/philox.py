"""The numbers of `dnnarray._cpu.philox` in vectors: which elements of a run dropout keeps. Imports Numba."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.tile import intrinsic, splat, store_at
from dnnarray._cpu.philox import MULTIPLIERS, ROUNDS, WEYL

_INT, _WORD = ir.IntType(32), ir.IntType(64)
_WORDS = 4  # of a counter
_COUNTERS = 8  # words of 64 bits, each in a lane: a product keeps both of its halves
_NUMBERS = 16  # of two words of half of the counters, in the order of the stream
GROUP = _WORDS * _COUNTERS  # numbers that are drawn at once
# Counters lie in the lanes so that what is interleaved inside of 16 bytes, which costs no permutation, comes out in the
# order of the stream.
_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
_Pair = tuple[Any, Any]


class _Counters:
    """Vectors of a builder, a counter's word in each lane. Only its low half counts: multiplication drops what is
    above, and so does `pair`."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder, self.vector = builder, ir.VectorType(_WORD, _COUNTERS)

    def all(self, value: int) -> ir.Constant:
        return self.vector([value] * _COUNTERS)

    def product(self, word: Any, factor: int) -> Any:
        return self.builder.mul(self.builder.and_(word, self.all(0xFFFFFFFF)), self.all(factor))

    def words(self, counter: Any, key: _Pair) -> tuple[Any, ...]:
        """The four words of each of the counters from `counter` on."""
        builder, half = self.builder, self.all(32)
        a = builder.add(splat(builder, counter, self.vector), self.vector(list(_ORDER)))
        b, c, d = builder.lshr(a, half), self.all(0), self.all(0)
        for r in range(ROUNDS):
            k, m = (
                splat(builder, builder.add(word, _WORD(r * step)), self.vector)
                for word, step in zip(key, WEYL, strict=True)
            )
            first, second = self.product(a, MULTIPLIERS[0]), self.product(c, MULTIPLIERS[1])
            a = builder.xor(builder.xor(builder.lshr(second, half), b), k)
            c = builder.xor(builder.xor(builder.lshr(first, half), d), m)
            b, d = second, first
        return a, b, c, d

    def _pair(self, low: Any, high: Any) -> Any:
        """The low halves of two words of each counter, side by side."""
        wide = ir.VectorType(_INT, 2 * _COUNTERS)
        places = [i + odd for i in range(0, 2 * _COUNTERS, 2) for odd in (0, 2 * _COUNTERS)]
        a, b = (self.builder.bitcast(word, wide) for word in (low, high))
        return self.builder.bitcast(self.builder.shuffle_vector(a, b, wide(places)), self.vector)

    def numbers(self, counter: Any, key: _Pair) -> list[Any]:
        """The numbers of these counters in the order of the stream: two vectors."""
        a, b, c, d = self.words(counter, key)
        left, right = self._pair(a, b), self._pair(c, d)
        index, wide = ir.VectorType(_INT, _COUNTERS), ir.VectorType(_INT, _NUMBERS)
        found = []
        for odd in (0, 1):
            places = [i + odd + other for i in range(0, _COUNTERS, 2) for other in (0, _COUNTERS)]
            found.append(self.builder.bitcast(self.builder.shuffle_vector(left, right, index(places)), wide))
        return found


@intrinsic
def _draw(
    typing: Any, scale: Any, counter: Any, low: Any, high: Any, threshold: Any, target: Any, first: Any, last: Any
) -> Any:
    """The factors of a group, whose own would begin at the address `target`: those from `first` to `last` are
    written."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scale, counter, low, high, threshold, target, first, last = arguments
        element, item = scale.type, signature.args[0].bitwidth // 8
        real = ir.VectorType(element, _NUMBERS)
        level = splat(builder, builder.trunc(threshold, _INT), ir.VectorType(_INT, _NUMBERS))
        kept, dropped = splat(builder, scale, real), real([0.0] * _NUMBERS)
        numbers = _Counters(builder).numbers(counter, (low, high))
        factors = [builder.select(builder.icmp_unsigned(">=", n, level), kept, dropped) for n in numbers]

        def store(address: Any) -> None:
            for i, factor in enumerate(factors):
                store_at(builder, factor, builder.add(address, _WORD(i * _NUMBERS * item)), item)

        with builder.if_else(builder.icmp_signed("==", builder.sub(last, first), _WORD(GROUP))) as (whole, part):
            with whole:
                store(target)
            with part:
                beside = cgutils.alloca_once(builder, ir.ArrayType(element, GROUP))
                store(builder.ptrtoint(beside, _WORD))
                with cgutils.for_range(builder, last, first) as loop:
                    value = builder.load(builder.gep(beside, [_WORD(0), loop.index]))
                    store_at(builder, value, builder.add(target, builder.mul(loop.index, _WORD(item))), item)
        return context.get_dummy_value()

    return types.void(scale, *[types.int64] * 7), generate


@device(counted=False)
def keep_factors(
    y: Any, first: Any, last: Any, counter: Any, skip: Any, low: Any, high: Any, threshold: Any, scale: Any
) -> Any:
    """y[first:last] becomes the scale where the number is at least the threshold, else 0. Number `skip` from the block
    `counter` on is that of y[0]."""
    number, end = first + skip, last + skip
    for base in range(number // GROUP * GROUP, end, GROUP):
        target = y.ctypes.data + (base - skip) * y.itemsize
        _draw(
            scale, counter + base // _WORDS, low, high, threshold, target, max(number - base, 0), min(end - base, GROUP)
        )
