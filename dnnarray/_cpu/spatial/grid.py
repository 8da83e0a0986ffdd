"""Sampling at given places, on NumPy arrays: every mode is a product of taps along the axes.

Along one axis a place has one tap (nearest), two (linear) or four (cubic), each an index, a weight and the slope of
that weight. Pixels are rows of a table with the channels last, so that a tap of all places of a block is one gather of
rows; images of few channels are sampled plane by plane instead, all planes in one gather."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.blocks import borrow, give
from dnnarray._cpu.spatial.common import (
    SumTable,
    as_table,
    blocks,
    channels_last,
    cubic_slopes,
    cubic_weights,
    lies,
    table_bytes,
)
from dnnarray._cpu.sums import total
from dnnarray._problems.spatial_grid import AffineGridProblem, GridSampleProblem
from dnnarray._select import Cost, Device, Method

# Measured, as multiples of the arithmetic at the peak rate: gathering rows of many channels, gathering single numbers.
_PIXEL_WORK, _PLANE_WORK = 20, 65
_CALLS = 12  # of NumPy in one block, for each channel of a place
_LONG = 4  # times the usual block: the arithmetic of the places is many calls on short arrays
_PER_PLACE = 16  # numbers that a place needs beside its channels: indices, weights and slopes of its taps


@dataclass
class _Tap:
    """One tap of all places along one axis; None stands for "all inside", "weight 1", "slope 0"."""

    index: np.ndarray
    inside: np.ndarray | None
    weight: np.ndarray | None
    slope: np.ndarray | float | None


@dataclass
class _Axis:
    """All taps along one axis; `rate` is the derivative of the place in pixels by the coordinate of the grid."""

    extent: int
    taps: list[_Tap]
    rate: Any


# --- from a coordinate to taps ----------------------------------------------------------------------------------------


def _axis(problem: GridSampleProblem, coordinate: np.ndarray, extent: int) -> _Axis:
    middle = (extent - 1) / 2
    rate = middle if problem.align_corners else extent / 2
    place = coordinate * rate + middle
    if problem.mode == "bicubic":
        return _Axis(extent, _cubic_taps(problem, place, extent), rate)
    place, slope = _padded(problem, place, extent)
    if problem.mode == "nearest":
        return _Axis(extent, [_tap(np.rint(place), extent, None, None)], 0)
    low = np.floor(place)
    part = place - low
    return _Axis(extent, [_tap(low, extent, 1 - part, -1.0), _tap(low + 1, extent, part, 1.0)], rate * slope)


def _cubic_taps(problem: GridSampleProblem, place: np.ndarray, extent: int) -> list[_Tap]:
    """Four taps, each of which falls under the padding rule by itself."""
    low = np.floor(place)
    part = place - low
    numbers = [_padded(problem, low + k, extent)[0] for k in (-1, 0, 1, 2)]
    return [_tap(n, extent, w, s) for n, w, s in zip(numbers, cubic_weights(part), cubic_slopes(part), strict=True)]


def _tap(number: np.ndarray, extent: int, weight: np.ndarray | None, slope: Any) -> _Tap:
    """A tap at a whole `number`, which may lie outside (or be NaN): there it counts as 0."""
    inside = (number >= 0) & (number <= extent - 1)
    index = _clipped(number, extent).astype(np.intp)
    return _Tap(index, None if inside.all() else inside, weight, slope)


def _clipped(place: np.ndarray, extent: int) -> np.ndarray:
    """Into [0, extent - 1]; NaN becomes 0."""
    return np.fmin(np.fmax(place, 0), extent - 1)


def _padded(problem: GridSampleProblem, place: np.ndarray, extent: int) -> tuple[np.ndarray, Any]:
    """The place that the padding mode reads instead, and its derivative by the place."""
    if problem.padding_mode == "zeros":
        return place, 1
    slope: Any = 1
    if problem.padding_mode == "reflection":
        place, slope = _reflected(place, extent, problem.align_corners)
    slope = slope * ((place > 0) & (place < extent - 1))
    return _clipped(place, extent), slope


def _reflected(place: np.ndarray, extent: int, align_corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """Mirrored at the centres of the border pixels (align_corners) or at their outer edges, as often as needed."""
    low = 0.0 if align_corners else -0.5
    span = extent - 1 if align_corners else extent
    if span == 0:
        return np.zeros_like(place), np.zeros_like(place)
    turn = np.mod(place - low, 2 * span)
    back = turn > span
    return np.where(back, 2 * span - turn, turn) + low, np.where(back, -1, 1).astype(place.dtype)


# --- taps of a block --------------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """Places of some images and some rows of them; `base` is the first row of each place's image in the table of
    pixels."""

    where: tuple[slice, slice]
    axes: list[_Axis]
    base: np.ndarray

    def rows_of(self, y: np.ndarray) -> np.ndarray:
        """This block of an array N C P (O) Q, channels last."""
        images, lines = self.where
        return channels_last(y[images, :, lines], 1)

    def taps(self) -> Iterator[tuple[tuple[_Tap, ...], np.ndarray, np.ndarray | None]]:
        """Every combination of one tap an axis: the taps, the rows of the table, and which of them are inside."""
        for taps in product(*(axis.taps for axis in self.axes)):
            offset: Any = 0
            for axis, tap in zip(self.axes, taps, strict=True):
                offset = offset * axis.extent + tap.index
            masks = [tap.inside for tap in taps if tap.inside is not None]
            yield taps, self.base + offset, np.logical_and.reduce(masks) if masks else None


def _places(problem: GridSampleProblem, grid: np.ndarray) -> Iterator[tuple[slice, slice]]:
    """The images and rows of each block."""
    per_line = math.prod(grid.shape[2:-1]) * (problem.x.shape[1] + _PER_PLACE)
    return blocks(grid.shape[0], grid.shape[1], per_line, _LONG)


def _block(problem: GridSampleProblem, grid: np.ndarray, where: tuple[slice, slice]) -> _Block:
    space, part = problem.x.shape[2:], grid[where]
    # The grid names the axes from the fastest to the slowest, x first.
    axes = [_axis(problem, part[..., len(space) - 1 - i].reshape(-1), extent) for i, extent in enumerate(space)]
    images = np.arange(where[0].start, where[0].stop) * math.prod(space)
    return _Block(where, axes, np.repeat(images, math.prod(part.shape[1:-1])))


def _blocks(problem: GridSampleProblem, grid: np.ndarray) -> Iterator[_Block]:
    return (_block(problem, grid, where) for where in _places(problem, grid))


def _each(problem: GridSampleProblem, grid: np.ndarray, sample: Callable[[_Block], None]) -> None:
    """``sample(block)`` for all blocks, spread over threads."""

    def run(where: tuple[slice, slice]) -> None:
        sample(_block(problem, grid, where))

    threads.each(run, ((where,) for where in _places(problem, grid)), work=_CALLS * math.prod(problem.result.shape))


def _weight(taps: tuple[_Tap, ...], leave_out: int = -1) -> Any:
    """The product of the taps' weights, without that of one axis if asked."""
    weight: Any = None
    for i, tap in enumerate(taps):
        if i != leave_out and tap.weight is not None:
            weight = tap.weight if weight is None else weight * tap.weight
    return weight


