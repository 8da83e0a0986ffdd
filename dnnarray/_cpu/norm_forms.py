"""A norm as a matrix or as planes of channels: the two forms that the compiled kernels know, read off the problem."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from dnnarray._problems.norm_base import NormProblem
from dnnarray._records import frozen


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
    """x in the order of its memory as (outer, channels, inner), a statistic and a parameter for each channel; `order` are the axes from the slowest on."""

    outer: int
    channels: int
    inner: int
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
    if any(n != 1 for i, n in enumerate(geometry.parameter) if i != geometry.kept[0]):  # parameters along the normalised axes
        return None
    place = order.index(geometry.kept[0])
    extents = [x.shape[i] for i in order]
    return Planes(math.prod(extents[:place]), extents[place], math.prod(extents[place + 1 :]), order)


def no_rows(problem: NormProblem, device: Any) -> str | None:
    """Why the kernels for rows cannot do it, or None."""
    if problem.activation is not None:
        return "it does not fuse an activation"
    return None if rows(problem) else "it takes C-contiguous arrays that are normalised along their last axes"


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
    form = planes(problem)
    return None if form is not None and form.inner > 1 else "it takes dense arrays whose channels are planes"


def no_saved_planes(problem: NormProblem, device: Any) -> str | None:
    """`no_planes`, and the statistics must have been saved."""
    if problem.inputs[-1] is None or problem.inputs[-2] is None:
        return "it takes the saved mean and rstd"
    return no_planes(problem, device)
