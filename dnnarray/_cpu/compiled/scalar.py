"""Functions of one number for kernels, in float32 and float64, written so that loops over them become vector code: no
branches, no calls.

Numba's wheels bring no vector library of mathematics. exp is reduced to 2^n (1 + p(r)) with |r| <= ln(2) / 2, the rest
is made of it. Errors against float64 (largest over the range, in units in the last place of float32): exp 1.0, sigmoid
1.9, tanh 0.51, log1p 1.5.

Literals are float64 for Numba and would drag a loop to double: `const(x, 0.5)` is 0.5 in the type of x.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from dnnarray import _source
from dnnarray._cpu.compiled.coefficients import GELU_TAIL, GELU_TAIL_SLOPE
from dnnarray._cpu.compiled.kernel import device

# (exp(r) - 1 - r) / r^2, the highest power first: for |r| <= ln(2) / 2 minimax with relative error 2e-10 in exp, and
# Taylor's to the last bit.
_EXP_SINGLE = (
    0.00019891030654370327,
    0.0013933685862617174,
    0.008333310889582076,
    0.04166646460202654,
    0.16666666681659179,
    0.5000000013498178,
)
_EXP_DOUBLE = tuple(1 / math.factorial(n) for n in range(14, 1, -1))
# 2^r for |r| <= 1/2: minimax, relative error 8e-8.
_EXP2_SINGLE = (
    0.0013276472454890609,
    0.009675541892647743,
    0.05550713092088699,
    0.24022120237350464,
    0.6931469440460205,
    1.0000001192092896,
)
# atanh(s) / s in powers of s^2 for s <= 1/3.
_ATANH_SINGLE = tuple(1 / n for n in range(15, 0, -2))
_ATANH_DOUBLE = tuple(1 / n for n in range(35, 0, -2))
# (tanh(x) / x - 1) / x^2 in powers of x^2 for |x| <= 0.625: minimax, error 4e-17.
_TANH_DOUBLE = (
    -1.7231441019809252e-05,
    7.957457127411114e-05,
    -0.00023075646174205693,
    0.0005874287103325052,
    -0.0014553070488497815,
    0.0035920586138332806,
    -0.008863229795270043,
    0.02186948825856021,
    -0.05396825396133896,
    0.13333333333326597,
    -0.3333333333333332,
)
_GELU_LAST = 16.0  # from 14.5 on the share of the normal distribution is no float32
_intrinsic: Any = intrinsic  # whose own types do not know that the first parameter is not passed


# --- bits -------------------------------------------------------------------------------------------------------------


@_intrinsic
def _bits(typing_context: Any, x: Any) -> Any:
    """The bits of a float as an integer of its width."""
    integer = types.int32 if x == types.float32 else types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(integer))

    return integer(x), generate


@_intrinsic
def order_key(typing_context: Any, x: Any) -> Any:
    """An integer of the width of x that is ordered as x is: the largest of many is found in vectors, which NaN forbids
    for floats."""
    integer = types.int32 if x == types.float32 else types.int64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _flipped(builder, builder.bitcast(arguments[0], context.get_value_type(integer)))

    return integer(x), generate


@_intrinsic
def from_order_key(typing_context: Any, key: Any) -> Any:
    """The float with this key."""
    real = types.float32 if key == types.int32 else types.float64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(_flipped(builder, arguments[0]), context.get_value_type(real))

    return real(key), generate


def _flipped(builder: Any, bits: Any) -> Any:
    """All bits but the sign turned over where the sign is set."""
    width = bits.type.width
    negative = builder.ashr(bits, bits.type(width - 1))
    return builder.xor(bits, builder.and_(negative, bits.type((1 << (width - 1)) - 1)))


@_intrinsic
def _halved(typing_context: Any, bits: Any) -> Any:
    """Half of an integer, rounded down, in its own type: Numba's own operators widen to 64 bits, which halves the
    lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ashr(arguments[0], arguments[0].type(1))

    return bits(bits), generate


