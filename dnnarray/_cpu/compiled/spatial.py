"""Resizing, bilinear sampling and embedding, by planes of channels or rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In2, In3, In4, Integers1, Integers2, Out2, Out3, Out4, device, driver, kernel
from dnnarray._cpu.compiled.scalar import fma
from dnnarray._cpu.spatial_common import buffer
from dnnarray._cpu.spatial_resize import Taps, taps_of
from dnnarray._problems.spatial_grid import GridSampleProblem
from dnnarray._problems.spatial_lookup import EmbeddingProblem
from dnnarray._problems.spatial_resize import InterpolateProblem

Array = np.ndarray

# --- resizing ---------------------------------------------------------------------------------------------------------


@device
def _gathered(row: Any, index: Any, weight: Any, first: Any, out: Any) -> Any:
    """out (+)= weight row[index]."""
    if first:
        for q in range(len(out)):
            out[q] = weight[q] * row[index[q]]
    else:
        for q in range(len(out)):
            out[q] = fma(weight[q], row[index[q]], out[q])


@device
def _weighted(row: Any, weight: Any, first: Any, out: Any) -> Any:
    """out (+)= weight row."""
    if first:
        for q in range(len(out)):
            out[q] = weight * row[q]
    else:
        for q in range(len(out)):
            out[q] = fma(weight, row[q], out[q])


@device
def _gathered_pair(row: Any, i: Any, a: Any, j: Any, b: Any, out: Any) -> Any:
    """The sum of two taps of a row in one pass."""
    for q in range(len(out)):
        out[q] = fma(b[q], row[j[q]], a[q] * row[i[q]])


@device
def _doubled(row: Any, left: Any, right: Any, out: Any) -> Any:
    """The inner part of a row with twice the elements: `left` and `right` are the weights of the taps of the two elements that come from each.

    The nearer one of two has the larger weight: its product is the one that does not round.
    """
    a, b, c, d = left[2], right[2], left[3], right[3]
    for k in range(len(row) - 2):
        out[2 * k + 2] = fma(b, row[k + 1], a * row[k])
        out[2 * k + 3] = fma(c, row[k + 1], d * row[k + 2])


@device
def _weighted_pair(row: Any, a: Any, other: Any, b: Any, out: Any) -> Any:
    """The sum of two weighted rows in one pass; the product of the larger weight does not round."""
    row, a, other, b = (other, b, row, a) if a > b else (row, a, other, b)
    for q in range(len(out)):
        out[q] = fma(b, other[q], a * row[q])


@kernel
def _resize(
    start: int,
    stop: int,
    x: In3,
    y: Out3,
    row_index: Integers2,
    row_weight: In2,
    column_index: Integers2,
    column_weight: In2,
    doubles: bool,
) -> None:
    wide = np.empty((x.shape[1], y.shape[2]), x.dtype)  # the plane with its rows resized
    _resize_planes(start, stop, x, y, row_index, row_weight, column_index, column_weight, doubles, wide)


@device(counted=False)
def _resize_planes(
    start: Any, stop: Any, x: Any, y: Any, row_index: Any, row_weight: Any, column_index: Any, column_weight: Any, doubles: Any, wide: Any
) -> None:
    for n in range(start, stop):
        for h in range(x.shape[1]):
            if doubles:
                _doubled(x[n, h], column_weight[0], column_weight[1], wide[h])
                for part in (slice(0, 2), slice(y.shape[2] - 2, y.shape[2])):
                    _gathered_pair(
                        x[n, h], column_index[0, part], column_weight[0, part], column_index[1, part], column_weight[1, part], wide[h, part]
                    )
            elif len(column_index) == 2:
                _gathered_pair(x[n, h], column_index[0], column_weight[0], column_index[1], column_weight[1], wide[h])
            else:
                for k in range(len(column_index)):
                    _gathered(x[n, h], column_index[k], column_weight[k], k == 0, wide[h])
        for p in range(y.shape[1]):
            if len(row_index) == 2:
                _weighted_pair(wide[row_index[0, p]], row_weight[0, p], wide[row_index[1, p]], row_weight[1, p], y[n, p])
            else:
                for k in range(len(row_index)):
                    _weighted(wide[row_index[k, p]], row_weight[k, p], k == 0, y[n, p])


def _matrix(taps: Taps, extent: int, dtype: np.dtype) -> tuple[Array, Array]:
    """(index, weight) of the taps of each target; where nothing changes, each target's own place. Of more than two the light ones come first, as small sums round less."""
    columns = taps.columns or ((np.arange(extent), None),)
    index = np.array([i for i, _ in columns], np.int64)
    weight = np.array([np.ones(extent, dtype) if w is None else w for _, w in columns], dtype)
    if len(columns) < 3:
        return index, weight
    order = np.argsort(abs(weight), axis=0, kind="stable")
    return np.take_along_axis(index, order, 0), np.take_along_axis(weight, order, 0)


