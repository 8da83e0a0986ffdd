"""The algorithm ``resize_rows``: one axis after the other, rows in shared memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Doubles, Extent, Extents, In, Out
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.spatial.resampling import (
    TableArguments,
    extents,
    most_taps,
    step_of,
    steps,
    tables,
    tables_of,
    too_long,
)
from dnnarray._cuda.spatial.resize_taps import taps
from dnnarray._cuda.spatial.shared import THREADS, order_of, three_extents
from dnnarray._problems.spatial_resize import InterpolateProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_SMALL = 1 << 20  # elements read and written
_LINES = 40 << 10  # bytes of rows that a block may hold in shared memory
_LINES_WANTED = (16 << 10, 8 << 10)  # that it holds where there are rows enough, and for a gradient
_BLOCKS = 16  # of each multiprocessor, before a block takes more rows


@frozen
class ResizeRowsConfig(Config):
    """Compile-time settings of ``kernels/spatial/resize_rows.cu``."""

    element: str
    computed: bool
    batch: int
    rank: int
    rows: int
    stride: int
    columns: int
    vector: int
    threads: int


@frozen(kw_only=True)
class ResizeRowsArguments(TableArguments, restrict=("x", "y", "first_q", "count_q", "weight_q")):
    """What ``kernels/spatial/resize_rows.cu`` is called with: `here` of the rows to a block, lanes as logarithms,
    extents of three axes of space."""

    x: In
    y: Out
    rows: Extent
    here: Extent
    target: Extents
    source: Extents
    load_lanes: Extent
    store_lanes: Extent
    options: Extents
    steps: Doubles


def _usual_taps(problem: InterpolateProblem) -> int:
    """Taps that most elements have along an axis, up to 8: what a thread fetches at once."""
    most = [most_taps(r, False) for r in problem.resizes]
    if problem.transposed:
        most = [round(n / max(step_of(r), 1 / r.target)) for n, r in zip(most, problem.resizes, strict=True)]
    return next((n for n in (1, 2, 4) if max(most) <= n), 8)


def _computed(problem: InterpolateProblem) -> bool:
    """Whether a block finds the taps itself: where they are few, and the array is so small that a launch for tables
    costs more. Transposed ones are searched for."""
    y = problem.outputs[0]
    small = y is not None and problem.inputs[0].size + y.size <= _SMALL
    return small and not problem.transposed and max(most_taps(r, False) for r in problem.resizes) <= 4


def workspace(problem: InterpolateProblem) -> int:
    return 0 if _computed(problem) else tables_of(problem, 0)[-1].end


def _rows_of_thread(width: int, itemsize: int, groups: int) -> int:
    """Rows that a thread owns: as many as fit into a block's shared memory; 0 where not one does."""
    return next((n for n in (8, 4, 2, 1) if n * groups * _stride(width) * itemsize <= _LINES), 0)


def _stride(width: int) -> int:
    """Elements from row to row in shared memory: a power of two, so that there are few kernels."""
    return max(1 << (width - 1).bit_length(), 32)


def _log_lanes(items: int) -> int:
    """Threads beside each other along a row of so many items, from 8 to all, as a power of two."""
    return min(max((items - 1).bit_length(), 3), (THREADS - 1).bit_length())


def _shape_of_block(problem: InterpolateProblem) -> tuple[int, int, int]:
    """Neighbours along a row of y that a thread owns, its rows, and the logarithm of the threads of a row."""
    x = problem.inputs[0]
    read, written = extents(problem)
    # Two neighbours make a store of 4 bytes; where they lie apart in the lines, four lanes would meet in a bank of
    # shared memory.
    columns = 2 if x.dtype.itemsize == 2 and written[-1] % 2 == 0 and read[-1] <= written[-1] else 1
    lanes = _log_lanes(-(-written[-1] // columns))
    return columns, _rows_of_thread(read[-1], arithmetic_of(x.dtype).itemsize, THREADS >> lanes), lanes


def run(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    """A table for each axis, then blocks of rows: the taps of the other axes first, those along the row last."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    planner, computed, batch = Planner(problem, aligned), _computed(problem), _usual_taps(problem)
    scratch, found = len(problem.inputs) + 1, [] if computed else tables_of(problem, 0)
    read, written = extents(problem)
    columns, per, lanes = _shape_of_block(problem)
    columns, vector = columns if aligned else 1, vector_length(x.dtype, aligned, read[-1])
    stride, itemsize = _stride(read[-1]), arithmetic_of(x.dtype).itemsize
    config = ResizeRowsConfig(
        TYPES[x.dtype], computed, batch, len(problem.resizes), per, stride, columns, vector, THREADS
    )
    name = (
        f"resize_rows_{SHORT[x.dtype]}_rank{config.rank}_taps{batch}_{per}x{columns}"
        f"_{stride}x{vector}{'_computed' * computed}"
    )
    count, group = y.size // written[-1], per * (THREADS >> lanes)
    passes = max(
        1,
        min(
            _LINES_WANTED[problem.transposed] // (group * stride * itemsize), count // (group * _BLOCKS * device.units)
        ),
    )
    here = group * passes
    arguments = ResizeRowsArguments(
        x=planner.inputs[0],
        y=planner.outputs[0],
        **tables(found, scratch),
        rows=count,
        here=here,
        target=three_extents(written),
        source=three_extents(read),
        load_lanes=_log_lanes(-(-read[-1] // vector)),
        store_lanes=lanes,
        **steps(problem),
    )
    shared = here * (stride * itemsize + _origin_bytes(batch if computed else 1, itemsize))
    planner.add(taps(problem, found, scratch, False))
    planner.launch(
        Kernel("spatial/resize_rows.cu", name, config),
        (blocks_of(count, here), 1, 1),
        THREADS,
        arguments,
        shared_memory=shared,
    )
    return planner.program()


def _origin_bytes(weights: int, itemsize: int) -> int:
    """What a block keeps of each row beside its line: a place in x, and along two axes three numbers and weights."""
    return -(-(8 + 2 * (-(-12 // itemsize) + weights) * itemsize) // 8) * 8


def rejects(problem: InterpolateProblem, device: Device) -> str | None:
    """The rows must lie as they are read; of a much longer row than the result few elements are needed."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    read, written = extents(problem)
    if problem.channels != 1 or any(order_of(s) != tuple(range(s.ndim)) for s in (x, y)):
        return "the channels do not lie before space"
    if not _shape_of_block(problem)[1] or read[-1] > 16 * written[-1]:
        return f"rows of {read[-1]:,} elements for {written[-1]:,}"
    return too_long(problem, device)
