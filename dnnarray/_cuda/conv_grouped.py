"""`grouped`: convolutions of groups of few channels, several groups together as one product of the matrix units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import extents
from dnnarray._cuda.conv_implicit import along
from dnnarray._cuda.conv_tiles import PLANNED
from dnnarray._cuda.epilogue import Epilogue
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.conv_geometry import Geometry

CHUNK = 8  # channels that the matrix units take at once
_WARPS = 8
MOST = 64  # channels of a slab
CHUNKS_OUT = 4  # chunks of outputs of a warp, at most
_PAIRS = 5  # of items, whose sums a warp has
_VECTORS = 8  # pieces of a pixel of a block: a line of memory
_SHARED, _LARGE = 113 << 10, 227 << 10  # bytes of shared memory of a block, so that two share a multiprocessor; of all of it
_PIXEL, _OUTPUT, _TILE = 1.0, 1.5, 60.0  # time of an input of a tile, of an output, of its beginning and end


@dataclass(frozen=True)
class GroupedConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped.cu``."""

    element: str
    result: str
    activation: str
    bias: bool
    residual: bool
    m: int
    n: int
    pairs: int
    threads: int


@dataclass(frozen=True)
class Slab:
    """Groups that are put together so that their channels are whole chunks, and those chunks."""

    together: int
    inputs: int
    outputs: int