@driver(_resize)
def interpolate(problem: InterpolateProblem, outputs: tuple[Array, ...], scratch: Any, *arrays: Array) -> None:
    source, extents = arrays[0], outputs[0].shape[2:]
    found = [taps_of(resize, problem.transposed, source.dtype) for resize in problem.resizes]
    matrices = [_matrix(t, n, source.dtype) for t, n in zip(found, extents, strict=True)]
    x = taken(source, (source.shape[0] * source.shape[1], *_plane(source.shape[2:])))
    if len(matrices) == 1:
        matrices = [(np.zeros((1, 1), np.int64), np.ones((1, 1), source.dtype)), *matrices]
    with Written(outputs) as (y,):
        planes = y.reshape(len(x), *_plane(extents))
        _resize(len(x), x, planes, *matrices[0], *matrices[1], _doubles(*matrices[1]), work=2 * (x.size + y.size) * len(matrices[1][0]))
        for axis, taps in zip(problem.axes, found, strict=True):
            if taps.unread is not None:
                y[(slice(None),) * axis + (taps.unread,)] = 0  # infinity times 0 would be NaN


def _doubles(index: Array, weight: Array) -> bool:
    """Whether inside of the row element 2k is made of k - 1 and k, and 2k + 1 of k and k + 1, with the same weights for every k."""
    taps, extent = index.shape
    if taps != 2 or extent % 2 or extent < 6:
        return False
    inner = slice(2, extent - 2)
    low = (np.arange(extent) - 1)[inner] // 2
    same = (weight[:, inner].reshape(2, -1, 2) == weight[:, None, 2:4]).all()
    return bool(same and (index[0, inner] == low).all() and (index[1, inner] == low + 1).all())


def _plane(space: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *space)[-2:]


# --- bilinear sampling ------------------------------------------------------------------------------------------------


@device
def _place(coordinate: Any, extent: Any, align_corners: Any, border: Any) -> Any:
    """Where a coordinate of -1 to 1 points to, in pixels: rounded once, since what it is off by is all that a sample is."""
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


@kernel(counted=False)
def _pixels(start: int, stop: int, x: In4, table: Out4) -> None:
    for row in range(start, stop):
        n, h = row // x.shape[2], row % x.shape[2]
        for w in range(x.shape[3]):
            pixel = table[n, h, w]
            for c in range(len(pixel)):
                pixel[c] = x[n, c, h, w]


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


@kernel
def _sample(start: int, stop: int, table: In4, grid: In4, y: Out4, align_corners: bool, border: bool) -> None:
    found = np.empty((y.shape[3], table.shape[3]), table.dtype)  # a line of results, pixel by pixel
    _sample_lines(start, stop, table, grid, y, align_corners, border, found)


@device(counted=False)
def _sample_lines(start: Any, stop: Any, table: Any, grid: Any, y: Any, align_corners: Any, border: Any, found: Any) -> None:
    height, width, channels = table.shape[1:]
    lines, places = y.shape[2:]
    one, zero = table.dtype.type(1), table.dtype.type(0)
    for line in range(start, stop):
        n, p = line // lines, line % lines
        for q in range(places):
            w, h = _place(grid[n, p, q, 0:1], width, align_corners, border), _place(grid[n, p, q, 1:2], height, align_corners, border)
            left, top = np.floor(w), np.floor(h)
            u, v = w - left, h - top
            columns = (_whole(left, width), _whole(left + one, width))
            rows = (_whole(top, height), _whole(top + one, height))
            if min(rows) >= 0 and min(columns) >= 0:
                _blend(table[n, rows[0]], table[n, rows[1]], columns[0], u, v, found[q])
            else:
                found[q, :] = zero
                for k in range(4):
                    row, column = rows[k // 2], columns[k % 2]
                    weight = (v if k // 2 else one - v) * (u if k % 2 else one - u)
                    if row >= 0 and column >= 0:
                        _add_weighted(table[n, row, column], weight, found[q])
                    elif weight != weight:  # a place that is NaN
                        found[q, :] = weight
        for c in range(channels):
            out = y[n, c, p]
            for q in range(places):
                out[q] = found[q, c]


@driver(_pixels, _sample)
def grid_sample(problem: GridSampleProblem, outputs: tuple[Array, ...], scratch: Any, x: Array, grid: Array) -> None:
    images, channels, height, width = x.shape
    pixels = (images, height, width, channels)
    if channels == 1:
        table = taken(x, pixels)
    else:
        table = buffer(scratch, 0, pixels, x.dtype)
        _pixels(images * height, taken(x), table, work=2 * x.size)
    with Written(outputs) as (y,):
        lines = y.shape[0] * y.shape[2]
        _sample(lines, table, taken(grid), y, problem.align_corners, problem.padding_mode == "border", work=8 * y.size)


# --- embedding --------------------------------------------------------------------------------------------------------


@kernel(counted=False)
def _rows(start: int, stop: int, index: Integers1, weight: In2, y: Out2) -> None:
    for r in range(start, stop):
        source, target = weight[index[r]], y[r]
        for i in range(len(target)):
            target[i] = source[i]


@driver(_rows)
def embedding(problem: EmbeddingProblem, outputs: tuple[Array, ...], scratch: Any, indices: Array, weight: Array) -> None:
    with Written(outputs) as (y,):
        index = taken(indices.astype(np.int64, copy=False), (-1,))
        _rows(index.size, index, taken(weight), y.reshape(index.size, weight.shape[1]), work=2 * y.size)
