"""Region pooling on NumPy arrays: boxes with equally many samples a bin go together, one gather of pixels for each
tap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np

from dnnarray._cpu.spatial.common import BLOCK, SumTable, as_table, channels_last, table_bytes
from dnnarray._problems.spatial_roi import RoiAlignProblem
from dnnarray._select import Method


@dataclass
class _Along:
    """Samples along one axis, (boxes, bins, samples): the two pixels around each, their weights, and whether it
    counts."""

    indices: tuple[np.ndarray, np.ndarray]
    weights: tuple[np.ndarray, np.ndarray]
    inside: np.ndarray

    @property
    def samples(self) -> int:
        return self.inside.shape[2]

    def different(self) -> list[int]:
        """The samples that count in some bin, and one that counts in none to stand for all such: a huge box has
        many."""
        counts = self.inside.any(axis=(0, 1))
        return [*np.flatnonzero(counts).tolist(), *np.flatnonzero(~counts)[:1].tolist()]


@dataclass
class _Group:
    """Boxes `where` that have the same number of samples in each bin; `base` is the first table row of each box's
    image."""

    where: np.ndarray
    base: np.ndarray
    y: _Along
    x: _Along

    def taps(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each sample of a bin and each of its four pixels: table rows, weights and validity, (boxes, P, Q)."""
        for i, j in product(self.y.different(), self.x.different()):
            inside = self.y.inside[:, :, i, None] & self.x.inside[:, None, :, j]
            for a, b in product((0, 1), (0, 1)):
                rows = (self.base + self.y.indices[a][:, :, i])[:, :, None] + self.x.indices[b][:, None, :, j]
                yield rows, self.y.weights[a][:, :, i, None] * self.x.weights[b][:, None, :, j], inside

    @property
    def samples(self) -> int:
        return self.y.samples * self.x.samples


def _groups(problem: RoiAlignProblem, boxes: np.ndarray) -> Iterator[_Group]:
    height, width = problem.x.shape[2:]
    bins = np.array(problem.output_size)
    offset = 0.5 if problem.aligned else 0.0
    low = boxes[:, [2, 1]] * problem.spatial_scale - offset
    size = boxes[:, [4, 3]] * problem.spatial_scale - offset - low
    if not problem.aligned:
        size = np.maximum(size, 1)
    step = size / bins.astype(size.dtype)
    counts = (
        np.full(size.shape, problem.sampling_ratio)
        if problem.sampling_ratio
        else np.maximum(np.ceil(step), 0).astype(np.intp)
    )
    per_box = max(int(bins.prod()) * problem.x.shape[1], 1)
    for where, (rows, columns) in _alike(counts, max(BLOCK // per_box, 1)):
        base = boxes[where, 0].astype(np.intp)[:, None] * (height * width)
        y = _along(low[where, 0], step[where, 0], problem.output_size[0], rows, height)
        x = _along(low[where, 1], step[where, 1], problem.output_size[1], columns, width)
        y.indices = (y.indices[0] * width, y.indices[1] * width)
        yield _Group(where, base, y, x)


def _alike(counts: np.ndarray, most: int) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """The boxes with equal counts, at most `most` at a time."""
    radix = int(counts.max(initial=0)) + 1
    numbers = counts[:, 0] * radix + counts[:, 1]
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    for start, end in pairwise([0, *changes.tolist(), len(order)]):
        for first in range(start, end, most):
            yield order[first : min(first + most, end)], divmod(int(numbers[start]), radix)


def _along(low: np.ndarray, step: np.ndarray, bins: int, samples: int, extent: int) -> _Along:
    """`samples` places in each of `bins` steps from `low`. Up to a pixel outside, the border is read; further out is
    0."""
    part = (np.arange(samples, dtype=low.dtype) + low.dtype.type(0.5)) / max(samples, 1)
    steps = np.arange(bins, dtype=low.dtype)[:, None] + part
    place = low[:, None, None] + step[:, None, None] * steps
    inside = (place >= -1) & (place <= extent)
    place = np.clip(place, 0, extent - 1)
    low_pixel = np.floor(place)
    first, part = low_pixel.astype(np.intp), place - low_pixel
    return _Along((first, np.minimum(first + 1, extent - 1)), (1 - part, part), inside)


def _contribution(table: np.ndarray, rows: np.ndarray, weight: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """weight * pixel, (boxes, P, Q, C); 0 for samples that do not count."""
    values = table.take(rows, axis=0)
    values *= weight[..., None]
    if not inside.all():
        values[~inside] = 0
    return values


def _roi_align(
    problem: RoiAlignProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray, boxes: np.ndarray
) -> None:
    table = as_table(x, 1, scratch)
    out = channels_last(outputs[0], 1)
    combine = np.add if problem.mode == "avg" else np.maximum
    for group in _groups(problem, boxes):
        total: Any = None
        for tap in group.taps():
            values = _contribution(table, *tap)
            if total is None:
                total = values.astype(np.float64) if combine is np.add else values
            else:
                combine(total, values, out=total)
        if total is None:
            out[group.where] = 0
        else:
            out[group.where] = total / group.samples if problem.mode == "avg" else total


def _roi_align_backward(
    problem: RoiAlignProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: Any,
    grad: np.ndarray,
    x: np.ndarray,
    boxes: np.ndarray,
) -> None:
    sums = SumTable(outputs[0], 1, scratch)
    incoming = channels_last(grad, 1)
    if problem.mode == "avg":
        for group in _groups(problem, boxes):
            shared = incoming[group.where] / max(group.samples, 1)
            for rows, weight, inside in group.taps():
                sums.add(rows[inside], shared[inside] * weight[inside][:, None])
    else:
        table = as_table(x, 1, scratch, table_bytes(problem.x, 1))
        for group in _groups(problem, boxes):
            if group.samples:
                sums.add_elements(*_to_the_largest(table, group, incoming[group.where], sums.columns))
    sums.finish()


def _to_the_largest(
    table: np.ndarray, group: _Group, incoming: np.ndarray, columns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The gradient of a maximum: to the first of the largest contributions (NaN is the largest), as flat indices and
    values."""
    best: Any = None
    for rows, weight, inside in group.taps():
        values = _contribution(table, rows, weight, inside)
        rows, weight = rows[..., None], np.where(inside, weight, 0)[..., None]
        if best is None:
            best, where, factors = (
                values,
                np.broadcast_to(rows, values.shape).copy(),
                np.broadcast_to(weight, values.shape).copy(),
            )
            continue
        better = values > best
        if np.isnan(values.max(initial=-np.inf)):
            better |= np.isnan(values) & ~np.isnan(best)
        for kept, new in ((best, values), (where, rows), (factors, weight)):
            np.copyto(kept, new, where=better)
    return where * len(columns) + columns, incoming * factors


def _bytes(problem: RoiAlignProblem) -> int:
    return table_bytes(problem.x, 1)


def _backward_bytes(problem: RoiAlignProblem) -> int:
    """The sums and, for the maximum, the pixels."""
    return table_bytes(problem.x, 1) * (2 if problem.mode == "max" else 1)


ALGORITHMS = {
    "roi_align": (Method("taps", _roi_align, "one gather of pixels for each tap of each sample", workspace=_bytes),),
    "roi_align_backward": (
        Method(
            "taps",
            _roi_align_backward,
            "one scattered sum of pixels for each tap of each sample",
            workspace=_backward_bytes,
        ),
    ),
}
