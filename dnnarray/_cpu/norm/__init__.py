"""Normalization: batch, layer, RMS, group, instance, local response, on NumPy arrays.

Here the arrays of each operation are brought into the shape of the problem's `view` (always without a copy: axes are
only split or given extent 1) and handed to the one forward and the one backward."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.blocks import long_rows
from dnnarray._cpu.norm import folded as norm_folded
from dnnarray._cpu.norm import forms as norm_forms
from dnnarray._cpu.norm import local as norm_local
from dnnarray._cpu.norm.backward import Gradients, Inputs, backward, fixed_backward
from dnnarray._cpu.norm.blocks import boxes, parts, stretch
from dnnarray._cpu.norm.forward import affine, normalise
from dnnarray._cpu.norm.sums import move
from dnnarray._problems.norm_base import NormProblem
from dnnarray._select import Method

Outputs = tuple[Any, ...]
_LONG = 1 << 19  # elements of a block of what takes no memory beside its result and sums nothing
_SMALL = 4096  # elements; for fewer a pass costs less than to find out whether it can be spared
# up to here, in units of the result, a mean times its scale rounds no more than it does in the sum x * scale + shift
_NEAR = 8.0


def _as(array: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape over the same memory; None stays None."""
    return array if array is None or array.shape == shape else array.reshape(shape)


def _parameters(problem: NormProblem, *arrays: Any) -> tuple[Any, ...]:
    return tuple(_as(a, problem.geometry.parameter) for a in arrays)


def _statistics(problem: NormProblem, *arrays: Any) -> tuple[Any, ...]:
    return tuple(_as(a, problem.geometry.statistic) for a in arrays)


# --- batch norm -------------------------------------------------------------------------------------------------------


def _batch_norm(
    problem: NormProblem,
    outputs: Outputs,
    scratch: Any,
    x: Any,
    mean: Any,
    variance: Any,
    weight: Any,
    bias: Any,
    residual: Any,
) -> None:
    (y,) = outputs
    mean, variance, weight, bias = _parameters(problem, mean, variance, weight, bias)
    scale = _rstd(problem, variance)
    scale = scale if weight is None else scale * weight
    if x.size >= _SMALL and (np.abs(mean * scale) <= _NEAR).all():
        mean, bias = None, (-mean * scale if bias is None else bias - mean * scale).astype(x.dtype, copy=False)
    arrays = (x, y, mean, scale.astype(x.dtype, copy=False), bias, residual)
    length = stretch(problem, x)

    def block(x: Any, y: Any, mean: Any, scale: Any, shift: Any, residual: Any) -> None:
        with long_rows(length):
            # The difference first is exact for data far from 0.
            affine(problem, x if mean is None else np.subtract(x, mean, out=y), y, scale, shift, residual)

    threads.each(block, (parts(arrays, box) for box in boxes(x, tuple(range(x.ndim)), _LONG)), work=3 * x.size)


def _rstd(problem: NormProblem, variance: np.ndarray) -> np.ndarray:
    """In float64: few numbers, of which every rounding would reach many."""
    return 1 / np.sqrt(variance.astype(np.float64) + problem.eps)


def _batch_norm_backward(
    problem: NormProblem,
    outputs: Outputs,
    scratch: Any,
    grad: Any,
    x: Any,
    mean: Any,
    variance: Any,
    weight: Any,
    bias: Any,
    residual: Any,
) -> None:
    gx, of_mean, of_variance, of_weight, of_bias, *of_residual = outputs
    of_mean, of_variance, of_weight, of_bias = _parameters(problem, of_mean, of_variance, of_weight, of_bias)
    mean, variance, weight, bias = _parameters(problem, mean, variance, weight, bias)
    inputs = Inputs(grad, x, weight, bias, residual, mean, _rstd(problem, variance).astype(x.dtype, copy=False))
    fixed_backward(problem, inputs, Gradients(gx, of_weight, of_bias, *of_residual), of_mean, of_variance)