def slab(c: int, k: int) -> Slab:
    """The smallest slab."""
    together = math.lcm(CHUNK // math.gcd(CHUNK, c), CHUNK // math.gcd(CHUNK, k))
    return Slab(together, together * c // CHUNK, together * k // CHUNK)


@dataclass(frozen=True)
class Tile:
    """Outputs of a block, the box of inputs that they read, and the slabs that it has."""

    rows: int
    columns: int
    across: int
    shared_memory: int
    time: float


def _box(g: Geometry, rows: int, columns: int) -> int:
    """Inputs that a tile reads."""
    sides = ((n - 1) * s + (w - 1) * d + 1 for n, s, w, d in zip((rows, columns), g.stride[1:], g.window[1:], g.dilation[1:], strict=True))
    return g.window[0] * math.prod(sides)


@dataclass(frozen=True)
class Warps:
    """Warps of a block, and what each has at a time: sixteens of pixels, pairs of items whose weights stay in registers (0: none do)."""

    count: int
    m: int
    pairs: int

    @property
    def threads(self) -> int:
        return 32 * self.count


def warps(n: int, pairs: int) -> Warps:
    """For `n` chunks of outputs of a warp."""
    if n == 1 and pairs == 5:
        return Warps(16, 2, pairs)
    if n <= 2 and pairs == 9:
        return Warps(16, 2, pairs)
    return Warps(8, 4 if n <= 2 else 3, 0)


def abreast(slabs: int, inputs: int) -> int:
    """Slabs of a block: a power of two that leaves the fewest idle."""
    options = [n for n in (8, 4, 2, 1) if n * inputs <= _VECTORS or n == 1]
    return min(options, key=lambda n: (-(-slabs // n) * n, -n))


@lru_cache(maxsize=1024)
def tile(g: Geometry, units: int, result: int) -> Tile | None:
    """The tile that takes the least time, or None where none fits; `result` is the size of an output's element."""
    s = slab(g.c, g.k)
    slabs, pairs = -(-g.groups // s.together), -(-g.taps * s.inputs // 2)
    across, n, parts = abreast(slabs, s.inputs), *_outputs(s)
    w = warps(n, pairs)
    chunk = w.count // across * w.m * 16
    fixed = 2 * chunk * (across * n * CHUNK * result // 16 | 1) * 16 + across * n * (pairs * 256 + 4 * CHUNK) + 8 * pairs
    best: Tile | None = None
    for columns in sorted({-(-g.out[2] // i) for i in range(1, 9)} | {7, 8, 14, 16, 28, 32}):
        for rows in range(1, min(g.out[1], 32) + 1):
            pixels = -(-rows * columns // chunk) * chunk
            box = _box(g, rows, columns)
            shared = 2 * box * (across * s.inputs | 1) * 16 + fixed + 8 * pixels
            if shared > _LARGE or columns > g.out[2]:
                continue
            tiles = g.n * g.out[0] * -(-g.out[1] // rows) * -(-g.out[2] // columns) * -(-slabs // across) * parts
            slots = units * _resident(w, shared)
            time = -(-tiles // slots) * slots / units * (_PIXEL * box + _OUTPUT * pixels + _TILE)
            if best is None or time < best.time:
                best = Tile(rows, columns, across, shared, time)
    return best


def _resident(w: Warps, shared: int) -> int:
    """Blocks of a multiprocessor."""
    return 2 if w.count <= _WARPS and shared <= _SHARED else 1


def _outputs(s: Slab) -> tuple[int, int]:
    """Chunks of outputs of a warp, and how often that makes the slab's."""
    parts = -(-s.outputs // CHUNKS_OUT)
    n = -(-s.outputs // parts)
    return n, -(-s.outputs // n)


def correlation(units: int, g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue) -> Plan:
    """One launch from x to y; the strides of `weight` are along groups, outputs, inputs and the window."""
    s, f, found = slab(g.c, g.k), formula(e.activation, x.dtype), tile(g, units, y.dtype.itemsize)
    assert found is not None
    n, parts = _outputs(s)
    w = warps(n, -(-g.taps * s.inputs // 2))
    settings = (e.bias is not None, e.residual is not None, w.m, n, w.pairs, w.threads)
    config = GroupedConfig(TYPES[x.dtype], TYPES[y.dtype], f.type, *settings)
    name = f"conv_grouped_{SHORT[x.dtype]}_to_{SHORT[y.dtype]}_{w.m}x{n}x{w.pairs}_by_{w.threads}_{e.name}"
    kernel = Kernel("conv/grouped.cu", name, config, ("activation",))
    slabs = -(-g.groups // s.together)
    ranges = -(-slabs // found.across)
    tiles = g.n * g.out[0] * -(-g.out[1] // found.rows) * -(-g.out[2] // found.columns)
    each = max(1, min(tiles, units * _resident(w, found.shared_memory) // (ranges * parts)))
    pointers: tuple[Array, ...] = (x.array, weight.array, e.bias or x.array, e.residual or x.array, y.array)
    sizes = (g.n, g.groups, g.c, g.k, s.together, found.across, ranges, parts, found.rows, found.columns)
    numbers = (*sizes, *along(x.strides), *along(y.strides), *weight.strides, *extents(g))
    return Plan(kernel, (each * ranges * parts, 1, 1), w.threads, (*pointers, *numbers, f.p, f.q), found.shared_memory)


# --- the gradient of the weight ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/grouped_weight.cu``."""

    element: str
    pairs: int
    n: int
    threads: int


@dataclass(frozen=True)
class WeightSplit:
    """How a weight gradient is divided: the tile of outputs, pairs of items and chunks of outputs of a warp, tasks of a slab and of a block."""

    rows: int
    columns: int
    across: int
    pairs: int
    n: int
    item_parts: int
    tasks: int
    parts: int
    splits: int
    copies: int
    shared_memory: int
    time: float


def _task(s: Slab, taps: int) -> tuple[int, int, int, int]:
    """Pairs of items and chunks of outputs of a warp, parts of the items, tasks of a slab: at most 80 sums of a thread."""
    n, parts = _outputs(s)
    pairs = -(-taps * s.inputs // 2)
    return _PAIRS, n, -(-pairs // _PAIRS), parts * -(-pairs // _PAIRS)


@lru_cache(maxsize=1024)
def weight_split(g: Geometry) -> WeightSplit | None:
    """None where no tile fits. The device does not matter, since the scratch memory must be known without it."""
    s = slab(g.c, g.k)
    slabs, (pairs, n, item_parts, tasks) = -(-g.groups // s.together), _task(s, g.taps)
    widest = max(s.inputs, s.outputs)
    across = min((i for i in (8, 4, 2, 1) if i == 1 or (i * widest <= _VECTORS and i * min(tasks, _WARPS) <= _WARPS)),
                 key=lambda i: (-(-slabs // i) * i, -i))  # fmt: skip
    here = min(tasks, _WARPS // across)
    parts, copies = -(-tasks // here), _WARPS // (across * here)
    ranges = -(-slabs // across)
    best: WeightSplit | None = None
    for columns in sorted({-(-g.out[2] // i) for i in range(1, 9)} | {7, 8, 14, 16, 28, 32}):
        for rows in range(1, min(g.out[1], 32) + 1):
            pixels = -(-rows * columns // 32) * 32
            box = _box(g, rows, columns)
            stage = box * (across * s.inputs | 1) * 16 + pixels * (across * s.outputs | 1) * 16
            shared = 2 * stage + 8 * pixels + 8 * item_parts * pairs
            if shared > _LARGE or columns > g.out[2]:
                continue
            tiles = g.n * g.out[0] * -(-g.out[1] // rows) * -(-g.out[2] // columns)
            slots = PLANNED * (2 if shared <= _SHARED else 1)
            splits = max(1, min(tiles, slots // (ranges * parts)))
            rounds = -(-tiles // splits) * -(-splits * ranges * parts // slots)
            time = rounds * slots / PLANNED * (_PIXEL * box + _OUTPUT * pixels + _TILE)
            if best is None or time < best.time:
                best = WeightSplit(rows, columns, across, pairs, n, item_parts, here, parts, splits, copies, shared, time)
    return best


def weight_sums(g: Geometry, dy: Operand, x: Operand, partial: Operand) -> Plan:
    """The first stage: `splits` times `copies` partial sums."""
    s, found = slab(g.c, g.k), weight_split(g)
    assert found is not None
    config = GroupedWeightConfig(TYPES[x.dtype], found.pairs, found.n, 32 * _WARPS)
    kernel = Kernel("conv/grouped_weight.cu", f"conv_grouped_weight_{SHORT[x.dtype]}_{found.pairs}x{found.n}", config)
    slabs = -(-g.groups // s.together)
    ranges = -(-slabs // found.across)
    sizes = (
        g.n,
        g.groups,
        g.c,
        g.k,
        s.together,
        found.across,
        ranges,
        found.tasks,
        found.parts,
        found.item_parts,
        found.rows,
        found.columns,
    )
    arguments: tuple[Array | int, ...] = (dy.array, x.array, partial.array, *sizes, *along(dy.strides), *along(x.strides), *extents(g))
    return Plan(kernel, (found.splits * ranges * found.parts, 1, 1), 32 * _WARPS, arguments, found.shared_memory)
