"""The matrix micro-kernel with output channels in the lanes and pixels as scalars. Imports Numba.

``result[pixel, j] = sum over k of image[pixel + offset[k]] * weight[k, j]``: a tile is up to `VECTORS` vectors by as many pixels as fill the registers.
Every pixel has an address of its own, on both sides, so that neither strides nor the ends of rows nor the phases of a gradient matter.
"""

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
    builder: ir.IRBuilder, tile: Tile, points: Any, pixels: Any, image: Any, offsets: Any, count: Any, chain: Any, weight: Any, result: Any, asked: Any,
    add: Any,
) -> None:  # fmt: skip
    """All tiles of a block, one after the other."""
    step = _WORD(tile.vectors * tile.width)
    tiles = builder.sdiv(builder.add(pixels, _WORD(tile.rows - 1)), _WORD(tile.rows))
    with cgutils.for_range(builder, tiles) as number:
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


def _function(module: ir.Module, element: ir.Type, vector: ir.VectorType, item: int) -> ir.Function:
    """The function that switches to the body for its number of vectors; one in each module."""
    name = f"dnnarray_pixels_{vector.count}f{item * 8}"
    found = module.globals.get(name)
    if found is not None:
        return found
    function, builder, end = switch_function(module, name, 10)
    which, *arguments = function.args
    switch = builder.switch(which, end)
    for vectors in range(1, VECTORS + 1):
        block = function.append_basic_block(f"vectors{vectors}")
        switch.add_case(_WORD(vectors), block)
        builder.position_at_end(block)
        _tiles(builder, Tile(builder, element, vector, item, height(vectors), vectors), *arguments)
        builder.branch(end)
    return function


@intrinsic
def multiply_pixels(
    typing: Any, like: Any, vectors: Any, points: Any, pixels: Any, image: Any, offsets: Any, count: Any, chain: Any, weight: Any, result: Any,
    asked: Any, add: Any,
) -> Any:  # fmt: skip
    """The sums of so many pixels over `count` steps, for as many output channels as fill `vectors`; the table `points` holds the pixels, the last one again up to a whole tile.
    `chain` steps at most are added up in a row.

    The weight is dense: [step][lane]. Each tile asks for some of the memory that is `asked` for (`ahead.py`). `add` says that the sums are added to what is there.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        builder.call(_function(builder.module, *vector_of(context, signature.args[0])), arguments[1:])
        return context.get_dummy_value()

    return types.void(like, *[types.int64] * 10, types.boolean), generate
