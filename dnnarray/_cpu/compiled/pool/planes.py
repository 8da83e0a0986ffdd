"""Pooling over one or two spatial axes: the maximum, its place and the mean, by planes of channels or where channels
are last.

Output q of an axis takes tap t from ``q stride + t dilation - before``. In planes the rows of a window are reduced to
one row first, then that row along its windows: loops over whole rows, which run in vectors. Where channels are last,
the channels are the vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu.compiled import arithmetic
from dnnarray._cpu.compiled.dense import Plan, Written, planned, taken
from dnnarray._cpu.compiled.kernel import (
    In1,
    In3,
    In4,
    Integers1,
    Integers2,
    Kernel,
    Out3,
    Out4,
    OutIntegers2,
    OutIntegers3,
    device,
    driver,
    kernel,
)
from dnnarray._cpu.compiled.pool.lanes import means_of_four
from dnnarray._cpu.compiled.pool.pixels import inputs, name_row, sizes
from dnnarray._cpu.compiled.tile import BYTES
from dnnarray._cpu.pool import forms as pool_forms
from dnnarray._problems.pool import Axis, PoolProblem

Array = np.ndarray


@device
def _maximum(a: Any, b: Any) -> Any:
    """The larger of two; NaN is larger than all."""
    larger = a if a > b else b
    return a if a != a else larger


@device
def copied(x: Any, out: Any) -> Any:
    for i in range(len(out)):
        out[i] = x[i]


@device
def _larger(x: Any, stride: Any, best: Any) -> Any:
    """best = the larger of best and every `stride`-th x."""
    if stride == 1:
        for i in range(len(best)):
            best[i] = _maximum(x[i], best[i])
    elif stride == 2:  # known to the compiler, which then reads in vectors
        for i in range(len(best)):
            best[i] = _maximum(x[2 * i], best[i])
    else:
        for i in range(len(best)):
            best[i] = _maximum(x[stride * i], best[i])


@device
def added(x: Any, stride: Any, total: Any) -> Any:
    """total += every `stride`-th x."""
    if stride == 1:
        for i in range(len(total)):
            total[i] += x[i]
    elif stride == 2:
        for i in range(len(total)):
            total[i] += x[2 * i]
    else:
        for i in range(len(total)):
            total[i] += x[stride * i]


@device
def _largest_along(row: Any, stride: Any, dilation: Any, window: Any, out: Any) -> Any:
    """out = the largest of each window of a row that is padded already."""
    if stride == 2 and dilation == 1 and window == 3:
        for i in range(len(out)):
            out[i] = _maximum(row[2 * i + 2], _maximum(row[2 * i + 1], row[2 * i]))
    elif stride == 2 and dilation == 1 and window == 2:
        for i in range(len(out)):
            out[i] = _maximum(row[2 * i + 1], row[2 * i])
    else:
        out[:] = -np.inf
        for s in range(window):
            _larger(row[s * dilation :], stride, out)


@device
def _sums_along(row: Any, stride: Any, dilation: Any, window: Any, out: Any) -> Any:
    """out = the sum of each window of a row that is padded already."""
    if stride == 2 and dilation == 1 and window == 2:
        for i in range(len(out)):
            out[i] = row[2 * i] + row[2 * i + 1]
    else:
        out[:] = 0
        for s in range(window):
            added(row[s * dilation :], stride, out)


@device
def _larger_rows(a: Any, b: Any, out: Any) -> Any:
    for i in range(len(out)):
        out[i] = _maximum(b[i], a[i])


@device
def _row_sums(a: Any, b: Any, out: Any) -> Any:
    for i in range(len(out)):
        out[i] = a[i] + b[i]


@device
def _place(x: Any, stride: Any, place: Any, best: Any, where: Any) -> Any:
    """`_larger`, and in `where` the place of the first of the largest (the last NaN), if `place` is that of x[0]; below
    0 is none so far."""
    if stride == 2:  # known to the compiler, which then reads in vectors
        for i in range(len(best)):
            v = x[2 * i]
            larger = (v > best[i]) | (v != v) | (where[i] < 0)
            best[i] = v if larger else best[i]
            where[i] = np.int32(place + 2 * i) if larger else where[i]
    else:
        for i in range(len(best)):
            v = x[stride * i]
            larger = (v > best[i]) | (v != v) | (where[i] < 0)
            best[i] = v if larger else best[i]
            where[i] = np.int32(place + stride * i) if larger else where[i]


@device
def _divided(total: Any, count: Any, counts: Any) -> Any:
    """total / (count counts), element by element."""
    for i in range(len(total)):
        total[i] = total[i] / (count * counts[i])


@device
def _divided_by(total: Any, count: Any) -> Any:
    for i in range(len(total)):
        total[i] = total[i] / count


@device
def _padded_row(x: Any, y: Any, horizontal: Any, value: Any) -> Any:
    """Room for the rows of a window reduced to one, with the padding on both sides."""
    stride, left, dilation, window = horizontal
    row = np.empty(max(left + x.shape[2], (y.shape[2] - 1) * stride + (window - 1) * dilation + 1), x.dtype)
    row[:] = value
    return row


@kernel(streams=True)
def _max_planes(start: int, stop: int, x: In3, y: Out3, vertical: Integers1, horizontal: Integers1) -> None:
    _maxima(start, stop, x, y, vertical, horizontal, _padded_row(x, y, horizontal, -np.inf))


@device(counted=False)
def _maxima(start: Any, stop: Any, x: Any, y: Any, vertical: Any, horizontal: Any, row: Any) -> None:
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape[1:]
    middle = row[left : left + width]
    for n in range(start, stop):
        for p in range(y.shape[1]):
            origin = p * step - top
            first = origin if origin >= 0 else origin % spread
            end = min(height, origin + (taps - 1) * spread + 1)
            if first + spread < end:
                _larger_rows(x[n, first], x[n, first + spread], middle)
            elif first < end:
                copied(x[n, first], middle)
            else:
                middle[:] = -np.inf
            for h in range(first + 2 * spread, end, spread):
                _larger(x[n, h], 1, middle)
            _largest_along(row, stride, dilation, window, y[n, p])


@device
def _fours(x: Any, y: Any, vertical: Any, horizontal: Any) -> bool:
    """Whether the windows are 2 by 2, side by side, all inside, and a vector of them or more in a row."""
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    pairs = (
        taps == 2
        and window == 2
        and step == 2
        and stride == 2
        and spread == 1
        and dilation == 1
        and top == 0
        and left == 0
    )
    return pairs and 2 * y.shape[1] <= x.shape[1] and 2 * y.shape[2] <= x.shape[2] and y.shape[2] >= BYTES // x.itemsize


@kernel(streams=True)
def _sum_planes(
    start: int, stop: int, x: In3, y: Out3, vertical: Integers1, horizontal: Integers1, rows: In1, columns: In1
) -> None:
    if _fours(x, y, vertical, horizontal):
        item, source, into = x.itemsize, x.ctypes.data, y.ctypes.data
        step = x.shape[2] * item
        for row in range(start * y.shape[1], stop * y.shape[1]):
            above = row // y.shape[1] * x.shape[1] + 2 * (row % y.shape[1])
            means_of_four(
                x.dtype.type(0),
                source + above * step,
                step,
                into + row * y.shape[2] * item,
                y.shape[2],
                item,
                BYTES // item,
            )
    else:
        _sums(start, stop, x, y, vertical, horizontal, rows, columns, _padded_row(x, y, horizontal, 0))


@device(counted=False)
def _sums(
    start: Any, stop: Any, x: Any, y: Any, vertical: Any, horizontal: Any, rows: Any, columns: Any, row: Any
) -> None:
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape[1:]
    middle = row[left : left + width]
    for n in range(start, stop):
        for p in range(y.shape[1]):
            origin = p * step - top
            first = origin if origin >= 0 else origin % spread
            end = min(height, origin + (taps - 1) * spread + 1)
            if first + spread < end:
                _row_sums(x[n, first], x[n, first + spread], middle)
            elif first < end:
                copied(x[n, first], middle)
            else:
                middle[:] = 0
            for h in range(first + 2 * spread, end, spread):
                added(x[n, h], 1, middle)
            _sums_along(row, stride, dilation, window, y[n, p])
            _divided(y[n, p], rows[p], columns)


@kernel(streams=True)
def argmax_planes(
    start: int, stop: int, x: In3, y: Out3, places: OutIntegers3, vertical: Integers1, stride: int, columns: Integers2
) -> None:
    _places(start, stop, x, y, places, vertical, stride, columns, np.empty(y.shape[2], np.int32))


@device(counted=False)
def _places(
    start: Any, stop: Any, x: Any, y: Any, places: Any, vertical: Any, stride: Any, columns: Any, where: Any
) -> None:
    step, top, spread, taps = vertical
    height, width = x.shape[1:]
    for n in range(start, stop):
        for p in range(y.shape[1]):
            best = y[n, p]
            best[:] = -np.inf
            where[:] = -1
            for r in range(taps):
                h = p * step - top + r * spread
                if 0 <= h < height:
                    for s in range(len(columns)):
                        a, b, w = columns[s, 0], columns[s, 1], columns[s, 2]
                        _place(x[n, h, w:], stride, h * width + w, best[a:b], where[a:b])
            copied(where, places[n, p])


@kernel(counted=False, streams=True)
def _max_pixels(start: int, stop: int, x: In4, y: Out4, vertical: Integers1, horizontal: Integers1) -> None:
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape[1:3]
    for row in range(start, stop):
        n, p = row // y.shape[1], row % y.shape[1]
        for q in range(y.shape[2]):
            out = y[n, p, q]
            out[:] = -np.inf
            for r in range(taps):
                h = p * step - top + r * spread
                for s in range(window):
                    w = q * stride - left + s * dilation
                    if 0 <= h < height and 0 <= w < width:
                        _larger(x[n, h, w], 1, out)


@kernel(counted=False, streams=True)
def _sum_pixels(
    start: int, stop: int, x: In4, y: Out4, vertical: Integers1, horizontal: Integers1, rows: In1, columns: In1
) -> None:
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape[1:3]
    for row in range(start, stop):
        n, p = row // y.shape[1], row % y.shape[1]
        for q in range(y.shape[2]):
            out = y[n, p, q]
            out[:] = 0
            for r in range(taps):
                h = p * step - top + r * spread
                for s in range(window):
                    w = q * stride - left + s * dilation
                    if 0 <= h < height and 0 <= w < width:
                        added(x[n, h, w], 1, out)
            _divided_by(out, rows[p] * columns[q])


@device(counted=False)
def _widened(where: Any, places: Any) -> Any:
    for i in range(len(places)):
        places[i] = where[i]


@kernel(streams=True)
def named_pixels(
    start: int, stop: int, x: In4, y: Out4, places: OutIntegers2, above: Integers2, along: Integers2
) -> None:
    """Rows of windows from `start` to `stop`."""
    _name_rows(start, stop, x, y, places, above, along, np.empty(places.shape[1], np.int32))


@device(counted=False)
def _name_rows(start: Any, stop: Any, x: Any, y: Any, places: Any, above: Any, along: Any, where: Any) -> None:
    height, width, channels = x.shape[1:]
    pixel = channels * x.itemsize
    for row in range(start, stop):
        n, p = row // len(above), row % len(above)
        image, best = x.ctypes.data + n * height * width * pixel, y.ctypes.data + row * len(along) * pixel
        reads = above[p, 0], above[p, 1], above[p, 2]
        name_row(x.dtype.type(0), image, reads, along, width, channels, x.itemsize, best, pixel, where.ctypes.data)
        _widened(where, places[row])


# --- drivers ----------------------------------------------------------------------------------------------------------


def _taps(form: pool_forms.Form) -> tuple[Array, Array]:
    """(stride, before, dilation, window) of the rows and of the columns."""
    rows, columns = (np.array((a.stride, a.before, a.dilation, a.window), np.int64) for a in form.axes)
    return rows, columns


def _reduce(problem: PoolProblem, planes: Kernel, pixels: Kernel, *counts: Array) -> Plan:
    form = pool_forms.form(problem)
    assert form is not None  # `accepts` has looked
    kernel, into = planes if form.planes else pixels, form.output_shape
    total, work = (
        (into[0] if form.planes else into[0] * into[1]),
        math.prod(form.input_shape) + math.prod(into) * form.taps,
    )
    constants = (*_taps(form), *counts)

    def run(x: Array, y: Array) -> None:
        kernel(total, x.reshape(form.input_shape), y.reshape(into), *constants, work=work)

    return run, form.order


@planned(_max_planes, _max_pixels)
def max_pool(problem: PoolProblem) -> Plan:
    return _reduce(problem, _max_planes, _max_pixels)


@planned(_sum_planes, _sum_pixels)
def avg_pool(problem: PoolProblem) -> Plan:
    form = pool_forms.form(problem)
    assert form is not None
    counts = (np.maximum(np.array(a.counts(problem.padded)), 1).astype(arithmetic(problem)) for a in form.axes)
    return _reduce(problem, _sum_planes, _sum_pixels, *counts)


def _by_planes(form: pool_forms.Form, x: Array, y: Array, places: Array) -> None:
    work, axis = x.size + 2 * y.size * form.taps, form.axes[1]
    argmax_planes(
        len(y),
        taken(x, form.input_shape, form.order),
        y,
        places,
        _taps(form)[0],
        axis.stride,
        taps_inside(axis),
        work=work,
    )


def taps_inside(axis: Axis) -> Array:
    """For each tap that any output has inside of the input: the first such output, one past the last, and where the
    first stands."""
    rows = []
    for shift in range(-axis.before, axis.window * axis.dilation - axis.before, axis.dilation):
        first, end = max(0, -(shift // axis.stride)), min(axis.outputs, (axis.extent - 1 - shift) // axis.stride + 1)
        if first < end:
            rows.append((first, end, first * axis.stride + shift))
    return np.array(rows, np.int64).reshape(-1, 3)


def _by_pixels(form: pool_forms.Form, x: Array, y: Array, places: Array) -> None:
    axes, inside, outside = sizes(form)
    work = x.size + 2 * y.size * form.taps
    places = places.reshape(outside[0] * outside[1], -1)
    named_pixels(
        len(places),
        taken(x, inside, form.order),
        y.reshape(outside),
        places,
        inputs(axes[0]),
        inputs(axes[1]),
        work=work,
    )


def name_maxima(form: pool_forms.Form, x: Array, y: Array, places: Array) -> None:
    """The maxima and their places, in the shape of the form's output."""
    (_by_planes if form.planes else _by_pixels)(form, x, y, places)


@driver(argmax_planes, named_pixels)
def max_pool_with_indices(problem: PoolProblem, outputs: tuple[Array, ...], scratch: Any, x: Array) -> None:
    form = pool_forms.form(problem)
    assert form is not None
    with Written(outputs, form.order) as (y, places):
        name_maxima(form, x, y.reshape(form.output_shape), places.reshape(form.output_shape))
