"""`interpolate`: tables of taps for each axis, then sums by them; the gradient is the same with transposed tables."""

from __future__ import annotations

import math

from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.spatial_common import (
    RESIZE_MODES,
    THREADS,
    arithmetic,
    five_strides,
    grid_1d,
    order_of,
    shares,
    strides_of,
    three_extents,
)
from dnnarray._cuda.spatial_polyphase import polyphase, rejects
from dnnarray._problems.spatial_resize import InterpolateProblem, Resize
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import Spec

_SMOOTH = {"linear": 5, "cubic": 6}
_THREADS_WANTED = 1 << 19  # a few for each that the largest cards hold at a time
_MOST_CHANNELS = 8  # of a thread
_SMALL = 1 << 20  # elements read and written
_LINES = 40 << 10  # bytes of rows that a block may hold in shared memory
_LINES_WANTED = (16 << 10, 8 << 10)  # that it holds where there are rows enough, and for a gradient
_BLOCKS = 16  # of each multiprocessor, before a block takes more rows


@frozen
class TapsConfig(Config):
    """Compile-time settings of ``kernels/spatial/resize_taps.cu``."""

    arithmetic: str
    transposed: bool
    shares: bool
    threads: int


@frozen
class ResizeConfig(Config):
    """Compile-time settings of ``kernels/spatial/resize.cu``."""

    element: str
    rank: int
    taps: int
    channels_last: bool
    vector: int
    threads: int


@frozen
class RowsConfig(Config):
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


@frozen
class _Table:
    """The taps of an axis: where its parts start in the scratch memory, and how many weights each element has."""

    resize: Resize
    elements: int
    most: int
    start: int
    itemsize: int

    @property
    def counts(self) -> int:
        return self.start + _up(4 * self.elements)

    @property
    def weights(self) -> int:
        return self.counts + _up(4 * self.elements)

    @property
    def end(self) -> int:
        return self.weights + _up(self.itemsize * self.elements * self.most)


