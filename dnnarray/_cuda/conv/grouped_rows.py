"""Groups of at most eight channels, walking down the rows of images, each row used for all taps: correlations and
gradients of weights."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, WeightStrides, conv_axes, pixel_strides
from dnnarray._cuda.conv.grouped import CHUNK
from dnnarray._cuda.conv.tiling import PLANNED
from dnnarray._cuda.core.arguments import Arguments, Double, In, Int, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import frozen

_SIDES = (3, 5, 7)
MOST_WARPS, _STRIP, _LINES = (
    12,
    8,
    2,
)  # of a block; columns that a product takes half of; rows of a step of the gradient
_REGISTERS = {3: 80, 5: 112, 7: 168}  # of a thread, by the side of the window
_SHARED, _ALL_REGISTERS, _PRODUCT = 226 << 10, 65536, 8  # of a multiprocessor; clocks of a product
_STEP, _SIXTEEN, _BYTES = 1100, 60, 18  # clocks of a step and of sixteen columns beside them; bytes of memory a clock

_LEAST = 4  # chunks of channels of a block, whose pixels are pieces of memory lines
_PARTS = (1, 2, 3, 4, 6, 8)  # of an image's rows
_ROUNDED = 1 + 1e-9  # times that clocks may differ which are the same but for the order of roundings
_WARPS = {3: 16, 5: 16, 7: 12}  # of a block of the correlation, at most
_SIXTEENS = {
    3: {1: 80, 2: 96, 4: 112},
    5: {1: 112, 2: 128},
    7: {2: 168},
}  # of columns of a warp, by the side of the window: registers


# --- correlations -----------------------------------------------------------------------------------------------------


@frozen
class GroupedRowsConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_rows.cu``."""

    element: str
    activation: str
    residual: bool
    side: int
    m: int
    lines: int
    most_threads: int


@frozen
class GroupedRowsArguments(Arguments, restrict=True):
    """What ``kernels/conv/grouped_rows.cu`` is called with: `size` channels of a group, `vectors` chunks of a block,
    `rows` x `columns` of a part."""

    x: In
    weight: In
    bias: In
    residual: In
    y: Out
    batch: Int
    groups: Int
    size: Int
    vectors: Int
    ranges: Int
    rows: Int
    columns: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    w_strides: WeightStrides
    axes: ConvAxes
    p: Double
    q: Double


@frozen
class RowTile:
    """Chunks of channels of a block, sixteens of columns of a warp, rows of a step, rows and columns of a part, blocks
    of a range of channels, the time in clocks."""

    vectors: int
    m: int
    lines: int
    warps: int
    rows: int
    columns: int
    ranges: int
    blocks: int
    shared_memory: int
    time: float


def row_tile(g: Geometry, units: int, residual: bool = False) -> RowTile | None:
    """The division that takes the least time, or None where the kernel does not do it."""
    # What is cached is found by a hash, which takes longer than most answers.
    return _best_row_tile(g, units, residual) if can_walk(g) else None


def rows_floor(g: Geometry, units: int, wgrad: bool) -> float:
    """Clocks that no division takes less than: the products, or each pixel of an image and of a result once, of four
    schedulers' warps that are all full.

    0 where channels are more than all blocks have at once.
    """
    chunks, side = g.groups * g.c // CHUNK, g.window[1]
    if chunks > _LEAST * min(units, PLANNED):
        return 0.0
    products, rows, of = (_split_products(side), g.space[1], PLANNED) if wgrad else (_products(side), g.out[1], units)
    return chunks * g.n * rows * g.out[2] * max(products / (4 * 16), 2 * 16 / _BYTES) / of


