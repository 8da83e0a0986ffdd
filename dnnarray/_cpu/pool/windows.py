"""Windows along one axis at a time: reduce them, find the maximum in them, spread a gradient over them, on NumPy
arrays.

A window over several axes is the product of windows along each, so a sum or a maximum is done axis by axis: R + S steps
where the definition has R * S. All functions here see arrays N C *space."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu.blocks import borrow, give
from dnnarray._cpu.sums import Cascade, total
from dnnarray._records import frozen

_BLOCK_BYTES = 1 << 21  # what is worked on at a time: NumPy calls long enough for threads, intermediates bounded
_CHANNEL_RUN = 64  # fewest channels in a block where they are neighbours in memory
_MANY_TAPS = 64  # of a window, that are not added one after the other
_STRIDES = 4  # the largest whose phases are copied apart
_SHORT_WINDOW = 8  # taps up to which strided passes over all outputs beat a reduction that starts anew for each row

Selector = slice | np.ndarray
Index = tuple[Any, ...]


@frozen(eq=False)
class Plan:
    """How to walk the windows along one axis of an array N C *space; what to look at is kept as ready indices.

    Attributes
    ----------
    axis, extent, outputs : the axis of the array, its extent, the number of windows
    taps : for each tap, the outputs that have it inside of the input, and the inputs that it stands at
    order : the taps with those first that all outputs have, of which there are `full`
    windows : each output and its inputs, where walking window by window takes fewer steps; else None
    origins, step : position of the first of `taps` in each output, and from one tap to the next
    empty : outputs without any tap inside of the input
    trivial : each window is the one element at its own position
    whole : there is one window, and it is everything
    stride : from one output of a tap to the next in the input, where it is the same for all and small enough to copy
        apart; else 0
    """

    axis: int
    extent: int
    outputs: int
    taps: tuple[tuple[Index, Index], ...]
    order: tuple[int, ...]
    full: int
    windows: tuple[tuple[Index, Index], ...] | None
    origins: np.ndarray
    step: int
    empty: np.ndarray
    trivial: bool
    whole: bool
    stride: int


@lru_cache(maxsize=1024)
def plan_axes(axes: tuple[Any, ...]) -> tuple[Plan, ...]:
    """The plans for the spatial axes of a problem."""
    return tuple(_plan(axis, i) for i, axis in enumerate(axes, 2))


def _plan(windows: Any, axis: int) -> Plan:
    bounds = np.array(windows.bounds(), np.int64).reshape(windows.outputs, 2)
    origins, ends = bounds[:, 0], bounds[:, 1]
    # Of a window much longer than the input most taps lie in the padding for every output; the walk begins at the first
    # that does not.
    first = max(0, -(int(origins.max()) // windows.dilation)) if origins.size else 0
    end = min(windows.window, (windows.extent - 1 - int(origins.min())) // windows.dilation + 1) if origins.size else 0
    places = [origins + t * windows.dilation for t in range(first, end)]
    inside = [(place >= 0) & (place < ends) for place in places]
    full = [bool(i.all()) for i in inside]
    taps = [
        (at(axis, _as_slice(np.flatnonzero(i))), at(axis, _as_slice(place[i])))
        for place, i in zip(places, inside, strict=True)
    ]
    by_window = max(windows.outputs, _SHORT_WINDOW) < windows.window
    return Plan(
        axis,
        windows.extent,
        windows.outputs,
        tuple(taps),
        tuple(sorted(range(len(taps)), key=lambda t: not full[t])),
        sum(full),
        _one_by_one(axis, origins, ends, windows.dilation) if by_window else None,
        origins + first * windows.dilation,
        windows.dilation,
        np.flatnonzero(~np.any(inside, axis=0)) if inside else np.arange(windows.outputs),
        trivial=windows.outputs == windows.extent and full == [True],
        whole=windows.counts(False) == [windows.extent],
        stride=_stride(inputs[-1] for _, inputs in taps),
    )


def _stride(inputs: Iterable[Selector]) -> int:
    steps = {s.step if isinstance(s, slice) else 0 for s in inputs if not isinstance(s, slice) or s.step is not None}
    step = steps.pop() if len(steps) == 1 else 0
    return step if 1 < step <= _STRIDES else 0


def _one_by_one(axis: int, origins: np.ndarray, ends: np.ndarray, step: int) -> tuple[tuple[Index, Index], ...]:
    """Each output with the part of its window inside of the input; % finds the first tap at 0 or after."""
    starts = [start if start >= 0 else start % step for start in origins.tolist()]
    inputs = [slice(start, max(start, end), step) for start, end in zip(starts, ends.tolist(), strict=True)]
    return tuple((at(axis, slice(i, i + 1)), at(axis, window)) for i, window in enumerate(inputs))


def _as_slice(positions: np.ndarray) -> Selector:
    """Evenly spaced positions as a slice, which NumPy looks at without a copy; others as they are."""
    if not positions.size:
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    if positions.size == 1:
        return slice(first, first + 1)
    step = int(positions[1]) - first
    return slice(first, last + 1, step) if step > 0 and (np.diff(positions) == step).all() else positions


def at(axis: int, selector: Selector) -> Index:
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
    """out = the reduction of each window of x by `ufunc` (add, maximum); a window with nothing in it gives
    `identity`."""
    if all(p.whole for p in plans):
        _reduce_all(ufunc, x, out, identity)
        return
    work = [p for p in plans if not p.trivial]
    lent = []
    for p in work[:-1]:
        lent.append(_lent(x, p.axis, p.outputs))
        reduce_axis(ufunc, x, p, lent[-1], identity)
        x = lent[-1]
    if work:
        reduce_axis(ufunc, x, work[-1], out, identity)
    else:
        out[...] = x
    give(*lent)


def _reduce_all(ufunc: np.ufunc, x: np.ndarray, out: np.ndarray, identity: Any) -> None:
    """out = the reduction over all spatial axes."""
    _reduce(ufunc, x, tuple(range(2, x.ndim)), out, identity)


def _reduce(ufunc: np.ufunc, x: np.ndarray, axes: tuple[int, ...], out: np.ndarray, identity: Any) -> None:
    if ufunc is np.add:
        out[...] = total(x, axes)
    else:
        ufunc.reduce(x, axis=axes, out=out, keepdims=True, initial=identity)


def resized(x: np.ndarray, axis: int, extent: int) -> np.ndarray:
    """An uninitialised array in the memory order of x with another extent along `axis`."""
    return np.empty_like(x, shape=(*x.shape[:axis], extent, *x.shape[axis + 1 :]))


def _lent(x: np.ndarray, axis: int, extent: int) -> np.ndarray:
    """`resized`, to be given back."""
    if x.strides[-1] != x.itemsize:
        return resized(x, axis, extent)
    return borrow(x, (*x.shape[:axis], extent, *x.shape[axis + 1 :]))


def reduce_axis(ufunc: np.ufunc, x: np.ndarray, p: Plan, out: np.ndarray, identity: Any) -> None:
    """out = the reduction of each window along one axis."""
    if p.windows is not None:
        for output, inputs in p.windows:
            _reduce(ufunc, x[inputs], (p.axis,), out[output], identity)
        return
    if ufunc is np.add and len(p.taps) > _MANY_TAPS:
        _add_taps(x, p, out)
        return
    phases = _phases(x, p)
    taps = [
        phases[inputs[-1].start % p.stride][_within_phase(inputs, p.stride)] if phases else x[inputs]
        for _, inputs in p.taps
    ]
    done = min(p.full, 2)
    if done == 2:
        ufunc(taps[p.order[0]], taps[p.order[1]], out=out)
    else:
        out[...] = taps[p.order[0]] if done else identity
    for t in p.order[done:]:
        outputs, inputs = p.taps[t]
        phase = phases[inputs[-1].start % p.stride] if phases else None
        if phase is None or not _combine_runs(ufunc, out, outputs[-1], phase, inputs[-1].start // p.stride):
            _combine(ufunc, out, outputs, taps[t])
    give(*phases)


def _add_taps(x: np.ndarray, p: Plan, out: np.ndarray) -> None:
    """`reduce_axis` for sums of many taps."""
    sums = Cascade(out, len(p.taps))
    for outputs, inputs in p.taps:
        _combine(np.add, sums.low, outputs, x[inputs])
        sums.step()
    sums.finish()


def _phases(x: np.ndarray, p: Plan) -> list[np.ndarray]:
    """Copies of every so many neighbours, in which each tap is a run: NumPy's arithmetic is several times faster on
    runs. None where that brings nothing."""
    if len(p.taps) <= p.stride or x.strides[p.axis] != x.itemsize or p.axis != x.ndim - 1 or not p.stride:
        return []
    phases = []
    for first in range(min(p.stride, p.extent)):
        neighbours = x[..., first :: p.stride]
        phases.append(borrow(neighbours))
        phases[-1][...] = neighbours
    return phases


def _within_phase(inputs: Index, stride: int) -> Index:
    """Where the inputs of a tap stand in their phase."""
    first = inputs[-1].start // stride
    return (..., slice(first, first + len(range(inputs[-1].start, inputs[-1].stop, stride))))


def _combine_runs(ufunc: np.ufunc, out: np.ndarray, outputs: Selector, phase: np.ndarray, first: int) -> bool:
    """`_combine` along the last axis with a tap that starts at `first` in its phase; False where rows are not as long
    in both.

    A shift of every row is one of the whole array, a single run of memory. The outputs that do not have the tap are put
    back."""
    if (
        not isinstance(outputs, slice)
        or out.shape != phase.shape
        or not out.flags.c_contiguous
        or out.size <= abs(first - outputs.start)
    ):
        return False
    others = [out[..., part] for part in (slice(outputs.start), slice(outputs.stop, None))]
    kept = [part.copy() for part in others]
    shift, end = first - outputs.start, out.size
    target = out.reshape(-1)[max(-shift, 0) : end - max(shift, 0)]
    ufunc(target, phase.reshape(-1)[max(shift, 0) : end - max(-shift, 0)], out=target)
    for part, values in zip(others, kept, strict=True):
        part[...] = values
    return True


def _combine(ufunc: np.ufunc, out: np.ndarray, index: Index, values: np.ndarray) -> None:
    """out[index] = ufunc(out[index], values), in place where a slice allows it."""
    if isinstance(index[-1], slice):
        view = out[index]
        ufunc(view, values, out=view)
    else:
        out[index] = ufunc(out[index], values)


# --- position of the maximum ------------------------------------------------------------------------------------------


def argmax_windows(x: np.ndarray, plans: Sequence[Plan]) -> tuple[np.ndarray, np.ndarray]:
    """Maximum of each window and its flat position in *space: the first of equal ones, the last NaN, -1 where there is
    none.

    From the last axis to the first: the first row that holds the maximum, and in that row the first column.
    """
    flat, below = None, 1
    for p in reversed(plans):
        largest = resized(x, p.axis, p.outputs)
        reduce_axis(np.maximum, x, p, largest, lowest(x.dtype))
        position = _locate(x, largest, p)
        inner = 0 if flat is None else np.take_along_axis(flat, position, p.axis)
        flat, below, x = inner + position * below, below * p.extent, largest
    assert flat is not None
    for p in plans:
        if p.empty.size:
            flat[at(p.axis, p.empty)] = -1
    return x, flat


def _locate(x: np.ndarray, largest: np.ndarray, p: Plan) -> np.ndarray:
    """Position along one axis of the maximum of each window; 0 where a window is empty."""
    has_nan = x.dtype.kind == "f" and bool(np.isnan(largest).any())
    if p.windows is not None:
        position = _locate_by_window(x, p.windows, p.axis, has_nan, np.empty_like(largest, np.int64))
    else:
        position = _locate_by_tap(x, largest, p, has_nan)
    if p.empty.size:
        position[at(p.axis, p.empty)] = 0
    return position


def _locate_by_window(
    x: np.ndarray, windows: tuple[tuple[Index, Index], ...], axis: int, has_nan: bool, position: np.ndarray
) -> np.ndarray:
    for output, inputs in windows:
        inside = x[inputs]
        if not inside.shape[axis]:
            continue
        found = np.argmax(inside, axis, keepdims=True)
        if has_nan:
            nan = np.isnan(inside)
            last = inside.shape[axis] - 1 - np.argmax(np.flip(nan, axis), axis, keepdims=True)
            found = np.where(nan.any(axis, keepdims=True), last, found)
        position[output] = found * inputs[-1].step + inputs[-1].start
    return position


def _locate_by_tap(x: np.ndarray, largest: np.ndarray, p: Plan, has_nan: bool) -> np.ndarray:
    """Counts the taps before the first one that equals the maximum: comparisons and byte additions, which vectorise
    well."""
    missing = np.ones_like(largest, bool)
    tap = np.zeros_like(largest, np.min_scalar_type(len(p.taps)))
    for outputs, inputs in p.taps:
        _combine(np.logical_and, missing, outputs, np.not_equal(x[inputs], largest[outputs]))
        np.add(tap, missing, out=tap)
    if has_nan:
        for t, (outputs, inputs) in enumerate(p.taps):
            tap[outputs] = np.where(np.isnan(x[inputs]), tap.dtype.type(t), tap[outputs])
    origins = p.origins.reshape(-1, *(1,) * (x.ndim - 1 - p.axis))
    return np.multiply(tap, p.step, dtype=np.int64) + origins


# --- gradients --------------------------------------------------------------------------------------------------------


def spread_windows(grad: np.ndarray, plans: Sequence[Plan], out: np.ndarray) -> None:
    """out = the transpose of a sum over windows: each element collects the gradients of the windows it belongs to."""
    work = [p for p in plans if not p.trivial]
    for p in work[:-1]:
        between = resized(grad, p.axis, p.extent)
        spread_axis(grad, p, between)
        grad = between
    if work:
        spread_axis(grad, work[-1], out)
    else:
        out[...] = grad


def spread_axis(grad: np.ndarray, p: Plan, out: np.ndarray) -> None:
    """out = the transpose of a sum over windows along one axis."""
    steps = p.taps if p.windows is None else p.windows
    sums = Cascade(out, len(steps))
    for outputs, inputs in steps:
        sums.low[inputs] += grad[outputs]
        sums.step()
    sums.finish()


def scatter(values: np.ndarray, indices: np.ndarray, out: np.ndarray, add: bool) -> None:
    """out = 0, then each value goes to (is added to) the flat spatial position that its index names; -1 names none."""
    target = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    target[...] = 0
    place, flat = _flat_positions(indices, out), values.reshape(-1)
    named = indices.reshape(-1) >= 0
    if not named.all():
        place, flat = place[named], flat[named]
    if add and len(flat) > _MANY_TAPS:
        # In float64: a sum may have as many terms as a window has elements.
        sums = np.bincount(place, flat, target.size)
        target.reshape(-1)[...] = sums
    elif add:
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
    return (indices.reshape(planes, per_plane).astype(np.int64, copy=False) + start[:, None]).reshape(-1)
