"""Windows over pixels whose channels are the lanes: where each channel's largest element stands, and which windows meet
which elements."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.pool.lanes import first_largest
from dnnarray._cpu.compiled.tile import apart, routine
from dnnarray._cpu.pool import forms as pool_forms
from dnnarray._problems.pool import Axis

Array = np.ndarray
_REACHES = 4


@routine
def name_row(like, x, above, along, width, channels, item, best, best_step, where):
    """The places of the largest elements of a row of windows of an image at x; `above` is the first row that they meet,
    how many and their step."""
    apart()
    pixel = channels * item
    first, rows, step = above
    for q in range(len(along)):
        left, taps, spread = along[q, 0], along[q, 1], along[q, 2]
        place = first * width + left
        first_largest(
            like,
            x + place * pixel,
            rows,
            step * width * pixel,
            taps,
            spread * pixel,
            place,
            step * width,
            spread,
            best + q * best_step,
            where + 4 * q * channels,
            channels,
        )


# --- tables of windows ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def inputs(axis: Any) -> Array:
    """Of each window along an axis the first element inside of the input, how many there are, and their step."""
    starts, ends = np.array(axis.bounds(), np.int64).reshape(-1, 2).T
    first = np.where(starts < 0, starts % axis.dilation, starts)
    return _table(first, -((first - ends) // axis.dilation), axis.dilation)


@lru_cache(maxsize=1024)
def windows(axis: Any) -> Array:
    """Of each element along an axis the first window that it belongs to, how many there are, and their step."""
    if not isinstance(axis, Axis):
        return inputs(axis.dual())
    at = np.arange(axis.extent) + axis.before
    common = math.gcd(axis.stride, axis.dilation)
    step = axis.dilation // common
    # Windows of which this is the number, modulo the step, begin a multiple of the dilation before the element.
    rest = at // common * pow(axis.stride // common, -1, step) % step
    low = np.maximum(-((axis.window * axis.dilation - axis.dilation - at) // axis.stride), 0)
    first = low + (rest - low) % step
    count = (np.minimum(at // axis.stride, axis.outputs - 1) - first) // step + 1
    return _table(first, np.where(at % common, 0, count), step)


def _table(first: Array, count: Array, step: int) -> Array:
    return np.stack([np.where(count > 0, first, 0), np.maximum(count, 0), np.full_like(first, step)], 1)


def kept_rows(windows: Array) -> int:
    """How many rows of windows must be at hand for each to be looked at once: from the first of an element to the last
    of all up to it."""
    first, count, step = windows[windows[:, 1] > 0].T
    return int((np.maximum.accumulate(first + (count - 1) * step) - first).max(initial=0)) + 1


def unit_rows(windows: Array, extent: int) -> int:
    """How many rows of an image are done by one thread: places sought by two for rows that meet the same windows are
    few beside all."""
    return min(extent, _REACHES * int(((windows[:, 1] - 1) * windows[:, 2] + 1).max(initial=1)))


def sizes(form: pool_forms.Form) -> tuple[tuple[Any, Any], tuple[int, ...], tuple[int, ...]]:
    """Axes and shapes by pixels, with rows of a single pixel where there is one axis: a part may begin at any row."""
    if form.axes[0] != pool_forms.ONE:
        return form.axes, form.input_shape, form.output_shape
    inside, outside = ((shape[0], shape[2], shape[1], shape[3]) for shape in (form.input_shape, form.output_shape))
    return (form.axes[1], form.axes[0]), inside, outside
