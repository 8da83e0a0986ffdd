"""`grouped`: convolutions of groups of few channels, several groups together as one product of the matrix units."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from dnnarray._cuda.activation import formula
from dnnarray._cuda.conv_common import extents
from dnnarray._cuda.conv_implicit import along
from dnnarray._cuda.epilogue import Epilogue
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.scratch import Operand
from dnnarray._problems.base import remembered
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed, frozen

CHUNK = 8  # channels that the matrix units take at once
MOST = 64  # channels of a slab
CHUNKS_OUT = 4  # chunks of outputs of a warp, at most
_HELD = ((1, 5), (1, 9), (2, 9))  # chunks of outputs and pairs of items whose weights fit into registers: windows of 3 x 3
VECTORS = 8  # pieces of a pixel of a block: a line of memory
SHARED, HALF_SHARED = 226 << 10, 112 << 10  # bytes of shared memory that a block asks for; each of two of a multiprocessor
PLACES = 1 << 31  # elements of an image that 32 bits can count
_MOST_SIDE, _SMALL = 1023, 512  # columns of a tile; outputs of a plane of which a tile may have several
_PIXEL, _OUTPUT, _TILE = 1.0, 1.5, 60.0  # time of an input of a tile, of an output, of its beginning and end


@frozen
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


@frozen
class Slab:
    """Groups that are put together so that their channels are whole chunks, and those chunks."""

    together: int
    inputs: int
    outputs: int


@lru_cache(maxsize=256)
def slab(c: int, k: int, chunk: int = CHUNK) -> Slab:
    """The smallest slab."""
    together = math.lcm(chunk // math.gcd(chunk, c), chunk // math.gcd(chunk, k))
    return Slab(together, together * c // chunk, together * k // chunk)


@frozen
class Shares:
    """How the sums of a weight's gradient are shared out: slabs and tasks of a block, blocks for all tasks of a slab and for all slabs, and the workers
    (threads, or warps) that have the same task and other pixels."""

    across: int
    here: int
    parts: int
    ranges: int
    copies: int


def shares(s: Slab, groups: int, tasks: int, workers: int) -> Shares:
    """As many slabs in a block as there are workers and shared memory for, so that few are idle in the last range."""
    slabs, widest = -(-groups // s.together), max(s.inputs, s.outputs)
    fitting = [i for i in (8, 4, 2, 1) if i == 1 or (i * widest <= VECTORS and i * min(tasks, workers) <= workers)]
    across = min(fitting, key=lambda i: (-(-slabs // i) * i, -i))
    here = min(tasks, workers // across)
    return Shares(across, here, -(-tasks // here), -(-slabs // across), workers // (across * here))


class Split(Protocol):
    """What a weight's gradient is divided into: tiles of these sides, whose sums are added up in so many parts."""

    @property
    def sides(self) -> tuple[int, int, int]: ...
    @property
    def splits(self) -> int: ...
    @property
    def shared_memory(self) -> int: ...


def sums_plan(
    kernel: Kernel,
    threads: int,
    given: Geometry,
    s: Slab,
    split: Split,
    t: Shares,
    item_parts: int,
    arrays: tuple[Operand, Operand, Operand],
) -> Plan:
    """The launch from dy and x to the parts of the sums."""
    (dy, x, partial), g = arrays, stacked(given)
    sizes = (g.n, g.groups, g.c, g.k, s.together, t.across, t.ranges, t.here, t.parts, item_parts, *split.sides)
    numbers = (*sizes, *steps(given, dy.strides), *steps(given, x.strides), *extents(g))
    grid = (split.splits * t.ranges * t.parts, 1, 1)
    return Plan(kernel, grid, threads, (dy.array, x.array, partial.array, *numbers), split.shared_memory)


