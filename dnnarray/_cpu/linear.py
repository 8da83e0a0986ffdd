"""Linear (fully connected) layers on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.activation import apply, apply_gradient
from dnnarray._cpu.norm_sums import of_rows
from dnnarray._cpu.products import multiply
from dnnarray._problems.linear import LinearProblem
from dnnarray._select import Method

# All leading axes count as one, so that there is one matrix product.


def _before_activation(problem: LinearProblem, out: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: Any, residual: Any) -> None:
    """out = x weight^T + bias + residual, `out` and x with one axis of rows."""
    multiply(x, weight.T, out)
    if bias is not None:
        np.add(out, bias, out=out)
    if residual is not None:
        np.add(out, residual.reshape(out.shape), out=out)


def _linear(problem: LinearProblem, outputs: Any, scratch: Any, x: np.ndarray, weight: np.ndarray, bias: Any, residual: Any) -> None:
    y, rows = outputs[0], (problem.rows, problem.outs)
    flat = y.reshape(rows) if y.flags.c_contiguous else np.empty(rows, y.dtype)
    _before_activation(problem, flat, x.reshape(problem.rows, problem.features), weight, bias, residual)
    apply(problem.activation, flat, flat)
    if not y.flags.c_contiguous:
        y[...] = flat.reshape(y.shape)


def _linear_backward(
    problem: LinearProblem, outputs: Any, scratch: Any, grad: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: Any, residual: Any
) -> None:
    dx, dweight, dbias, *rest = outputs
    rows = x.reshape(problem.rows, problem.features)
    slope = grad.reshape(problem.rows, problem.outs)
    if problem.activation is not None:
        before = np.empty(slope.shape, slope.dtype)
        _before_activation(problem, before, rows, weight, bias, residual)
        slope = apply_gradient(problem.activation, slope, before)
    dx[...] = multiply(slope, weight, np.empty(rows.shape, dx.dtype)).reshape(dx.shape)
    multiply(slope.T, rows, dweight)
    if dbias is not None:
        of_rows(slope, dbias)
    if rest:
        rest[0][...] = slope.reshape(rest[0].shape)


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "linear": (Method("gemm", _linear, "one matrix product over all rows"),),
    "linear_backward": (Method("gemm", _linear_backward, "one matrix product for each gradient"),),
}
