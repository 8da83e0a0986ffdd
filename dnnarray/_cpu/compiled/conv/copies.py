"""Copies between images of any strides and the dense blocks that kernels work on. Imports Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.kernel import device
from dnnarray._cpu.compiled.memory import ALIGNMENT, address
from dnnarray._cpu.compiled.tile import (
    apart,
    copy_vector,
    intrinsic,
    load_at,
    pick_vector,
    read,
    routine,
    spread_vector,
    store_at,
    turn_square,
    vector_of,
    write,
)

_WORD = ir.IntType(64)


@routine
def copy(like, source, source_step, target, target_step, count, item, width):
    """`count` elements from addresses `source_step` apart to addresses `target_step` apart."""
    apart()
    last = count - width  # the last vector overlaps the one before it
    if last >= 0 and source_step == item and target_step == item:
        for at in range(0, last, width):
            copy_vector(like, source + at * item, target + at * item)
        copy_vector(like, source + last * item, target + last * item)
        return
    if last >= 0 and source_step == 2 * item and target_step == item:
        for at in range(0, last, width):
            pick_vector(like, source + at * source_step, target + at * item)
        pick_vector(like, source + last * source_step, target + last * item)
        return
    if last >= 0 and source_step == item and target_step == 2 * item:
        for at in range(0, last, width):
            spread_vector(like, source + at * item, target + at * target_step)
        spread_vector(like, source + last * item, target + last * target_step)
        return
    for j in range(count):
        write(like, target + j * target_step, read(like, source + j * source_step))


def run_start(builder: ir.IRBuilder, index: Any, span: int, count: Any) -> Any:
    """Where the `index`-th run of `span` begins: the last one ends with the row."""
    at, end = builder.mul(index, _WORD(span)), builder.sub(count, _WORD(span))
    return builder.select(builder.icmp_signed("<", at, end), at, end)


def runs_of(builder: ir.IRBuilder, span: int, count: Any) -> Any:
    return builder.sdiv(builder.add(count, _WORD(span - 1)), _WORD(span))


@intrinsic
def copy_rows(
    typing: Any, like: Any, source: Any, source_step: Any, target: Any, target_step: Any, rows: Any, count: Any
) -> Any:
    """Rows of `count` elements from and to addresses these steps apart, by the longest vectors that are no longer than
    a row."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, vector, item = vector_of(context, signature.args[0])
        _, source, source_step, target, target_step, rows, count = arguments
        end = builder.append_basic_block("copied")
        span = vector.count
        while span:
            fits, shorter = (builder.append_basic_block(f"{name}{span}") for name in ("rows_of", "shorter_than"))
            builder.cbranch(builder.icmp_signed(">=", count, _WORD(span)), fits, shorter)
            builder.position_at_end(fits)
            kind = ir.VectorType(element, span) if span > 1 else element
            with cgutils.for_range(builder, rows) as row:
                start, into = (
                    builder.add(a, builder.mul(row.index, step))
                    for a, step in ((source, source_step), (target, target_step))
                )
                with cgutils.for_range(builder, runs_of(builder, span, count)) as run:
                    offset = builder.mul(run_start(builder, run.index, span, count), _WORD(item))
                    store_at(
                        builder,
                        load_at(builder, builder.add(start, offset), kind, item),
                        builder.add(into, offset),
                        item,
                    )
            builder.branch(end)
            builder.position_at_end(shorter)
            span //= 2
        builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 6), generate


@intrinsic
def clear(typing: Any, like: Any, target: Any, count: Any, item: Any) -> Any:
    """`count` elements become 0."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        element, vector, size = vector_of(context, signature.args[0])
        _, target, count, _ = arguments
        wide = builder.icmp_signed(">=", count, _WORD(vector.count))
        with builder.if_else(wide) as (vectors, few):
            for case, kind in ((vectors, vector), (few, element)):
                span = getattr(kind, "count", 1)
                with case, cgutils.for_range(builder, runs_of(builder, span, count)) as run:
                    at = builder.mul(run_start(builder, run.index, span, count), _WORD(size))
                    store_at(builder, ir.Constant(kind, None), builder.add(target, at), size)
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 3), generate


@routine
def turn_rows(like, source, row_step, target, step, rows, count, item, width):
    """Rows of `count` elements, `row_step` bytes apart, to as many columns, `step` bytes apart."""
    apart()
    if rows < width or count < width:
        for c in range(rows):
            for w in range(count):
                write(like, target + w * step + c * item, read(like, source + c * row_step + w * item))
        return
    for w in range(
        0, count, width
    ):  # a few columns from end to end: their pages and lines are used while they are at hand
        at = min(w, count - width)  # the last squares overlap those before them
        for c in range(0, rows, width):
            row = min(c, rows - width)
            turn_square(like, source + row * row_step + at * item, row_step, target + at * step + row * item, step)


def line_of(memory: np.ndarray) -> int:
    """The first cache line in memory that is a line longer than needed."""
    return -(-address(memory) // ALIGNMENT) * ALIGNMENT


def aligned_array(array: np.ndarray) -> np.ndarray:
    return array if array.flags.aligned else array.copy()


@device(counted=False)
def box_of(task, geo, out_at, size_at, start, extents):
    """Fill in the first pixel and the extents of the box that a task has of the result: its extents and those of a box
    stand in `geo` from `out_at` and `size_at` on. Gives what is left of the task's number."""
    for axis in range(2, -1, -1):
        size = geo[size_at + axis]
        number = (geo[out_at + axis] + size - 1) // size
        start[axis] = task % number * size
        extents[axis] = min(size, geo[out_at + axis] - start[axis])
        task //= number
    return task