def _gathered(table: np.ndarray, rows: np.ndarray, inside: np.ndarray | None) -> np.ndarray:
    """The rows, in memory that was borrowed."""
    # All rows exist; NumPy would buffer the result to find that out before it writes.
    values = table.take(rows, axis=0, out=borrow(table, (len(rows), table.shape[1])), mode="clip")
    if inside is not None:
        values[~inside] = 0
    return values


# --- grid_sample ------------------------------------------------------------------------------------------------------


def _summed(block: _Block, gather: Callable[..., np.ndarray], spread: tuple[Any, ...]) -> np.ndarray:
    """The weighted sum of all taps; ``weight[spread]`` broadcasts to what `gather` gives."""
    total: Any = None
    for taps, rows, inside in block.taps():
        values = gather(rows, inside)
        weight = _weight(taps)
        if weight is not None:
            values *= weight[spread]
        if total is None:
            total = values
        else:
            total += values
            give(values)
    return total


def _sample_pixels(
    problem: GridSampleProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray, grid: np.ndarray
) -> None:
    gather = partial(_gathered, as_table(x, 1, scratch))

    def sample(block: _Block) -> None:
        target = block.rows_of(outputs[0])
        total = _summed(block, gather, (slice(None), None))
        target[...] = total.reshape(target.shape)
        give(total)

    _each(problem, grid, sample)