def _up(n: int) -> int:
    return -(-n // 16) * 16


def step_of(resize: Resize) -> float:
    """Source elements per target element."""
    if resize.align_corners:
        return (resize.source - 1) / (resize.target - 1) if resize.target > 1 else 0.0
    return resize.source / resize.target if resize.scale is None else 1 / resize.scale


def _copied(resize: Resize) -> bool:
    """Whether the axis stays as it is, whatever its scale."""
    return resize.source == resize.target and (resize.mode == "linear" or resize.antialias)


def most_taps(resize: Resize, transposed: bool) -> int:
    """No element has more taps than this."""
    step = step_of(resize)
    if _copied(resize):
        return 1
    if resize.antialias:
        forward = int(2 * (1 if resize.mode == "linear" else 2) * max(step, 1.0)) + 2
    else:
        forward = {"nearest": 1, "nearest_exact": 1, "linear": 2, "cubic": 4}.get(resize.mode) or -(-resize.source // resize.target) + 1
    if not transposed:
        return forward if resize.mode in ("nearest", "nearest_exact") else max(2, min(forward, resize.source))
    if step * resize.target <= forward + 1:
        return resize.target
    return min(resize.target, math.ceil((forward + 1) / step) + 2)


def _gather_taps(problem: InterpolateProblem) -> int:
    """1 or 2 where no axis has more taps, 0 where the tables say how many."""
    most = max(most_taps(r, problem.transposed) for r in problem.resizes)
    return most if most <= 2 and not problem.transposed else 0


def _tables(problem: InterpolateProblem, fixed: int) -> list[_Table]:
    itemsize, start, found = arithmetic(problem.inputs[0]).itemsize, 0, []
    for resize in problem.resizes:
        elements = resize.source if problem.transposed else resize.target
        found.append(_Table(resize, elements, fixed or most_taps(resize, problem.transposed), start, itemsize))
        start = found[-1].end
    return found


def _gather_bytes(problem: InterpolateProblem) -> int:
    return _tables(problem, _gather_taps(problem))[-1].end


def _usual_taps(problem: InterpolateProblem) -> int:
    """Taps that most elements have along an axis, up to 8: what a thread fetches at once."""
    most = [most_taps(r, False) for r in problem.resizes]
    if problem.transposed:
        most = [round(n / max(step_of(r), 1 / r.target)) for n, r in zip(most, problem.resizes, strict=True)]
    return next((n for n in (1, 2, 4) if max(most) <= n), 8)


def _computed(problem: InterpolateProblem) -> bool:
    """Whether a block finds the taps itself: where they are few, and the array is so small that a launch for tables costs more. Transposed ones
    are searched for."""
    y = problem.outputs[0]
    small = y is not None and problem.inputs[0].size + y.size <= _SMALL
    return small and not problem.transposed and max(most_taps(r, False) for r in problem.resizes) <= 4


def _rows_bytes(problem: InterpolateProblem) -> int:
    return 0 if _computed(problem) else _tables(problem, 0)[-1].end


def _mode_of(resize: Resize) -> tuple[int, bool]:
    """The number of the mode in ``resize.cuh``, and whether the step is exactly source / target."""
    mode = 0 if _copied(resize) else _SMOOTH[resize.mode] if resize.antialias else RESIZE_MODES[resize.mode]
    return mode, _copied(resize) or resize.scale is None


def _taps(problem: InterpolateProblem, tables: list[_Table], scratch: int, shares: bool) -> list[Plan]:
    """The launch that fills the tables."""
    if not tables:
        return []
    computed, missing = arithmetic(problem.inputs[0]), 3 - len(tables)
    name = f"resize_taps_{SHORT[computed]}{'_transposed' * problem.transposed}{'_shares' * shares}"
    kernel = Kernel("spatial/resize_taps.cu", name, TapsConfig(TYPES[computed], problem.transposed, shares, THREADS))
    numbers = zip(*((t.most, t.resize.source, t.resize.target) for t in tables), strict=True)
    sizes = (n for axes in numbers for n in (*(0,) * missing, *axes))
    blocks = grid_1d(max(t.elements * t.most for t in tables))[0]
    return [Plan(kernel, (blocks, len(tables), 1), THREADS, (*_sources(tables, scratch), *sizes, *_steps(problem)))]


def _sources(tables: list[_Table], scratch: int) -> tuple[Array | int, ...]:
    """First taps, counts and weights for three axes; missing ones are not looked at."""
    given = [(Array(scratch, t.start), Array(scratch, t.counts), Array(scratch, t.weights)) for t in tables]
    missing: list[tuple[Array | int, ...]] = [(0, 0, 0)] * (3 - len(given))
    return tuple(a for axis in (*missing, *given) for a in axis)


def _channels_last(spec: Spec, channels: int) -> bool:
    return spec.shape[channels] > 1 and strides_of(spec)[channels] == 1


def gather(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    """A table for each axis, then a thread for a place and some channels."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    scratch, axis = len(problem.inputs) + 1, problem.channels
    fixed = _gather_taps(problem)
    tables = _tables(problem, fixed)
    channels, batch = x.shape[axis], x.shape[0]
    places = y.size // channels
    last = _channels_last(x, axis) and _channels_last(y, axis)
    vector = vector_length(x.dtype, aligned, channels) if last else 1
    per = vector if last else max(1, min(_MOST_CHANNELS, channels * places // _THREADS_WANTED))
    config = ResizeConfig(TYPES[x.dtype], len(tables), fixed, last, vector, THREADS)
    name = f"resize_{SHORT[x.dtype]}_rank{config.rank}_taps{config.taps}{f'_last_x{vector}' * last}"
    kernel = Kernel("spatial/resize.cu", name, config, ("sampling",))
    space = tuple(y.shape[a] for a in problem.axes)
    share = shares(batch, channels, per, space, last)
    arguments = (Array(0), Array(len(problem.inputs)), *_sources(tables, scratch), *share, *five_strides(x, axis), *five_strides(y, axis))
    plan = Plan(kernel, grid_1d(share[0]), THREADS, arguments)
    orders = (order_of(x), *(order_of(s) for s in problem.inputs[1:]))
    return Program((*_taps(problem, tables, scratch, fixed > 1), plan), orders)


def _rows_of_thread(width: int, itemsize: int, groups: int) -> int:
    """Rows that a thread owns: as many as fit into a block's shared memory; 0 where not one does."""
    return next((n for n in (8, 4, 2, 1) if n * groups * _stride(width) * itemsize <= _LINES), 0)


def _stride(width: int) -> int:
    """Elements from row to row in shared memory: a power of two, so that there are few kernels."""
    return max(1 << (width - 1).bit_length(), 32)


def _log_lanes(items: int) -> int:
    """Threads beside each other along a row of so many items, from 8 to all, as a power of two."""
    return min(max((items - 1).bit_length(), 3), (THREADS - 1).bit_length())


def _extents(problem: InterpolateProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The spatial extents of what is read and of what is written."""
    read, written = tuple(r.source for r in problem.resizes), tuple(r.target for r in problem.resizes)
    return (written, read) if problem.transposed else (read, written)


def _shape_of_block(problem: InterpolateProblem) -> tuple[int, int, int]:
    """Neighbours along a row of y that a thread owns, its rows, and the logarithm of the threads of a row."""
    x = problem.inputs[0]
    read, written = _extents(problem)
    # Two neighbours make a store of 4 bytes; where they lie apart in the lines, four lanes would meet in a bank of shared memory.
    columns = 2 if x.dtype.itemsize == 2 and written[-1] % 2 == 0 and read[-1] <= written[-1] else 1
    lanes = _log_lanes(-(-written[-1] // columns))
    return columns, _rows_of_thread(read[-1], arithmetic(x).itemsize, THREADS >> lanes), lanes


def rows(problem: InterpolateProblem, device: Device, aligned: bool) -> Program:
    """A table for each axis, then blocks of rows: the taps of the other axes first, those along the row last."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    if not y.size:
        return Program(())
    computed, batch = _computed(problem), _usual_taps(problem)
    scratch, tables = len(problem.inputs) + 1, [] if computed else _tables(problem, 0)
    read, written = _extents(problem)
    columns, per, lanes = _shape_of_block(problem)
    columns, vector = columns if aligned else 1, vector_length(x.dtype, aligned, read[-1])
    stride, itemsize = _stride(read[-1]), arithmetic(x).itemsize
    config = RowsConfig(TYPES[x.dtype], computed, batch, len(problem.resizes), per, stride, columns, vector, THREADS)
    name = f"resize_rows_{SHORT[x.dtype]}_rank{config.rank}_taps{batch}_{per}x{columns}_{stride}x{vector}{'_computed' * computed}"
    kernel = Kernel("spatial/resize_rows.cu", name, config)
    count, group = y.size // written[-1], per * (THREADS >> lanes)
    passes = max(1, min(_LINES_WANTED[problem.transposed] // (group * stride * itemsize), count // (group * _BLOCKS * device.units)))
    here = group * passes
    sizes = (count, here, *three_extents(written), *three_extents(read), _log_lanes(-(-read[-1] // vector)), lanes, *_steps(problem))
    arguments = (Array(0), Array(len(problem.inputs)), *_sources(tables, scratch), *sizes)
    shared = here * (stride * itemsize + _origin_bytes(batch if computed else 1, itemsize))
    plan = Plan(kernel, (-(-count // here), 1, 1), THREADS, arguments, shared)
    return Program((*_taps(problem, tables, scratch, False), plan))


def _origin_bytes(weights: int, itemsize: int) -> int:
    """What a block keeps of each row beside its line: a place in x, and along two axes three numbers and weights."""
    return -(-(8 + 2 * (-(-12 // itemsize) + weights) * itemsize) // 8) * 8


def _steps(problem: InterpolateProblem) -> tuple[int | float, ...]:
    """How three axes are resampled: modes and flags, then source elements per target element; missing axes are not looked at."""
    missing = 3 - len(problem.resizes)
    modes = ((*_mode_of(r), r.align_corners) for r in problem.resizes)
    options = (mode + 16 * corners + 32 * whole for mode, whole, corners in modes)
    return (*(0,) * missing, *options, *(0.0,) * missing, *map(step_of, problem.resizes))


def _no_rows(problem: InterpolateProblem, device: Device) -> str | None:
    """The rows must lie as they are read; of a much longer row than the result few elements are needed."""
    x, y = problem.inputs[0], problem.outputs[0]
    assert y is not None
    read, written = _extents(problem)
    if problem.channels != 1 or any(order_of(s) != tuple(range(s.ndim)) for s in (x, y)):
        return "the channels do not lie before space"
    if not _shape_of_block(problem)[1] or read[-1] > 16 * written[-1]:
        return f"rows of {read[-1]:,} elements for {written[-1]:,}"
    return _too_long(problem, device)


def _too_long(problem: InterpolateProblem, device: Device) -> str | None:
    longest = max(max(r.source, r.target) for r in problem.resizes)
    return "spatial extents from 2**30 on" if longest >= 2**30 else None


_METHODS = (
    Method("polyphase", polyphase, "whole factors, weights as constants, in one launch", rejects=rejects),
    Method("rows", rows, "one axis after the other, rows in shared memory", rejects=_no_rows, workspace=_rows_bytes),
    Method("gather", gather, "all taps of an element at once", rejects=_too_long, workspace=_gather_bytes),
)
ALGORITHMS = {"interpolate": _METHODS, "interpolate_backward": _METHODS}
