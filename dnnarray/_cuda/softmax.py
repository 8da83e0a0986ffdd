"""Softmax and its relatives: plans. Rows in registers, long rows in shared memory, and columns, by where the axis lies in memory."""

from __future__ import annotations

import math
from typing import NamedTuple

from dnnarray._cuda.channels import order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, ahead_if_small, vector_length
from dnnarray._problems.softmax import SoftmaxProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT64, Spec

_THREADS = 128  # of a block that holds several rows in registers
_SHORT = 1024  # vectors of rows that are best held in registers of one block
_WIDEST = 512  # threads for one row in registers
_REGISTERS = 32  # elements of each array that a thread holds at the most
_COLUMN_THREADS = 256
_COLUMN_VECTOR = 4  # each position has statistics of its own: more would leave no registers for loads in flight
_CLUSTER = 8  # blocks of the largest cluster that every card which knows clusters can place
_CLUSTERS_FROM, COPIES_FROM = (9, 0), (8, 0)
_SHORT_AXIS = 32  # elements of an axis that a single thread goes over
_RESERVED = 1024  # bytes of shared memory that the system takes of each block
_COLUMNS_STATIC = 8 << 10  # that the kernel for columns needs besides
_STATIC = 1024  # bytes of shared memory that the kernel for long rows needs besides


@frozen
class SoftmaxConfig(Config):
    """Compile-time settings that the kernels in ``kernels/softmax`` have in common."""

    element: str
    logarithm: bool
    negative: bool
    gradient: bool
    saved: bool


@frozen
class RowsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/rows.cu``."""

    lanes: int
    count: int
    vector: int
    threads: int


@frozen
class LongRowsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/long_rows.cu``."""

    batch: int
    vector: int
    threads: int


@frozen
class ClusterRowsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/cluster_rows.cu``."""

    blocks: int
    threads: int


@frozen
class ClusterColumnsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/cluster_columns.cu``."""

    blocks: int
    columns: int
    threads: int


@frozen
class ColumnsConfig(SoftmaxConfig):
    """Compile-time settings of ``kernels/softmax/columns.cu``."""

    columns: int
    batch: int
    vector: int
    threads: int


