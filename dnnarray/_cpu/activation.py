"""Activations on NumPy arrays, stand-alone and fused; the formulas are in `activation_formulas`."""

from __future__ import annotations

from typing import Any

import numpy as np

from dnnarray._cpu.activation_formulas import FORMULAS
from dnnarray._cpu.blocks import blocks
from dnnarray._problems.activation import PARAMETERS, Activation, ElementwiseProblem
from dnnarray._select import Method


def apply(activation: Activation | None, x: np.ndarray, out: np.ndarray) -> None:
    """out = activation(x); `out` may be `x`. Without an activation a copy, or nothing where they are the same array."""
    if activation is not None:
        forward = FORMULAS[activation.name][0]
        for part, target in blocks(x, out):
            forward(part, target, *activation.parameters)
    elif out is not x:
        out[...] = x


def apply_gradient(activation: Activation | None, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient before the activation, from the one behind it and the input `x` of the activation."""
    if activation is None:
        return grad
    out = np.empty_like(x)
    gradient_into(activation, grad, x, out)
    return out


def gradient_into(activation: Activation | None, grad: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """`apply_gradient` into `out`, which may be `grad` or `x`."""
    if activation is not None:
        gradient = FORMULAS[activation.name][1]
        for source, part, target in blocks(grad, x, out):
            gradient(source, part, target, *activation.parameters)
    elif out is not grad:
        out[...] = grad


def _forward(problem: ElementwiseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray) -> None:
    apply(problem.activation, x, outputs[0])


def _backward(problem: ElementwiseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, grad: np.ndarray, x: np.ndarray) -> None:
    gradient_into(problem.activation, grad, x, outputs[0])


ALGORITHMS = {name: (Method("elementwise", _forward, "the formula over each element"),) for name in PARAMETERS} | {
    f"{name}_backward": (Method("elementwise", _backward, "the gradient times the slope at each element"),) for name in PARAMETERS
}
