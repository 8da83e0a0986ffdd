"""Second derivatives of activations, and of softmax.

An activation f has the gradient :math:`h(g, x) = g f'(x)`. For a gradient v of h, the gradient of g is
:math:`v f'(x)`, which is h itself, and the gradient of x is :math:`v g f''(x)`. The functions of this file compute
:math:`f''`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dnnarray._autodiff import functions as xp
from dnnarray._autodiff.rules import UNARY
from dnnarray._autodiff.second.given import Given, public, zeros_like

_exp, _abs, _square = UNARY["exp"], UNARY["abs"], UNARY["square"]
_SQRT_2_OVER_PI, _CUBIC = math.sqrt(2 / math.pi), 0.044715
_SATURATED = 50.0  # beyond, the second derivatives of gelu and mish are 0 in every dtype


def _slope(x: Any) -> Any:
    """The derivative of the logistic function, without cancellation."""
    logistic = public("sigmoid")
    return logistic(x) * logistic(-x)


def _below(x: Any, alpha: float) -> Any:
    """exp(x / alpha) where x is 0 or less, and 0 elsewhere."""
    low = xp.where(x > 0, 0.0 * x, x)
    return xp.where(x > 0, 0.0 * low, _exp(low / alpha))


def _elu(x: Any, alpha: float) -> Any:
    return alpha * _below(x, 1.0)


def _selu(x: Any, alpha: float, gamma: float) -> Any:
    return gamma * alpha * _below(x, 1.0)


def _celu(x: Any, alpha: float) -> Any:
    return _below(x, alpha) / alpha


def _log_sigmoid(x: Any) -> Any:
    return -_slope(x)


def _softplus(x: Any, beta: float, threshold: float) -> Any:
    return xp.where(beta * x > threshold, 0.0 * x, beta * _slope(beta * x))


def _softsign(x: Any) -> Any:
    side = xp.where(x > 0, 0.0 * x + 1.0, xp.where(x < 0, 0.0 * x - 1.0, 0.0 * x))
    return -2.0 * side / (1.0 + _abs(x)) ** 3


def _silu(x: Any, beta: float) -> Any:
    return beta * _slope(beta * x) * (2.0 + beta * x * (1.0 - 2.0 * public("sigmoid")(beta * x)))


def _gelu(x: Any, approximate: str) -> Any:
    x = xp.clip(x, -_SATURATED, _SATURATED)
    if approximate == "none":
        return _exp(-0.5 * _square(x)) * (2.0 - _square(x)) / math.sqrt(2 * math.pi)
    # x s(t) with the logistic function s of t = 2 sqrt(2 / pi) (x + 0.044715 x^3)
    t = 2 * _SQRT_2_OVER_PI * (x + _CUBIC * x**3)
    first, second = 2 * _SQRT_2_OVER_PI * (1.0 + 3 * _CUBIC * _square(x)), 12 * _SQRT_2_OVER_PI * _CUBIC * x
    return _slope(t) * (2.0 * first + x * ((1.0 - 2.0 * public("sigmoid")(t)) * _square(first) + second))


def _hard_swish(x: Any) -> Any:
    return xp.where(_abs(x) < 3.0, 0.0 * x + 1 / 3, 0.0 * x)


def _mish(x: Any) -> Any:
    x = xp.clip(x, -_SATURATED, _SATURATED)
    s, t = public("sigmoid")(x), public("tanh")(public("softplus")(x))
    slope = s * (1.0 - t) * (1.0 + t)  # of t
    return slope * (2.0 + x * (1.0 - s - 2.0 * s * t))


_CURVED: dict[str, Callable[..., Any]] = {
    "elu": _elu,
    "selu": _selu,
    "celu": _celu,
    "log_sigmoid": _log_sigmoid,
    "softplus": _softplus,
    "softsign": _softsign,
    "silu": _silu,
    "gelu": _gelu,
    "hard_swish": _hard_swish,
    "mish": _mish,
}
_STRAIGHT = ("relu", "relu6", "clipped_relu", "leaky_relu", "hard_sigmoid", "hard_tanh", "threshold")


def _straight(v: dict[str, Any], given: Given) -> dict[str, Any]:
    """Of a function of straight pieces, whose second derivative is 0."""
    return {"grad": given.call_backward(grad=v["x"]), "x": zeros_like(given.arrays["x"])}


def _curved(curvature: Callable[..., Any]) -> Callable[[dict[str, Any], Given], dict[str, Any]]:
    def rule(v: dict[str, Any], given: Given) -> dict[str, Any]:
        x = given.arrays["x"]
        turned = v["x"] * given.arrays["grad"] * curvature(x, **given.options)
        return {"grad": given.call_backward(grad=v["x"]), "x": turned}

    return rule


def _by_result(
    turn: Callable[..., Any], back: Callable[..., Any] | None = None
) -> Callable[[dict[str, Any], Given], dict[str, Any]]:
    """A rule for a gradient that is a function of the result y of the forward: ``turn(v, g, y, **options)`` is the
    gradient with respect to y, which goes on to x by the gradient of the forward unless y was given. ``back(v, y,
    **options)`` is the gradient with respect to g, None where the Jacobian of the forward is symmetric."""

    def rule(v: dict[str, Any], given: Given) -> dict[str, Any]:
        y = given.arrays["y"]
        known = y is not None
        y = y if known else given.call_forward()
        turned = turn(v["x"], given.arrays["grad"], y, **given.options)
        through = {"y": turned} if known else {"x": given.call_backward(grad=turned)}
        grad = given.call_backward(grad=v["x"]) if back is None else back(v["x"], y, **given.options)
        return {"grad": grad, **through}

    return rule


def _total(terms: Any, axis: int) -> Any:
    """The sum over the axis of a softmax, which a scalar has none of."""
    return xp.sum(terms, axis=axis, keepdims=True) if terms.shape else terms


def _softmax(v: Any, g: Any, y: Any, axis: int) -> Any:
    return v * (g - _total(g * y, axis)) - g * _total(v * y, axis)


RULES: dict[str, Callable[[dict[str, Any], Given], dict[str, Any]]] = {
    **dict.fromkeys(_STRAIGHT, _straight),
    **{name: _curved(curvature) for name, curvature in _CURVED.items()},
    "sigmoid": _by_result(lambda v, g, y: v * g * (1.0 - 2.0 * y)),
    "tanh": _by_result(lambda v, g, y: -2.0 * v * g * y),
    "softmax": _by_result(_softmax),
    "softmin": _by_result(lambda v, g, y, axis: -_softmax(v, g, y, axis)),
    "log_softmax": _by_result(
        lambda v, g, y, axis: -v * _exp(y) * _total(g, axis), lambda v, y, axis: v - _total(v * _exp(y), axis)
    ),
}