def _batch_norm_train(
    problem: NormProblem,
    outputs: Outputs,
    scratch: Any,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    residual: Any,
) -> None:
    y, mean, rstd, next_mean, next_var = outputs
    variance = None if next_var is None else np.empty_like(mean)
    weight, bias = _parameters(problem, weight, bias)
    mean_, rstd_, variance_ = _statistics(problem, mean, rstd, variance)
    if residual is not None or not norm_folded.forward(problem, x, y, weight, bias, mean_, rstd_, variance_):
        normalise(problem, x, y, weight, bias, residual, mean_, rstd_, variance_)
    count = problem.geometry.count
    # Of nothing there is nothing to learn: an empty batch leaves the running statistics as they were.
    momentum = problem.momentum if count else 0.0
    move(next_mean, running_mean, mean, momentum, 1.0)
    move(next_var, running_var, variance, momentum, count / max(count - 1, 1))


def _batch_norm_train_backward(
    problem: NormProblem,
    outputs: Outputs,
    scratch: Any,
    grad: Any,
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    residual: Any,
    mean: Any,
    rstd: Any,
) -> None:
    gx, of_weight, of_bias, *of_residual = outputs
    weight, bias, of_weight, of_bias = _parameters(problem, weight, bias, of_weight, of_bias)
    mean, rstd = _statistics(problem, mean, rstd)
    if any(r is not None for r in of_residual) or not norm_folded.backward(
        problem, grad, x, weight, mean, rstd, gx, of_weight, of_bias
    ):
        backward(
            problem,
            Inputs(grad, x, weight, bias, residual, mean, rstd),
            Gradients(gx, of_weight, of_bias, *of_residual),
        )


# --- group, instance, layer and RMS norm ------------------------------------------------------------------------------


def _affine_norm(problem: NormProblem, outputs: Outputs, scratch: Any, x: Any, weight: Any, bias: Any) -> None:
    view = problem.geometry.view
    y, mean, rstd = outputs
    x, y = _as(x, view), _as(y, view)
    weight, bias = _parameters(problem, weight, bias)
    mean, rstd = _statistics(problem, mean, rstd)
    if not norm_folded.forward(problem, x, y, weight, bias, mean, rstd):
        normalise(problem, x, y, weight, bias, mean=mean, rstd=rstd)


def _affine_norm_backward(
    problem: NormProblem,
    outputs: Outputs,
    scratch: Any,
    grad: Any,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    rstd: Any,
) -> None:
    view = problem.geometry.view
    gx, of_weight, of_bias = outputs
    grad, x, gx = _as(grad, view), _as(x, view), _as(gx, view)
    weight, bias, of_weight, of_bias = _parameters(problem, weight, bias, of_weight, of_bias)
    mean, rstd = _statistics(problem, mean, rstd)
    if not norm_folded.backward(problem, grad, x, weight, mean, rstd, gx, of_weight, of_bias):
        backward(problem, Inputs(grad, x, weight, bias, mean=mean, rstd=rstd), Gradients(gx, of_weight, of_bias))


def _rms_norm(problem: NormProblem, outputs: Outputs, scratch: Any, x: Any, weight: Any) -> None:
    y, rstd = outputs
    (weight,) = _parameters(problem, weight)
    if not norm_folded.forward(problem, x, y, weight, None, None, rstd):
        normalise(problem, x, y, weight, None, rstd=rstd)


def _rms_norm_backward(
    problem: NormProblem, outputs: Outputs, scratch: Any, grad: Any, x: Any, weight: Any, rstd: Any
) -> None:
    gx, of_weight = outputs
    weight, of_weight = _parameters(problem, weight, of_weight)
    if not norm_folded.backward(problem, grad, x, weight, None, rstd, gx, of_weight, None):
        backward(problem, Inputs(grad, x, weight, rstd=rstd), Gradients(gx, of_weight))


def _add_norm(
    problem: NormProblem, outputs: Outputs, scratch: Any, x: Any, residual: Any, weight: Any, bias: Any = None
) -> None:
    y, total = outputs
    normalise(problem, np.add(x, residual, out=total), y, *_parameters(problem, weight, bias))


