"""The algorithm ``unpool_shared``: the last element that names a place goes there, by marks in shared memory; a block
has some places of a plane."""

from __future__ import annotations

import math
from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out, Pointer
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.pool.geometry import Geometry
from dnnarray._cuda.pool.shared import POOL_SHORT, POOL_TYPES, Places
from dnnarray._cuda.pool.unpooling import items_of, span_of, unpooled, unstaged
from dnnarray._problems.pool import UnpoolProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_MARKS_LAST, _MARKS_FIRST = 100 << 10, 32 << 10  # bytes of marks
_REPAIRS = 528  # blocks that look after what others have left undone


Notes = Annotated[Array | None, Pointer("unsigned", True)]


@frozen
class UnpoolSharedConfig(Config):
    """Compile-time settings of ``kernels/pool/unpool_shared.cu``."""

    element: str
    index: str
    repairs: bool
    group: int
    wide: int
    threads: int


@frozen
class UnpoolSharedArguments(Arguments, restrict=True):
    """What ``kernels/pool/unpool_shared.cu`` is called with."""

    x: In
    indices: Places
    y: Out
    notes: Notes
    channels: Int
    x_size: Int
    y_size: Int
    chunk: Int
    chunks: Int
    groups: Int
    span: Int
    parts: Extent
    own: Extent
    total: Extent


def _group(g: Geometry, x: Spec) -> int:
    """Channels of a block: whole sectors of y."""
    return max(8, 32 // x.dtype.itemsize) if g.last else 1


def marks_of(g: Geometry, x: Spec, device: Device) -> tuple[int, int]:
    """(channels of a block, places of a block) whose marks, of two bytes each, are together in shared memory: whole
    sectors of y, equal parts."""
    group = _group(g, x)
    room = min(_MARKS_LAST if g.last else _MARKS_FIRST, device.shared_memory // 2 - 1024) // (2 * group)
    size = math.prod(g.out_space)
    return group, -(-size // -(-size // room) // 16) * 16


def plan(g: Geometry, x: Spec, indices: Spec, aligned: bool, marks: tuple[int, int], parts: int = 0) -> Plan:
    """One launch for a plain memory order; with `parts`, what that many blocks that looked nearby have left undone, for
    each of their groups of channels."""
    (group, places), size = marks, math.prod(g.out_space)
    channels, span = g.channels if g.last else 1, span_of(g, x) if parts else group
    wide = vector_length(x.dtype, aligned, *((channels, group) if g.last else (size,)))
    chunks, items, threads = -(-size // places), items_of(g, span), 512 if g.last else 256
    config = UnpoolSharedConfig(POOL_TYPES[x.dtype], POOL_TYPES[indices.dtype], parts > 0, group, wide, threads)
    symbol = (
        f"max_unpool_shared_{'repairs_' * (parts > 0)}{POOL_SHORT[x.dtype]}x{wide}_by"
        f"_{POOL_SHORT[indices.dtype]}_g{group}"
    )
    own = -(-items // _REPAIRS)
    arguments = UnpoolSharedArguments(
        Array(0),
        Array(1),
        Array(2),
        Array(3) if parts else None,
        channels=channels,
        x_size=math.prod(g.space),
        y_size=size,
        chunk=places,
        chunks=chunks,
        groups=-(-channels // span),
        span=span,
        parts=parts,
        own=own,
        total=items,
    )
    grid = (-(-items // own) if parts else items * chunks, 1, 1)
    kernel = Kernel("pool/unpool_shared.cu", symbol, config)
    return planned(kernel, grid, threads, arguments, shared_memory=2 * group * places, early=parts > 0)


def rejects(problem: UnpoolProblem, device: Device) -> str | None:
    return unstaged(problem)


def cost(problem: UnpoolProblem, device: Device) -> Cost:
    return Cost(problem.flops, 1.25 * problem.bytes)


def run(problem: UnpoolProblem, device: Device, aligned: bool) -> Program:
    x, indices = problem.inputs
    return unpooled(problem, lambda g: (plan(g, x, indices, aligned, marks_of(g, x, device)),))