@_intrinsic
def _less(typing_context: Any, a: Any, b: Any) -> Any:
    """a - b in the type of the integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sub(*arguments)

    return a(a, b), generate


@_intrinsic
def _power_of_two(typing_context: Any, n: Any, like: Any) -> Any:
    """2 to the integer n, in the float type of `like`; n within the range of normal numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        count, kind = arguments[0], arguments[1].type
        mantissa, bias = (23, 127) if like == types.float32 else (52, 1023)
        return builder.bitcast(builder.shl(builder.add(count, count.type(bias)), count.type(mantissa)), kind)

    return like(n, like), generate


@_intrinsic
def copysign(typing_context: Any, magnitude: Any, sign: Any) -> Any:
    """The magnitude of one number with the sign of another, both of one type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        function = builder.module.declare_intrinsic("llvm.copysign", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(function, arguments)

    return magnitude(magnitude, sign), generate


@_intrinsic
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, rounded once: asked for where it is wanted, since a compiler that fuses at will does so differently in
    the last lanes of a loop."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        function = builder.module.declare_intrinsic("llvm.fma", [kind], ir.FunctionType(kind, [kind] * 3))
        return builder.call(function, arguments)

    return a(a, b, c), generate


def const(x: Any, value: Any) -> Any:
    """`value` in the type of `x`."""
    raise NotImplementedError


@overload(const, inline="always", strict=False)
def _const(x: Any, value: Any) -> Any:
    kind = x

    def convert(x: Any, value: Any) -> Any:
        return kind(value)

    return convert


def _polynomial(single: tuple[float, ...], double: tuple[float, ...]) -> Any:
    """A function of x: the polynomial with these coefficients, the highest power first."""
    one, other = (_horner(kind, c) for kind, c in (("float32", single), ("float64", double)))

    def polynomial(x: Any) -> Any:
        raise NotImplementedError

    overload(polynomial, inline="always", strict=False)(lambda x: one if x == types.float32 else other)
    return polynomial


def _horner(kind: str, coefficients: tuple[float, ...]) -> Any:
    first, *rest = (f"{kind}({c!r})" for c in coefficients)
    lines = [f"    total = {first}", *(f"    total = fma(total, x, {c})" for c in rest)]
    scope: dict[str, Any] = {kind: getattr(types, kind), "fma": fma}
    return _source.function(
        "polynomial", "\n".join(["def polynomial(x):", *lines, "    return total"]), scope, __name__
    )


# --- exponentials -----------------------------------------------------------------------------------------------------

_exp_tail = _polynomial(_EXP_SINGLE, _EXP_DOUBLE)
_exp_tail_short = _polynomial(_EXP_SINGLE, _EXP_SINGLE)
_atanh_ratio = _polynomial(_ATANH_SINGLE, _ATANH_DOUBLE)
_tanh_ratio = _polynomial(_TANH_DOUBLE, _TANH_DOUBLE)
_exp2_of_part = _polynomial(_EXP2_SINGLE, _EXP2_SINGLE)
_gelu_tail = _polynomial(GELU_TAIL, GELU_TAIL)


def _limits(x: Any) -> Any:
    """Of a type: what exp takes (from a plain 0 to infinity), the number whose addition rounds to an integer, and ln(2)
    in two parts."""
    raise NotImplementedError


@overload(_limits, inline="always", strict=False)
def _limits_by_type(x: Any) -> Any:
    low: Any
    high: Any
    magic: Any
    ln2: Any
    rest: Any
    if x == types.float32:
        low, high, magic = types.float32(-104.0), types.float32(89.0), types.float32(1.5 * 2**23)
        ln2, rest = types.float32(0.693359375), types.float32(-2.12194440e-4)
    else:
        low, high, magic = types.float64(-746.0), 710.0, 1.5 * 2**52
        ln2, rest = 6.93147180369123816490e-01, 1.90821492927058770002e-10
    return lambda x: (low, high, magic, ln2, rest)


def _most(x: Any) -> Any:
    """The largest number of a type."""
    raise NotImplementedError


@overload(_most, inline="always", strict=False)
def _most_by_type(x: Any) -> Any:
    most = types.float32(np.finfo(np.float32).max) if x == types.float32 else np.finfo(np.float64).max
    return lambda x: most


@device
def _exp_parts(x: Any) -> Any:
    """(p, a, b): exp(x) = (1 + p) a b, with powers of two a and b, so that their product may leave the range of normal
    numbers."""
    low, high, magic, ln2, rest = _limits(x)
    x = low if x < low else x
    x = high if x > high else x  # NaN stays NaN
    rounded = fma(x, const(x, 1.4426950408889634), magic)
    n = rounded - magic
    r = fma(-n, rest, fma(-n, ln2, x))
    count = _less(_bits(rounded), _bits(magic))
    half = _halved(count)
    return fma(r * r, _exp_tail(r), r), _power_of_two(half, x), _power_of_two(_less(count, half), x)


@device
def _falling_exp(x: Any) -> Any:
    """exp(-|x|)."""
    low, _, magic, ln2, rest = _limits(x)
    x = -abs(x)
    x = low if x < low else x  # NaN stays NaN
    rounded = fma(x, const(x, 1.4426950408889634), magic)
    n = rounded - magic
    r = fma(-n, rest, fma(-n, ln2, x))
    # 2^64 times as large, since 2^n may be no normal number: the last product rounds to what is none.
    scale = _power_of_two(_less(_bits(rounded), _bits(magic - const(x, 64.0))), x)
    return fma(fma(r * r, _exp_tail(r), r), scale, scale) * const(x, 2.0**-64)


@device
def exp(x: Any) -> Any:
    """e to the x."""
    p, a, b = _exp_parts(x)
    return (const(x, 1.0) + p) * a * b


@device
def expm1(x: Any) -> Any:
    """exp(x) - 1, with its relative precision near 0."""
    p, a, b = _exp_parts(x)
    one, scale = const(x, 1.0), a * b
    near = fma(p, scale, scale - one)
    far = (one + p) * a * b - one  # where the scale alone may overflow
    return far if x > one else near


@device
def _lesser_share(x: Any) -> Any:
    """The logistic function of -|x|."""
    e = _falling_exp(x)
    return e / (const(x, 1.0) + e)


@device
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), exact in relation to itself far below 0."""
    share = _lesser_share(x)
    return share if x < const(x, 0.0) else const(x, 1.0) - share


