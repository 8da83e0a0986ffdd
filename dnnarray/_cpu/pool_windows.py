"""Windows along one axis at a time: reduce them, find the maximum in them, spread a gradient over them, on NumPy arrays.

A window over several axes is the product of windows along each, so a sum or a maximum is done axis by axis: R + S steps where the
definition has R * S. All functions here see arrays N C *space.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

_BLOCK_BYTES = 1 << 19  # what is worked on at a time: intermediates stay in the second-level cache
_CHANNEL_RUN = 64  # fewest channels in a block where they are neighbours in memory
_SHORT_SUM = 256  # elements up to which a plain sum is as exact as a pairwise one, and faster as a product with ones

Selector = slice | np.ndarray


@dataclass(frozen=True, eq=False)
class Plan:
    """How to walk the windows along one axis.

    Attributes
    ----------
    taps : for each tap, the outputs that have it inside of the input and the input positions that it stands at
    order : the taps with those first that all outputs have, of which there are `full`
    windows : the input positions of each output where walking window by window takes fewer steps, else None
    origins : position of tap 0 of each output
    step : distance between neighbouring taps
    empty : outputs without any tap inside of the input
    trivial : each window is the one element at its own position
    """

    extent: int
    outputs: int
    taps: tuple[tuple[Selector, Selector], ...]
    order: tuple[int, ...]
    full: int
    windows: tuple[slice, ...] | None
    origins: np.ndarray
    step: int
    empty: np.ndarray
    trivial: bool


@lru_cache(maxsize=1024)
def plan(axis: Any) -> Plan:
    """The plan for the windows of a problem along one axis."""
    bounds = np.array(axis.bounds(), np.int64).reshape(axis.outputs, 2)
    origins, ends = bounds[:, 0], bounds[:, 1]
    taps, full = [], []
    reached = np.zeros(axis.outputs, bool)
    for t in range(axis.window):
        at = origins + t * axis.dilation
        inside = (at >= 0) & (at < ends)
        reached |= inside
        full.append(bool(inside.all()))
        taps.append((_as_slice(np.flatnonzero(inside)), _as_slice(at[inside])))
    trivial = axis.outputs == axis.extent and axis.window == 1 and full == [True]
    return Plan(
        axis.extent,
        axis.outputs,
        tuple(taps),
        tuple(sorted(range(len(taps)), key=lambda t: not full[t])),
        sum(full),
        _windows(origins, ends, axis.dilation) if axis.outputs < axis.window else None,
        origins,
        axis.dilation,
        np.flatnonzero(~reached),
        trivial,
    )


def _windows(origins: np.ndarray, ends: np.ndarray, step: int) -> tuple[slice, ...]:
    """The part of each window inside of the input; % finds the first tap at 0 or after."""
    starts = [start if start >= 0 else start % step for start in origins.tolist()]
    return tuple(slice(start, max(start, end), step) for start, end in zip(starts, ends.tolist(), strict=True))


def _as_slice(positions: np.ndarray) -> Selector:
    """Evenly spaced positions as a slice, which NumPy looks at without a copy; others as they are."""
    if not positions.size:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    if positions.size == 1:
        return slice(first, first + 1)
    step = int(positions[1]) - first
    return slice(first, last + 1, step) if step > 0 and (np.diff(positions) == step).all() else positions


def at(axis: int, selector: Selector) -> tuple[Any, ...]:
    """The index that selects along `axis` alone."""
    return (*(slice(None),) * axis, selector)


def blocks(x: np.ndarray) -> Sequence[tuple[slice, slice]]:
    """Blocks of images and channels, such that one block of x fits the cache; everything at once where x is small."""
    if x.nbytes <= _BLOCK_BYTES:
        return ((slice(None), slice(None)),)
    n, c = x.shape[:2]
    plane = x.nbytes // (n * c)
    least = _CHANNEL_RUN if x.strides[1] < x.strides[-1] else 1
    channels = min(c, max(least, _BLOCK_BYTES // plane))
    images = max(1, _BLOCK_BYTES // (plane * c)) if channels == c else 1
    return [(slice(i, i + images), slice(j, j + channels)) for i in range(0, n, images) for j in range(0, c, channels)]


def lowest(dtype: np.dtype) -> Any:
    """What loses against every number of this dtype in a maximum."""
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


# --- reduction --------------------------------------------------------------------------------------------------------


def reduce_windows(ufunc: np.ufunc, x: np.ndarray, plans: Sequence[Plan], out: np.ndarray, identity: Any) -> None:
    """out = the reduction of each window of x by `ufunc` (add, maximum); a window with nothing in it gives `identity`."""
    if all(p.outputs == 1 and p.windows == (slice(0, p.extent, 1),) for p in plans):
        _reduce_all(ufunc, x, out, identity)
        return
    work = [(axis, p) for axis, p in enumerate(plans, 2) if not p.trivial]
    for axis, p in work[:-1]:
        between = resized(x, axis, p.outputs)
        reduce_axis(ufunc, x, p, axis, between, identity)
        x = between
    if work:
        reduce_axis(ufunc, x, work[-1][1], work[-1][0], out, identity)
    else:
        out[...] = x


def _reduce_all(ufunc: np.ufunc, x: np.ndarray, out: np.ndarray, identity: Any) -> None:
    """out = the reduction over all spatial axes. NumPy starts anew for each channel, so small ones are summed as a matrix product."""
    size = math.prod(x.shape[2:])
    if ufunc is np.add and size <= _SHORT_SUM and x.flags.c_contiguous:
        out[...] = np.matmul(x.reshape(-1, size), np.ones(size, x.dtype)).reshape(out.shape)
    else:
        ufunc.reduce(x, axis=tuple(range(2, x.ndim)), out=out, keepdims=True, initial=identity)


def resized(x: np.ndarray, axis: int, extent: int, dtype: Any = None) -> np.ndarray:
    """An uninitialised array in the memory order of x with another extent along `axis`."""
    return np.empty_like(x, dtype, shape=(*x.shape[:axis], extent, *x.shape[axis + 1 :]))


def reduce_axis(ufunc: np.ufunc, x: np.ndarray, p: Plan, axis: int, out: np.ndarray, identity: Any) -> None:
    """out = the reduction of each window along one axis."""
    if p.windows is not None:
        for i, window in enumerate(p.windows):
            ufunc.reduce(x[at(axis, window)], axis=axis, out=out[at(axis, slice(i, i + 1))], keepdims=True, initial=identity)
        return
    inputs = [x[at(axis, p.taps[t][1])] for t in p.order]
    done = min(p.full, 2)
    if done == 2:
        ufunc(inputs[0], inputs[1], out=out)
    else:
        out[...] = inputs[0] if done else identity
    for t, values in zip(p.order[done:], inputs[done:], strict=True):
        _combine(ufunc, out, axis, p.taps[t][0], values)


def _combine(ufunc: np.ufunc, out: np.ndarray, axis: int, selector: Selector, values: np.ndarray) -> None:
    """out[selector] = ufunc(out[selector], values), in place where a slice allows it."""
    index = at(axis, selector)
    if isinstance(selector, slice):
        view = out[index]
        ufunc(view, values, out=view)
    else:
        out[index] = ufunc(out[index], values)


# --- position of the maximum ------------------------------------------------------------------------------------------


def argmax_windows(x: np.ndarray, plans: Sequence[Plan]) -> tuple[np.ndarray, np.ndarray]:
    """Maximum of each window and its flat position in *space: the first of equal ones, the last NaN, -1 where there is none.

    From the last axis to the first: the first row that holds the maximum, and in that row the first column.
    """
    flat, below = None, 1
    for axis in range(x.ndim - 1, 1, -1):
        p = plans[axis - 2]
        largest = resized(x, axis, p.outputs)
        reduce_axis(np.maximum, x, p, axis, largest, lowest(x.dtype))
        position = _locate(x, largest, p, axis)
        inner = 0 if flat is None else np.take_along_axis(flat, position, axis)
        flat, below, x = inner + position * below, below * p.extent, largest
    assert flat is not None
    for axis, p in enumerate(plans, 2):
        if p.empty.size:
            flat[at(axis, p.empty)] = -1
    return x, flat


def _locate(x: np.ndarray, largest: np.ndarray, p: Plan, axis: int) -> np.ndarray:
    """Position along `axis` of the maximum of each window; 0 where a window is empty."""
    has_nan = x.dtype.kind == "f" and bool(np.isnan(largest).any())
    if p.windows is not None:
        position = _locate_by_window(x, p.windows, axis, has_nan, np.empty_like(largest, np.int64))
    else:
        position = _locate_by_tap(x, largest, p, axis, has_nan)
    if p.empty.size:
        position[at(axis, p.empty)] = 0
    return position


def _locate_by_window(x: np.ndarray, windows: tuple[slice, ...], axis: int, has_nan: bool, position: np.ndarray) -> np.ndarray:
    for i, window in enumerate(windows):
        inside = x[at(axis, window)]
        if not inside.shape[axis]:
            continue
        found = np.argmax(inside, axis, keepdims=True)
        if has_nan:
            nan = np.isnan(inside)
            last = inside.shape[axis] - 1 - np.argmax(np.flip(nan, axis), axis, keepdims=True)
            found = np.where(nan.any(axis, keepdims=True), last, found)
        position[at(axis, slice(i, i + 1))] = found * window.step + window.start
    return position


def _locate_by_tap(x: np.ndarray, largest: np.ndarray, p: Plan, axis: int, has_nan: bool) -> np.ndarray:
    """Counts the taps before the first one that equals the maximum: comparisons and byte additions, which vectorise well."""
    missing = np.ones_like(largest, bool)
    tap = np.zeros_like(largest, np.min_scalar_type(len(p.taps)))
    for outputs, inputs in p.taps:
        differs = np.not_equal(x[at(axis, inputs)], largest[at(axis, outputs)])
        _combine(np.logical_and, missing, axis, outputs, differs)
        np.add(tap, missing, out=tap)
    if has_nan:
        for t, (outputs, inputs) in enumerate(p.taps):
            index = at(axis, outputs)
            tap[index] = np.where(np.isnan(x[at(axis, inputs)]), tap.dtype.type(t), tap[index])
    origins = p.origins.reshape(-1, *(1,) * (x.ndim - 1 - axis))
    return np.multiply(tap, p.step, dtype=np.int64) + origins


# --- gradients --------------------------------------------------------------------------------------------------------


def spread_windows(grad: np.ndarray, plans: Sequence[Plan], out: np.ndarray) -> None:
    """out = the transpose of a sum over windows: each element collects the gradients of the windows it belongs to."""
    work = [(axis, p) for axis, p in enumerate(plans, 2) if not p.trivial]
    for axis, p in work[:-1]:
        between = resized(grad, axis, p.extent)
        _spread_axis(grad, p, axis, between)
        grad = between
    if work:
        _spread_axis(grad, work[-1][1], work[-1][0], out)
    else:
        out[...] = grad


def _spread_axis(grad: np.ndarray, p: Plan, axis: int, out: np.ndarray) -> None:
    out[...] = 0
    if p.windows is not None:
        for i, window in enumerate(p.windows):
            out[at(axis, window)] += grad[at(axis, slice(i, i + 1))]
        return
    for outputs, inputs in p.taps:
        out[at(axis, inputs)] += grad[at(axis, outputs)]


def scatter(values: np.ndarray, indices: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = 0, then each value goes to (is added to) the flat spatial position that its index names; -1 names none."""
    target = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    target[...] = 0
    place, flat = _flat_positions(indices, out), values.reshape(-1)
    named = indices.reshape(-1) >= 0
    if not named.all():
        place, flat = place[named], flat[named]
    if add:
        np.add.at(target.reshape(-1), place, flat)
    else:
        target.reshape(-1)[place] = flat
    if target is not out:
        out[...] = target


def gather(x: np.ndarray, indices: np.ndarray, out: np.ndarray) -> None:
    """out = the elements of x at the flat spatial positions that the indices name."""
    out[...] = x.reshape(-1)[_flat_positions(indices, x)].reshape(out.shape)


def _flat_positions(indices: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Spatial positions of each channel as positions in the whole array x, flat, in the order of the indices."""
    planes, per_plane = math.prod(indices.shape[:2]), math.prod(indices.shape[2:])
    start = np.arange(planes) * math.prod(x.shape[2:])
    return (indices.reshape(planes, per_plane) + start[:, None]).reshape(-1)
