"""Activations on NumPy arrays, stand-alone and fused; the formulas are in `activation_formulas`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu import compiled, threads
from dnnarray._cpu.activation.formulas import BY_RESULT, FORMULAS
from dnnarray._cpu.blocks import BLOCK, blocks, drop, select
from dnnarray._cpu.sums import total
from dnnarray._problems.activation import (
    PARAMETERS,
    Activation,
    BiasActivationProblem,
    ElementwiseProblem,
    GatedProblem,
    PReLUProblem,
)
from dnnarray._select import Method

Array = np.ndarray
_WORK = 4  # NumPy calls of a formula, each worth a pass


def _spread(function: Callable[..., None], *arrays: Array) -> None:
    """``function(*parts)`` for all blocks of the arrays, spread over threads."""
    size = arrays[0].size
    if size <= BLOCK and arrays[0].ndim:  # a call that has little time to lose
        function(*arrays)
        return
    work = _WORK * size
    threads.each(function, blocks(*arrays, limit=threads.grain(size, BLOCK, work=work)), work=work)


def apply(activation: Activation | None, x: Array, out: Array) -> None:
    """out = activation(x); `out` may be `x`. Without an activation a copy, or nothing where they are the same array."""
    if activation is not None:
        forward, parameters = FORMULAS[activation.name][0], activation.parameters
        _spread(lambda part, target: forward(part, target, *parameters), x, out)
    elif out is not x:
        out[...] = x


def apply_gradient(activation: Activation | None, grad: Array, x: Array) -> Array:
    """The gradient before the activation, from the one behind it and the input `x` of the activation."""
    if activation is None:
        return grad
    out = np.empty_like(x)
    gradient_into(activation, grad, x, out)
    return out


def gradient_into(activation: Activation | None, grad: Array, x: Array, out: Array) -> None:
    """`apply_gradient` into `out`, which may be `grad` or `x`."""
    if activation is not None:
        gradient, parameters = FORMULAS[activation.name][1], activation.parameters

        def run(source: Array, part: Array, target: Array) -> None:
            gradient(source, part, target, *parameters)

        _spread(run, grad, x, out)
    elif out is not grad:
        out[...] = grad


def _forward(problem: ElementwiseProblem, outputs: tuple[Array, ...], scratch: Any, x: Array) -> None:
    apply(problem.activation, x, outputs[0])


def _backward(problem: ElementwiseProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array) -> None:
    gradient_into(problem.activation, grad, x, outputs[0])


def _backward_by_result(
    problem: ElementwiseProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, y: Array | None
) -> None:
    if y is None:
        _backward(problem, outputs, scratch, grad, x)
    else:
        _spread(BY_RESULT[problem.activation.name], grad, y, outputs[0])


# --- a slope per channel ----------------------------------------------------------------------------------------------


def _prelu(problem: PReLUProblem, outputs: tuple[Array, ...], scratch: Any, x: Array, weight: Array) -> None:
    for part, slope, target in blocks(x, weight.reshape(problem.slope_shape), outputs[0]):
        select(part > 0, part, part * slope, target)


def _prelu_backward(
    problem: PReLUProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array, weight: Array
) -> None:
    out, weight_out = outputs
    if weight_out is not None:
        # The result for x first serves as memory for the terms of the other.
        terms = np.empty_like(grad) if out is None else out
        for source, part, target in blocks(grad, x, terms):
            drop(source * part, part > 0, target)
        weight_out[...] = total(terms, problem.shared).reshape(weight.shape)
    if out is None:
        return
    for source, part, slope, target in blocks(grad, x, weight.reshape(problem.slope_shape), out):
        select(part > 0, source, source * slope, target)


# --- gated units ------------------------------------------------------------------------------------------------------


def _gated(problem: GatedProblem, outputs: tuple[Array, ...], scratch: Any, gate: Array, x: Array) -> None:
    forward = FORMULAS[problem.activation.name][0]
    parameters = problem.activation.parameters

    def block(door: Array, part: Array, target: Array) -> None:
        forward(door, target, *parameters)
        target *= part

    _spread(block, gate, x, outputs[0])


def _gated_backward(
    problem: GatedProblem, outputs: tuple[Any, ...], scratch: Any, grad: Array, gate: Array, x: Array
) -> None:
    gradient, parameters = FORMULAS[problem.activation.name][1], problem.activation.parameters
    gate_out, x_out = outputs
    if gate_out is None:  # what the gate lets through of grad
        _gated(problem, (x_out,), scratch, gate, grad)
        return
    forward = FORMULAS[problem.activation.name][0]

    def block(source: Array, door: Array, part: Array, gate_target: Array, *targets: Array) -> None:
        gradient(source * part, door, gate_target, *parameters)
        for x_target in targets:
            forward(door, x_target, *parameters)
            x_target *= source

    _spread(block, grad, gate, x, gate_out, *(() if x_out is None else (x_out,)))


def _glu(problem: GatedProblem, outputs: tuple[Array, ...], scratch: Any, x: Array) -> None:
    _gated(problem, outputs, scratch, *_gate_and_value(problem, x))


def _glu_backward(problem: GatedProblem, outputs: tuple[Array, ...], scratch: Any, grad: Array, x: Array) -> None:
    _gated_backward(problem, _gate_and_value(problem, outputs[0]), scratch, grad, *_gate_and_value(problem, x))


def _gate_and_value(problem: GatedProblem, x: Array) -> tuple[Array, Array]:
    axis = problem.axis or 0
    half = x.shape[axis] // 2
    before = (slice(None),) * axis
    return x[(*before, slice(half, None))], x[(*before, slice(half))]


# --- bias, residual, activation ---------------------------------------------------------------------------------------


def _bias_activation(
    problem: BiasActivationProblem,
    outputs: tuple[Array, ...],
    scratch: Any,
    x: Array,
    bias: Array,
    residual: Array | None,
) -> None:
    _add_bias(problem, x, bias, residual, outputs[0])
    apply(problem.activation, outputs[0], outputs[0])


def _bias_activation_backward(
    problem: BiasActivationProblem,
    outputs: tuple[Any, ...],
    scratch: Any,
    grad: Array,
    x: Array,
    bias: Array,
    residual: Array | None,
) -> None:
    out, bias_out, residual_out = outputs
    before = grad
    if problem.activation is not None:
        before = out if out is not None else residual_out if residual_out is not None else np.empty_like(grad)
        _add_bias(problem, x, bias, residual, before)
        gradient_into(problem.activation, grad, before, before)
    if bias_out is not None:
        bias_out[...] = total(before, problem.others).reshape(bias.shape)
    for target in (out, residual_out):
        if target is not None and target is not before:
            target[...] = before


def _add_bias(problem: BiasActivationProblem, x: Array, bias: Array, residual: Array | None, out: Array) -> None:
    np.add(x, bias.reshape(problem.bias_shape), out=out)
    if residual is not None:
        out += residual


_FUSED = "one pass over cache-sized blocks"
_COMPILED = "one pass over memory, compiled and over all threads"
_STRAIGHT = frozenset(("relu", "relu6", "clipped_relu", "hard_tanh", "leaky_relu", "threshold", "softsign"))


def _with_compiled(name: str, run: Any, summary: str, in_place: bool = False) -> tuple[Method, ...]:
    """NumPy's entry and the compiled one, whose loops are scalar where a result lies over an input."""
    calls = 1 if name.removesuffix("_backward") in _STRAIGHT else 8
    numpy_entry = Method("elementwise", run, summary, cost=compiled.numpy_cost(calls), in_place=in_place)
    return numpy_entry, compiled.method("single_pass", "activation", name, _COMPILED)


ALGORITHMS = {
    **{name: _with_compiled(name, _forward, "the formula over each element", in_place=True) for name in PARAMETERS},
    **{
        f"{name}_backward": _with_compiled(
            f"{name}_backward",
            _backward_by_result if name in BY_RESULT else _backward,
            "the gradient times the slope at each element",
            in_place=True,
        )
        for name in PARAMETERS
    },
    "prelu": (Method("elementwise", _prelu, _FUSED),),
    "prelu_backward": (Method("elementwise", _prelu_backward, "one pass for each gradient"),),
    "glu": (Method("elementwise", _glu, _FUSED),),
    "glu_backward": (Method("elementwise", _glu_backward, _FUSED),),
    **{name: _with_compiled(name, _gated, _FUSED) for name in ("swiglu", "geglu")},
    **{f"{name}_backward": _with_compiled(f"{name}_backward", _gated_backward, _FUSED) for name in ("swiglu", "geglu")},
    "bias_activation": (Method("elementwise", _bias_activation, "the sum, then the formula over each element"),),
    "bias_activation_backward": (
        Method("elementwise", _bias_activation_backward, "the gradient before the activation, then its sum"),
    ),
}