@frozen
class Tile:
    """Depths, rows and columns of outputs of a block, the slabs that it has, and the time."""

    depths: int
    rows: int
    columns: int
    across: int
    shared_memory: int
    time: float

    @property
    def sides(self) -> tuple[int, int, int]:
        return self.depths, self.rows, self.columns

    def count(self, g: Geometry) -> int:
        """Tiles of all images."""
        return g.n * math.prod(-(-n // m) for n, m in zip(g.out, self.sides, strict=True))


@remembered
def stacked(g: Geometry) -> Geometry:
    """Images of two axes as the depths of one, so that a tile may have several of them."""
    flat = g.window[0] == g.space[0] == g.out[0] == 1 and g.before[0] == 0
    fits = max(g.sizes[0], g.sizes[2]) < PLACES
    if not (flat and fits):
        return g
    return changed(g, n=1, space=(g.n, *g.space[1:]), out=(g.n, *g.out[1:]), stride=(1, *g.stride[1:]))


def steps(g: Geometry, strides: Sequence[int]) -> tuple[int, ...]:
    """Steps of an image along batch and space, after `stacked`."""
    n, d, *rest = along(strides)
    return (0, n, *rest) if stacked(g) != g else (n, d, *rest)


def box(g: Geometry, sides: Sequence[int]) -> int:
    """Inputs that a tile reads."""
    reach = ((n - 1) * s + (w - 1) * d + 1 for n, s, w, d in zip(sides[1:], g.stride[1:], g.window[1:], g.dilation[1:], strict=True))
    return (sides[0] if g.window[0] == 1 else g.window[0]) * math.prod(reach)


def sides(g: Geometry) -> Iterator[tuple[int, int, int]]:
    """Tiles worth a look: parts of a plane, or several whole ones."""
    for columns in _columns(g.out[2]):
        for rows in range(1, min(g.out[1], 32) + 1):
            yield 1, rows, columns
    if g.window[0] == 1 and g.out[1] * g.out[2] <= _SMALL:
        yield from ((depths, *g.out[1:]) for depths in range(2, min(g.out[0], 32) + 1))


@lru_cache(maxsize=256)
def _columns(width: int) -> list[int]:
    """Of a tile, in a result so wide."""
    return sorted({min(n, width, _MOST_SIDE) for n in (*(-(-width // i) for i in range(1, 9)), 7, 8, 14, 16, 28, 32)})


@frozen
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
    return Warps(16, 2, pairs if (n, pairs) in _HELD else 0)


def abreast(slabs: int, inputs: int) -> int:
    """Slabs of a block: a power of two that leaves the fewest idle."""
    options = [n for n in (8, 4, 2, 1) if n * inputs <= VECTORS or n == 1]
    return min(options, key=lambda n: (-(-slabs // n) * n, -n))


class _Memory:
    """What the tiles of a geometry take of shared memory."""

    def __init__(self, g: Geometry, result: int) -> None:
        s = slab(g.c, g.k)
        self.slabs, pairs, n = -(-g.groups // s.together), -(-g.taps * s.inputs // 2), outputs(s)[0]
        self.across, self.warps = abreast(self.slabs, s.inputs), warps(n, pairs)
        self._g, self._chunk = g, self.warps.count // self.across * self.warps.m * 16
        self._each = 2 * (self.across * s.inputs | 1) * 16
        self._fixed = 2 * self._chunk * (self.across * n * CHUNK * result // 16 | 1) * 16
        self._fixed += self.across * n * (pairs * 256 + 4 * CHUNK) + 8 * pairs

    def of(self, found: tuple[int, int, int]) -> tuple[int, int, int]:
        """Inputs and outputs of a tile, and its bytes."""
        inputs, pixels = box(self._g, found), -(-math.prod(found) // self._chunk) * self._chunk
        return inputs, pixels, self._each * inputs + self._fixed + 8 * pixels


def fits(g: Geometry, result: int) -> bool:
    """Whether there is a tile; the best one takes a loop over all."""
    return _Memory(g, result).of(next(sides(g)))[2] <= SHARED


@lru_cache(maxsize=1024)
def tile(g: Geometry, units: int, result: int) -> Tile | None:
    """The tile that takes the least time, or None where none fits; `result` is the size of an output's element."""
    memory, best = _Memory(g, result), None
    ranges = -(-memory.slabs // memory.across) * outputs(slab(g.c, g.k))[1]
    for found in sides(g):
        inputs, pixels, shared = memory.of(found)
        if shared > SHARED:
            continue
        t = Tile(*found, memory.across, shared, 0.0)
        slots = units * _resident(memory.warps, shared)
        rounds = -(-t.count(g) * ranges // slots)
        t = replace(t, time=rounds * slots / units * (_PIXEL * inputs + _OUTPUT * pixels + _TILE))
        if best is None or t.time < best.time:
            best = t
    return best


def _resident(w: Warps, shared: int) -> int:
    """Blocks of a multiprocessor."""
    return 2 if w.count <= 8 and shared <= HALF_SHARED else 1


def outputs(s: Slab) -> tuple[int, int]:
    """Chunks of outputs of a warp, and how often that makes the slab's."""
    parts = -(-s.outputs // CHUNKS_OUT)
    n = -(-s.outputs // parts)
    return n, -(-s.outputs // n)


def correlation(units: int, g: Geometry, x: Operand, weight: Operand, y: Operand, e: Epilogue) -> Plan:
    """One launch from x to y; the strides of `weight` are along groups, outputs, inputs and the window."""
    along_x, along_y, g = steps(g, x.strides), steps(g, y.strides), stacked(g)
    s, f, found = slab(g.c, g.k), formula(e.activation, x.dtype), tile(g, units, y.dtype.itemsize)
    assert found is not None
    n, parts = outputs(s)
    w = warps(n, -(-g.taps * s.inputs // 2))
    held = w.pairs if e.residual is None else 0  # a residual takes registers
    settings = (e.bias is not None, e.residual is not None, w.m, n, held, w.threads)
    config = GroupedConfig(TYPES[x.dtype], TYPES[y.dtype], f.type, *settings)
    name = f"conv_grouped_{SHORT[x.dtype]}_to_{SHORT[y.dtype]}_{w.m}x{n}x{held}_by_{w.threads}_{e.name}"
    kernel = Kernel("conv/grouped.cu", name, config, ("activation",))
    slabs = -(-g.groups // s.together)
    ranges = -(-slabs // found.across)
    each = max(1, min(found.count(g), units * _resident(w, found.shared_memory) // (ranges * parts)))
    pointers: tuple[Array, ...] = (x.array, weight.array, e.bias or x.array, e.residual or x.array, y.array)
    sizes = (g.n, g.groups, g.c, g.k, s.together, found.across, ranges, parts, *found.sides)
    numbers = (*sizes, *along_x, *along_y, *weight.strides, *extents(g))
    return Plan(kernel, (each * ranges * parts, 1, 1), w.threads, (*pointers, *numbers, f.p, f.q), found.shared_memory)
