"""Gradients of pooling over one or two spatial axes, by planes of channels or by pixels of channels.

By pixels a row of the image collects from the windows that it belongs to, the channels being the lanes: nothing is
written twice, and threads do not meet."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu.compiled import arithmetic
from dnnarray._cpu.compiled.dense import Plan, Written, planned, taken
from dnnarray._cpu.compiled.kernel import (
    In1,
    In2,
    In3,
    In4,
    Integers2,
    Integers3,
    Kernel,
    Out2,
    Out3,
    Out4,
    OutIntegers1,
    OutIntegers2,
    device,
    driver,
    kernel,
)
from dnnarray._cpu.compiled.memory import ALIGNMENT
from dnnarray._cpu.compiled.pool.lanes import any_outside, sum_of_named, sum_of_pixels, sum_of_shares
from dnnarray._cpu.compiled.pool.pixels import inputs, kept_rows, name_row, sizes, unit_rows, windows
from dnnarray._cpu.compiled.pool.planes import added, argmax_planes, copied, name_maxima, named_pixels, taps_inside
from dnnarray._cpu.compiled.tile import apart, routine
from dnnarray._cpu.pool import forms as pool_forms
from dnnarray._problems.pool import PoolProblem, indices_inside

Array = np.ndarray
_WINDOWS = 32  # that a pixel looks at

# --- places are given -------------------------------------------------------------------------------------------------


@kernel(counted=False, streams=True)
def _reach(start: int, stop: int, places: Integers2, reach: OutIntegers2) -> None:
    """The smallest and the largest number of each row."""
    for n in range(start, stop):
        row = places[n]
        low, high = row[0], row[0]
        for i in range(len(row)):
            low, high = min(low, row[i]), max(high, row[i])
        reach[n, 0], reach[n, 1] = low, high


@kernel(counted=False, streams=True)
def _scatter_planes(start: int, stop: int, g: In2, places: Integers2, dx: Out2) -> None:
    for n in range(start, stop):
        plane, where = dx[n], places[n]
        plane[:] = 0
        for i in range(len(where)):
            if where[i] >= 0:
                plane[where[i]] += g[n, i]


@kernel(counted=False, streams=True)
def _scatter_pixels(start: int, stop: int, g: In3, places: Integers3, dx: Out3, run: int) -> None:
    """A part is so many channels of an image."""
    channels = g.shape[2]
    runs = (channels + run - 1) // run
    for part in range(start, stop):
        n, first = part // runs, part % runs * run
        end = min(first + run, channels)
        for i in range(dx.shape[1]):
            dx[n, i, first:end] = 0
        for i in range(g.shape[1]):
            values, where = g[n, i], places[n, i]
            for c in range(first, end):
                if where[c] >= 0:
                    dx[n, where[c], c] += values[c]


# --- places are sought ------------------------------------------------------------------------------------------------


@routine
def _collect_row(like, lines, rows, back, place, channels, item, out):
    """A row of the image collects from the windows whose addresses stand in `lines`; `place` is that of its first
    pixel."""
    apart()
    for w in range(len(back)):
        sum_of_named(
            like,
            lines,
            rows,
            back[w, 0] * channels,
            back[w, 1],
            back[w, 2] * channels,
            place + w,
            out + w * channels * item,
            channels,
        )


@device(counted=False)
def _narrow(places: Any, where: Any) -> Any:
    for i in range(len(where)):
        where[i] = np.int32(places[i])


@kernel(counted=False, streams=True)
def _misplaced(
    start: int, stop: int, places: Integers3, above: Integers2, along: Integers2, width: int, told: OutIntegers1
) -> None:
    """For each row of windows whether any place given for it lies outside of its window; the elements of a window are
    neighbours along a row."""
    windows, channels = places.shape[1:]
    for row in range(start, stop):
        p, source, wrong = row % len(above), places.ctypes.data + row * windows * channels * 8, 0
        first, rows, step = above[p, 0] * width, above[p, 1], above[p, 2] * width
        for q in range(windows):
            wrong |= any_outside(source + 8 * q * channels, first + along[q, 0], rows, step, along[q, 1], channels)
        told[row] = wrong


@kernel(streams=True)
def _max_pixels_gradient(
    start: int,
    stop: int,
    g: In4,
    x: In4,
    places: Integers3,
    dx: Out4,
    above: Integers2,
    along: Integers2,
    up: Integers2,
    back: Integers2,
    kept: int,
    unit: int,
) -> None:
    """A part is so many rows of images, one after the other. The places of `kept` rows of windows are at hand, those of
    row p at p % kept."""
    channels = x.shape[3]
    where, held = np.empty((kept, g.shape[2] * channels), np.int32), np.empty(kept, np.int64)
    held[:] = -1
    lines, best = np.empty((kept, 2), np.int64), np.empty(channels, x.dtype)
    end = min(stop * unit, x.shape[0] * x.shape[1])
    _max_rows_gradient(start * unit, end, g, x, places, dx, above, along, up, back, where, held, lines, best)


@device(counted=False)
def _max_rows_gradient(
    start: Any,
    stop: Any,
    g: Any,
    x: Any,
    places: Any,
    dx: Any,
    above: Any,
    along: Any,
    up: Any,
    back: Any,
    where: Any,
    held: Any,
    lines: Any,
    best: Any,
) -> None:
    like, item = x.dtype.type(0), x.itemsize
    height, width, channels = x.shape[1:]
    windows, source = g.shape[1], x.ctypes.data
    for row in range(start, stop):
        n, h = row // height, row % height
        for i in range(up[h, 1]):
            p = up[h, 0] + i * up[h, 2]
            number, slot = n * windows + p, p % len(held)
            lines[i, 0] = g.ctypes.data + number * g.shape[2] * channels * item
            lines[i, 1] = where[slot].ctypes.data
            if held[slot] == number:
                continue
            held[slot] = number
            if len(places):
                _narrow(places[number].reshape(-1), where[slot])
            else:
                image, reads = source + n * height * width * channels * item, (above[p, 0], above[p, 1], above[p, 2])
                name_row(like, image, reads, along, width, channels, item, best.ctypes.data, 0, lines[i, 1])
        _collect_row(
            like,
            lines.ctypes.data,
            up[h, 1],
            back,
            h * width,
            channels,
            item,
            dx.ctypes.data + row * width * channels * item,
        )


# --- means ------------------------------------------------------------------------------------------------------------


@routine
def _share_row(like, g, g_row, rows, divisors, step, columns, channels, item, out):
    """Sums down the columns of so many rows of gradients, each divided by the elements of its window."""
    apart()
    pixel = channels * item
    for q in range(len(columns)):
        sum_of_shares(like, g + q * pixel, g_row, rows, divisors, step, columns[q], out + q * pixel, channels)


@routine
def _spread_row(like, source, back, channels, item, out):
    """Each pixel of a row sums those that it belongs to the windows of."""
    apart()
    pixel = channels * item
    for w in range(len(back)):
        sum_of_pixels(like, source + back[w, 0] * pixel, back[w, 2] * pixel, back[w, 1], out + w * pixel, channels)


@kernel(streams=True)
def _mean_pixels_gradient(
    start: int, stop: int, g: In4, dx: Out4, up: Integers2, back: Integers2, rows: In1, columns: In1
) -> None:
    _mean_rows_gradient(start, stop, g, dx, up, back, rows, columns, np.empty((g.shape[2], g.shape[3]), g.dtype))


@device(counted=False)
def _mean_rows_gradient(
    start: Any, stop: Any, g: Any, dx: Any, up: Any, back: Any, rows: Any, columns: Any, shares: Any
) -> None:
    like, item = g.dtype.type(0), g.itemsize
    height, width, channels = dx.shape[1:]
    line = g.shape[2] * channels * item
    for row in range(start, stop):
        n, h = row // height, row % height
        first, count, step = up[h, 0], up[h, 1], up[h, 2]
        if (
            row == start or h == 0 or first != up[h - 1, 0] or count != up[h - 1, 1]
        ):  # else they are those of the row above
            source, divisors = g.ctypes.data + (n * g.shape[1] + first) * line, rows.ctypes.data + first * item
            _share_row(
                like, source, step * line, count, divisors, step * item, columns, channels, item, shares.ctypes.data
            )
        _spread_row(like, shares.ctypes.data, back, channels, item, dx.ctypes.data + row * width * channels * item)


@device(counted=False)
def _share(g: Any, row: Any, columns: Any, shares: Any) -> Any:
    """shares += g / (row columns), element by element."""
    for i in range(len(shares)):
        shares[i] += g[i] / (row * columns[i])


@device(counted=False)
def _interleaved(phases: Any, out: Any) -> Any:
    """Every so many elements of out from each of the phases."""
    stride, pairs = len(phases), len(out) // 2
    if stride == 1:
        copied(phases[0], out)
    elif stride == 2:  # known to the compiler, which then writes in vectors
        even, odd = phases[0], phases[1]
        for i in range(pairs):
            out[2 * i], out[2 * i + 1] = even[i], odd[i]
        if 2 * pairs < len(out):
            out[2 * pairs] = even[pairs]
    else:
        for first in range(min(stride, len(out))):
            phase = phases[first]
            for i in range((len(out) - first + stride - 1) // stride):
                out[stride * i + first] = phase[i]


@kernel(streams=True)
def _mean_planes_gradient(
    start: int, stop: int, g: In3, dx: Out3, up: Integers2, taps: Integers2, stride: int, rows: In1, columns: In1
) -> None:
    shares = np.empty(g.shape[2], g.dtype)
    phases = np.empty((stride, (dx.shape[2] + stride - 1) // stride), g.dtype)
    _mean_plane_rows_gradient(start, stop, g, dx, up, taps, rows, columns, shares, phases)


@device(counted=False)
def _mean_plane_rows_gradient(
    start: Any, stop: Any, g: Any, dx: Any, up: Any, taps: Any, rows: Any, columns: Any, shares: Any, phases: Any
) -> None:
    stride = len(phases)
    for n in range(start, stop):
        for h in range(dx.shape[1]):
            first, count, step = up[h, 0], up[h, 1], up[h, 2]
            if h and first == up[h - 1, 0] and count == up[h - 1, 1]:  # it belongs to the same windows
                copied(dx[n, h - 1], dx[n, h])
                continue
            shares[:] = 0
            for p in range(first, first + count * step, step):
                _share(g[n, p], rows[p], columns, shares)
            phases[:] = 0
            for t in range(len(taps)):
                a, b, w = taps[t, 0], taps[t, 1], taps[t, 2]
                added(shares[a:b], 1, phases[w % stride, w // stride : w // stride + b - a])
            _interleaved(phases, dx[n, h])


# --- drivers ----------------------------------------------------------------------------------------------------------


def _given(problem: PoolProblem, indices: Array, form: pool_forms.Form) -> Array:
    """The indices in the order of the form, and as the kernels take them."""
    if indices.dtype != np.int64:
        indices_inside(problem, indices)  # before numbers too large are made others
    return taken(indices, form.output_shape, form.order).astype(np.int64, copy=False)


def _look(problem: PoolProblem, places: Array) -> None:
    """A place that lies outside is an error; all threads look for it, since there are half as many bytes of them as of
    everything else."""
    flat = places.reshape(places.shape[0] * places.shape[1], -1)
    reach = np.empty((len(flat), 2), np.int64)
    _reach(len(flat), flat, reach, work=2 * flat.size)
    indices_inside(problem, reach)


def _scatter(form: pool_forms.Form, grad: Array, places: Array, dx: Array) -> None:
    count, size = form.input_shape[0], math.prod(a.extent for a in form.axes)
    work = dx.size + 2 * grad.size
    if form.planes:
        flat = taken(grad, (count, -1), form.order)
        _scatter_planes(count, flat, places.reshape(flat.shape), dx.reshape(count, size), work=work)
        return
    channels = form.input_shape[-1]
    pixels, run = taken(grad, (count, -1, channels), form.order), ALIGNMENT // grad.itemsize
    _scatter_pixels(
        count * -(-channels // run),
        pixels,
        places.reshape(pixels.shape),
        dx.reshape(count, size, channels),
        run,
        work=work,
    )


@lru_cache(maxsize=1024)
def _few_windows(form: pool_forms.Form) -> bool:
    """Whether a pixel belongs to so few windows that looking at all of them takes less time than finding each window's
    pixel."""
    return math.prod(int(windows(a)[:, 1].max()) for a in form.axes) <= _WINDOWS


@lru_cache(maxsize=1024)
def _tables(form: pool_forms.Form) -> tuple[Any, ...]:
    """What a gradient by pixels is told about its windows, rows of them that are kept, and rows of the image that are
    done together."""
    axes, inside, _ = sizes(form)
    above, up = inputs(axes[0]), windows(axes[0])
    return above, inputs(axes[1]), up, windows(axes[1]), kept_rows(up), unit_rows(above, inside[1])


def _collect(form: pool_forms.Form, grad: Array, x: Array, places: Array | None, dx: Array) -> bool:
    """Each pixel collects from the windows that it belongs to. False, and nothing done, where a place lies outside of
    its window."""
    axes, inside, outside = sizes(form)
    g, image = taken(grad, outside, form.order), taken(x, inside, form.order)
    above, along, *_, unit = tables = _tables(form)
    rows, parts = outside[0] * outside[1], -(-inside[0] * inside[1] // unit)
    if places is None:
        places = np.empty((0, 0, 0), np.int64)
    elif axes[1].dilation > 1:
        return False
    else:
        places, told = places.reshape(rows, *outside[2:]), np.empty(rows, np.int64)
        _misplaced(rows, places, above, along, inside[2], told, work=2 * grad.size)
        if told.any():
            return False
    _max_pixels_gradient(parts, g, image, places, dx.reshape(inside), *tables, work=x.size + 2 * grad.size * form.taps)
    return True


@driver(argmax_planes, named_pixels, _reach, _scatter_planes, _scatter_pixels, _misplaced, _max_pixels_gradient)
def max_pool_backward(
    problem: PoolProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, indices: Array | None = None
) -> None:
    form = pool_forms.form(problem)
    assert form is not None
    collects = not form.planes and _few_windows(form)
    places = None if indices is None else _given(problem, indices, form)
    if places is None and not collects:
        places = np.empty(form.output_shape, np.int64)
        name_maxima(form, x, np.empty(form.output_shape, x.dtype), places)
    with Written(outputs, form.order) as (dx,):
        if collects and _collect(form, grad, x, places, dx):
            return
        assert places is not None
        if indices is not None:
            _look(problem, places)
        _scatter(form, grad, places, dx)


@planned(_mean_planes_gradient, _mean_pixels_gradient)
def avg_pool_backward(problem: PoolProblem) -> Plan:
    form = pool_forms.form(problem)
    assert form is not None  # `accepts` has looked
    axes, inside, outside = (form.axes, form.input_shape, form.output_shape) if form.planes else sizes(form)
    counts = [np.maximum(np.array(a.counts(problem.padded)), 1).astype(arithmetic(problem)) for a in axes]
    kernel: Kernel = _mean_planes_gradient if form.planes else _mean_pixels_gradient
    total = inside[0] if form.planes else inside[0] * inside[1]
    along = (taps_inside(axes[1]), min(axes[1].stride, axes[1].extent)) if form.planes else (windows(axes[1]),)
    constants = (windows(axes[0]), *along, *counts)
    work = math.prod(inside) + math.prod(outside) * form.taps

    def run(grad: Array, x: Array, dx: Array) -> None:
        kernel(total, grad.reshape(outside), dx.reshape(inside), *constants, work=work)

    return run, form.order
