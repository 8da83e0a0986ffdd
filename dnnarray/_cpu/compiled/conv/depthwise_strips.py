"""Window sums of depthwise convolution with large windows, from a padded image. Imports Numba.

A strip is a few vectors wide and `STRIP_ROWS` rows high. Each vector of the image is loaded once for each column of the
window and multiplied into the sums of all rows of the strip that it belongs to: fewer loads than products, and enough
sums in registers that none waits for another. Products are added in the order of the window's taps, and no tap meets
what lies outside of its window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.conv.copies import run_start, runs_of
from dnnarray._cpu.compiled.lanes import arithmetic
from dnnarray._cpu.compiled.tile import intrinsic, load_at, splat, store_at

STRIP_ROWS, STRIP_VECTORS = 4, 2  # eight sums, two vectors and a weight: 16 registers do
_WORD = ir.IntType(64)


class _Strip:
    """The sums of a strip, and the products that go into them."""

    def __init__(
        self, builder: ir.IRBuilder, arithmetic: Any, vectors: int, item: int, weights: Any, wide: Any
    ) -> None:
        self.builder, self.m, self.vector, self.item = builder, arithmetic, arithmetic.vector, item
        self.vectors, self.weights, self.wide = vectors, weights, wide
        self.sums = [[cgutils.alloca_once(builder, self.vector) for _ in range(vectors)] for _ in range(STRIP_ROWS)]

    def clear(self) -> None:
        for place in (p for row in self.sums for p in row):
            self.builder.store(self.m.real(0.0), place)

    def add_line(self, line: Any, tap_row: Any, rows: Sequence[int]) -> None:
        """A line of the image into the sums of these rows of the strip: it meets row `tap_row` - r of the window of row
        r."""
        b = self.builder
        with cgutils.for_range(b, self.wide) as column:
            place = b.add(line, b.mul(column.index, _WORD(self.item)))
            image = [
                load_at(b, b.add(place, _WORD(v * self.vector.count * self.item)), self.vector, self.item)
                for v in range(self.vectors)
            ]
            for r in rows:
                tap = b.add(b.mul(b.sub(tap_row, _WORD(r)), self.wide), column.index)
                single = load_at(b, b.add(self.weights, b.mul(tap, _WORD(self.item))), self.vector.element, self.item)
                weight = splat(b, single, self.vector)
                for value, total in zip(image, self.sums[r], strict=True):
                    b.store(self.m.fma(weight, value, b.load(total)), total)

    def store(self, target: Any, step: Any) -> None:
        b = self.builder
        for r, row in enumerate(self.sums):
            into = b.add(target, b.mul(_WORD(r), step))
            for v, total in enumerate(row):
                store_at(b, b.load(total), b.add(into, _WORD(v * self.vector.count * self.item)), self.item)


def _strips_intrinsic(vectors: int) -> Any:
    """At least `STRIP_ROWS` rows of `count` sums, at least `vectors` vectors, of windows of tall x wide taps, `tall` no
    less than a strip's rows."""

    def typed(
        typing: Any,
        like: Any,
        image: Any,
        step: Any,
        weights: Any,
        tall: Any,
        wide: Any,
        target: Any,
        target_step: Any,
        rows: Any,
        count: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            m, vector, item = arithmetic(context, builder, signature.args[0])
            _, image, step, weights, tall, wide, target, target_step, rows, count = arguments
            span, strip = vectors * vector.count, _Strip(builder, m, vectors, item, weights, wide)

            def at(line: Any) -> Any:
                return builder.add(corner, builder.mul(line, step))

            with cgutils.for_range(builder, runs_of(builder, STRIP_ROWS, rows)) as block:
                row = run_start(builder, block.index, STRIP_ROWS, rows)
                with cgutils.for_range(builder, runs_of(builder, span, count)) as run:
                    offset = builder.mul(run_start(builder, run.index, span, count), _WORD(item))
                    corner = builder.add(builder.add(image, builder.mul(row, step)), offset)
                    strip.clear()
                    for i in range(STRIP_ROWS - 1):  # lines above the last row's window
                        strip.add_line(at(_WORD(i)), _WORD(i), range(i + 1))
                    with cgutils.for_range(builder, tall, _WORD(STRIP_ROWS - 1)) as line:
                        strip.add_line(at(line.index), line.index, range(STRIP_ROWS))
                    for i in range(STRIP_ROWS - 1):  # below the first row's
                        below = builder.add(tall, _WORD(i))
                        strip.add_line(at(below), below, range(i + 1, STRIP_ROWS))
                    strip.store(builder.add(builder.add(target, builder.mul(row, target_step)), offset), target_step)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 9), generate

    return intrinsic(typed)


strips_of_one, strips_of_many = (_strips_intrinsic(v) for v in (1, STRIP_VECTORS))
