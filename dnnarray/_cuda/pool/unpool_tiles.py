"""The algorithm ``unpool_tiles``: blocks look for what names the places of their tile nearby; planes where that was not
enough are done again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, In, Int, Nested, Out, Pointer
from dnnarray._cuda.core.extents import divisor
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool import unpool_shared
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, Places
from dnnarray._cuda.pool.unpooling import geometry_at, items_of, span_of, unpooled, unstaged
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_NEAR = 28 << 10  # bytes of shared memory of a block
_THREADS, _BLOCKS = 256, 6  # its threads, and how many such blocks run side by side
_CELL = 4  # rows and columns of the largest windows whose elements are put back one by one
_AGAIN = 6  # how often elements may be looked at


Notes = Annotated[Array | None, Pointer("unsigned", False)]
Multiplier = Annotated[Sequence[int], Nested("dnnarray::Divisor", "3I")]
CutAxis = Annotated[Sequence[int], Nested("dnnarray::Cut", "10I")]


@frozen
class UnpoolTilesConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_tiles.cu``."""

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
class UnpoolTilesArguments(Arguments, restrict=True):
    """What ``kernels/pool/unpool_tiles.cu`` is called with."""

    x: In
    indices: Places
    y: Out
    notes: Notes
    channels: Int
    groups: Multiplier
    across: Multiplier
    down: Multiplier
    h: CutAxis
    w: CutAxis
    room: Int
    row: Multiplier
    seen: Multiplier
    width: Multiplier


def _multiplier(n: int) -> tuple[int, int, int]:
    """The members of ``Divisor`` in ``core/division.cuh``."""
    packed = divisor(n)
    return n, packed & 0xFFFFFFFF, packed >> 32


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
        """The members of ``Cut`` in ``pool/cut.cuh``."""
        share, of = (1, self.cell) if self.cell else (self.x, self.y)
        return self.x, self.y, self.tiles, *_multiplier(self.tile), *_multiplier(of), share


def _cells(x: int, y: int) -> int:
    """The window that pooling without overlap had, which may have left out the end or taken part of it; 0 where there
    is none."""
    size = next((n for n in (y // x, -(-y // x)) if n and x in (y // n, -(-y // n))), 0)
    return size if size <= _CELL else 0


def _cuts(g: Geometry, x: Spec) -> tuple[Cut, Cut] | None:
    """How blocks look for what names their places nearby; None where that saves nothing, or numbers are too large."""
    if not g.flat or 0 in (*g.space, *g.out_space):
        return None
    places, (_, height, width), (_, y_height, y_width) = (
        _NEAR // (2 * x.dtype.itemsize * span_of(g, x)),
        g.space,
        g.out_space,
    )
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


def _plans(
    g: Geometry, x: Spec, indices: Spec, aligned: bool, cuts: tuple[Cut, Cut], device: Device
) -> tuple[Plan, ...]:
    """Two launches: blocks that look nearby, and the planes again where that was not enough; one where a block does a
    plane."""
    h, w = cuts
    span, room, tiles = span_of(g, x), h.longest * w.longest, h.tiles * w.tiles
    if g.last:
        wide = vector_length(x.dtype, aligned, g.channels, span)
        own = piece = wide
    else:
        wide = vector_length(x.dtype, aligned, h.y * w.y, h.tile * w.y)
        own = vector_length(x.dtype, aligned, w.x, max(16 // x.dtype.itemsize // max(w.cell, 1), 1))
        piece = vector_length(x.dtype, aligned, w.y, own * max(w.cell, 1))
    flight = 1 if g.last else 2  # that of a tile all is under way at once
    ragged = h.cell * h.x > h.y or w.cell * w.x > w.y
    # others would spill
    lean = not ragged and min(h.cell, w.cell, own) > 1 and x.dtype.itemsize <= 4 and indices.dtype.itemsize == 8
    blocks = _BLOCKS if lean else 4 if x.dtype.itemsize <= 4 else 3
    config = UnpoolTilesConfig(
        POOL_TYPES[x.dtype],
        POOL_TYPES[indices.dtype],
        g.last,
        h.cell,
        w.cell,
        ragged,
        span,
        own,
        piece,
        wide,
        flight,
        _THREADS,
        blocks,
    )
    symbol = (
        f"max_unpool_tiles_{POOL_SHORT[x.dtype]}x{wide}_by_{POOL_SHORT[indices.dtype]}_g{span}"
        f"_{'last' if g.last else 'first'}"
    )
    symbol += f"_cell{h.cell}x{w.cell}o{own}p{piece}" + "_ragged" * ragged
    channels, groups = (g.channels, -(-g.channels // span)) if g.last else (1, 1)
    per_row = max(w.own * span // own, 1)
    arguments = UnpoolTilesArguments(
        Array(0),
        Array(1),
        Array(2),
        Array(3) if tiles > 1 else None,
        channels=channels,
        groups=_multiplier(groups),
        across=_multiplier(w.tiles),
        down=_multiplier(h.tiles),
        h=h.numbers(),
        w=w.numbers(),
        room=room,
        row=_multiplier(per_row),
        seen=_multiplier(w.seen),
        width=_multiplier(w.y),
    )
    shared = -(-2 * x.dtype.itemsize * span * room // 16) * 16
    kernel, items = Kernel("pool/unpool_tiles.cu", symbol, config, ("pool/cut",)), items_of(g, span)
    plan = planned(kernel, (items * tiles, 1, 1), _THREADS, arguments, shared_memory=shared)
    return (
        (plan,)
        if tiles == 1
        else (plan, unpool_shared.plan(g, x, indices, aligned, unpool_shared.marks_of(g, x, device), tiles))
    )


def rejects(problem: UnpoolProblem, device: Device) -> str | None:
    if found := unstaged(problem):
        return found
    return (
        None
        if _cuts(geometry_at(problem), problem.inputs[0])
        else "tiles would look at elements again and again, or have no room"
    )


def workspace(problem: UnpoolProblem) -> int:
    """A note for each tile, where a plane has several."""
    g, x = geometry_at(problem), problem.inputs[0]
    cuts = None if unstaged(problem) else _cuts(g, x)
    tiles = math.prod(cut.tiles for cut in cuts or ())
    return -(-4 * items_of(g, span_of(g, x)) * tiles // 16) * 16 if tiles > 1 else 0


def run(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    x, indices = problem.inputs

    def plans(g: Geometry) -> tuple[Plan, ...]:
        cuts = _cuts(g, x)
        assert cuts is not None  # rejects
        return _plans(g, x, indices, aligned, cuts, device)

    return unpooled(problem, plans)