def _sample_planes(
    problem: GridSampleProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray, grid: np.ndarray
) -> None:
    channels, pixels = x.shape[1], math.prod(x.shape[2:])
    flat = as_table(x, x.ndim - 1, scratch).reshape(-1)  # the memory order N C H W, whatever that of x
    planes = np.arange(channels)[:, None] * pixels

    def sample(block: _Block) -> None:
        # A row of the table of pixels counts image * pixels + pixel; here the channels lie between the two.
        start = planes + block.base * (channels - 1)

        def gather(rows: np.ndarray, inside: np.ndarray | None) -> np.ndarray:
            values = flat.take(start + rows)
            if inside is not None:
                np.copyto(values, 0, where=~inside)
            return values

        target = block.rows_of(outputs[0])
        target[...] = channels_last(_summed(block, gather, ()).reshape(channels, *target.shape[:-1]), 0)

    _each(problem, grid, sample)


def _grid_sample_backward(
    problem: GridSampleProblem,
    outputs: tuple[np.ndarray | None, ...],
    scratch: Any,
    grad: np.ndarray,
    x: np.ndarray,
    grid: np.ndarray,
) -> None:
    of_x, of_grid = outputs
    sums = None if of_x is None else SumTable(of_x, 1, scratch)
    table = as_table(x, 1, scratch, 0 if of_x is None else table_bytes(problem.x, 1)) if problem.moves else None
    if of_grid is not None:
        of_grid[...] = 0
    for block in _blocks(problem, grid) if sums is not None or table is not None else ():
        incoming = block.rows_of(grad)
        incoming = (
            incoming.reshape(-1, incoming.shape[-1])
            if incoming.size
            else np.zeros((len(block.base), x.shape[1]), x.dtype)
        )
        slopes: list[Any] = [0] * len(block.axes)
        for taps, rows, inside in block.taps():
            if sums is not None:
                _add_to_pixels(sums, incoming, rows, inside, _weight(taps))
            if table is not None:
                values = _gathered(table, rows, inside)
                along = total(values, (1,), incoming)[:, 0]
                give(values)
                slopes = [
                    s + along * tap.slope * _weight(taps, i)
                    for i, (s, tap) in enumerate(zip(slopes, taps, strict=True))
                ]
        if table is not None and of_grid is not None:
            _put_slopes(of_grid[block.where], block.axes, slopes)
    if sums is not None:
        sums.finish()


def _add_to_pixels(
    sums: SumTable, incoming: np.ndarray, rows: np.ndarray, inside: np.ndarray | None, weight: Any
) -> None:
    if inside is not None:
        rows, incoming = rows[inside], incoming[inside]
        weight = None if weight is None else weight[inside]
    sums.add(rows, incoming if weight is None else incoming * weight[:, None])


def _put_slopes(target: np.ndarray, axes: list[_Axis], slopes: list[Any]) -> None:
    last = len(axes) - 1
    for i, (axis, slope) in enumerate(zip(axes, slopes, strict=True)):
        target[..., last - i] = (slope * axis.rate).reshape(target.shape[:-1])


# --- affine_grid ------------------------------------------------------------------------------------------------------


def _coordinates(problem: AffineGridProblem, dtype: np.dtype) -> list[np.ndarray]:
    """Coordinates along W, H (and D): from -1 to 1, at the corners or at the centres of the pixels."""
    result = []
    for n in reversed(problem.space):
        steps = 2 * np.arange(n, dtype=np.float64) - (n - 1)
        result.append((steps / (max(n - 1, 1) if problem.align_corners else n)).astype(dtype))
    return result