def blocks_of(n: int, size: int) -> int:
    return -(-n // size)


def _x(problem: SoftmaxProblem) -> Spec:
    spec = problem.outputs[0]
    assert spec is not None
    return spec


def _extents(problem: SoftmaxProblem) -> tuple[int, int, int]:
    """(outer, extent, inner) of x in memory."""
    x = _x(problem)
    if x.ndim == 0:
        return 1, 1, 1
    order = order_of(x)
    extents, place = [x.shape[a] for a in order], order.index(problem.axis)
    return math.prod(extents[:place]), extents[place], math.prod(extents[place + 1 :])


def _gradient(problem: SoftmaxProblem) -> bool:
    return len(problem.inputs) > 1


def _saved(problem: SoftmaxProblem) -> bool:
    return _gradient(problem) and problem.inputs[2] is not None


def _settings(problem: SoftmaxProblem) -> tuple[str, bool, bool, bool, bool]:
    op = problem.op
    return TYPES[_x(problem).dtype], op.startswith("log"), op.startswith("softmin"), _gradient(problem), _saved(problem)


def _name(problem: SoftmaxProblem, kind: str) -> str:
    return f"{problem.op}_{'saved_' if _saved(problem) else ''}{kind}_{SHORT[_x(problem).dtype]}"


def _pointers(problem: SoftmaxProblem) -> tuple[Array, Array, Array]:
    """The gradient (or x again), x (or the saved result), the output."""
    if not _gradient(problem):
        return Array(0), Array(0), Array(1)
    return (Array(0), Array(2), Array(3)) if _saved(problem) else (Array(0), Array(1), Array(2))


def _program(problem: SoftmaxProblem, plan: Plan) -> Program:
    return Program((plan,), (order_of(_x(problem)),) * (sum(s is not None for s in problem.inputs)))


def _on_chip(x: Spec, device: Device) -> bool:
    """Whether there are kernels that keep all of x in shared memory: they need copies that run by themselves."""
    return x.dtype != FLOAT64 and (device.capability or (0, 0)) >= COPIES_FROM


# --- rows -------------------------------------------------------------------------------------------------------------


def _lanes(vectors: int, vector: int) -> tuple[int, int] | None:
    """Threads for a row and vectors for a thread, powers of two; None for rows that are too long."""
    most = min(_REGISTERS // vector, 8)
    for lanes in (1, 2, 4, 8, 16, 32, 128, 256, _WIDEST):
        wanted = 1 if lanes < 8 else min(2, most) if lanes < 32 else min(4, most) if lanes < _WIDEST else most
        if lanes * wanted >= vectors:
            return lanes, min(wanted, 1 << (-(-vectors // lanes) - 1).bit_length())
    return None


def rows(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    """Whole rows in registers; rows that are too long, or too uneven for wide loads, go to the kernel for long rows."""
    x = _x(problem)
    if x.size == 0:
        return Program(())
    outer, extent, _ = _extents(problem)
    vector = vector_length(x.dtype, aligned, extent)
    uneven = vector < vector_length(x.dtype, aligned) and extent > 2048
    on_chip = _cluster_rows(problem, device) if aligned and (uneven or extent > _SHORT * vector) else None
    if on_chip is not None:
        return on_chip
    shape = _lanes(extent // vector, vector)
    if shape is None or uneven:
        return _long_rows(problem, device, aligned)
    lanes, count = shape
    threads = max(lanes, _THREADS)
    config = RowsConfig(*_settings(problem), lanes, count, vector, threads)
    kernel = Kernel("softmax/rows.cu", f"{_name(problem, 'rows')}x{vector}_{lanes}x{count}", config, ("math",))
    blocks = -(-outer // (threads // lanes))
    return _program(problem, ahead_if_small(Plan(kernel, (blocks, 1, 1), threads, (*_pointers(problem), outer, extent))))


def _room(device: Device, blocks: int, static: int) -> int:
    """Bytes of shared memory that a block may ask for if so many are to fit a multiprocessor, beside its own variables."""
    return (device.shared_memory + _RESERVED) // blocks - _RESERVED - static


class Share(NamedTuple):
    """How a row is spread over a cluster of blocks."""

    blocks: int
    threads: int

    def count(self, vectors: int) -> int:
        """Vectors of 16 bytes for a thread."""
        return blocks_of(vectors, self.blocks * self.threads)

    def memory(self, vectors: int, arrays: int) -> int:
        """Bytes of shared memory of a block."""
        return self.threads * 16 * self.count(vectors) * arrays


def smallest_share(vectors: int, arrays: int, device: Device) -> Share | None:
    """The smallest cluster of which two blocks fit a multiprocessor; None where the largest does not hold the row."""
    most = _CLUSTER if (device.capability or (0, 0)) >= _CLUSTERS_FROM else 1
    share = Share(1, _WIDEST)
    while share.blocks < most and share.memory(vectors, arrays) > _room(device, 2, _STATIC):
        share = share._replace(blocks=2 * share.blocks)
    return share if share.memory(vectors, arrays) <= _room(device, 1, 2 * _STATIC) else None


def _cluster_rows(problem: SoftmaxProblem, device: Device) -> Program | None:
    """The plan for rows that a cluster holds on the chip."""
    x, arrays = _x(problem), 1 + _gradient(problem)
    outer, extent, _ = _extents(problem)
    vectors = extent // (16 // x.dtype.itemsize)
    share = smallest_share(vectors, arrays, device)
    if share is None or not _on_chip(x, device) or outer * share.blocks >= 2**31:
        return None
    config = ClusterRowsConfig(*_settings(problem), *share)
    kernel = Kernel("softmax/cluster_rows.cu", f"{_name(problem, 'cluster_rows')}_{share.blocks}x{share.threads}", config)
    arguments = (*_pointers(problem), extent, share.count(vectors))
    return _program(problem, Plan(kernel, (outer * share.blocks, 1, 1), share.threads, arguments, share.memory(vectors, arrays)))


def _long_rows(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    x = _x(problem)
    outer, extent, _ = _extents(problem)
    vector, arrays = vector_length(x.dtype, aligned), 1 + _gradient(problem)
    row = extent // vector * vector * x.dtype.itemsize * arrays
    limit = device.shared_memory - _STATIC
    threads = 512 if row <= limit // 2 or x.dtype == FLOAT64 else 1024  # doubles would spill
    width = vector * x.dtype.itemsize
    cached = max(min(row, limit), 0) // (arrays * width)
    batch = 2 if _gradient(problem) or x.dtype.itemsize == 2 else 4
    config = LongRowsConfig(*_settings(problem), batch, vector, threads)
    kernel = Kernel("softmax/long_rows.cu", f"{_name(problem, 'long_rows')}x{vector}_{threads}", config, ("math",))
    arguments = (*_pointers(problem), extent, cached)
    return _program(problem, Plan(kernel, (outer, 1, 1), threads, arguments, cached * arrays * width))


# --- columns ----------------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """How a cluster takes columns: vectors side by side; the rows of threads share the axis."""

    blocks: int
    columns: int
    threads: int

    def count(self, extent: int) -> int:
        """Elements of a position for a thread."""
        return blocks_of(extent, self.blocks * (self.threads // self.columns))

    def memory(self, extent: int, arrays: int) -> int:
        """Bytes of shared memory of a block."""
        return self.threads * 16 * self.count(extent) * arrays


def _tile(extent: int, arrays: int, itemsize: int, device: Device) -> Tile | None:
    """A thread per column where the axis is short, else 128 bytes side by side and the smallest cluster of which three blocks fit; 64 bytes of one
    array of half types, if that does without a cluster: the threads of a block are busier there, and wait longer for each other.
    """
    side = _COLUMN_THREADS // arrays
    alone = Tile(1, side, side)
    if extent <= _SHORT_AXIS and alone.memory(extent, arrays) <= device.shared_memory:
        return alone
    room = _room(device, 3, _COLUMNS_STATIC)
    narrow = Tile(1, 4, _COLUMN_THREADS)
    if itemsize == 2 and arrays == 1 and narrow.memory(extent, arrays) <= room < narrow._replace(columns=8).memory(extent, arrays):
        return narrow
    most = _CLUSTER if (device.capability or (0, 0)) >= _CLUSTERS_FROM else 1
    tile = Tile(1, 8, _COLUMN_THREADS)
    while tile.blocks < most and tile.memory(extent, arrays) > room:
        tile = tile._replace(blocks=2 * tile.blocks)
    return tile if tile.memory(extent, arrays) <= _room(device, 1, 2 * _COLUMNS_STATIC) else None


def _cluster_columns(problem: SoftmaxProblem, device: Device) -> Program | None:
    """The plan for columns that a cluster holds on the chip."""
    x, arrays = _x(problem), 1 + _gradient(problem)
    outer, extent, inner = _extents(problem)
    vector = 16 // x.dtype.itemsize
    tile = _tile(extent, arrays, x.dtype.itemsize, device)
    if tile is None or inner % vector or not _on_chip(x, device):
        return None
    config = ClusterColumnsConfig(*_settings(problem), *tile)
    text = f"{tile.blocks}x{tile.columns}x{tile.threads}"
    kernel = Kernel("softmax/cluster_columns.cu", f"{_name(problem, 'cluster_columns')}_{text}", config)
    blocks = blocks_of(inner, tile.columns * vector) * outer * tile.blocks
    arguments = (*_pointers(problem), extent, inner, tile.count(extent))
    return _program(problem, Plan(kernel, (blocks, 1, 1), tile.threads, arguments, tile.memory(extent, arrays)))


def columns(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    """Neighbouring inner positions side by side, the extent shared by rows of threads."""
    x = _x(problem)
    if x.size == 0:
        return Program(())
    on_chip = _cluster_columns(problem, device) if aligned else None
    if on_chip is not None:
        return on_chip
    outer, extent, inner = _extents(problem)
    vector = min(vector_length(x.dtype, aligned, inner), _COLUMN_VECTOR)
    side_by_side = min(16, 1 << (-(-inner // vector) - 1).bit_length())
    batch = 4
    config = ColumnsConfig(*_settings(problem), side_by_side, batch, vector, _COLUMN_THREADS)
    kernel = Kernel("softmax/columns.cu", f"{_name(problem, 'columns')}x{vector}_{side_by_side}", config, ("math",))
    tiles = -(-inner // (side_by_side * vector))
    arguments = (*_pointers(problem), extent, inner)
    return _program(problem, Plan(kernel, (tiles * outer, 1, 1), _COLUMN_THREADS, arguments))


def softmax(problem: SoftmaxProblem, device: Device, aligned: bool) -> Program:
    """Rows where the axis runs fastest in memory, else columns."""
    return (rows if _extents(problem)[2] == 1 else columns)(problem, device, aligned)


_METHOD = Method("on_chip", softmax, "each row read once into registers or shared memory; columns read twice")
_NAMES = ("softmax", "log_softmax", "softmin")
ALGORITHMS: dict[str, tuple[Method, ...]] = dict.fromkeys((*_NAMES, *(f"{name}_backward" for name in _NAMES)), (_METHOD,))