@device
def times_sigmoid(x: Any, y: Any) -> Any:
    """x times the logistic function of y: above 0 by what it lacks, so that all roundings but the last are those of a
    small number."""
    zero, share, most = const(x, 0.0), _lesser_share(y), _most(x)
    finite = most if x > most else x  # infinity less 0 times infinity is infinity; NaN stays NaN
    finite = -most if finite < -most else finite
    return x * share if y < zero else fma(-finite, share, x)


@device
def sigmoid_and_slope(x: Any, t: Any) -> Any:
    """s(x) + t s'(x) of the logistic function s, in the same way."""
    zero, one = const(x, 0.0), const(x, 1.0)
    share, below = _lesser_share(x), x < const(x, 0.0)
    return fma(share, fma(t, one - share, one if below else -one), zero if below else one)


@device
def sigmoid_slope(x: Any) -> Any:
    """The derivative of `sigmoid`, without the cancellation of s (1 - s)."""
    one = const(x, 1.0)
    e = _falling_exp(x)
    return e / ((one + e) * (one + e))


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    raise NotImplementedError


@overload(tanh, inline="always", strict=False)
def _tanh(x: Any) -> Any:
    if x == types.float32:
        return lambda x: _tanh_single(x)
    return lambda x: _tanh_double(x)


