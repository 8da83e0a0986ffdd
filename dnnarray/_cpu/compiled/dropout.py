"""Dropout, alone and fused: the factors of a run of elements are drawn into the result, where the arithmetic meets them
in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu import philox
from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In1, Out1, device, driver, kernel, wide
from dnnarray._cpu.compiled.memory import fetch_after
from dnnarray._cpu.compiled.philox import GROUP, keep_factors
from dnnarray._cpu.dropout import backward_by
from dnnarray._problems.dropout import DropoutProblem

Array = np.ndarray
_RUN = 8 * GROUP  # elements: a run of factors stays in the first-level cache until it is used
_WORK = 8  # ten rounds beside a copy


@device
def _run_end(first: Any, skip: Any, stop: Any) -> Any:
    """Where the run of an element ends: groups of numbers are cut at the ends of a part only."""
    return min((first + skip) // _RUN * _RUN + _RUN - skip, stop)


@device
def _fused(x: Any, bias: Any, residual: Any, y: Any) -> Any:
    for i in range(len(y)):
        y[i] = (x[i] + bias[i]) * y[i] + residual[i]


@kernel(counted=False, streams=True)
def _dropout(
    start: int, stop: int, x: In1, y: Out1, counter: int, skip: int, low: int, high: int, threshold: int, scale: float
) -> None:  # fmt: skip
    wide()
    first = start
    while first < stop:
        last = _run_end(first, skip, stop)
        fetch_after(x, last, _RUN, stop)
        keep_factors(y, first, last, counter, skip, low, high, threshold, x.dtype.type(scale))
        x_, y_ = x[first:last], y[first:last]
        for i in range(len(y_)):
            y_[i] = x_[i] * y_[i]
        first = last


@kernel(counted=False, streams=True)
def _bias_dropout_add(
    start: int, stop: int, x: In1, bias: In1, residual: In1, y: Out1,
    counter: int, skip: int, low: int, high: int, threshold: int, scale: float,
) -> None:  # fmt: skip
    wide()
    first = start
    while first < stop:
        last = _run_end(first, skip, stop)
        fetch_after(x, last, _RUN, stop)
        fetch_after(residual, last, _RUN, stop)
        keep_factors(y, first, last, counter, skip, low, high, threshold, x.dtype.type(scale))
        while first < last:  # the pieces of rows
            column = first % len(bias)
            end = min(first + len(bias) - column, last)
            _fused(x[first:end], bias[column : column + end - first], residual[first:end], y[first:end])
            first = end


def _stream(problem: DropoutProblem, seed: int, offset: int) -> tuple[Any, ...]:
    """The last arguments of the kernels. With p = 1 a number may reach the threshold, and its factor is 0 all the
    same."""
    threshold = min(int(philox.keep_threshold(problem.p)), 0xFFFFFFFF)
    return offset // 4, offset % 4, seed & 0xFFFFFFFF, seed >> 32, threshold, problem.scale


@driver(_dropout)
def dropout(
    problem: DropoutProblem, outputs: tuple[Array, ...], scratch: Any, x: Array, *, seed: int, offset: int
) -> None:
    with Written(outputs) as (y,):
        _dropout(x.size, taken(x, (-1,)), y.reshape(-1), *_stream(problem, seed, offset), work=_WORK * x.size)


@driver(_dropout)
def dropout_backward(
    problem: DropoutProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, *, seed: int, offset: int
) -> None:
    dropout(problem, outputs, scratch, grad, seed=seed, offset=offset)


@driver(_bias_dropout_add)
def bias_dropout_add(
    problem: DropoutProblem,
    outputs: tuple[Array, ...],
    scratch: Any,
    x: Array,
    bias: Array,
    residual: Array,
    *,
    seed: int,
    offset: int,
) -> None:
    with Written(outputs) as (y,):
        arrays = [taken(a, (-1,)) for a in (x, bias, residual)]
        _bias_dropout_add(x.size, *arrays, y.reshape(-1), *_stream(problem, seed, offset), work=_WORK * x.size)


@driver(_dropout)
def bias_dropout_add_backward(
    problem: DropoutProblem,
    outputs: tuple[Array, ...],
    scratch: Any,
    grad: Array,
    *arrays: Array,
    seed: int,
    offset: int,
) -> None:
    backward_by(dropout, problem, outputs, grad, seed, offset)