def _affine_grid(problem: AffineGridProblem, outputs: tuple[np.ndarray, ...], scratch: Any, theta: np.ndarray) -> None:
    out = outputs[0]
    columns = theta.reshape(len(theta), *(1,) * len(problem.space), *theta.shape[1:])
    out[...] = columns[..., -1]
    for j, coordinate in enumerate(_coordinates(problem, theta.dtype)):
        along = coordinate.reshape(-1, *(1,) * (j + 1))  # j axes and the components follow
        out += along * columns[..., j]


def _affine_grid_backward(
    problem: AffineGridProblem, outputs: tuple[np.ndarray, ...], scratch: Any, grad: np.ndarray, theta: np.ndarray
) -> None:
    space = tuple(range(1, grad.ndim - 1))
    for j, coordinate in enumerate(_coordinates(problem, theta.dtype)):
        axis = grad.ndim - 2 - j
        summed = total(grad, tuple(a for a in space if a != axis))
        outputs[0][:, :, j] = _kept(total(summed * coordinate.reshape(-1, *(1,) * (j + 1)), (axis,)))
    outputs[0][:, :, -1] = _kept(total(grad, space))


def _kept(sums: np.ndarray) -> np.ndarray:
    """Sums over space as (N, coordinates)."""
    return sums.reshape(sums.shape[0], sums.shape[-1])


def _pixel_bytes(problem: GridSampleProblem) -> int:
    return table_bytes(problem.x, 1)


def _image_bytes(problem: GridSampleProblem) -> int:
    """One image for each thread."""
    images = problem.x.shape[0]
    return -(-_pixel_bytes(problem) // max(images, 1)) * min(images, threads.cores())


def _plane_bytes(problem: GridSampleProblem) -> int:
    return table_bytes(problem.x, problem.x.ndim - 1)


def _pixel_cost(problem: GridSampleProblem, device: Device) -> Cost:
    """A short row costs as much to find as a dozen channels to read."""
    channels = max(problem.x.shape[1], 1)
    return Cost(problem.flops * _PIXEL_WORK * (channels + 12) / channels, problem.bytes + _pixel_bytes(problem))


def _plane_cost(problem: GridSampleProblem, device: Device) -> Cost:
    return Cost(problem.flops * _PLANE_WORK, problem.bytes + _plane_bytes(problem))


def _sample_backward_bytes(problem: GridSampleProblem) -> int:
    """The sums and, where the places have a gradient, the pixels."""
    return table_bytes(problem.x, 1) * ((problem.outputs[0] is not None) + problem.moves)


def _no_corners(problem: GridSampleProblem, device: Device) -> str | None:
    """Why the compiled kernel cannot do it, or None."""
    if problem.mode != "bilinear" or problem.padding_mode == "reflection" or problem.x.ndim != 4:
        return "it takes mode='bilinear' in two dimensions, without reflection"
    if not any(lies(problem.x, order) and lies(problem.result, order) for order in ((0, 1, 2, 3), (0, 2, 3, 1))):
        return "it takes dense arrays whose channels are planes or the innermost axis in memory"
    return None if problem.x.size and problem.result.size else "there is nothing to do"


ALGORITHMS = {
    "grid_sample": (
        Method(
            "pixels",
            _sample_pixels,
            "one gather of pixels with all their channels for each tap",
            workspace=_pixel_bytes,
            cost=_pixel_cost,
        ),
        Method(
            "planes", _sample_planes, "one gather of numbers for each tap", workspace=_plane_bytes, cost=_plane_cost
        ),
        compiled.method(
            "pixel_vectors",
            "spatial.sampling",
            "grid_sample",
            "compiled: four pixels with all their channels for each place, over all threads",
            accepts=_no_corners,
            workspace=_image_bytes,
        ),
    ),
    "grid_sample_backward": (
        Method(
            "pixels",
            _grid_sample_backward,
            "one scattered sum of pixels for each tap",
            workspace=_sample_backward_bytes,
        ),
    ),
    "affine_grid": (Method("broadcast", _affine_grid, "a broadcast product for each coordinate"),),
    "affine_grid_backward": (Method("broadcast", _affine_grid_backward, "a sum for each coordinate"),),
}
