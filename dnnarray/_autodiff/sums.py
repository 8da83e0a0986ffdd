"""Sums of plain arrays that round no more than pairwise sums do.

`numpy.sum` adds one row after the other along every axis but the innermost one of memory, and `numpy.cumulative_sum`
and `numpy.add.at` add one element after the other: in float32 the error of these grows with the number of terms. Other
namespaces sum as they do."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._autodiff.primitive import cast, is_half, namespace, shape_of, widened
from dnnarray._cpu import sums


def axes_of(x: Any, axis: Any) -> tuple[int, ...]:
    """The axes that `axis` of a reduction stands for, counted from the first."""
    ndim = len(shape_of(x))
    return (
        tuple(range(ndim)) if axis is None else tuple(a % ndim for a in (axis if isinstance(axis, tuple) else (axis,)))
    )


def count(x: Any, axis: Any) -> int:
    """How many elements of x a sum over `axis` has as its terms."""
    return math.prod(shape_of(x)[a] for a in axes_of(x, axis))


def total(x: Any, axis: Any, keepdims: bool) -> Any:
    """The sum over `axis`, in float32 of half types."""
    wide, axes = widened(x), axes_of(x, axis)
    if not (axes and isinstance(wide, np.ndarray) and wide.dtype.kind == "f"):
        return namespace(wide).sum(wide, axis=axis, keepdims=keepdims)
    found = sums.total(wide, axes)
    return found if keepdims else found.reshape([n for a, n in enumerate(wide.shape) if a not in axes])


def average(x: Any, axis: Any, keepdims: bool) -> Any:
    """The mean over `axis`, in float32 of half types."""
    if isinstance(x, np.ndarray):
        return total(x, axis, keepdims) / count(x, axis)
    wide = widened(x)
    return namespace(wide).mean(wide, axis=axis, keepdims=keepdims)


def cumulative(x: Any, axis: int) -> Any:
    """The sums of the elements along `axis` up to each of them."""
    wide = _doubled(x)
    return namespace(wide).cumulative_sum(wide, axis=axis)


def add_at(zeros: Any, index: Any, values: Any) -> None:
    """zeros[index] += values, where positions may be repeated."""
    wide = _doubled(zeros)
    namespace(wide).add.at(wide, index, _doubled(values))
    if wide is not zeros:
        zeros[...] = cast(wide, zeros.dtype)


def _doubled(x: Any) -> Any:
    """Floating arrays of NumPy in float64; of others half types in float32."""
    if isinstance(x, np.ndarray) and (x.dtype.kind == "f" or is_half(x)):
        return x.astype(np.float64, copy=False)
    return widened(x)
