"""The error function on NumPy arrays, which NumPy lacks, within 4 units in the last place of float32 and float64.

float64: erf(x) = x R(x^2) for |x| <= 1/2 and 1 - exp(-x^2) S(x) above, with rational R and S in the form of W. J. Cody, "Rational
Chebyshev approximations for the error function", Mathematics of Computation 23 (1969); the coefficients are those published there.

float32: erf(x) = 1 - exp(-x P(x)) for x > 0. The polynomial P is a weighted minimax fit to -log(1 - erf(x)) / x on [0, 4] with relative
error 1e-8 in erf; expm1 keeps the relative precision around 0, and the form itself keeps it near 1.
"""

from __future__ import annotations

import numpy as np

from dnnarray._cpu.blocks import select

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
_EXPONENT = (
    -7.21453624e-06, 0.000100902974, -0.000578876612, 0.00157951013, -8.4590536e-05, -0.0191873447, 0.102785126, 0.636618818, 1.12837918
)  # fmt: skip
_SATURATED_SINGLE = 4.0  # from here erf is 1 to the last bit of float32


def erf(x: np.ndarray) -> np.ndarray:
    """erf of every element of an array of one axis or more, in its dtype (float32 or float64); NaN stays NaN."""
    return _erf_single(x) if x.dtype == np.float32 else _erf_double(x)


def _erf_single(x: np.ndarray) -> np.ndarray:
    magnitude = np.minimum(np.abs(x), _SATURATED_SINGLE)
    exponent = _horner(magnitude, _EXPONENT)
    exponent *= magnitude
    np.negative(exponent, out=exponent)
    np.expm1(exponent, out=exponent)
    return np.copysign(exponent, x, out=exponent)


def _erf_double(x: np.ndarray) -> np.ndarray:
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
