"""Linear (fully connected) layers on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, matrix_unit
from dnnarray._cpu.activation import apply, apply_gradient
from dnnarray._cpu.products import Product, spread
from dnnarray._cpu.sums import of_rows
from dnnarray._problems.linear import LinearProblem
from dnnarray._select import Cost, Device, Method

# All leading axes count as one, so that there is one matrix product.


def _before_activation(
    product: Product,
    problem: LinearProblem,
    out: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    bias: Any,
    residual: Any,
) -> None:
    """out = x weight^T + bias + residual, `out` and x with one axis of rows."""
    product(x, weight.T, out)
    if bias is not None:
        np.add(out, bias, out=out)
    if residual is not None:
        np.add(out, residual.reshape(out.shape), out=out)


def linear(
    product: Product, problem: LinearProblem, outputs: Any, x: np.ndarray, weight: np.ndarray, bias: Any, residual: Any
) -> None:
    y, rows = outputs[0], (problem.rows, problem.outs)
    flat = y.reshape(rows) if y.flags.c_contiguous else np.empty(rows, y.dtype)
    _before_activation(product, problem, flat, x.reshape(problem.rows, problem.features), weight, bias, residual)
    apply(problem.activation, flat, flat)
    if not y.flags.c_contiguous:
        y[...] = flat.reshape(y.shape)


def linear_backward(
    product: Product,
    problem: LinearProblem,
    outputs: Any,
    grad: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    bias: Any,
    residual: Any,
) -> None:
    dx, dweight, dbias, *rest = outputs
    slope = grad.reshape(problem.rows, problem.outs)
    if problem.activation is not None:
        before = np.empty(slope.shape, slope.dtype)
        _before_activation(product, problem, before, x.reshape(problem.rows, problem.features), weight, bias, residual)
        slope = apply_gradient(problem.activation, slope, before)
    if dx is not None:
        _input_gradient(product, slope, weight, dx)
    if dweight is not None:
        product(slope.T, x.reshape(problem.rows, problem.features), dweight)
    if dbias is not None:
        of_rows(slope, dbias)
    if rest and rest[0] is not None:
        rest[0][...] = slope.reshape(rest[0].shape)


def _input_gradient(product: Product, slope: np.ndarray, weight: np.ndarray, dx: np.ndarray) -> None:
    shape = (slope.shape[0], weight.shape[1])
    flat = dx.reshape(shape) if dx.flags.c_contiguous else np.empty(shape, dx.dtype)
    product(slope, weight, flat)
    if not dx.flags.c_contiguous:
        dx[...] = flat.reshape(dx.shape)


def _gemm(run: Callable[..., None]) -> Callable[..., None]:
    return lambda problem, outputs, scratch, *arrays: run(spread, problem, outputs, *arrays)


# --- on the matrix unit -----------------------------------------------------------------------------------------------


def _products(problem: LinearProblem) -> list[tuple[int, int, int]]:
    """Rows, columns and depth of each matrix product."""
    m, k, n = problem.rows, problem.features, problem.outs
    gradients = [
        size
        for size, spec in zip([(m, k, n), (n, k, m)], problem.outputs, strict=False)
        if problem.backward and spec is not None
    ]
    return [(m, n, k)] * problem.forwards + gradients


def _refuses(problem: LinearProblem, device: Device) -> str | None:
    if 0 in (problem.rows, problem.features, problem.outs, problem.products):
        return "there is nothing to multiply"
    return matrix_unit.refuses(compiled.arithmetic(problem))


def _split_workspace(problem: LinearProblem) -> int:
    """Asked for only where Numba has compiled it."""
    plan = import_module("dnnarray._cpu.compiled.split_product").split_plan
    return max(plan(*sizes).memory for sizes in _products(problem))


def _split_cost(problem: LinearProblem, device: Device) -> Cost:
    flops = sum(matrix_unit.product_flops(*sizes) for sizes in _products(problem))
    return Cost(flops, problem.bytes, launches=6 * problem.products)


def _split(op: str) -> Method:
    return compiled.method(
        "split_gemm", "linear", op, matrix_unit.SUMMARY, accepts=_refuses, cost=_split_cost, workspace=_split_workspace,
        target=matrix_unit.refuses, precision=matrix_unit.PRECISION,
    )  # fmt: skip


ALGORITHMS: dict[str, tuple[Method, ...]] = {
    "linear": (Method("gemm", _gemm(linear), "one matrix product over all rows"), _split("linear")),
    "linear_backward": (
        Method("gemm", _gemm(linear_backward), "one matrix product for each gradient"),
        _split("linear_backward"),
    ),
}
