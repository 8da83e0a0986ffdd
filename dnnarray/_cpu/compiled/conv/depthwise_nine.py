"""Window sums of 3x3 depthwise convolution, straight from the image. Imports Numba.

A strip is as wide as a vector and a few rows high. Each row of the image that it reads is loaded once for each column
of the window and multiplied into the sums of the three rows of outputs that it belongs to; sums and all nine weights
stay in registers. Nothing is copied: a row beside the image is one of zeros, and where a strip ends at the image's
first or last column, the vector beside it is its neighbour moved by a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.conv.copies import run_start, runs_of
from dnnarray._cpu.compiled.lanes import arithmetic
from dnnarray._cpu.compiled.tile import intrinsic, load_at, splat, store_at

_ROWS = 4  # of a strip: six rows are read for them, and one vector waits at a time, so that 16 registers do
_SIDE = 3  # of the window
_WORD, _LANE = ir.IntType(64), ir.IntType(32)


class _Strips:
    """Strips of `height` rows of outputs, from rows of the image at given addresses."""

    def __init__(
        self, builder: ir.IRBuilder, arithmetic: Any, weights: list[Any], rows: list[Any], targets: list[Any], item: int
    ) -> None:
        self.builder, self.m, self.vector, self.item = builder, arithmetic, arithmetic.vector, item
        self.weights, self.rows, self.targets = weights, rows, targets

    def emit(self, at: Any, left: bool, right: bool) -> None:
        """The strip that begins `at` bytes behind the first column; `left` and `right` say that the window's outer
        columns lie outside there."""
        height = len(self.targets)
        sums = [self.m.real(0.0)] * height
        for i, row in enumerate(self.rows):
            for s, value in enumerate(self._columns(self.builder.add(row, at), left, right)):
                for r in range(max(0, i - height + 1), min(_SIDE, i + 1)):
                    sums[i - r] = self.m.fma(self.weights[r * _SIDE + s], value, sums[i - r])
            if i >= _SIDE - 1:
                store_at(
                    self.builder, sums[i - _SIDE + 1], self.builder.add(self.targets[i - _SIDE + 1], at), self.item
                )

    def _columns(self, place: Any, left: bool, right: bool) -> list[Any]:
        """What a row holds at the three columns of the window."""
        builder, count = self.builder, self.vector.count
        middle = load_at(builder, builder.add(place, _WORD(self.item)), self.vector, self.item)
        first = self._moved(middle, range(-1, count - 1)) if left else load_at(builder, place, self.vector, self.item)
        last = (
            self._moved(middle, range(1, count + 1))
            if right
            else load_at(builder, builder.add(place, _WORD(2 * self.item)), self.vector, self.item)
        )
        return [first, middle, last]

    def _moved(self, value: Any, lanes: range) -> Any:
        """These lanes of a vector; 0 where there is none."""
        count = self.vector.count
        order = ir.Constant(ir.VectorType(_LANE, count), [lane if 0 <= lane < count else count for lane in lanes])
        return self.builder.shuffle_vector(value, self.m.real(0.0), order)


def _strips_of_a_row(
    builder: ir.IRBuilder, count: Any, span: int, left: Any, right: Any, emit: Callable[[Any, bool, bool], None]
) -> None:
    """All strips of rows of `count` elements: those at an edge beside zeros by themselves."""
    runs = runs_of(builder, span, count)
    last = builder.sub(runs, _WORD(1))
    alone = builder.and_(builder.icmp_signed("==", runs, _WORD(1)), builder.and_(left, right))
    begin = builder.zext(left, _WORD)
    end = builder.sub(runs, builder.zext(right, _WORD))
    with builder.if_else(alone) as (one, many):
        with one:
            emit(_WORD(0), True, True)
        with many:
            with builder.if_then(left):
                emit(_WORD(0), True, False)
            with cgutils.for_range(builder, end, begin) as run:
                emit(run_start(builder, run.index, span, count), False, False)
            with builder.if_then(right):
                emit(run_start(builder, last, span, count), False, True)


@intrinsic
def nine_sums(
    typing: Any,
    like: Any,
    image: Any,
    step: Any,
    low: Any,
    height: Any,
    zeros: Any,
    left: Any,
    right: Any,
    weights: Any,
    target: Any,
    target_step: Any,
    rows: Any,
    count: Any,
) -> Any:
    """`rows` rows of `count` sums, at least a vector's. The window of the first begins at row `low` of the image, which
    has `height` rows, at the address `image`; other rows are those at `zeros`. `left` and `right` (0 or 1) say that the
    first and the last window begin and end a column beside the image."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        m, vector, item = arithmetic(context, builder, signature.args[0])
        _, image, step, low, height, zeros, left, right, weights, target, target_step, rows, count = arguments
        left, right = (builder.icmp_signed("!=", flag, _WORD(0)) for flag in (left, right))
        factors = [
            splat(builder, load_at(builder, builder.add(weights, _WORD(t * item)), vector.element, item), vector)
            for t in range(_SIDE**2)
        ]

        def row(number: Any) -> Any:
            inside = builder.icmp_unsigned("<", number, height)
            return builder.select(inside, builder.add(image, builder.mul(number, step)), zeros)

        def block(first: Any, tall: int) -> None:
            sources = [row(builder.add(builder.add(low, first), _WORD(i))) for i in range(tall + _SIDE - 1)]
            into = [builder.add(target, builder.mul(builder.add(first, _WORD(i)), target_step)) for i in range(tall)]
            strips = _Strips(builder, m, factors, sources, into, item)
            _strips_of_a_row(
                builder,
                count,
                vector.count,
                left,
                right,
                lambda at, *sides: strips.emit(builder.mul(at, _WORD(item)), *sides),
            )

        with builder.if_else(builder.icmp_signed(">=", rows, _WORD(_ROWS))) as (tall, flat):
            for case, span in ((tall, _ROWS), (flat, 1)):
                with case, cgutils.for_range(builder, runs_of(builder, span, rows)) as run:
                    block(run_start(builder, run.index, span, rows), span)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 12), generate
