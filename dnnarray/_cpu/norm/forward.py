"""Statistics and the normalised result, block by block; all arrays come in the shape of the problem's `view`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dnnarray._cpu.activation import apply
from dnnarray._cpu.blocks import long_rows
from dnnarray._cpu.norm.blocks import Box, boxes, part, parts, stretch
from dnnarray._cpu.norm.sums import add, over_statistics, spread
from dnnarray._problems.norm_base import NormProblem


class Statistics(NamedTuple):
    """Of one block, in the dtype of x, but for the variance, which is float64 as its square may leave that. The mean is
    ``mean + delta``: two numbers, since x may lie far from 0 and the sum of its values rounds."""

    mean: Any
    delta: Any
    variance: np.ndarray
    rstd: np.ndarray


def statistics(problem: NormProblem, x: np.ndarray, buffer: np.ndarray, chunks: tuple[Box, ...]) -> Statistics:
    """The statistics of `x`; `buffer`, of its shape, holds ``x - mean`` afterwards where the norm is centred."""
    geometry, count = problem.geometry, max(problem.geometry.count, 1)
    sums: Any = None
    deltas: Any = None
    squares: Any = None
    if not problem.centred:
        for chunk in chunks:
            squares = add(squares, over_statistics(geometry, x[chunk], squared=True))
        variance = squares / count
        return Statistics(None, None, variance, _rstd(problem, variance, x.dtype))
    for chunk in chunks:
        sums = add(sums, over_statistics(geometry, x[chunk]))
    mean = (sums / count).astype(x.dtype, copy=False)
    repeated = spread(geometry, mean, x.shape)
    for chunk in chunks:
        centred = np.subtract(x[chunk], part(repeated, chunk), out=buffer[chunk])
        deltas = add(deltas, over_statistics(geometry, centred))
        squares = add(squares, over_statistics(geometry, centred, squared=True))
    delta = deltas / count
    variance = np.maximum(squares / count - delta * delta, 0)
    return Statistics(mean, delta.astype(x.dtype, copy=False), variance, _rstd(problem, variance, x.dtype))


def _rstd(problem: NormProblem, variance: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return (1 / np.sqrt(variance + problem.eps)).astype(dtype, copy=False)


def normalise(
    problem: NormProblem,
    x: np.ndarray,
    y: np.ndarray,
    weight: Any,
    bias: Any,
    residual: Any = None,
    mean: Any = None,
    rstd: Any = None,
    variance: Any = None,
) -> None:
    """y = activation(norm(x) * weight + bias + residual); `mean`, `rstd` and `variance` receive the statistics where
    given."""
    arrays = (x, y, weight, bias, residual, mean, rstd, variance)
    with long_rows(stretch(problem, x)):
        for box in boxes(x, problem.geometry.kept):
            _block(problem, *parts(arrays, box))


def _block(
    problem: NormProblem,
    x: np.ndarray,
    y: np.ndarray,
    weight: Any,
    bias: Any,
    residual: Any,
    mean: Any,
    rstd: Any,
    variance: Any,
) -> None:
    """`normalise` for whole statistics; what is summed over may still be more than fits, and comes in chunks."""
    chunks = tuple(boxes(x, problem.geometry.axes))
    found = statistics(problem, x, y, chunks)
    if mean is not None:
        np.add(found.mean, found.delta, out=mean)
    if rstd is not None:
        rstd[...] = found.rstd
    if variance is not None:
        variance[...] = found.variance
    source = y if problem.centred else x
    if problem.geometry.folds:
        _scale_folded(problem, found, source, y, weight, bias, residual, chunks)
    else:
        _scale(problem, found, source, y, weight, bias, residual, chunks)


def _scale_folded(
    problem: NormProblem,
    found: Statistics,
    source: Any,
    y: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    chunks: tuple[Box, ...],
) -> None:
    """Where rstd * weight is small: one scale and one shift for each statistic and parameter."""
    scale = spread(problem.geometry, found.rstd, y.shape) if weight is None else found.rstd * weight
    shift = bias
    if problem.centred:
        shift = found.delta * -scale if bias is None else bias - found.delta * scale
    for chunk in chunks:
        affine(problem, source[chunk], y[chunk], *parts((scale, shift, residual), chunk))


def _scale(
    problem: NormProblem,
    found: Statistics,
    source: Any,
    y: Any,
    weight: Any,
    bias: Any,
    residual: Any,
    chunks: tuple[Box, ...],
) -> None:
    """Where weight runs along the normalised axes: rstd first, then weight and bias."""
    correct = problem.centred and not _negligible(found)
    for chunk in chunks:
        target = y[chunk]
        if correct:
            np.subtract(target, found.delta, out=target)
        np.multiply(source[chunk], found.rstd, out=target)
        if weight is not None:
            np.multiply(target, part(weight, chunk), out=target)
        _finish(problem, target, *parts((bias, residual), chunk))


def _negligible(found: Statistics) -> bool:
    """Whether the second part of the mean is below the rounding of the result, as it is for data near 0, but not of
    equal values. NaN is not."""
    return bool((np.abs(found.delta) <= np.finfo(found.rstd.dtype).eps * np.sqrt(found.variance)).all())


def affine(
    problem: NormProblem, source: np.ndarray, y: np.ndarray, scale: np.ndarray, shift: Any, residual: Any
) -> None:
    """y = activation(source * scale + shift + residual); `source` may be `y`."""
    np.multiply(source, scale, out=y)
    _finish(problem, y, shift, residual)


def _finish(problem: NormProblem, y: np.ndarray, shift: Any, residual: Any) -> None:
    if shift is not None:
        np.add(y, shift, out=y)
    if residual is not None:
        np.add(y, residual, out=y)
    if problem.activation is not None:
        apply(problem.activation, y, y)
