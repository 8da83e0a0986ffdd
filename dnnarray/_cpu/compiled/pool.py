"""Pooling over one or two spatial axes: the maximum, its place and gradient by planes of channels, maximum and mean also where channels are last.

Output q of an axis takes tap t from ``q stride + t dilation - before``. A tap is a loop over the outputs that have it inside of the input, so
that no padding is made and the loop runs in vectors.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In1, In3, In4, Integers1, Kernel, Out3, Out4, OutIntegers1, OutIntegers3, device, driver, kernel
from dnnarray._problems.pool import PoolProblem

Array = np.ndarray


@device
def _first(stride: Any, before: Any, shift: Any) -> Any:
    """The first output whose tap at this shift from its origin is inside of the input."""
    return max(0, -((shift - before) // stride))


@device
def _end(stride: Any, before: Any, shift: Any, extent: Any, outputs: Any) -> Any:
    """One past the last such output."""
    return min(outputs, (extent - 1 + before - shift) // stride + 1)


@device
def _larger(x: Any, stride: Any, best: Any) -> Any:
    """best = the larger of best and every `stride`-th x; NaN is larger than all."""
    if stride == 1:
        for i in range(len(best)):
            v = x[i]
            best[i] = v if (v > best[i]) | (v != v) else best[i]
    elif stride == 2:
        for i in range(len(best)):
            v = x[2 * i]
            best[i] = v if (v > best[i]) | (v != v) else best[i]
    else:
        for i in range(len(best)):
            v = x[stride * i]
            best[i] = v if (v > best[i]) | (v != v) else best[i]


@device
def _added(x: Any, stride: Any, total: Any) -> Any:
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
def _place(x: Any, stride: Any, place: Any, best: Any, where: Any) -> Any:
    """`_larger`, and in `where` the place of the first of the largest (the last NaN), of which `place` is that of x[0]."""
    for i in range(len(best)):
        v = x[stride * i]
        larger = (v > best[i]) | (v != v)
        best[i] = v if larger else best[i]
        where[i] = place + stride * i if larger else where[i]


@device
def _place_by_two(x: Any, place: Any, best: Any, where: Any) -> Any:
    """`_place` for the usual stride, known to the compiler."""
    for i in range(len(best)):
        v = x[2 * i]
        larger = (v > best[i]) | (v != v)
        best[i] = v if larger else best[i]
        where[i] = place + 2 * i if larger else where[i]


@kernel
def _max_planes(start: int, stop: int, x: In3, y: Out3, vertical: Integers1, horizontal: Integers1) -> None:
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape[1:]
    for n in range(start, stop):
        for p in range(y.shape[1]):
            out = y[n, p]
            out[:] = -np.inf
            for r in range(taps):
                h = p * step - top + r * spread
                if 0 <= h < height:
                    for s in range(window):
                        a, b = _first(stride, left, s * dilation), _end(stride, left, s * dilation, width, len(out))
                        if a < b:
                            _larger(x[n, h, a * stride + s * dilation - left :], stride, out[a:b])


@kernel
def _sum_planes(
    start: int, stop: int, x: In3, y: Out3, vertical: Integers1, horizontal: Integers1, rows: In1, columns: In1
) -> None:
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape[1:]
    for n in range(start, stop):
        for p in range(y.shape[1]):
            out = y[n, p]
            out[:] = 0
            for r in range(taps):
                h = p * step - top + r * spread
                if 0 <= h < height:
                    for s in range(window):
                        a, b = _first(stride, left, s * dilation), _end(stride, left, s * dilation, width, len(out))
                        if a < b:
                            _added(x[n, h, a * stride + s * dilation - left :], stride, out[a:b])
            _divided(out, rows[p], columns)


@device
def _divided(total: Any, row: Any, columns: Any) -> Any:
    for i in range(len(total)):
        total[i] = total[i] / (row * columns[i])


@device
def _places(x: Any, p: Any, vertical: Any, horizontal: Any, best: Any, where: Any) -> Any:
    """The maxima of one row of windows and their places in the plane; -1 where a window is empty."""
    step, top, spread, taps = vertical
    stride, left, dilation, window = horizontal
    height, width = x.shape
    best[:] = -np.inf
    where[:] = -1
    for r in range(taps):
        h = p * step - top + r * spread
        if 0 <= h < height:
            for s in range(window):
                a, b = _first(stride, left, s * dilation), _end(stride, left, s * dilation, width, len(best))
                if a < b:
                    w = a * stride + s * dilation - left
                    if r == 0 or where[a] < 0:
                        _begin(x[h, w:], stride, h * width + w, best[a:b], where[a:b])
                    if stride == 2:
                        _place_by_two(x[h, w:], h * width + w, best[a:b], where[a:b])
                    else:
                        _place(x[h, w:], stride, h * width + w, best[a:b], where[a:b])


@device
def _begin(x: Any, stride: Any, place: Any, best: Any, where: Any) -> Any:
    """The first tap of a window is its maximum so far, even if it is minus infinity."""
    for i in range(len(best)):
        if where[i] < 0:
            best[i] = x[stride * i]
            where[i] = place + stride * i


@kernel
def _argmax_planes(
    start: int, stop: int, x: In3, y: Out3, places: OutIntegers3, vertical: Integers1, horizontal: Integers1
) -> None:
    for n in range(start, stop):
        for p in range(y.shape[1]):
            _places(x[n], p, vertical, horizontal, y[n, p], places[n, p])


@kernel
def _max_planes_backward(start: int, stop: int, g: In3, x: In3, dx: Out3, vertical: Integers1, horizontal: Integers1) -> None:
    best, where = np.empty(g.shape[2], x.dtype), np.empty(g.shape[2], np.int64)
    for n in range(start, stop):
        plane = dx[n].reshape(-1)
        plane[:] = 0
        for p in range(g.shape[1]):
            _places(x[n], p, vertical, horizontal, best, where)
            for q in range(len(where)):
                if where[q] >= 0:
                    plane[where[q]] += g[n, p, q]


@kernel
def _scatter_planes(start: int, stop: int, g: In3, places: Integers1, dx: Out3) -> None:
    size = g.shape[1] * g.shape[2]
    for n in range(start, stop):
        plane, from_ = dx[n].reshape(-1), g[n].reshape(-1)
        where = places[n * size : (n + 1) * size]
        plane[:] = 0
        for i in range(len(where)):
            if where[i] >= 0:
                plane[where[i]] += from_[i]


@kernel
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


@kernel
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
                        _added(x[n, h, w], 1, out)
            _divided(out, rows[p] * columns[q], np.ones(1, x.dtype))