@device
def _tanh_single(x: Any) -> Any:
    """(e - 1) / (e + 1) of e = exp(2 x) in float64, which leaves the one rounding at the end; beyond |x| = 20 it is
    1."""
    wide: float = np.float64(x) * 2.0
    _, _, magic, ln2, rest = _limits(wide)
    wide = -40.0 if wide < -40.0 else wide
    wide = 40.0 if wide > 40.0 else wide  # NaN stays NaN
    rounded = fma(wide, 1.4426950408889634, magic)
    n = rounded - magic
    r = fma(-n, rest, fma(-n, ln2, wide))
    scale = _power_of_two(_less(_bits(rounded), _bits(magic)), wide)
    grown = scale * fma(r * r, _exp_tail_short(r), r)
    return copysign(np.float32((scale - 1.0 + grown) / (scale + 1.0 + grown)), x)


@device
def _tanh_double(x: Any) -> Any:
    square = x * x
    near = fma(x * square, _tanh_ratio(square), x)
    far = 1.0 - 2.0 / (exp(2.0 * abs(x)) + 1.0)
    return copysign(far, x) if abs(x) > 0.625 else near


@device
def log1p_of_part(x: Any) -> Any:
    """log(1 + x) for 0 <= x <= 1: 2 atanh(x / (2 + x))."""
    s = x / (const(x, 2.0) + x)
    return const(x, 2.0) * s * _atanh_ratio(s * s)


@device
def softplus(x: Any) -> Any:
    """log(1 + exp(x))."""
    zero = const(x, 0.0)
    return (zero if x < zero else x) + log1p_of_part(exp(-abs(x)))


# --- the normal distribution ------------------------------------------------------------------------------------------


def gelu(x: Any) -> Any:
    """x times the share of the normal distribution below it."""
    raise NotImplementedError


@overload(gelu, inline="always", strict=False)
def _gelu(x: Any) -> Any:
    if x == types.float64:
        return lambda x: x * (0.5 * math.erfc(x * -0.7071067811865476))
    return lambda x: _gelu_single(x)


@device
def _gelu_single(x: Any) -> Any:
    """By the share on the other side, which is small: below 0 it is all there is."""
    far, zero = const(x, 20.0), const(x, 0.0)
    magnitude = abs(far if x > far else x)
    return (x if x > zero else zero) - _times_bell(magnitude * _share(magnitude), magnitude)


@device
def _share(x: Any) -> Any:
    """What times exp(-x^2 / 2) is the share of the normal distribution beyond x >= 0, in float32."""
    one = const(x, 1.0)
    t = one / fma(x, const(x, GELU_TAIL_SLOPE), one)
    return t * _gelu_tail(t)


@device
def _times_bell(y: Any, x: Any) -> Any:
    """y exp(-x^2 / 2) for x >= 0, in float32."""
    _, _, magic, _, _ = _limits(x)
    last = const(x, _GELU_LAST)
    x = last if x > last else x  # NaN stays NaN
    slope = x * const(x, -0.7213475204444817)  # -x^2 / 2 as a power of 2
    rounded = fma(x, slope, magic)
    part = _exp2_of_part(fma(x, slope, magic - rounded))
    # 2^64 times as large, since 2^n may be no normal number: the last product rounds to what is none.
    scale = _power_of_two(_less(_bits(rounded), _bits(magic - const(x, 64.0))), x)
    return y * part * scale * const(x, 2.0**-64)


def gelu_slope(x: Any) -> Any:
    """The derivative of `gelu`."""
    raise NotImplementedError


@overload(gelu_slope, inline="always", strict=False)
def _gelu_slope(x: Any) -> Any:
    if x == types.float64:
        return lambda x: exp(-0.5 * x * x) * x * 0.3989422804014327 + 0.5 * math.erfc(x * -0.7071067811865476)
    return lambda x: _gelu_slope_single(x)


@device
def _gelu_slope_single(x: Any) -> Any:
    """What -|x| has; 1 less that above 0."""
    magnitude, last, zero = abs(x), const(x, _GELU_LAST), const(x, 0.0)
    near = last if magnitude > last else magnitude
    below = _times_bell(fma(near, const(x, -0.3989422804014327), _share(near)), near)
    return fma(x, zero, const(x, 1.0) - below if x > zero else below)  # no slope at infinity
