"""Memory that is asked for while the micro-kernel multiplies, since a task is going to write it. Imports Numba.

Each tile asks for a share of the lines before it begins: a core keeps few misses in flight, so that a pass of stores
waits for most of its lines, while a tile takes long enough for those of its share."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from dnnarray._cpu.compiled.memory import ALIGNMENT
from dnnarray._cpu.compiled.tile import apart, load_at, routine, store_at, write_word

_INT, _WORD = ir.IntType(32), ir.IntType(64)
# What is asked for: rows of so many bytes, equal steps apart. Where the next one begins, how far it has come, lines
# left, those of a tile, bytes and step.
_ROW, _AT, _LEFT, _SHARE, _SPAN, _STEP = range(0, 48, 8)
WORDS = 6
_DENSE = 2  # times as many bytes from a row's begin to its end as it holds: with more its lines are another's


def ask_for_some(builder: ir.IRBuilder, asked: Any) -> None:
    """Ask for a tile's share of the lines."""
    pointer = ir.PointerType(ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [pointer, _INT, _INT, _INT])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    row, at, left, share, span, step = (
        builder.add(asked, _WORD(word)) for word in (_ROW, _AT, _LEFT, _SHARE, _SPAN, _STEP)
    )
    waiting, most, length, further = (load_at(builder, word, _WORD, 8) for word in (left, share, span, step))
    some = builder.select(builder.icmp_signed("<", waiting, most), waiting, most)
    store_at(builder, builder.sub(waiting, some), left, 8)
    with cgutils.for_range(builder, some):
        begin, offset = (load_at(builder, word, _WORD, 8) for word in (row, at))
        address = builder.inttoptr(builder.add(begin, offset), pointer)
        builder.call(prefetch, [address, _INT(1), _INT(3), _INT(1)])  # to be written, in the first-level cache
        following = builder.add(offset, _WORD(ALIGNMENT))
        ends = builder.icmp_signed(">=", following, length)
        store_at(builder, builder.select(ends, _WORD(0), following), at, 8)
        store_at(builder, builder.select(ends, builder.add(begin, further), begin), row, 8)


@routine
def ask_for(asked, address, strides, axis, channels, extents, item, tiles):
    """Have so many tiles ask for a box of an image, or for nothing if there are none. The strides of its channels and
    axes stand from `axis` on."""
    apart()
    d, h, w = extents[0], extents[1], extents[2]
    pixel, step, rows = strides[axis + 3], strides[axis], channels
    span, held = (d - 1) * strides[axis + 1] + (h - 1) * strides[axis + 2] + (w - 1) * pixel + item, d * h * w * item
    if step < pixel:  # the channels lie side by side
        span, held, step, rows = (w - 1) * pixel + channels * item, w * channels * item, strides[axis + 2], h
    span += ALIGNMENT - item  # a row that does not begin with a line may meet one more
    lines = rows * ((span + ALIGNMENT - 1) // ALIGNMENT) if tiles > 0 and 0 < span <= _DENSE * held + ALIGNMENT else 0
    write_word(asked + _ROW, address)
    write_word(asked + _AT, 0)
    write_word(asked + _LEFT, lines)
    write_word(asked + _SHARE, (lines + tiles - 1) // max(tiles, 1))
    write_word(asked + _SPAN, span)
    write_word(asked + _STEP, step)
