"""The operations of convolution on NumPy arrays: the maps of a geometry by a `Way`, spread over threads."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu import activation
from dnnarray._cpu.conv.blocks import Way, at, carve, image_view, weight_view
from dnnarray._cpu.conv.shares import spread, weight_parts
from dnnarray._cpu.sums import total
from dnnarray._problems.conv import ConvProblem
from dnnarray._problems.conv_geometry import Geometry

Scratch = np.ndarray | None
_ALL = slice(None)


# --- the three maps ---------------------------------------------------------------------------------------------------


def _forward(way: Way, g: Geometry, scratch: Scratch, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
    """y from x; sums over nothing are 0."""
    if not (x.size and w.size):
        y[...] = 0
    elif y.size:
        spread(way, lambda g, buffers, x, y, w: way.forward(g, buffers, x, w, y), g, way.buffers, scratch, x, y, w)


def _input_gradient(way: Way, g: Geometry, scratch: Scratch, grad: np.ndarray, w: np.ndarray, x: np.ndarray) -> None:
    """x, the gradient of the input, from that of the output: a correlation for each phase of the stride, unless the way
    does them together."""
    if way.input_gradient is not None and way.input_buffers is not None and grad.size and w.size and x.size:
        way.input_gradient(g, carve(scratch, way.input_buffers(g), x.dtype), grad, w, x)
        return
    w, way = w.transpose(0, 2, 1, 3, 4, 5), way._replace(forward=way.forward_flipped or way.forward)
    if not g.phases_cover:
        x[...] = 0
    for phase in g.phases:
        _forward(way, phase.geometry, scratch, grad, w[at(phase.taps)], x[at(phase.target)])


def _weight_gradient(way: Way, g: Geometry, scratch: Scratch, x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    """w, the gradient of the weight; many outputs go by parts, whose sums are added up in float64."""
    if not (x.size and grad.size):
        w[...] = 0
    elif w.size:
        parts = weight_parts(g)
        if len(parts) == 1:
            _wgrad(way, g, scratch, x, grad, w)
            return
        total, one = np.zeros(w.shape), np.empty_like(w)
        for part in parts:
            _wgrad(way, part.geometry, scratch, x[part.images], grad[(part.images, _ALL, _ALL, *part.outputs)], one)
            total += one
        w[...] = total


def _wgrad(way: Way, g: Geometry, scratch: Scratch, x: np.ndarray, grad: np.ndarray, w: np.ndarray) -> None:
    assert way.weight_gradient is not None
    assert way.weight_buffers is not None
    spread(way, way.weight_gradient, g, way.weight_buffers, scratch, x, grad, w, wgrad=True)


def _epilogue(problem: ConvProblem, y: np.ndarray, bias: np.ndarray | None, residual: np.ndarray | None) -> None:
    """Bias and residual, in place."""
    if bias is not None:
        np.add(y, bias if problem.layout == "channels_last" else bias.reshape(-1, *(1,) * problem.rank), out=y)
    if residual is not None:
        np.add(y, residual, out=y)


def _bias_gradient(problem: ConvProblem, grad: np.ndarray, bias: np.ndarray) -> None:
    channel = grad.ndim - 1 if problem.layout == "channels_last" else 1
    bias[...] = total(grad, tuple(i for i in range(grad.ndim) if i != channel)).reshape(-1)


def _views(problem: ConvProblem, *images: np.ndarray) -> list[np.ndarray]:
    return [image_view(a, problem.layout, problem.geometry.groups) for a in images]


def _weight(problem: ConvProblem, w: np.ndarray) -> np.ndarray:
    return weight_view(w, problem.layout, problem.geometry.groups, problem.flip)


# --- the operations ---------------------------------------------------------------------------------------------------
# Each is run(way, problem, outputs, scratch, *arrays); `_table` binds the way.


def _before_activation(
    way: Way, problem: ConvProblem, scratch: Scratch, x: Any, weight: Any, bias: Any, residual: Any, y: Any
) -> None:
    source, target = _views(problem, x, y)
    _forward(way, problem.geometry, scratch, source, _weight(problem, weight), target)
    _epilogue(problem, y, bias, residual)


def conv(
    way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, x: Any, weight: Any, bias: Any, residual: Any
) -> None:
    y = outputs[0]
    _before_activation(way, problem, scratch, x, weight, bias, residual, y)
    activation.apply(problem.activation, y, y)


def conv_backward_input(way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, weight: Any) -> None:
    dy, dx = _views(problem, grad, outputs[0])
    _input_gradient(way, problem.geometry, scratch, dy, _weight(problem, weight), dx)


def conv_backward_weight(way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, x: Any) -> None:
    dy, x = _views(problem, grad, x)
    _weight_gradient(way, problem.geometry, scratch, x, dy, _weight(problem, outputs[0]))


def conv_backward(
    way: Way,
    problem: ConvProblem,
    outputs: Any,
    scratch: Scratch,
    grad: Any,
    x: Any,
    weight: Any,
    bias: Any,
    residual: Any,
) -> None:
    if problem.activation is not None:
        y = np.empty_like(grad)
        _before_activation(way, problem, scratch, x, weight, bias, residual, y)
        grad = activation.apply_gradient(problem.activation, grad, y)
    dx, dweight, dbias, *rest = outputs
    if dx is not None:
        conv_backward_input(way, problem, (dx,), scratch, grad, weight)
    if dweight is not None:
        conv_backward_weight(way, problem, (dweight,), scratch, grad, x)
    if dbias is not None:
        _bias_gradient(problem, grad, dbias)
    if rest and rest[0] is not None:
        rest[0][...] = grad


def _transposed(way: Way, problem: ConvProblem, scratch: Scratch, x: Any, weight: Any, bias: Any, y: Any) -> None:
    conv_backward_input(way, problem, (y,), scratch, x, weight)
    _epilogue(problem, y, bias, None)


def conv_transpose(
    way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, x: Any, weight: Any, bias: Any
) -> None:
    y = outputs[0]
    _transposed(way, problem, scratch, x, weight, bias, y)
    activation.apply(problem.activation, y, y)


def conv_transpose_backward(
    way: Way, problem: ConvProblem, outputs: Any, scratch: Scratch, grad: Any, x: Any, weight: Any, bias: Any
) -> None:
    if problem.activation is not None:
        y = np.empty_like(grad)
        _transposed(way, problem, scratch, x, weight, bias, y)
        grad = activation.apply_gradient(problem.activation, grad, y)
    dx, dweight, dbias = outputs
    if dx is not None:
        dy, target = _views(problem, grad, dx)
        _forward(way, problem.geometry, scratch, dy, _weight(problem, weight), target)
    if dweight is not None:
        conv_backward_weight(way, problem, (dweight,), scratch, x, grad)
    if dbias is not None:
        _bias_gradient(problem, grad, dbias)
