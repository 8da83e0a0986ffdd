"""The formula of every activation and its gradient on NumPy arrays, each once, safe from overflow.

``forward(x, out, *parameters)`` and ``gradient(grad, x, out, *parameters)`` get float32 or float64 blocks with one axis
or more; `out` may be `x` or `grad` itself, so it is written last. Where a function is flat its gradient is a plain 0,
also for an infinite or NaN `grad`; on a kink the value is PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dnnarray._cpu.blocks import borrow, constant, drop, give, keep, select
from dnnarray._cpu.erf import gelu_gradient_single, gelu_single, normal_cdf

Array = np.ndarray
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715  # of the tanh form of gelu
_TANH_SATURATED = 50.0  # far beyond where the tanh form of gelu is a straight line
_LOG_MOST = {np.dtype(d): math.log(np.finfo(d).max) for d in (np.float32, np.float64)}  # from here exp is infinite
_NEAR_ROOT = 1024.0  # of a line: to add a larger number would round as much as it spares
_MISH_SATURATED = 40.0  # from here mish is x, and its slope 1, in float64; exp(2 x) still fits float32


def _logistic(x: Array) -> Array:
    """1 / (1 + exp(-x)), with its full relative precision on both sides (the form by tanh has none far below 0)."""
    e = np.exp(-x)
    e += 1
    return np.divide(1, e, out=e)


def _logistic_slope(x: Array) -> Array:
    """The derivative of `_logistic`, s (1 - s), without the cancellation."""
    e = np.exp(-np.abs(x))
    d = e + 1
    e /= d
    e /= d
    return e


def _logistic_and_slope(x: Array, t: Array) -> Array:
    """s(x) + t s'(x) of the logistic function s: by the lesser of s(x) and s(-x), so that all roundings but the last
    are those of small numbers."""
    share = np.exp(-np.abs(x))
    share /= share + 1
    y = 1 - share
    y *= t
    sign = np.copysign(constant(1, x), x)
    y -= sign
    y *= share
    sign += 1
    sign *= 0.5
    y += sign
    return y


# --- straight pieces --------------------------------------------------------------------------------------------------


def _relu(x: Array, out: Array) -> None:
    np.maximum(x, constant(0, x), out=out)


def _relu_gradient(grad: Array, x: Array, out: Array) -> None:
    drop(grad, x <= 0, out)


def _clip(x: Array, out: Array, low: float, high: float) -> None:
    np.clip(x, low, high, out=out)


def _clip_gradient(grad: Array, x: Array, out: Array, low: float, high: float) -> None:
    keep(grad, (x > low) & (x < high), out)


def _relu6(x: Array, out: Array) -> None:
    _clip(x, out, 0, 6)


def _relu6_gradient(grad: Array, x: Array, out: Array) -> None:
    _clip_gradient(grad, x, out, 0, 6)


def _clipped_relu(x: Array, out: Array, high: float) -> None:
    _clip(x, out, 0, high)


def _clipped_relu_gradient(grad: Array, x: Array, out: Array, high: float) -> None:
    _clip_gradient(grad, x, out, 0, high)


def _leaky_relu(x: Array, out: Array, negative_slope: float) -> None:
    leaked = x * negative_slope
    if 0 < negative_slope <= 1:
        np.maximum(x, leaked, out=out)
    else:
        select(x > 0, x, leaked, out)


def _leaky_relu_gradient(grad: Array, x: Array, out: Array, negative_slope: float) -> None:
    select(x > 0, grad, grad * negative_slope, out)


def _threshold(x: Array, out: Array, threshold: float, value: float) -> None:
    select(x <= threshold, np.full_like(x, value), x, out)


def _threshold_gradient(grad: Array, x: Array, out: Array, threshold: float, value: float) -> None:
    drop(grad, x <= threshold, out)


def _line(x: Array, alpha: float, beta: float) -> Array:
    """alpha x + beta; by the distance from where it is 0, unless that is far away, so that it keeps its relative
    precision there."""
    slope, offset = x.dtype.type(alpha), x.dtype.type(beta)
    shift = offset / slope
    if not abs(shift) <= _NEAR_ROOT:
        return x * slope + offset
    y = x + shift
    y *= slope
    return y


def _hard_sigmoid(x: Array, out: Array, alpha: float, beta: float) -> None:
    np.clip(_line(x, alpha, beta), 0, 1, out=out)


def _hard_sigmoid_gradient(grad: Array, x: Array, out: Array, alpha: float, beta: float) -> None:
    low, high = sorted((-beta / alpha, (1 - beta) / alpha)) if alpha else (0.0, 0.0)
    keep(grad * alpha, (x > low) & (x < high), out)


def _hard_swish(x: Array, out: Array) -> None:
    gate = np.clip(x + 3, 0, 6)
    gate /= 6
    np.multiply(x, gate, out=out)


def _hard_swish_gradient(grad: Array, x: Array, out: Array) -> None:
    middle = x / 3
    middle += 0.5
    middle *= grad
    flat = x <= -3
    select(x >= 3, grad, middle, middle)
    drop(middle, flat, out)


# --- exponential pieces -----------------------------------------------------------------------------------------------


def _elu(x: Array, out: Array, alpha: float) -> None:
    _scaled_elu(x, out, alpha, 1, 1)


def _elu_gradient(grad: Array, x: Array, out: Array, alpha: float) -> None:
    _scaled_elu_gradient(grad, x, out, alpha, 1, 1)


def _selu(x: Array, out: Array, alpha: float, gamma: float) -> None:
    _scaled_elu(x, out, alpha, gamma, 1)


def _selu_gradient(grad: Array, x: Array, out: Array, alpha: float, gamma: float) -> None:
    _scaled_elu_gradient(grad, x, out, alpha, gamma, 1)


def _celu(x: Array, out: Array, alpha: float) -> None:
    _scaled_elu(x, out, alpha, 1, alpha)


def _celu_gradient(grad: Array, x: Array, out: Array, alpha: float) -> None:
    _scaled_elu_gradient(grad, x, out, alpha, 1, alpha)


def _scaled_elu(x: Array, out: Array, alpha: float, gamma: float, width: float) -> None:
    """gamma x above 0, gamma alpha (exp(x / width) - 1) below: one of the two terms is always 0."""
    below = np.minimum(x, 0)
    below /= width
    np.expm1(below, out=below)
    below *= alpha
    np.maximum(x, 0, out=out)
    out += below
    if gamma != 1:
        out *= gamma


def _scaled_elu_gradient(grad: Array, x: Array, out: Array, alpha: float, gamma: float, width: float) -> None:
    below = np.minimum(x, 0)
    below /= width
    np.exp(below, out=below)
    below *= gamma * alpha / width
    below *= grad
    select(x > 0, grad * gamma, below, out)


def _sigmoid(x: Array, out: Array) -> None:
    out[...] = _logistic(x)


def _sigmoid_gradient(grad: Array, x: Array, out: Array) -> None:
    np.multiply(grad, _logistic_slope(x), out=out)


def _sigmoid_by_result(grad: Array, y: Array, out: Array) -> None:
    slope = 1 - y
    slope *= y
    np.multiply(grad, slope, out=out)


def _log_sigmoid(x: Array, out: Array) -> None:
    tail = np.log1p(np.exp(-np.abs(x)))
    np.subtract(np.minimum(x, 0), tail, out=out)


def _log_sigmoid_gradient(grad: Array, x: Array, out: Array) -> None:
    np.multiply(grad, _logistic(-x), out=out)


def _tanh(x: Array, out: Array) -> None:
    np.tanh(x, out=out)


def _tanh_gradient(grad: Array, x: Array, out: Array) -> None:
    # 1 - tanh(x)^2 = 4 s(2x) (1 - s(2x))
    slope = _logistic_slope(x * 2)
    slope *= 4
    np.multiply(grad, slope, out=out)


def _tanh_by_result(grad: Array, y: Array, out: Array) -> None:
    # Where y is nearly 1 or -1, the difference to it has no rounding, and the square would have one.
    slope = 1 - y
    slope *= y + 1
    np.multiply(grad, slope, out=out)


def _softplus(x: Array, out: Array, beta: float, threshold: float) -> None:
    scaled = x * beta
    y = np.log1p(np.exp(-np.abs(scaled)))
    y += np.maximum(scaled, 0)
    y /= beta
    select(scaled > threshold, x, y, out)


def _softplus_gradient(grad: Array, x: Array, out: Array, beta: float, threshold: float) -> None:
    scaled = x * beta
    select(scaled > threshold, grad, grad * _logistic(scaled), out)


def _softsign(x: Array, out: Array) -> None:
    np.divide(x, np.abs(x) + 1, out=out)


def _softsign_gradient(grad: Array, x: Array, out: Array) -> None:
    d = np.abs(x)
    near = np.minimum(d, 1)
    d += 1
    d *= d
    # What 1 + |x| loses to rounding the square doubles; beyond 1 that is little.
    rounded = near + 1
    near -= rounded - 1
    near *= rounded
    near *= 2
    d += near
    np.divide(grad, d, out=out)


def _silu(x: Array, out: Array, beta: float) -> None:
    _over_one_plus_exp(x, np.multiply(x, -beta, out=borrow(x)), out)


def _over_one_plus_exp(x: Array, e: Array, out: Array) -> None:
    """out = x / (1 + exp(e)); `e` was borrowed and is given back."""
    far = None
    if np.fmax.reduce(e, axis=None, initial=0) > _LOG_MOST[e.dtype]:  # where the quotient may be a normal number yet
        far = e > _LOG_MOST[e.dtype]
        rest = x[far] * np.exp(-e[far])
    np.exp(e, out=e)
    e += 1
    np.divide(x, e, out=out)
    if far is not None:
        out[far] = rest
    give(e)


def _silu_gradient(grad: Array, x: Array, out: Array, beta: float) -> None:
    scaled = x if beta == 1 else x * beta
    np.multiply(grad, _logistic_and_slope(scaled, scaled), out=out)


def _gelu(x: Array, out: Array, approximate: str) -> None:
    if approximate == "tanh":
        _gelu_by_tanh(x, out)
    elif x.dtype == np.float32:
        gelu_single(x, out)
    else:
        np.multiply(x, normal_cdf(x), out=out)


def _gelu_by_tanh(x: Array, out: Array) -> None:
    """(1 + tanh(z)) / 2 is 1 / (1 + exp(-2 z)), which takes half as many passes."""
    e = borrow(x)
    np.multiply(x, x, out=e)
    e *= -2 * _SQRT_2_OVER_PI * _CUBIC
    e -= 2 * _SQRT_2_OVER_PI
    e *= x
    _over_one_plus_exp(x, e, out)


def _gelu_gradient(grad: Array, x: Array, out: Array, approximate: str) -> None:
    if approximate == "none" and x.dtype == np.float32:
        gelu_gradient_single(grad, x, out)
    else:
        np.multiply(grad, _gelu_slope(x) if approximate == "none" else _tanh_gelu_slope(x), out=out)


def _gelu_slope(x: Array) -> Array:
    density = np.exp(-0.5 * x * x)
    density *= x
    density *= 1 / math.sqrt(2 * math.pi)
    density += normal_cdf(x)
    return density


def _tanh_gelu_slope(x: Array) -> Array:
    x = np.clip(x, -_TANH_SATURATED, _TANH_SATURATED)  # keeps the cube, and 0 times the cube, finite
    square = x * x
    return _logistic_and_slope(_tanh_argument(x, square, _CUBIC), _tanh_argument(x, square, 3 * _CUBIC))


def _tanh_argument(x: Array, square: Array, share: float) -> Array:
    """2 sqrt(2 / pi) (x + share x^3): what the tanh form gives to the logistic function, or x times its derivative."""
    y = square * (2 * _SQRT_2_OVER_PI * share)
    y += 2 * _SQRT_2_OVER_PI
    y *= x
    return y


def _mish(x: Array, out: Array) -> None:
    # With e = exp(x) and n = e (e + 2), tanh(softplus(x)) is n / (n + 2).
    e = np.exp(np.minimum(x, _MISH_SATURATED))
    n = e + 2
    n *= e
    np.add(n, 2, out=e)
    n /= e
    np.multiply(x, n, out=out)


def _mish_gradient(grad: Array, x: Array, out: Array) -> None:
    # The slope is t + x s (1 - t^2) with t as above and s = e / (1 + e); 1 - t^2 = 4 (1 + e)^2 / (n + 2)^2.
    x = np.minimum(x, _MISH_SATURATED)
    e = np.exp(x)
    n = e * (e + 2)
    d = n + 2
    slope = e + 1
    slope *= e
    slope *= 4
    slope /= d
    slope *= x
    slope += n
    slope /= d
    np.multiply(grad, slope, out=out)


# name -> (forward(x, out, *parameters), gradient(grad, x, out, *parameters))
FORMULAS: dict[str, tuple[Callable[..., None], Callable[..., None]]] = {
    "relu": (_relu, _relu_gradient),
    "relu6": (_relu6, _relu6_gradient),
    "clipped_relu": (_clipped_relu, _clipped_relu_gradient),
    "leaky_relu": (_leaky_relu, _leaky_relu_gradient),
    "elu": (_elu, _elu_gradient),
    "selu": (_selu, _selu_gradient),
    "celu": (_celu, _celu_gradient),
    "sigmoid": (_sigmoid, _sigmoid_gradient),
    "hard_sigmoid": (_hard_sigmoid, _hard_sigmoid_gradient),
    "log_sigmoid": (_log_sigmoid, _log_sigmoid_gradient),
    "tanh": (_tanh, _tanh_gradient),
    "hard_tanh": (_clip, _clip_gradient),
    "softplus": (_softplus, _softplus_gradient),
    "softsign": (_softsign, _softsign_gradient),
    "gelu": (_gelu, _gelu_gradient),
    "silu": (_silu, _silu_gradient),
    "hard_swish": (_hard_swish, _hard_swish_gradient),
    "mish": (_mish, _mish_gradient),
    "threshold": (_threshold, _threshold_gradient),
}

# name -> gradient(grad, y, out) from the result
BY_RESULT: dict[str, Callable[..., None]] = {"sigmoid": _sigmoid_by_result, "tanh": _tanh_by_result}
