"""`grouped`: convolutions of groups of few channels, several groups together as one product of the matrix units."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import ConvAxes, PixelStrides, ResultOut, WeightStrides, conv_axes, pixel_strides
from dnnarray._cuda.core.arguments import Arguments, Double, In, Int
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.base import remembered
from dnnarray._problems.conv_geometry import Geometry
from dnnarray._records import changed, frozen

CHUNK = 8  # channels that the matrix units take at once
MOST = 64  # channels of a slab
CHUNKS_OUT = 4  # chunks of outputs of a warp, at most
_HELD = (
    (1, 5),
    (1, 9),
    (2, 9),
)  # chunks of outputs and pairs of items whose weights fit into registers: windows of 3 x 3
VECTORS = 8  # pieces of a pixel of a block: a line of memory
SHARED, HALF_SHARED = (
    226 << 10,
    112 << 10,
)  # bytes of shared memory that a block asks for; each of two of a multiprocessor
PLACES = 1 << 31  # elements of an image that 32 bits can count
_MOST_SIDE, _SMALL = 1023, 512  # columns of a tile; outputs of a plane of which a tile may have several
_MOST_ROWS, _MOST_DEPTHS = 32, 32  # of a tile
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
    """How the sums of a weight's gradient are shared out: slabs and tasks of a block, blocks for all tasks of a slab
    and for all slabs, and the workers (threads, or warps) that have the same task and other pixels."""

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
    record: Callable[..., Arguments],
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
    arguments = record(
        dy.array,
        x.array,
        partial.array,
        batch=g.n,
        groups=g.groups,
        c=g.c,
        k=g.k,
        together=s.together,
        across=t.across,
        ranges=t.ranges,
        tasks=t.here,
        parts=t.parts,
        item_parts=item_parts,
        depths=split.sides[0],
        rows=split.sides[1],
        columns=split.sides[2],
        x_strides=steps(given, x.strides),
        y_strides=steps(given, dy.strides),
        axes=conv_axes(g),
    )
    grid = (split.splits * t.ranges * t.parts, 1, 1)
    return planned(kernel, grid, threads, arguments, shared_memory=split.shared_memory)


@frozen
class GroupedArguments(Arguments, restrict=True):
    """What ``kernels/conv/grouped.cu`` is called with: `together` groups make up a slab, `across` slabs a block,
    `depths` x `rows` x `columns` a tile."""

    x: In
    weight: In
    bias: In
    residual: In
    y: ResultOut
    batch: Int
    groups: Int
    c: Int
    k: Int
    together: Int
    across: Int
    ranges: Int
    parts: Int
    depths: Int
    rows: Int
    columns: Int
    x_strides: PixelStrides
    y_strides: PixelStrides
    w_strides: WeightStrides
    axes: ConvAxes
    p: Double
    q: Double


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
    n, d, *rest = pixel_strides(strides)
    return (0, n, *rest) if stacked(g) != g else (n, d, *rest)


class Sides:
    """Tiles worth a look, all at once: parts of a plane, or several whole ones. Depths, rows and columns of outputs, as
    arrays.

    Inputs are counted in float64, which holds all that may fit into shared memory, and places in 64 bits.
    """

    def __init__(self, g: Geometry) -> None:
        self._g = g
        several = g.window[0] == 1 and g.out[1] * g.out[2] <= _SMALL
        self.all = _sides(min(g.out[0], _MOST_DEPTHS) if several else 1, g.out[1], g.out[2])
        self.pixels = np.multiply.reduce(self.all)

    @property
    def inputs(self) -> np.ndarray:
        """That each reads."""
        g, (depths, rows, columns) = self._g, self.all.astype(np.float64)
        height, width = (
            (n - 1) * g.stride[i] + (g.window[i] - 1) * g.dilation[i] + 1 for i, n in ((1, rows), (2, columns))
        )
        return (depths if g.window[0] == 1 else g.window[0]) * height * width

    @property
    def tiles(self) -> np.ndarray:
        """That make up all results."""
        counts = -(-np.array(self._g.out)[:, None] // self.all)
        return self._g.n * np.multiply.reduce(counts)

    def fastest(self, shared: np.ndarray, time: np.ndarray) -> tuple[tuple[int, int, int], int, int, float] | None:
        """Of those that fit the one of the least time, the first of equals: its sides and place, bytes and time."""
        fits = shared <= SHARED
        if not fits.any():
            return None
        place = int(np.where(fits, time, math.inf).argmin())
        depths, rows, columns = self.all[:, place].tolist()
        return (depths, rows, columns), place, int(shared[place]), float(time[place])


@lru_cache(maxsize=64)
def _sides(depths: int, height: int, width: int) -> np.ndarray:
    """Parts of a plane, the narrowest first, then up to so many planes."""
    columns, rows, planes = (
        np.array(_columns(width)),
        np.arange(1, min(height, _MOST_ROWS) + 1),
        np.arange(2, depths + 1),
    )
    parts = np.stack(
        (np.ones(columns.size * rows.size, np.int64), np.tile(rows, columns.size), np.repeat(columns, rows.size))
    )
    return np.concatenate((parts, np.stack((planes, np.full_like(planes, height), np.full_like(planes, width)))), 1)


def _columns(width: int) -> list[int]:
    """Of a tile, in a result so wide."""
    return sorted({min(n, width, _MOST_SIDE) for n in (*(-(-width // i) for i in range(1, 9)), 7, 8, 14, 16, 28, 32)})


def box(g: Geometry, columns: int) -> int:
    """Inputs that a row of so many outputs reads."""
    _, height, width = g.reach((1, 1, columns))
    return g.window[0] * height * width


@frozen
class Warps:
    """Warps of a block, and what each has at a time: sixteens of pixels, pairs of items whose weights stay in registers
    (0: none do)."""

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

    def filled(self, pixels: Any) -> Any:
        """Pixels that tiles of so many take the time of."""
        return -(-pixels // self._chunk) * self._chunk

    def bytes(self, inputs: Any, filled: Any) -> Any:
        return self._each * inputs + self._fixed + 8 * filled


def fits(g: Geometry, result: int) -> bool:
    """Whether there is a tile: the smallest one."""
    memory, columns = _Memory(g, result), _columns(g.out[2])[0]
    return memory.bytes(box(g, columns), memory.filled(columns)) <= SHARED


@lru_cache(maxsize=1024)
def tile(g: Geometry, units: int, result: int) -> Tile | None:
    """The tile that takes the least time, or None where none fits; `result` is the size of an output's element."""
    memory, sides = _Memory(g, result), Sides(g)
    ranges = -(-memory.slabs // memory.across) * outputs(slab(g.c, g.k))[1]
    inputs, pixels = sides.inputs, memory.filled(sides.pixels)
    shared = memory.bytes(inputs, pixels)
    slots = units * np.where(shared <= HALF_SHARED, _resident(memory.warps, 0), _resident(memory.warps, SHARED))
    rounds = -(-sides.tiles * ranges // slots)
    found = sides.fastest(shared, rounds * slots / units * (_PIXEL * inputs + _OUTPUT * pixels + _TILE))
    return found and Tile(*found[0], memory.across, *found[2:])


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
    kernel = Kernel("conv/grouped.cu", name, config, ("core/activation", "conv/geometry"))
    slabs = -(-g.groups // s.together)
    ranges = -(-slabs // found.across)
    each = max(1, min(found.count(g), units * _resident(w, found.shared_memory) // (ranges * parts)))
    arguments = GroupedArguments(
        x.array,
        weight.array,
        e.bias,
        e.residual,
        y.array,
        batch=g.n,
        groups=g.groups,
        c=g.c,
        k=g.k,
        together=s.together,
        across=found.across,
        ranges=ranges,
        parts=parts,
        depths=found.sides[0],
        rows=found.sides[1],
        columns=found.sides[2],
        x_strides=along_x,
        y_strides=along_y,
        w_strides=weight.strides,
        axes=conv_axes(g),
        p=f.p,
        q=f.q,
    )
    return planned(kernel, (each * ranges * parts, 1, 1), w.threads, arguments, shared_memory=found.shared_memory)
