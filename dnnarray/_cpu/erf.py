"""The error function and the normal distribution on NumPy arrays, which NumPy lacks.

float64: erf(x) = x R(x^2) for |x| <= 1/2 and 1 - exp(-x^2) S(x) above, with rational R and S in the form of W. J. Cody, "Rational
Chebyshev approximations for the error function", Mathematics of Computation 23 (1969); the coefficients are those published there. Within 4 units
in the last place.

float32: the distribution below -|x| is exp(-x^2 / 2) t R(t) / 2 with a polynomial R in t = 1 / (1 + |x| / sqrt(8)), relative error 2e-7 on both sides.
"""

from __future__ import annotations

import math

import numpy as np

from dnnarray._cpu.blocks import select
from dnnarray._cpu.compiled.coefficients import ERFC_RATIO

_SMALL_P = (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3)
_SMALL_Q = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_P = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_MIDDLE_Q = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
    3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_LINEAR = 0.5  # up to here erf(x) = x R(x^2); past erf(0.477) = 1/2, so that 1 - exp(-x^2) S(x) loses no digit
_SATURATED = 6.0  # from here erf is 1 to the last bit of float64


def normal_cdf(x: np.ndarray, density: np.ndarray) -> np.ndarray:
    """The share of the normal distribution below x, in the dtype of x (float32 or float64); `density` is exp(-x^2 / 2)."""
    if x.dtype == np.float32:
        return _cdf_single(x, density)
    cdf = erf(x * (1 / math.sqrt(2)))
    cdf += 1
    cdf *= 0.5
    return cdf


def _cdf_single(x: np.ndarray, density: np.ndarray) -> np.ndarray:
    t = np.abs(x)
    t *= 1 / math.sqrt(8)
    t += 1
    np.divide(1, t, out=t)
    tail = _horner(t, ERFC_RATIO)
    tail *= t
    tail *= density
    tail *= 0.5
    select(x < 0, tail, 1 - tail, tail)
    return tail


def erf(x: np.ndarray) -> np.ndarray:
    """erf of every element of a float64 array of one axis or more; NaN stays NaN."""
    magnitude = np.minimum(np.abs(x), _SATURATED)
    near = magnitude <= _LINEAR
    square = magnitude * magnitude
    tail = np.exp(-square)
    tail *= _ratio(magnitude, _MIDDLE_P, _MIDDLE_Q)
    np.subtract(1, tail, out=tail)
    np.copysign(tail, x, out=tail)
    small = x * _ratio(np.minimum(square, _LINEAR), _SMALL_P, _SMALL_Q)
    select(near, small, tail, tail)
    return tail


def _ratio(x: np.ndarray, p: tuple[float, ...], q: tuple[float, ...]) -> np.ndarray:
    return _horner(x, p) / _horner(x, q)


def _horner(x: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    total = x * coefficients[0]
    for c in coefficients[1:-1]:
        total += c
        total *= x
    total += coefficients[-1]
    return total
