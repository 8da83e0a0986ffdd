"""Unpooling and its gradient."""

from __future__ import annotations

import math

from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.pool_common import POOL_SHORT, POOL_TYPES, THREADS
from dnnarray._cuda.pool_geometry import Geometry, divider, geometry_of
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_PLACES_LAST, _PLACES_FIRST = 1 << 15, 1 << 17  # places of a plane of which a few blocks hold the marks
_MARKS_LAST, _MARKS_FIRST = 100 << 10, 32 << 10  # bytes for them
_FLIGHT = 4  # elements of a thread of the gradient
_NUMBERED = 0xFFFF  # elements of x that a mark can name
_NEAR = 28 << 10  # bytes of shared memory of a block that looks nearby
_NEAR_THREADS, _NEAR_BLOCKS = 256, 6  # its threads, and how many such blocks run side by side
_LINE = 128  # bytes of its channels
_CELL = 4  # rows and columns of the largest windows whose elements are put back one by one
_AGAIN = 6  # how often elements may be looked at
_REPAIRS = 528  # blocks that look after what others have left undone


@frozen
class UnpoolConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool.cu``."""

    element: str
    index: str
    stage: int
    threads: int


@frozen
class UnpoolPlanesConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_planes.cu``."""

    element: str
    index: str
    repairs: bool
    group: int
    wide: int
    threads: int


@frozen
class UnpoolGradientConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_gradient.cu``."""

    element: str
    index: str
    flight: int
    threads: int


@frozen
class UnpoolNearConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_near.cu``."""

    element: str
    index: str
    last: bool
    cell_h: int
    cell_w: int
    ragged: bool
    group: int
    own: int
    piece: int
    wide: int
    flight: int
    threads: int
    blocks: int