def _add_norm_backward(
    problem: NormProblem,
    outputs: Outputs,
    scratch: Any,
    grad: Any,
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any = None,
) -> None:
    """The sum has no output of its own here; it is found again in the memory of the residual's gradient, if that is
    asked for."""
    of_y, of_sum = grad if isinstance(grad, tuple) else (grad, None)
    of_x, of_residual, *of_parameters = outputs
    gx, other = (of_residual, None) if of_x is None else (of_x, of_residual)  # they are equal
    if of_y is None:
        for array, value in ((gx, of_sum), *((p, 0) for p in of_parameters)):
            if array is not None:
                array[...] = value
    else:
        gradients = Gradients(gx, *_parameters(problem, *of_parameters))
        total = np.add(x, residual, out=other) if gradients.pulls(problem) else x
        backward(problem, Inputs(of_y, total, *_parameters(problem, weight, bias)), gradients)
        if of_sum is not None and gx is not None:
            np.add(gx, of_sum, out=gx)
    if other is not None:
        other[...] = gx


_CALLS = 12  # of NumPy in one block
_SUMMARY = "mean, then the spread around it, in blocks that stay in the cache"
_BACKWARD_SUMMARY = "the sums first, then the gradient, in blocks that stay in the cache"
_COLUMNS = "compiled: channels innermost in memory, statistics of blocks of rows merged"
_COMPILED = "compiled: a statistic and its values at a time, over all threads"


def _entries(run: Any, summary: str, driver: str, accepts: Any, name: str = "two_pass") -> tuple[Method, ...]:
    """NumPy's entry and the compiled one."""
    numpy_entry = Method(name, run, summary, cost=compiled.numpy_cost(_CALLS))
    return numpy_entry, compiled.method("planes", "norm.planes", driver, _COMPILED, accepts=accepts)


def _by_columns(driver: str, accepts: Any = norm_forms.no_columns) -> Method:
    """The compiled entry for channels that are innermost in memory."""
    return compiled.method("columns", "norm.columns", driver, _COLUMNS, accepts=accepts)


def _by_rows(run: Any, driver: str) -> tuple[Method, ...]:
    return _entries(run, _BACKWARD_SUMMARY if driver.endswith("_backward") else _SUMMARY, driver, norm_forms.no_rows)


ALGORITHMS = {
    "batch_norm": _entries(
        _batch_norm,
        "given statistics: a scale and a shift per channel",
        "batch_norm",
        norm_forms.no_affine,
        "elementwise",
    ),
    "batch_norm_backward": (
        Method("elementwise", _batch_norm_backward, "a scale per channel, and the sums beside it"),
    ),
    "batch_norm_train": (
        *_entries(_batch_norm_train, _SUMMARY, "batch_norm_train", norm_forms.no_planes),
        _by_columns("batch_norm_train"),
    ),
    "batch_norm_train_backward": (
        *_entries(
            _batch_norm_train_backward, _BACKWARD_SUMMARY, "batch_norm_train_backward", norm_forms.no_saved_planes
        ),
        _by_columns("batch_norm_train_backward", norm_forms.no_saved_columns),
    ),
    "layer_norm": _by_rows(_affine_norm, "layer_norm"),
    "layer_norm_backward": _by_rows(_affine_norm_backward, "layer_norm_backward"),
    "rms_norm": _by_rows(_rms_norm, "rms_norm"),
    "rms_norm_backward": _by_rows(_rms_norm_backward, "rms_norm_backward"),
    "add_layer_norm": _by_rows(_add_norm, "add_norm"),
    "add_layer_norm_backward": (Method("two_pass", _add_norm_backward, _BACKWARD_SUMMARY),),
    "add_rms_norm": _by_rows(_add_norm, "add_norm"),
    "add_rms_norm_backward": (Method("two_pass", _add_norm_backward, _BACKWARD_SUMMARY),),
    "group_norm": (*_by_rows(_affine_norm, "layer_norm"), _by_columns("group_norm")),
    "group_norm_backward": (
        *_by_rows(_affine_norm_backward, "layer_norm_backward"),
        _by_columns("group_norm_backward"),
    ),
    "instance_norm": (*_by_rows(_affine_norm, "layer_norm"), _by_columns("group_norm")),
    "instance_norm_backward": (
        *_by_rows(_affine_norm_backward, "layer_norm_backward"),
        _by_columns("group_norm_backward"),
    ),
    "local_response_norm": (
        Method("window_sum", norm_local.forward, "one shifted addition for each channel of the window"),
    ),
    "local_response_norm_backward": (
        Method("window_sum", norm_local.backward, "the same window forward and turned round"),
    ),
}
