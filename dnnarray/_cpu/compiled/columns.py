"""Sums down the columns of a few rows of a matrix, in registers: what loops over columns leave in memory. Imports
Numba.

A strip of neighbouring columns is gone through row by row. The last strip overlaps the one before it and finds the same
again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.conv.copies import run_start, runs_of
from dnnarray._cpu.compiled.lanes import Arithmetic
from dnnarray._cpu.compiled.tile import intrinsic, lanes, load_at, splat, store_at, vector_of

LEAST = 8  # columns
_VECTORS = 4  # of a strip, where there are as many
_WORD = ir.IntType(64)


def strip_of(columns: int, itemsize: int) -> int:
    """How wide the strips of so many columns are: 2 for `_VECTORS` vectors, 1 for one, 0 for `LEAST` columns."""
    return 2 if columns >= _VECTORS * lanes(itemsize) else int(columns >= lanes(itemsize))


class _Strip:
    """The vectors of a strip that begins so many bytes behind the first column."""

    def __init__(self, builder: ir.IRBuilder, m: Arithmetic, item: int, vectors: int, at: Any) -> None:
        self.builder, self.m, self.item = builder, m, item
        self.places = [builder.add(at, _WORD(v * m.vector.count * item)) for v in range(vectors)]

    def load(self, row: Any) -> list[Any]:
        return [load_at(self.builder, self.builder.add(row, place), self.m.vector, self.item) for place in self.places]

    def store(self, values: Sequence[Any], row: Any) -> None:
        for value, place in zip(values, self.places, strict=True):
            store_at(self.builder, value, self.builder.add(row, place), self.item)

    def sums(
        self, count: int, rows: Any, steps: Sequence[tuple[Any, Any]], terms: Callable[..., list[list[Any]]]
    ) -> list[list[Any]]:
        """`count` sums over the rows of each array of `steps` (address, bytes to the next row): ``terms(totals,
        *rows)`` gives the next totals."""
        b = self.builder
        held = [[cgutils.alloca_once(b, self.m.vector) for _ in self.places] for _ in range(count)]
        for place in (p for total in held for p in total):
            b.store(self.m.real(0.0), place)
        with cgutils.for_range(b, rows) as row:
            loaded = [self.load(b.add(first, b.mul(row.index, step))) for first, step in steps]
            totals = [[b.load(p) for p in total] for total in held]
            for total, values in zip(held, terms(totals, *loaded), strict=True):
                for place, value in zip(total, values, strict=True):
                    b.store(value, place)
        return [[b.load(p) for p in total] for total in held]


def _strips(
    context: Any, builder: ir.IRBuilder, like: types.Float, vectors: int, columns: Any, body: Callable[[_Strip], None]
) -> None:
    """``body(strip)`` for all strips; 0 `vectors` are one of `LEAST` lanes."""
    element, vector, item = vector_of(context, like)
    m = Arithmetic(builder, vector if vectors else ir.VectorType(element, LEAST), item)
    span = max(vectors, 1) * m.vector.count
    with cgutils.for_range(builder, runs_of(builder, span, columns)) as run:
        at = builder.mul(run_start(builder, run.index, span, columns), _WORD(item))
        body(_Strip(builder, m, item, max(vectors, 1), at))


def _moments_intrinsic(vectors: int) -> Any:
    """Of each column: the mean, and the sums of the differences from it and of their squares. `share` is 1 over the
    number of rows."""

    def typed(
        typing: Any,
        like: Any,
        x: Any,
        step: Any,
        rows: Any,
        columns: Any,
        share: Any,
        mean: Any,
        rest: Any,
        square: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, x, step, rows, columns, share, mean, rest, square = arguments

            def body(strip: _Strip) -> None:
                m, b = strip.m, builder
                ((*sums,),) = strip.sums(
                    1,
                    rows,
                    [(x, step)],
                    lambda totals, row: [[b.fadd(t, v) for t, v in zip(totals[0], row, strict=True)]],
                )
                factor = splat(b, share, m.vector)
                means = [b.fmul(total, factor) for total in sums]

                def spread(totals: list[list[Any]], row: list[Any]) -> list[list[Any]]:
                    apart = [b.fsub(value, centre) for value, centre in zip(row, means, strict=True)]
                    first = [b.fadd(total, d) for total, d in zip(totals[0], apart, strict=True)]
                    return [first, [m.fma(d, d, total) for total, d in zip(totals[1], apart, strict=True)]]

                found = strip.sums(2, rows, [(x, step)], spread)
                for values, target in zip((means, *found), (mean, rest, square), strict=True):
                    strip.store(values, target)

            _strips(context, builder, signature.args[0], vectors, columns, body)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 4, like, *[types.int64] * 3), generate

    return intrinsic(typed)


def _products_intrinsic(vectors: int) -> Any:
    """Of each column: the sums of g and of g (x - mean) rstd."""

    def typed(
        typing: Any,
        like: Any,
        g: Any,
        x: Any,
        step: Any,
        rows: Any,
        columns: Any,
        mean: Any,
        rstd: Any,
        plain: Any,
        along: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _, g, x, step, rows, columns, mean, rstd, plain, along = arguments

            def body(strip: _Strip) -> None:
                m, b = strip.m, builder
                means, factors = strip.load(mean), strip.load(rstd)

                def terms(totals: list[list[Any]], grad: list[Any], row: list[Any]) -> list[list[Any]]:
                    u = [b.fmul(b.fsub(value, centre), f) for value, centre, f in zip(row, means, factors, strict=True)]
                    sums = [b.fadd(total, slope) for total, slope in zip(totals[0], grad, strict=True)]
                    return [sums, [m.fma(slope, v, total) for total, slope, v in zip(totals[1], grad, u, strict=True)]]

                found = strip.sums(2, rows, [(g, step), (x, step)], terms)
                strip.store(found[0], plain)
                strip.store(found[1], along)

            _strips(context, builder, signature.args[0], vectors, columns, body)
            return context.get_dummy_value()

        return types.void(like, *[types.int64] * 9), generate

    return intrinsic(typed)


moments_of_few, moments_of_one, moments_of_many = (_moments_intrinsic(v) for v in (0, 1, _VECTORS))
products_of_few, products_of_one, products_of_many = (_products_intrinsic(v) for v in (0, 1, _VECTORS))
