"""The usual average, of windows of 2 by 2 side by side, on vectors in memory. Imports Numba."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from dnnarray._cpu.compiled.tile import apart, intrinsic, load_at, routine, store_at, vector_of

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
        even, odd = (builder.shuffle_vector(*sums, ir.Constant(kind, list(range(first, 2 * count, 2)))) for first in (0, 1))
        mean = builder.fmul(builder.fadd(even, odd), ir.Constant(vector, [0.25] * count))
        store_at(builder, mean, out, item)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), generate


@routine
def means_of_four(like, top, row_step, out, count, item, lanes):
    """`count` means, a vector of them at least, of the rows at `top` and one `row_step` further; the last vector overlaps the one before it."""
    apart()
    for at in range(0, count - lanes, lanes):
        _mean_of_four(like, top + 2 * at * item, top + row_step + 2 * at * item, out + at * item)
    at = count - lanes
    _mean_of_four(like, top + 2 * at * item, top + row_step + 2 * at * item, out + at * item)