def _products(side: int) -> int:
    """Clocks of sixteen columns of a row, of a chunk of channels."""
    return side * (side // 2 + 1) * _PRODUCT + _SIXTEEN


def _blocks_of(chunks: int, most: int) -> list[int]:
    """Chunks that a block may have: first those of which the fewest stay empty in the last block, so that most others
    need no look."""
    return sorted(range(min(_LEAST, chunks), min(most, chunks) + 1), key=lambda n: -(-chunks // n) * n)


@lru_cache(maxsize=1024)
def _best_row_tile(g: Geometry, units: int, residual: bool) -> RowTile | None:
    side, chunks, wide = g.window[1], g.groups * g.c // CHUNK, -(-g.out[2] // 16) * 16
    each = max(_products(side) / (4 * 16), (2 + residual) * 16 / _BYTES)  # clocks of a pixel and a chunk, at the least
    best: tuple[Any, ...] | None = None
    for vectors in _blocks_of(chunks, _WARPS[side]):
        ranges = -(-chunks // vectors)
        share = g.n * (g.out[1] + side - 1) * ranges / units if ranges <= units else 0.0  # rows of a multiprocessor
        if best and share * wide * vectors * each > best[0] * _ROUNDED:
            continue
        for least, m, beside in sorted(_row_ways(g, residual, vectors, share)):
            if best and least > best[0] * _ROUNDED:
                break
            for lines in (
                (2,) if side == 3 else (2, 4)
            ):  # more rows of large windows: fewer warps fit, but those have enough to do
                found = _fastest(g, units, residual, vectors, m, lines, beside, best[0] if best else math.inf)
                if found and (best is None or found < best):
                    best = found
    if best is None:
        return None
    time, fewer, m, beside, lines, rows, blocks, ranges, shared = best
    return RowTile(-fewer, m, lines, -fewer * beside, rows, beside * m * 16, ranges, blocks, shared, time)


def _row_ways(g: Geometry, residual: bool, vectors: int, share: float) -> list[tuple[float, int, int]]:
    """Sixteens of columns of a warp, warps beside each other, and before them the clocks of their products or bytes
    alone for `share` rows."""
    side, width, found = g.window[1], g.out[2], []
    for m in _SIXTEENS[side]:
        products = m * _products(side)
        for beside in range(1, min(_WARPS[side] // vectors, -(-width // (16 * m))) + 1):
            columns = beside * m * 16
            each = max(-(-vectors * beside // 4) * products, ((2 + residual) * columns + side) * vectors * 16 / _BYTES)
            found.append((share * -(-width // columns) * each, m, beside))
    return found


def _fastest(
    g: Geometry, units: int, residual: bool, vectors: int, m: int, lines: int, beside: int, limit: float
) -> tuple[float, int, int, int, int, int, int, int, int] | None:
    """The fewest clocks of these warps, by how many parts an image's rows are taken in; what is sorted by next, and the
    rest of the tile.

    None where they do not fit, or would take more than `limit` if nothing were rounded up.
    """
    side, ranges, columns, warps = (
        g.window[1],
        -(-g.groups * g.c // (CHUNK * vectors)),
        beside * m * 16,
        vectors * beside,
    )
    shared = (vectors | 1) * 16 * lines * (
        2 * (columns + side - 1) + (2 + residual) * columns
    ) + warps * side * side * 128
    if shared > _SHARED:
        return None
    resident = max(1, min(_SHARED // (shared + 1024), _ALL_REGISTERS // (_SIXTEENS[side][m] * 32 * warps), 64 // warps))
    products = lines * -(-warps // 4) * m * _products(side)
    moved = lines * ((2 + residual) * columns + side) * vectors * 16 / _BYTES
    step, most = max(_STEP + products, resident * products, resident * moved), max(units * resident // ranges, 1)
    height, across = g.out[1], -(-g.out[2] // columns)
    if g.n * (height + side - 1) * across * step > limit * most * lines:
        return None
    time, rows, blocks = _by_parts(g.n * across, _divisions(height, side, side - 1, lines), most, step, 0)
    return time, -vectors, m, beside, lines, rows, blocks, ranges, shared


@lru_cache(maxsize=256)
def _divisions(height: int, side: int, more: int, lines: int) -> list[tuple[int, int, int]]:
    """Ways to take the rows of an image in parts: the rows of one, the parts, the steps of one, `more` rows than its
    own and `lines` rows a step."""
    found = []
    for parts in _PARTS:
        if parts == 1 or parts * side <= height:
            rows = -(-height // parts)
            found.append((rows, -(-height // rows), -(-(rows + more) // lines)))
    return found


def _by_parts(
    columns: int, divisions: list[tuple[int, int, int]], most: int, step: float, late: int
) -> tuple[float, int, int]:
    """Of the divisions: the fewest clocks for all tiles, the rows of one, and how many run at a time, at `most`; `late`
    is a tile's end."""
    best, found = math.inf, (0, 0)
    for rows, parts, steps in divisions:
        tiles = columns * parts
        blocks = max(1, min(tiles, most))
        time = -(-tiles // blocks) * (steps * step + late)
        if time < best:
            best, found = time, (rows, blocks)
    return best, *found


def row_correlation(units: int, g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue) -> Plan:
    """One launch from x to y; the strides of `weight` are along groups, outputs, inputs and the window."""
    residual, f, side = e.residual is not None, formula(e.activation, x.dtype), g.window[1]
    found = row_tile(g, units, residual)
    assert found is not None
    config = GroupedRowsConfig(TYPES[x.dtype], f.type, residual, side, found.m, found.lines, 32 * _WARPS[side])
    name = f"conv_grouped_rows_{SHORT[x.dtype]}_s{side}x{found.m}x{found.lines}_{f.name}{'_residual' * residual}"
    kernel = Kernel("conv/grouped_rows.cu", name, config, ("core/activation", "conv/geometry"))
    arguments = GroupedRowsArguments(
        x.array,
        weight.array,
        e.bias,
        e.residual,
        y.array,
        batch=g.n,
        groups=g.groups,
        size=g.c,
        vectors=found.vectors,
        ranges=found.ranges,
        rows=found.rows,
        columns=found.columns,
        x_strides=pixel_strides(x.strides),
        y_strides=pixel_strides(y.strides),
        w_strides=weight.strides,
        axes=conv_axes(g),
        p=f.p,
        q=f.q,
    )
    grid = (found.blocks * found.ranges, 1, 1)
    return planned(kernel, grid, 32 * found.warps, arguments, shared_memory=found.shared_memory)


# --- the gradient of the weight ---------------------------------------------------------------------------------------


@frozen
class RowSplit:
    """Chunks of channels of a block, rows of inputs and columns of outputs of a part, partial sums, and the time in
    clocks."""

    vectors: int
    rows: int
    columns: int
    ranges: int
    splits: int
    shared_memory: int
    time: float


def can_walk(g: Geometry) -> bool:
    """Whether the kernel does it."""
    if (
        g.c != g.k
        or not g.c
        or CHUNK % g.c
        or g.groups * g.c % CHUNK
        or g.window[1] != g.window[2]
        or g.window[1] not in _SIDES
    ):
        return False
    return g.stride == g.dilation == (1, 1, 1) and g.window[0] == g.space[0] == g.out[0] == 1


@lru_cache(maxsize=1024)
def row_split(g: Geometry) -> RowSplit | None:
    """The division that takes the least time; the device does not matter, since the scratch memory must be known
    without it."""
    if not can_walk(g):
        return None
    chunks, wide = g.groups * g.c // CHUNK, -(-g.out[2] // _STRIP) * _STRIP
    each = max(_split_products(g.window[1]) / (4 * 16), 2 * 16 / _BYTES)
    best: tuple[Any, ...] | None = None
    for vectors in _blocks_of(chunks, MOST_WARPS):
        ranges = -(-chunks // vectors)
        share = g.n * g.space[1] * ranges / PLANNED if ranges <= PLANNED else 0.0
        if best and share * wide * vectors * each > best[0] * _ROUNDED:
            continue
        for least, columns in sorted(_split_ways(g, vectors, share)):
            if best and least > best[0] * _ROUNDED:
                break
            found = _fastest_split(g, vectors, -columns, best[0] if best else math.inf)
            if found and (best is None or found < best):
                best = found
    if best is None:
        return None
    time, fewer, columns, rows, splits, ranges, shared = best
    return RowSplit(-fewer, rows, -columns, ranges, splits, shared, time)


def _split_ways(g: Geometry, vectors: int, share: float) -> list[tuple[float, int]]:
    """As `_row_ways`: minus the columns of a part, the widest first of equals."""
    side, width = g.window[1], g.out[2]
    strips = -(-width // _STRIP)
    found = []
    for columns in {-(-strips // across) * _STRIP for across in range(1, strips + 1)}:
        products = -(-vectors // 4) * -(-columns // (2 * _STRIP)) * _split_products(side)
        found.append(
            (share * -(-width // columns) * max(products, (2 * columns + side) * vectors * 16 / _BYTES), -columns)
        )
    return found


def _split_products(side: int) -> int:
    """As `_products`, for the gradient of the weight."""
    return (side + 1) // 2 * side * _PRODUCT + 2 * _SIXTEEN


def _fastest_split(
    g: Geometry, vectors: int, columns: int, limit: float
) -> tuple[float, int, int, int, int, int, int] | None:
    """As `_fastest`, for the gradient of the weight."""
    side, ranges = g.window[1], -(-g.groups * g.c // (CHUNK * vectors))
    pairs = (side + 1) // 2
    shared = (vectors | 1) * 16 * (2 * _LINES * (columns + side - 1) + (2 * pairs + 2 * _LINES - 1) * columns)
    if shared > _SHARED:
        return None
    resident = max(1, min(_SHARED // (shared + 1024), _ALL_REGISTERS // (_REGISTERS[side] * 32 * vectors)))
    products = _LINES * -(-vectors // 4) * -(-columns // (2 * _STRIP)) * _split_products(side)
    moved = _LINES * (2 * columns + side) * vectors * 16 / _BYTES
    step, most = max(_STEP + products, resident * products, resident * moved), max(PLANNED * resident // ranges, 1)
    height, across = g.space[1], -(-g.out[2] // columns)
    if g.n * height * across * step > limit * most * _LINES:
        return None
    late = (side - 1) // _LINES * _STEP
    time, rows, splits = _by_parts(g.n * across, _divisions(height, side, 0, _LINES), most, step, late)
    return time, -vectors, -columns, rows, splits, ranges, shared
