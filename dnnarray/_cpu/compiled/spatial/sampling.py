"""Bilinear sampling and embedding, by planes of channels or rows of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled.conv.copies import turn_rows
from dnnarray._cpu.compiled.dense import Plan, Written, planned, taken
from dnnarray._cpu.compiled.kernel import In2, In3, In4, Integers1, Out2, Out3, Out4, device, driver, kernel, wide
from dnnarray._cpu.compiled.memory import fetch_run
from dnnarray._cpu.compiled.scalar import fma
from dnnarray._cpu.compiled.tile import BYTES
from dnnarray._cpu.spatial.common import buffer, lies
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._problems.spatial_lookup import EmbeddingProblem

Array = np.ndarray

# --- bilinear sampling ------------------------------------------------------------------------------------------------


@device
def _place(coordinate: Any, extent: Any, align_corners: Any, border: Any) -> Any:
    """Where a coordinate of -1 to 1 points to, in pixels: rounded once, since what it is off by is all that a sample
    is."""
    kind = coordinate.dtype.type
    one, half, size = kind(1), kind(0.5), kind(extent)
    middle = (size - one) * half
    place = fma(coordinate[0], middle if align_corners else size * half, middle)
    if border:
        place = place if place > kind(0) else kind(0)
        place = place if place < size - one else size - one
    return place


@device
def _whole(low: Any, extent: Any) -> Any:
    """A whole number as an index, -1 where it lies outside or is NaN."""
    return int(low) if (low >= 0) & (low <= extent - 1) else -1


@device(counted=False)
def _turned(x: Any, n: Any, first: Any, last: Any, table: Any, slot: Any) -> Any:
    """Pixels `first` to `last` of image n, with all their channels, to table[slot]."""
    channels, size, item = x.shape[1], x.shape[2] * x.shape[3], x.itemsize
    source = x.ctypes.data + (n * channels * size + first) * item
    target = table.ctypes.data + (slot * size + first) * channels * item
    turn_rows(
        x.dtype.type(0), source, size * item, target, channels * item, channels, last - first, item, BYTES // item
    )


@kernel(counted=False, streams=True)
def _pixels(start: int, stop: int, x: In4, table: Out4) -> None:
    """Rows of the images, counted through all of them."""
    height, width = x.shape[2:]
    for n in range(start // height, (stop - 1) // height + 1):
        first, last = max(start - n * height, 0), min(stop - n * height, height)
        _turned(x, n, first * width, last * width, table, n)


@device
def _add_weighted(pixel: Any, weight: Any, total: Any) -> Any:
    for c in range(len(total)):
        total[c] += weight * pixel[c]


@device
def _blend(top: Any, bottom: Any, left: Any, u: Any, v: Any, out: Any) -> Any:
    """The weighted sum of four neighbours in one pass, all inside."""
    one = out.dtype.type(1)
    a, b, c, d = top[left], top[left + 1], bottom[left], bottom[left + 1]
    wa, wb, wc, wd = (one - v) * (one - u), (one - v) * u, v * (one - u), v * u
    for i in range(len(out)):
        out[i] = (wa * a[i] + wb * b[i]) + (wc * c[i] + wd * d[i])


_RUN = 256  # elements of a row that are copied at a time
_PLACES = (
    256  # of results that go to their planes together: lines that follow each other, which the processor sees coming
)


@kernel(streams=True)
def _sample(start: int, stop: int, table: In4, grid: In3, y: Out3, align_corners: bool, border: bool) -> None:
    """Blocks of places, counted through all images."""
    wide()
    blocks, found = -(-y.shape[2] // _PLACES), np.empty((_PLACES, table.shape[3]), table.dtype)
    for block in range(start, stop):
        n, first = block // blocks, block % blocks * _PLACES
        _sample_block(table[n], grid[n], y, n, first, min(first + _PLACES, y.shape[2]), align_corners, border, found)


@kernel
def _sample_images(
    start: int, stop: int, x: In4, grid: In3, table: Out4, y: Out3, share: int, align_corners: bool, border: bool
) -> None:
    """Shares of so many whole images: the pixels of all images of a share take turns in one place, where they do not
    leave the second-level cache."""
    wide()
    found = np.empty((_PLACES, table.shape[3]), table.dtype)
    for n in range(start * share, stop * share):
        slot = n // share
        _turned(x, n, 0, x.shape[2] * x.shape[3], table, slot)
        for first in range(0, y.shape[2], _PLACES):
            _sample_block(
                table[slot], grid[n], y, n, first, min(first + _PLACES, y.shape[2]), align_corners, border, found
            )


@kernel(counted=False, streams=True)
def _sample_lanes(start: int, stop: int, table: In4, grid: In3, y: Out3, align_corners: bool, border: bool) -> None:
    """Blocks of places, counted through all images, of which each has its channels side by side in the result too."""
    wide()
    blocks = -(-y.shape[1] // _PLACES)
    for block in range(start, stop):
        n, first = block // blocks, block % blocks * _PLACES
        last = min(first + _PLACES, y.shape[1])
        _sample_places(table[n], grid[n], first, last, align_corners, border, y[n, first:last])


@device(counted=False)
def _sample_places(image: Any, grid: Any, first: Any, last: Any, align_corners: Any, border: Any, found: Any) -> Any:
    """Places `first` to `last` of an image, with all their channels."""
    height, width = image.shape[:2]
    one, zero = image.dtype.type(1), image.dtype.type(0)
    for q in range(last - first):
        place = grid[first + q]
        w, h = _place(place[0:1], width, align_corners, border), _place(place[1:2], height, align_corners, border)
        left, top = np.floor(w), np.floor(h)
        u, v = w - left, h - top
        columns = (_whole(left, width), _whole(left + one, width))
        rows = (_whole(top, height), _whole(top + one, height))
        if min(rows) >= 0 and min(columns) >= 0:
            _blend(image[rows[0]], image[rows[1]], columns[0], u, v, found[q])
        else:
            found[q, :] = zero
            for k in range(4):
                row, column = rows[k // 2], columns[k % 2]
                weight = (v if k // 2 else one - v) * (u if k % 2 else one - u)
                if row >= 0 and column >= 0:
                    _add_weighted(image[row, column], weight, found[q])
                elif weight != weight:  # a place that is NaN
                    found[q, :] = weight


@device(counted=False)
def _sample_block(
    image: Any, grid: Any, y: Any, n: Any, first: Any, last: Any, align_corners: Any, border: Any, found: Any
) -> Any:
    """Places `first` to `last` of image n, to the planes of their channels."""
    _sample_places(image, grid, first, last, align_corners, border, found)
    channels = image.shape[2]
    item, lanes, size = y.itemsize, BYTES // y.itemsize, y.shape[2]
    for c in range(0, channels, lanes):
        at = max(min(c, channels - lanes), 0)  # the last channels overlap those before them
        into = y.ctypes.data + ((n * channels + at) * size + first) * item
        turn_rows(
            y.dtype.type(0),
            found.ctypes.data + at * item,
            channels * item,
            into,
            size * item,
            last - first,
            min(channels, lanes),
            item,
            lanes,
        )


def _sampled(problem: GridSampleProblem, x: Array, grid: Array, y: Array, scratch: Array | None) -> None:
    """On contiguous arrays: as many images as the threads share evenly one by one, the rows of the others over all
    threads."""
    images, channels, height, width = x.shape
    grid, y = grid.reshape(images, -1, 2), y.reshape(images, channels, -1)
    options, work, blocks = (
        (problem.align_corners, problem.padding_mode == "border"),
        8 * y.size,
        -(-y.shape[2] // _PLACES),
    )
    if channels == 1:
        _sample(images * blocks, x.reshape(images, height, width, 1), grid, y, *options, work=work)
        return
    parts = min(threads.worth(work), threads.cores())
    table, whole = (
        buffer(scratch, 0, (min(images, threads.cores()), height, width, channels), x.dtype),
        images - images % parts,
    )
    if whole:
        _sample_images(parts, x, grid, table, y, whole // parts, *options, work=work)
    if whole < images:
        x, grid, y = x[whole:], grid[whole:], y[whole:]
        _pixels(len(x) * height, x, table, work=2 * x.size)
        _sample(len(x) * blocks, table[: len(x)], grid, y, *options, work=8 * y.size)


def _sampled_lanes(problem: GridSampleProblem, x: Array, grid: Array, y: Array) -> None:
    """On contiguous arrays (N, H, W, C)."""
    images, channels = len(x), x.shape[3]
    options, blocks = (problem.align_corners, problem.padding_mode == "border"), -(-y.shape[1] * y.shape[2] // _PLACES)
    _sample_lanes(
        images * blocks, x, grid.reshape(images, -1, 2), y.reshape(images, -1, channels), *options, work=8 * y.size
    )


@driver(_pixels, _sample, _sample_images, _sample_lanes)
def grid_sample(problem: GridSampleProblem, outputs: tuple[Array, ...], scratch: Any, x: Array, grid: Array) -> None:
    if not lies(problem.x, (0, 1, 2, 3)):
        order = (0, 2, 3, 1)
        with Written(outputs, order) as (y,):
            _sampled_lanes(problem, taken(x, None, order), taken(grid), y)
        return
    with Written(outputs) as (y,):
        _sampled(problem, taken(x), taken(grid), y, scratch)


def _sampled_direct(problem: GridSampleProblem) -> Callable[..., None] | None:
    """As that of `planned`, with scratch memory of its own."""
    if any(spec is not None and spec.strides is not None for spec in (*problem.inputs, *problem.outputs)):
        return None
    return lambda x, grid, y: _sampled(problem, x, grid, y, None)


grid_sample.direct = _sampled_direct


# --- embedding --------------------------------------------------------------------------------------------------------


@kernel(counted=False, streams=True)
def _rows(start: int, stop: int, index: Integers1, weight: In2, y: Out2) -> None:
    length = weight.shape[1]
    for r in range(start, stop):
        source, target = weight[index[r]], y[r]
        # no processor sees that row coming
        ahead = weight.ctypes.data + index[r + 1] * length * weight.itemsize if r + 1 < stop else 0
        for first in range(0, length, _RUN):
            part, run = target[first : first + _RUN], source[first : first + _RUN]
            fetch_run(ahead, first, run)
            for i in range(len(part)):
                part[i] = run[i]


@planned(_rows)
def embedding(problem: EmbeddingProblem) -> Plan:
    indices, weight = problem.inputs
    shape, work = (indices.size, weight.shape[1]), 2 * indices.size * weight.shape[1]

    def run(indices: Array, weight: Array, y: Array) -> None:
        _rows(shape[0], indices.astype(np.int64, copy=False).reshape(-1), weight, y.reshape(shape), work=work)

    return run, None