@frozen
class Cut:
    """How blocks share an axis."""

    x: int
    y: int
    cell: int  # of y for an element of x; 0 where that is no number
    tile: int  # of y of a block

    @property
    def tiles(self) -> int:
        return -(-self.x * self.cell // self.tile) if self.cell else -(-self.y // self.tile)

    @property
    def longest(self) -> int:
        """The most of y that a block has: what belongs to no cell is the last one's."""
        return self.tile + (max(self.y - self.x * self.cell, 0) if self.cell else 0)

    @property
    def own(self) -> int:
        """The most of x that a block has, or one more."""
        return self.tile // self.cell if self.cell else min(-(-self.tile * self.x // self.y) + 1, self.x)

    @property
    def seen(self) -> int:
        """The most of x that a block looks at."""
        return min(self.own + 2, self.x)

    def numbers(self) -> tuple[int, ...]:
        """As launch arguments."""
        share, of = (1, self.cell) if self.cell else (self.x, self.y)
        return self.x << 32 | self.y, self.tiles << 32 | self.tile, divisor(self.tile), share << 32 | of, divisor(of)


def marks_bytes(problem: UnpoolProblem) -> int:
    x, output = problem.inputs[0], problem.outputs[0]
    assert output is not None
    g = geometry_of(x, problem.space, problem.layout)
    if _staged(g):
        near = _near_of(g, x)
        tiles = math.prod(cut.tiles for cut in near or ())
        return -(-4 * _items(g, _span(g, x)) * tiles // 16) * 16 if tiles > 1 else 0
    return -(-4 * output.size // 16) * 16


def _unpool_plan(problem: UnpoolProblem, stage: int, total: int, x: Spec, indices: Spec, pointers: tuple[Array, ...]) -> Plan:
    g = geometry_of(x, problem.space, problem.layout)
    config = UnpoolConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], stage, THREADS)
    symbol = f"max_unpool_{('clear', 'mark', 'fetch', 'backward')[stage]}_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}"
    (_, h, w), (_, p, q) = g.space, g.out_space
    numbers = (total, g.channels, *g.x_strides, *g.y_strides, h << 32 | w, p << 32 | q, math.prod(g.space), math.prod(g.out_space))
    return Plan(Kernel("pool/unpool.cu", symbol, config), (-(-total // THREADS), 1, 1), THREADS, (*pointers, *numbers))


def _staged(g: Geometry) -> bool:
    """Whether few blocks share a plane, so that each can read all of its indices, and 16 bits number them."""
    return (g.first or g.last) and math.prod(g.out_space) <= (_PLACES_LAST if g.last else _PLACES_FIRST) and math.prod(g.space) < _NUMBERED


def _group(g: Geometry, x: Spec) -> int:
    """Channels of a block: whole sectors of y."""
    return max(8, 32 // x.dtype.itemsize) if g.last else 1


def _span(g: Geometry, x: Spec) -> int:
    """Channels of a block that looks nearby: whole lines of y."""
    most = max(8, _LINE // x.dtype.itemsize)
    return min(most, max(8, 1 << (g.channels - 1).bit_length())) if g.last else 1


def _items(g: Geometry, group: int) -> int:
    """Planes, each with as many of its channels."""
    return g.outer * (-(-g.channels // group) if g.last else 1)


def _cells(x: int, y: int) -> int:
    """The window that pooling without overlap had, which may have left out the end or taken part of it; 0 where there is none."""
    size = next((n for n in (y // x, -(-y // x)) if n and x in (y // n, -(-y // n))), 0)
    return size if size <= _CELL else 0


def _near_of(g: Geometry, x: Spec) -> tuple[Cut, Cut] | None:
    """How blocks look for what names their places nearby; None where that saves nothing, or numbers are too large."""
    if not g.flat or 0 in (*g.space, *g.out_space):
        return None
    places, (_, height, width), (_, y_height, y_width) = _NEAR // (2 * x.dtype.itemsize * _span(g, x)), g.space, g.out_space
    cells = _cells(height, y_height), _cells(width, y_width)
    cell_h, cell_w = cells if 0 not in cells else (0, 0)
    found, whole = [], width if cell_w else y_width
    few = range(1, math.isqrt(whole) + 1)
    for columns in sorted({*few, *(-(-whole // n) for n in few)}):
        w = _cut(width, y_width, cell_w, columns)
        if g.first and w.tiles > 1:
            continue  # vectors lie along rows
        rows = (places // w.longest - max(y_height - height * cell_h, 0)) // cell_h if cell_h else places // w.longest
        if rows > 0:
            h = _cut(height, y_height, cell_h, min(rows, height if cell_h else y_height))
            found.append((h.tiles * w.tiles * (h.seen * w.seen + h.own * w.own), h, w))
    if not found:
        return None
    _, h, w = min(found, key=lambda f: f[0])
    tiles = h.tiles * w.tiles
    largest = max(h.longest * y_width, h.seen * width) * g.channels
    small = max(largest, y_height * max(height, h.tile), y_width * max(width, w.tile)) < 1 << 31
    return (h, w) if small and (tiles == 1 or tiles * h.seen * w.seen <= _AGAIN * height * width) else None


def _cut(x: int, y: int, cell: int, most: int) -> Cut:
    """Equal tiles of up to so many cells, or of so much of y."""
    whole = x if cell else y
    return Cut(x, y, cell, -(-whole // -(-whole // most)) * max(cell, 1))


def _near(g: Geometry, x: Spec, indices: Spec, aligned: bool, near: tuple[Cut, Cut], device: Device) -> tuple[Plan, ...]:
    """Two launches: blocks that look nearby, and the planes again where that was not enough; one where a block does a plane."""
    h, w = near
    span, room, tiles = _span(g, x), h.longest * w.longest, h.tiles * w.tiles
    if g.last:
        wide = vector_length(x.dtype, aligned, g.channels, span)
        own = piece = wide
    else:
        wide = vector_length(x.dtype, aligned, h.y * w.y, h.tile * w.y)
        own = vector_length(x.dtype, aligned, w.x, max(16 // x.dtype.itemsize // max(w.cell, 1), 1))
        piece = vector_length(x.dtype, aligned, w.y, own * max(w.cell, 1))
    flight = 1 if g.last else 2  # that of a tile all is under way at once
    ragged = h.cell * h.x > h.y or w.cell * w.x > w.y
    lean = not ragged and min(h.cell, w.cell, own) > 1 and x.dtype.itemsize <= 4 and indices.dtype.itemsize == 8  # others would spill
    blocks = _NEAR_BLOCKS if lean else 4 if x.dtype.itemsize <= 4 else 3
    config = UnpoolNearConfig(
        POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], g.last, h.cell, w.cell, ragged, span, own, piece, wide, flight, _NEAR_THREADS, blocks
    )  # fmt: skip
    symbol = f"max_unpool_near_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[indices.dtype]}_g{span}_{'last' if g.last else 'first'}"
    symbol += f"_cell{h.cell}x{w.cell}o{own}p{piece}" + "_ragged" * ragged
    channels, groups = (g.channels, -(-g.channels // span)) if g.last else (1, 1)
    per_row = max(w.own * span // own, 1)
    dividers = [n for number in (per_row, w.seen, w.y) for n in (number, divisor(number))]
    shares = channels, groups, divisor(groups), divisor(w.tiles), divisor(h.tiles)
    pointers = Array(0), Array(1), Array(2), Array(3) if tiles > 1 else 0
    shared = -(-2 * x.dtype.itemsize * span * room // 16) * 16
    kernel, items = Kernel("pool/unpool_near.cu", symbol, config), _items(g, span)
    plan = Plan(kernel, (items * tiles, 1, 1), _NEAR_THREADS, (*pointers, *shares, *h.numbers(), *w.numbers(), room, *dividers), shared)
    return (plan,) if tiles == 1 else (plan, _unpool_planes(g, x, indices, aligned, _marks(g, x, device), tiles))


def _marks(g: Geometry, x: Spec, device: Device) -> tuple[int, int]:
    """(channels of a block, places of a block) whose marks, of two bytes each, are together in shared memory: whole sectors of y, equal parts."""
    group = _group(g, x)
    room = min(_MARKS_LAST if g.last else _MARKS_FIRST, device.shared_memory // 2 - 1024) // (2 * group)
    size = math.prod(g.out_space)
    return group, -(-size // -(-size // room) // 16) * 16


def _unpool_planes(g: Geometry, x: Spec, indices: Spec, aligned: bool, marks: tuple[int, int], parts: int = 0) -> Plan:
    """One launch for a plain memory order; with `parts`, what that many blocks that looked nearby have left undone, for each of their groups of channels."""
    (group, places), size = marks, math.prod(g.out_space)
    channels, span = g.channels if g.last else 1, _span(g, x) if parts else group
    wide = vector_length(x.dtype, aligned, *((channels, group) if g.last else (size,)))
    chunks, items, threads = -(-size // places), _items(g, span), 512 if g.last else 256
    config = UnpoolPlanesConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], parts > 0, group, wide, threads)
    symbol = f"max_unpool_{'repairs' if parts else 'planes'}_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[indices.dtype]}_g{group}"
    own = -(-items // _REPAIRS)
    numbers = (channels, math.prod(g.space), size, places, chunks, -(-channels // span), Array(3 if parts else 2), parts, own, items, span)
    grid = (-(-items // own) if parts else items * chunks, 1, 1)
    kernel = Kernel("pool/unpool_planes.cu", symbol, config)
    return Plan(kernel, grid, threads, (Array(0), Array(1), Array(2), *numbers), 2 * group * places, early=parts > 0)


def _gradient(g: Geometry, x: Spec, indices: Spec) -> Plan:
    """The gradient for a plain memory order."""
    config = UnpoolGradientConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], _FLIGHT, THREADS)
    dividers = [n for divisor in (g.channels if g.last else 1, math.prod(g.space)) for n in divider(divisor, x.size + THREADS * _FLIGHT)]
    kernel = Kernel("pool/unpool_gradient.cu", f"max_unpool_gradient_{POOL_SHORT[x.dtype]}_by_{POOL_SHORT[indices.dtype]}", config)
    pointers, grid = (Array(0), Array(2), Array(3)), (-(-x.size // (THREADS * _FLIGHT)), 1, 1)
    return Plan(kernel, grid, THREADS, (*pointers, x.size, *dividers, math.prod(g.out_space)))


def unpool(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One or two launches with the marks in shared memory; or three: clear the marks, mark every place with the last element that names it, fetch."""
    (x, indices), y = problem.inputs, problem.outputs[0]
    assert y is not None
    if y.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    near = _near_of(g, x) if _staged(g) else None
    if near is not None:
        return Program(_near(g, x, indices, aligned, near, device), (g.order, g.order))
    if _staged(g):
        return Program((_unpool_planes(g, x, indices, aligned, _marks(g, x, device)),), (g.order, g.order))
    pointers = Array(0), Array(1), Array(2), Array(3)
    stages = [(0, y.size), *([(1, x.size)] if x.size else []), (2, y.size)]
    plans = tuple(_unpool_plan(problem, stage, total, x, indices, pointers) for stage, total in stages)
    return Program(plans, (g.order, g.order))


def unpool_backward(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    """One launch: each gradient comes from its place."""
    _, x, indices = problem.inputs
    if x.size == 0:
        return Program(())
    g = geometry_of(x, problem.space, problem.layout)
    if g.first or g.last:
        plan = _gradient(g, x, indices)
    else:
        plan = _unpool_plan(problem, 3, x.size, x, indices, (Array(0), Array(2), Array(3), Array(3)))
    return Program((plan,), (g.order, g.order, g.order))
