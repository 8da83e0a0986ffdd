"""A norm as a matrix or as planes of channels: the two forms that the compiled kernels know, read off the problem."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen

_LEAST_CHANNELS = 8  # of columns: fewer fill no vector


@frozen
class Rows:
    """x as (rows, length), a statistic for each row.

    Element l of row r has the parameter ``(r % period) * (length // inner) + l // inner``.
    """

    rows: int
    length: int
    period: int
    inner: int

    @property
    def parameters(self) -> int:
        """How many weights there are."""
        return self.period * (self.length // max(self.inner, 1))


@frozen
class Planes:
    """x in the order of its memory as (outer, channels, inner), a statistic and a parameter for each channel; `order`
    are the axes from the slowest on."""

    outer: int
    channels: int
    inner: int
    order: tuple[int, ...]


@frozen
class Columns:
    """x in the order of its memory as (samples, rows, channels), a statistic for each of `groups` runs of neighbouring
    channels of a sample; `order` as in `Planes`."""

    samples: int
    rows: int
    channels: int
    groups: int
    order: tuple[int, ...]


def x_of(problem: NormProblem) -> Any:
    """The spec of the normalised array."""
    return problem.inputs[1 if problem.op.endswith("_backward") else 0]


@lru_cache(maxsize=1024)
def rows(problem: NormProblem) -> Rows | None:
    """The form of rows, None where the problem has another."""
    geometry, x = problem.geometry, x_of(problem)
    view, ndim = geometry.view, len(geometry.view)
    first = ndim - len(geometry.axes)
    if x.strides is not None or math.prod(view) == 0 or tuple(geometry.axes) != tuple(range(first, ndim)):
        return None
    length, count = geometry.count, math.prod(view[:first])
    along = [i for i in range(ndim) if geometry.parameter[i] != 1]
    if not along:
        return Rows(count, length, 1, length)
    a, b = along[0], along[-1] + 1
    if geometry.parameter[a:b] != view[a:b] or b < first:
        return None
    if b == first:  # one parameter for each row
        return Rows(count, length, math.prod(view[a:b]), length)
    return Rows(count, length, math.prod(view[a:first]), math.prod(view[b:]))


@lru_cache(maxsize=1024)
def planes(problem: NormProblem) -> Planes | None:
    """The form of planes, None where the problem has another."""
    geometry, x = problem.geometry, x_of(problem)
    order = x.axis_order()
    if len(geometry.kept) != 1 or order is None or math.prod(geometry.view) == 0 or geometry.view != x.shape:
        return None
    if any(
        n != 1 for i, n in enumerate(geometry.parameter) if i != geometry.kept[0]
    ):  # parameters along the normalised axes
        return None
    place = order.index(geometry.kept[0])
    extents = [x.shape[i] for i in order]
    return Planes(math.prod(extents[:place]), extents[place], math.prod(extents[place + 1 :]), order)


@lru_cache(maxsize=1024)
def columns(problem: NormProblem) -> Columns | None:
    """The form of columns, None where the problem has another, or too few channels for vectors."""
    geometry, x = problem.geometry, x_of(problem)
    order, kept = x.axis_order(), geometry.kept
    if order is None or math.prod(geometry.view) == 0 or kept not in ((order[-1],), (0, order[-1])):
        return None
    channel, each, split = kept[-1], len(kept) == 2, len(geometry.view) > x.ndim
    along = {channel, channel + 1} if split else {channel}
    if (each and order[0] != 0) or any(n != 1 for i, n in enumerate(geometry.parameter) if i not in along):
        return None
    channels, samples = x.shape[channel], x.shape[0] if each else 1
    rows = x.size // (samples * channels)
    if rows < 2 or channels < _LEAST_CHANNELS:
        return None
    return Columns(samples, rows, channels, geometry.view[channel], order)


def _passed_on(problem: NormProblem) -> str | None:
    """Why a gradient has no use for the kernels, which read x, or None."""
    return "it reads x, which the gradient of a bias alone does not ask for" if 1 in problem.unread else None


def no_rows(problem: NormProblem, device: Any) -> str | None:
    """Why the kernels for rows cannot do it, or None."""
    if problem.activation is not None:
        return "it does not fuse an activation"
    if reason := _passed_on(problem):
        return reason
    return None if rows(problem) else "it takes C-contiguous arrays that are normalised along their last axes"


def no_columns(problem: NormProblem, device: Any) -> str | None:
    """Why the kernels for columns cannot do it, or None."""
    train = problem.op.startswith("batch_norm_train")
    residual = problem.inputs[6 if problem.op.endswith("_backward") else -1] if train else None
    if problem.activation is not None or residual is not None:
        return "it does not fuse a residual or an activation"
    if reason := _passed_on(problem):
        return reason
    return (
        None
        if columns(problem)
        else f"it takes dense arrays whose channels, {_LEAST_CHANNELS} or more, are innermost in memory"
    )


def no_saved_columns(problem: NormProblem, device: Any) -> str | None:
    """`no_columns`, and the statistics must have been saved."""
    return _not_saved(problem) or no_columns(problem, device)


def _not_saved(problem: NormProblem) -> str | None:
    return "it takes the saved mean and rstd" if problem.inputs[-1] is None or problem.inputs[-2] is None else None


def no_affine(problem: NormProblem, device: Any) -> str | None:
    """Why the kernels for given statistics cannot do it, or None."""
    if problem.activation is not None or problem.inputs[-1] is not None:
        return "it does not fuse a residual or an activation"
    return None if planes(problem) else "it takes dense arrays with one axis of channels"


def no_planes(problem: NormProblem, device: Any) -> str | None:
    """Why the kernels for planes of channels cannot do it, or None."""
    residual = problem.inputs[6] if problem.op.endswith("_backward") else problem.inputs[-1]
    if problem.activation is not None or residual is not None:
        return "it does not fuse a residual or an activation"
    if reason := _passed_on(problem):
        return reason
    form = planes(problem)
    return None if form is not None and form.inner > 1 else "it takes dense arrays whose channels are planes"


def no_saved_planes(problem: NormProblem, device: Any) -> str | None:
    """`no_planes`, and the statistics must have been saved."""
    return _not_saved(problem) or no_planes(problem, device)
