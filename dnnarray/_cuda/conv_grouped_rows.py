"""Groups of at most eight channels, walking down the rows of images, each row used for all taps: correlations and gradients of weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_grouped import CHUNK
from dnnarray._cuda.conv_tiles import PLANNED
from dnnarray._cuda.epilogue import Epilogue
from dnnarray._cuda.loss_sums import NOTHING
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.conv_geometry import Geometry

_SIDES = (3, 5, 7)
_MOST_WARPS, _STRIP, _AHEAD = 12, 8, 3  # of a block; columns that a product takes half of; steps on their way
_REGISTERS = {3: 80, 5: 112, 7: 168}  # of a thread, by the side of the window
_SHARED, _ALL_REGISTERS, _PRODUCT = 227 << 10, 65536, 3.3  # of a multiprocessor; clocks of half a product
_STEP, _BYTES = 250, 18  # clocks of a step beside them; bytes of memory a clock

_WARPS = {3: 16, 5: 16, 7: 12}  # of a block of the correlation, at most
_SIXTEENS = {3: {1: 80, 2: 96, 4: 112}, 5: {1: 112, 2: 128}, 7: {2: 168}}  # of columns of a warp, by the side of the window: registers
_ROW = 400  # clocks of a step of the correlation beside its products


# --- correlations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedRowsConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_rows.cu``."""

    element: str
    activation: str
    side: int
    m: int
    most_threads: int


@dataclass(frozen=True)
class RowTile:
    """Chunks of channels of a block, sixteens of columns of a warp, rows and columns of a part, blocks of a range of channels, the time in clocks."""

    vectors: int
    m: int
    warps: int
    rows: int
    columns: int
    ranges: int
    blocks: int
    shared_memory: int
    time: float


