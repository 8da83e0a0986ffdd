"""Softmax, log-softmax and softmin of contiguous rows, forward and backward: a row at a time, while it is in the
cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.dense import Plan, planned
from dnnarray._cpu.compiled.kernel import In2, Kernel, Out2, device, kernel, wide
from dnnarray._cpu.compiled.memory import row_after
from dnnarray._cpu.compiled.rows import (
    dot,
    exponential_sum,
    exponentials,
    falling_exponentials,
    row_max,
    row_min,
    scale,
)
from dnnarray._cpu.compiled.scalar import exp
from dnnarray._cpu.compiled.sums import row_sum
from dnnarray._problems.softmax import SoftmaxProblem

Array = np.ndarray
_WORK = 6  # an exponential and three passes


@kernel(counted=False, streams=True)
def _softmax(start: int, stop: int, x: In2, y: Out2) -> None:
    wide()
    for r in range(start, stop):
        total = exponentials(x[r], row_max(x[r]), y[r], row_after(x, r, stop))
        scale(y[r], 1.0 / total)


@kernel(counted=False, streams=True)
def _softmin(start: int, stop: int, x: In2, y: Out2) -> None:
    wide()
    for r in range(start, stop):
        total = falling_exponentials(x[r], row_min(x[r]), y[r], row_after(x, r, stop))
        scale(y[r], 1.0 / total)


@kernel(counted=False, streams=True)
def _log_softmax(start: int, stop: int, x: In2, y: Out2) -> None:
    wide()
    for r in range(start, stop):
        peak = row_max(x[r])
        _subtract(x[r], peak, x.dtype.type(math.log(exponential_sum(x[r], peak, row_after(x, r, stop)))), y[r])


@device
def _subtract(x: Any, peak: Any, rest: Any, y: Any) -> Any:
    for i in range(len(y)):
        y[i] = (x[i] - peak) - rest


@kernel(counted=False, streams=True)
def _softmax_gradient(start: int, stop: int, g: In2, y: In2, dx: Out2, sign: float) -> None:
    wide()
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


@kernel(counted=False, streams=True)
def _log_softmax_gradient(start: int, stop: int, g: In2, y: In2, dx: Out2) -> None:
    wide()
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
    @planned(rows)
    def plan(problem: SoftmaxProblem) -> Plan:
        shape = _shape(problem)

        def run(x: Array, y: Array) -> None:
            rows(shape[0], x.reshape(shape), y.reshape(shape), work=_WORK * x.size)

        return run, None

    return plan


def _backward(rows: Kernel, gradient: Kernel, *sign: float) -> Any:
    """The gradient from the output, which is found again where it was not saved."""

    @planned(rows, gradient)
    def plan(problem: SoftmaxProblem) -> Plan:
        shape = _shape(problem)

        def run(grad: Array, x: Array, y: Array | None, dx: Array) -> None:
            work = _WORK * x.size
            if y is None:
                rows(shape[0], x.reshape(shape), y := np.empty(shape, x.dtype), work=work)
            gradient(shape[0], grad.reshape(shape), y.reshape(shape), dx.reshape(shape), *sign, work=work)

        return run, None

    return plan


softmax, softmax_backward = _forward(_softmax), _backward(_softmax, _softmax_gradient, 1.0)
softmin, softmin_backward = _forward(_softmin), _backward(_softmin, _softmax_gradient, -1.0)
log_softmax, log_softmax_backward = _forward(_log_softmax), _backward(_log_softmax, _log_softmax_gradient)
