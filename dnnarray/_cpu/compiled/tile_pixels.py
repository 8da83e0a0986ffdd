"""The matrix micro-kernel with output channels in the lanes and pixels as scalars. Imports Numba.

``result[pixel, j] = sum over k of image[pixel + offset[k]] * weight[k, j]``: a tile is up to `VECTORS` vectors by
`ROWS` pixels, or by as many as fill the registers. Every pixel has an address of its own, on both sides, so that
neither strides nor the ends of rows nor the phases of a gradient matter."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnnarray._cpu.compiled.ahead import ask_for_some
from dnnarray._cpu.compiled.tile import ROWS, VECTORS, Tile, intrinsic, load_at, switch_function, vector_of

_WORD = ir.IntType(64)
_REGISTERS = 32 if ROWS == 8 else 16  # of vectors
MOST_PIXELS = 10  # of a tile: each has an address in a register
POINT_BYTES = 16  # of a pixel's entry in the table: its byte offset in the image, and in the result


def height(vectors: int) -> int:
    """Pixels of a tile of so many vectors, whose sums share the registers with the weight's vectors and a scalar."""
    return min((_REGISTERS - 1 - vectors) // vectors, MOST_PIXELS)


def _tiles(
    builder: ir.IRBuilder,
    tile: Tile,
    asked: Any,
    points: Any,
    tiles: Any,
    image: Any,
    offsets: Any,
    count: Any,
    chain: Any,
    weight: Any,
    result: Any,
    add: Any,
) -> None:
    """So many tiles one after the other; each asks for some of what is `asked` for."""
    step = _WORD(tile.vectors * tile.width)
    with cgutils.for_range(builder, tiles) as number:
        if asked is not None:
            ask_for_some(builder, asked)
        first = builder.add(points, builder.mul(number.index, _WORD(tile.rows * POINT_BYTES)))
        sources, into = (
            [
                builder.add(start, load_at(builder, builder.add(first, _WORD(i * POINT_BYTES + 8 * side)), _WORD, 8))
                for i in range(tile.rows)
            ]
            for side, start in enumerate((image, result))
        )
        tile.loop(sources, into, weight, step, offsets, count, chain, add, lambda moving, offset: (offset, moving))


def _function(module: ir.Module, element: ir.Type, vector: ir.VectorType, item: int, block: bool) -> ir.Function:
    """The function that switches to the body for its number of vectors; one of each kind in each module."""
    name = f"dnnarray_{'block' if block else 'pixels'}_{vector.count}f{item * 8}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, builder, end = switch_function(module, name, 9 + block)
    which, *arguments = function.args
    asked = arguments.pop(0) if block else None
    points, number, *others = arguments
    switch = builder.switch(which, end)
    for vectors in range(1, VECTORS + 1):
        body = function.append_basic_block(f"vectors{vectors}")
        switch.add_case(_WORD(vectors), body)
        builder.position_at_end(body)
        rows = height(vectors) if block else ROWS
        tiles = builder.sdiv(builder.add(number, _WORD(rows - 1)), _WORD(rows)) if block else number
        _tiles(builder, Tile(builder, element, vector, item, rows, vectors), asked, points, tiles, *others)
        builder.branch(end)
    return function


def _call(block: bool) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.call(_function(builder.module, *vector_of(context, signature.args[0]), block), arguments[1:])
        return context.get_dummy_value()

    return generate


@intrinsic
def multiply_pixels(
    typing: Any,
    like: Any,
    vectors: Any,
    points: Any,
    tiles: Any,
    image: Any,
    offsets: Any,
    count: Any,
    chain: Any,
    weight: Any,
    result: Any,
    add: Any,
) -> Any:
    """The sums of so many tiles of `ROWS` pixels over `count` steps, for as many output channels as fill `vectors`; the
    table `points` holds the pixels. `chain` steps at most are added up in a row.

    The weight is dense: [step][lane]. `add` says that the sums are added to what is there.
    """
    return types.void(like, *[types.int64] * 9, types.boolean), _call(False)


@intrinsic
def multiply_block(
    typing: Any,
    like: Any,
    vectors: Any,
    asked: Any,
    points: Any,
    pixels: Any,
    image: Any,
    offsets: Any,
    count: Any,
    chain: Any,
    weight: Any,
    result: Any,
    add: Any,
) -> Any:
    """`multiply_pixels` by tiles as tall as fill the registers, for so many pixels: in the table the last one stands
    again up to a whole tile of any height.

    Each tile asks for some of the memory that is `asked` for (``ahead.py``).
    """
    return types.void(like, *[types.int64] * 10, types.boolean), _call(True)