@lru_cache(maxsize=1024)
def row_tile(g: Geometry, units: int) -> RowTile | None:
    """The division that takes the least time, or None where the kernel does not do it."""
    if not can_walk(g):
        return None
    side, chunks, found = g.window[1], g.groups * g.c // CHUNK, []
    for vectors in range(1, min(_WARPS[side], chunks) + 1):
        for m in _SIXTEENS[side]:
            for beside in range(1, min(_WARPS[side] // vectors, -(-g.out[2] // (16 * m))) + 1):
                found += [
                    _row_tile(g, units, vectors, m, beside, -(-g.out[1] // j)) for j in (1, 2, 3, 4, 6, 8) if j == 1 or j * side <= g.out[1]
                ]
    return min((t for t in found if t.shared_memory <= _SHARED), key=lambda t: (t.time, -t.vectors), default=None)


def _row_tile(g: Geometry, units: int, vectors: int, m: int, beside: int, rows: int) -> RowTile:
    side, ranges, columns, warps = g.window[1], -(-g.groups * g.c // (CHUNK * vectors)), beside * m * 16, vectors * beside
    pitch = (vectors | 1) * 16
    shared = pitch * ((_AHEAD + 1) * (columns + side - 1) + 2 * columns) + warps * side * side * 128
    resident = max(1, min(_SHARED // (shared + 1024), _ALL_REGISTERS // (_SIXTEENS[side][m] * 32 * warps), 64 // warps))
    parts = g.n * -(-g.out[1] // rows) * -(-g.out[2] // columns)
    blocks = max(1, min(parts, units * resident // ranges))
    products = -(-warps // 4) * m * side * side * _PRODUCT
    each = max(products + _ROW / resident, (2 * columns + side) * vectors * 16 / _BYTES)
    return RowTile(vectors, m, warps, rows, columns, ranges, blocks, shared, -(-parts // blocks) * resident * (rows + side - 1) * each)


def row_correlation(units: int, g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue) -> Plan:
    """One launch from x to y; the strides of `weight` are along groups, outputs, inputs and the window."""
    found, f, side = row_tile(g, units), formula(e.activation, x.dtype), g.window[1]
    assert found is not None
    config = GroupedRowsConfig(TYPES[x.dtype], f.type, side, found.m, 32 * _WARPS[side])
    name = f"conv_grouped_rows_{SHORT[x.dtype]}_s{side}x{found.m}_{f.name}"
    kernel = Kernel("conv/grouped_rows.cu", name, config, ("activation",))
    group, k, c, _, *window = weight.strides
    steps = (group, k, c, *window, x.strides[0], *x.strides[3:], y.strides[0], *y.strides[3:])
    sizes = (g.n, g.groups, g.c, found.vectors, found.ranges, found.rows, found.columns)
    pointers: tuple[Any, ...] = (x.array, weight.array, NOTHING if e.bias is None else e.bias, y.array)
    numbers = (*sizes, *steps, *g.space[1:], *g.out[1:], *g.before[1:])
    return Plan(kernel, (found.blocks * found.ranges, 1, 1), 32 * found.warps, (*pointers, *numbers, f.p, f.q), found.shared_memory)


# --- the gradient of the weight ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedRowsWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_rows_weight.cu``."""

    element: str
    side: int
    most_threads: int


@dataclass(frozen=True)
class RowSplit:
    """Chunks of channels of a block, rows of inputs and columns of outputs of a part, partial sums, and the time in clocks."""

    vectors: int
    rows: int
    columns: int
    ranges: int
    splits: int
    shared_memory: int
    time: float


def can_walk(g: Geometry) -> bool:
    """Whether the kernel does it."""
    ones = set(g.stride) == {1} and set(g.dilation) == {1}
    flat = g.window[0] == g.space[0] == g.out[0] == 1
    return ones and flat and g.window[1] == g.window[2] and g.window[1] in _SIDES and g.c == g.k and CHUNK % g.c == 0


@lru_cache(maxsize=1024)
def row_split(g: Geometry) -> RowSplit | None:
    """The division that takes the least time; the device does not matter, since the scratch memory must be known without it."""
    if not can_walk(g):
        return None
    side, chunks = g.window[1], g.groups * g.c // CHUNK
    wide = -(-g.out[2] // _STRIP)  # strips of a row
    options = [_option(g, v, -(-wide // i) * _STRIP, -(-g.space[1] // j))
               for v in range(1, min(_MOST_WARPS, chunks) + 1) for i in range(1, wide + 1) for j in (1, 2, 3, 4, 6, 8) if j * side <= g.space[1] or j == 1]  # fmt: skip
    return min((o for o in options if o.shared_memory <= _SHARED), key=lambda o: (o.time, -o.vectors), default=None)


def _option(g: Geometry, vectors: int, columns: int, rows: int) -> RowSplit:
    side, ranges = g.window[1], -(-g.groups * g.c // (CHUNK * vectors))
    pairs, pitch = (side + 1) // 2, (vectors | 1) * 16
    shared = pitch * ((_AHEAD + 1) * (columns + side - 1) + side + (2 * pairs + _AHEAD) * columns)
    resident = max(1, min(_SHARED // (shared + 1024), _ALL_REGISTERS // (_REGISTERS[side] * 32 * vectors)))
    parts = g.n * -(-g.space[1] // rows) * -(-g.out[2] // columns)
    splits = max(1, min(parts, PLANNED * resident // ranges))
    products = vectors * columns // _STRIP * pairs * side * _PRODUCT / 4
    each = rows * max(products + _STEP / resident, (2 * columns + side) * vectors * 16 / _BYTES) + (side - 1) * _STEP
    return RowSplit(vectors, rows, columns, ranges, splits, shared, -(-parts // splits) * resident * each)


def row_sums(g: Geometry, dy: Operand, x: Operand, partial: Operand) -> Plan:
    """The first stage: `splits` partial sums."""
    found, side = row_split(g), g.window[1]
    assert found is not None
    config = GroupedRowsWeightConfig(TYPES[x.dtype], side, 32 * _MOST_WARPS)
    kernel = Kernel("conv/grouped_rows_weight.cu", f"conv_grouped_rows_weight_{SHORT[x.dtype]}_s{side}", config)
    steps = (dy.strides[0], *dy.strides[3:], x.strides[0], *x.strides[3:])
    sizes = (g.n, g.groups, g.c, found.ranges, found.rows, found.columns)
    arguments: tuple[Array | int, ...] = (dy.array, x.array, partial.array, *sizes, *steps, *g.space[1:], *g.out[1:], *g.before[1:])
    return Plan(kernel, (found.splits * found.ranges, 1, 1), 32 * found.vectors, arguments, found.shared_memory)
