"""Activations on NumPy arrays: each formula and its derivative once, for stand-alone and fused use."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dnnarray._cpu.erf import erf
from dnnarray._problems.activation import PARAMETERS, Activation, ElementwiseProblem
from dnnarray._select import Method

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


def _relu(x: np.ndarray, out: np.ndarray) -> None:
    np.maximum(x, 0, out=out)


def _relu_slope(x: np.ndarray) -> np.ndarray:
    return x > 0


def _leaky_relu(x: np.ndarray, out: np.ndarray, negative_slope: float) -> None:
    np.multiply(x, np.where(x > 0, x.dtype.type(1), x.dtype.type(negative_slope)), out=out)


def _leaky_relu_slope(x: np.ndarray, negative_slope: float) -> np.ndarray:
    return np.where(x > 0, x.dtype.type(1), x.dtype.type(negative_slope))


def _gelu(x: np.ndarray, out: np.ndarray, approximate: str) -> None:
    np.multiply(x, _normal_cdf(x) if approximate == "none" else _tanh_cdf(x), out=out)


def _gelu_slope(x: np.ndarray, approximate: str) -> np.ndarray:
    if approximate == "none":
        return _normal_cdf(x) + x * np.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    cdf = _tanh_cdf(x)
    return cdf + x * 2 * cdf * (1 - cdf) * (_SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x))


def _normal_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + erf(x * (1 / math.sqrt(2))))


def _tanh_cdf(x: np.ndarray) -> np.ndarray:
    return 0.5 * (1 + np.tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))


# name -> (forward(x, out, *parameters), slope(x, *parameters)); `out` may be `x` itself.
FORMULAS: dict[str, tuple[Callable[..., None], Callable[..., np.ndarray]]] = {
    "relu": (_relu, _relu_slope),
    "leaky_relu": (_leaky_relu, _leaky_relu_slope),
    "gelu": (_gelu, _gelu_slope),
}


def apply(activation: Activation | None, x: np.ndarray, out: np.ndarray) -> None:
    """out = activation(x); `out` may be `x`. Without an activation a copy, or nothing where they are the same array."""
    if activation is not None:
        FORMULAS[activation.name][0](x, out, *activation.parameters)
    elif out is not x:
        out[...] = x


def apply_gradient(activation: Activation | None, grad: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The gradient before the activation, from the one behind it and the input `x` of the activation."""
    return grad if activation is None else grad * FORMULAS[activation.name][1](x, *activation.parameters)


def _forward(problem: ElementwiseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, x: np.ndarray) -> None:
    apply(problem.activation, x, outputs[0])


def _backward(problem: ElementwiseProblem, outputs: tuple[np.ndarray, ...], scratch: Any, grad: np.ndarray, x: np.ndarray) -> None:
    np.multiply(grad, FORMULAS[problem.activation.name][1](x, *problem.activation.parameters), out=outputs[0])


ALGORITHMS = {name: (Method("elementwise", _forward, "the formula over each element"),) for name in PARAMETERS} | {
    f"{name}_backward": (Method("elementwise", _backward, "the gradient times the slope at each element"),) for name in PARAMETERS
}
