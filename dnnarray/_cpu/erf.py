"""The normal distribution on NumPy arrays, which NumPy lacks, and gelu by it.

float64: half of erfc(z), z = -x / sqrt(2), which is 1 - z R(z^2) for |z| <= 1/2, exp(-z^2) S(z) up to 4 and exp(-z^2)
(1 / sqrt(pi) - T(1 / z^2)) / z from there on, with rational R, S and T in the form of W. J. Cody, "Rational Chebyshev
approximations for the error function", Mathematics of Computation 23 (1969); the coefficients are those published
there. Below 0 it is as exact in relation to itself as the exponential is, so that no digit of gelu is lost far out.

float32 has the share T of the distribution beyond |x|, as exp(-x^2 / 2) times a polynomial in 1 / (1 + 0.305 |x|), for
what it is for:

    gelu(x) = max(x, 0) - |x| T(|x|)
    gelu'(x) = T(|x|) - |x| exp(-x^2 / 2) / sqrt(2 pi) below 0, 1 less that above

The polynomial is a minimax fit of the relative error: far below 0 both are exact in relation to themselves but for the
rounding of x^2. The absolute error is 3e-7 with all roundings; that of the error function written out in float32 is
4e-7."""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cpu.blocks import borrow, constant, give, select
from dnnarray._cpu.compiled.coefficients import GELU_TAIL, GELU_TAIL_SLOPE

_SMALL_P = (
    1.85777706184603153e-1,
    3.16112374387056560,
    1.13864154151050156e2,
    3.77485237685302021e2,
    3.20937758913846947e3,
)
_SMALL_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_MIDDLE_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_FAR_P = (
    1.63153871373020978e-2,
    3.05326634961232344e-1,
    3.60344899949804439e-1,
    1.25781726111229246e-1,
    1.60837851487422766e-2,
    6.58749161529837803e-4,
)
_FAR_Q = (
    1.0,
    2.56852019228982242,
    1.87295284992346047,
    5.27905102951428412e-1,
    6.05183413124413191e-2,
    2.33520497626869185e-3,
)
_LINEAR = 0.5  # |z| up to which erfc(z) = 1 - z R(z^2)
_MIDDLE = 4.0  # and from which it is told by 1 / z^2
_FAR = 20.0  # gelu is x to the last bit from 5.4 on, and 0 beyond -14.5
_VANISHED = 28.0  # from here erfc is 0 in float64


def normal_cdf(x: np.ndarray) -> np.ndarray:
    """The share of the normal distribution below x, in float64, of an array of one axis or more; NaN stays NaN."""
    z = x * (-1 / math.sqrt(2))
    magnitude = np.minimum(np.abs(z), _VANISHED)
    near = magnitude <= _LINEAR
    square = magnitude * magnitude
    tail = _tail(magnitude, square)
    select(z < 0, 1 - tail, tail, tail)
    z *= _ratio(np.minimum(square, _LINEAR), _SMALL_P, _SMALL_Q)
    z *= -0.5
    z += 0.5
    select(near, z, tail, tail)
    return tail


def _tail(z: np.ndarray, square: np.ndarray) -> np.ndarray:
    """Half of erfc(z) for z above `_LINEAR`."""
    tail = np.exp(-square)
    tail *= 0.5
    scale = _ratio(z, _MIDDLE_P, _MIDDLE_Q)
    if (far := z > _MIDDLE).any():
        inverse = 1 / square[far]
        scale[far] = (1 / math.sqrt(math.pi) - inverse * _ratio(inverse, _FAR_P, _FAR_Q)) / z[far]
    tail *= scale
    return tail


def gelu_single(x: np.ndarray, out: np.ndarray) -> None:
    """x times the share of the normal distribution below it, in float32; `out` may be `x`. NaN at minus infinity, as by
    the formula."""
    magnitude = np.minimum(x, constant(_FAR, x), out=borrow(x))  # so that infinity less its bump is infinity
    np.abs(magnitude, out=magnitude)
    bell, share = _bell_and_share(magnitude)
    share *= magnitude
    share *= bell
    np.maximum(x, constant(0, x), out=magnitude)
    np.subtract(magnitude, share, out=out)
    give(magnitude, bell, share)


def gelu_gradient_single(grad: np.ndarray, x: np.ndarray, out: np.ndarray) -> None:
    """out = grad times the derivative of `gelu_single`; `out` may be `grad` or `x`. NaN at infinity: x times a density
    of 0."""
    magnitude = np.abs(x, out=borrow(x))
    bell, below = _bell_and_share(magnitude)
    magnitude *= -1 / math.sqrt(2 * math.pi)
    below += magnitude
    below *= bell
    sign = np.copysign(constant(1, x), x, out=magnitude)
    below *= sign
    np.maximum(sign, constant(0, x), out=sign)
    sign -= below
    np.multiply(grad, sign, out=out)
    give(magnitude, bell, below)


def _bell_and_share(magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(-x^2 / 2), and what times that is the share of the normal distribution beyond x >= 0: both borrowed."""
    bell, t, share = borrow(magnitude), borrow(magnitude), borrow(magnitude)
    np.multiply(magnitude, GELU_TAIL_SLOPE, out=t)
    t += 1
    np.divide(1, t, out=t)
    _horner(t, GELU_TAIL, share)
    share *= t
    np.multiply(magnitude, magnitude, out=bell)
    bell *= -0.5
    np.exp(bell, out=bell)
    give(t)
    return bell, share


def _ratio(x: np.ndarray, p: tuple[float, ...], q: tuple[float, ...]) -> np.ndarray:
    return _horner(x, p, np.empty_like(x)) / _horner(x, q, np.empty_like(x))


def _horner(x: np.ndarray, coefficients: tuple[float, ...], out: np.ndarray) -> np.ndarray:
    """The polynomial with these coefficients, the highest power first, in `out`, which is not `x`."""
    first, second, *others = coefficients
    if first == 1:
        np.add(x, second, out=out)
    else:
        np.multiply(x, first, out=out)
        out += second
    for c in others:
        out *= x
        out += c
    return out
