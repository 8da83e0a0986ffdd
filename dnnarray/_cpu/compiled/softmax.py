"""Softmax, log-softmax and softmin of contiguous rows, forward and backward: a row at a time, while it is in the cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In2, Kernel, Out2, device, driver, kernel
from dnnarray._cpu.compiled.rows import dot, exponential_sum, exponentials, falling_exponentials, row_max, row_min, scale
from dnnarray._cpu.compiled.scalar import exp
from dnnarray._cpu.compiled.sums import row_sum
from dnnarray._problems.softmax import SoftmaxProblem

Array = np.ndarray
_WORK = 6  # an exponential and three passes


@kernel(counted=False)
def _softmax(start: int, stop: int, x: In2, y: Out2) -> None:
    for r in range(start, stop):
        total = exponentials(x[r], row_max(x[r]), y[r])
        scale(y[r], x.dtype.type(1.0 / total))


@kernel(counted=False)
def _softmin(start: int, stop: int, x: In2, y: Out2) -> None:
    for r in range(start, stop):
        total = falling_exponentials(x[r], row_min(x[r]), y[r])
        scale(y[r], x.dtype.type(1.0 / total))


@kernel(counted=False)
def _log_softmax(start: int, stop: int, x: In2, y: Out2) -> None:
    for r in range(start, stop):
        peak = row_max(x[r])
        _subtract(x[r], peak, x.dtype.type(math.log(exponential_sum(x[r], peak))), y[r])


@device
def _subtract(x: Any, peak: Any, rest: Any, y: Any) -> Any:
    for i in range(len(y)):
        y[i] = (x[i] - peak) - rest


@kernel(counted=False)
def _softmax_gradient(start: int, stop: int, g: In2, y: In2, dx: Out2, sign: float) -> None:
    for r in range(start, stop):
        _project(g[r], y[r], x_type(g, dot(g[r], y[r])), x_type(g, sign), dx[r])


@device
def x_type(x: Any, value: Any) -> Any:
    """A number in the dtype of an array."""
    return x.dtype.type(value)


@device
def _project(g: Any, y: Any, total: Any, sign: Any, dx: Any) -> Any:
    for i in range(len(dx)):
        dx[i] = sign * ((g[i] - total) * y[i])


@kernel(counted=False)
def _log_softmax_gradient(start: int, stop: int, g: In2, y: In2, dx: Out2) -> None:
    for r in range(start, stop):
        _less_share(g[r], y[r], x_type(g, row_sum(g[r])), dx[r])


@device
def _less_share(g: Any, y: Any, total: Any, dx: Any) -> Any:
    for i in range(len(dx)):
        dx[i] = g[i] - exp(y[i]) * total


def _shape(problem: SoftmaxProblem) -> tuple[int, int]:
    x = problem.inputs[0]
    return x.size // max(x.shape[-1], 1), x.shape[-1]


def _forward(rows: Kernel) -> Any:
    @driver(rows)
    def run(problem: SoftmaxProblem, outputs: tuple[Array, ...], scratch: Any, x: Array) -> None:
        shape = _shape(problem)
        with Written(outputs) as (y,):
            rows(shape[0], taken(x, shape), y.reshape(shape), work=_WORK * x.size)

    return run


def _backward(rows: Kernel, gradient: Kernel, *sign: float) -> Any:
    """The gradient from the output, which is found again where it was not saved."""

    @driver(rows, gradient)
    def run(problem: SoftmaxProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, y: Array | None) -> None:
        shape, work = _shape(problem), _WORK * x.size
        result = np.empty(shape, x.dtype) if y is None else taken(y, shape)
        if y is None:
            rows(shape[0], taken(x, shape), result, work=work)
        with Written(outputs) as (dx,):
            gradient(shape[0], taken(grad, shape), result, dx.reshape(shape), *sign, work=work)

    return run


softmax, softmax_backward = _forward(_softmax), _backward(_softmax, _softmax_gradient, 1.0)
softmin, softmin_backward = _forward(_softmin), _backward(_softmin, _softmax_gradient, -1.0)
log_softmax, log_softmax_backward = _forward(_log_softmax), _backward(_log_softmax, _log_softmax_gradient)
