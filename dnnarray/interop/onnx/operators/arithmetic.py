"""Arithmetic, comparisons and logic, element by element."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace, on_host

_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_invert",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Round": "round",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
}
_BINARY = {
    "Add": "add",
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Mul": "multiply",
    "Or": "logical_or",
    "Sub": "subtract",
    "Xor": "logical_xor",
}
_VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _unary(name: str) -> Callable[..., Any]:
    return lambda node, x: getattr(namespace(x), name)(x)


def _binary(name: str) -> Callable[..., Any]:
    def run(node: Node, a: Any, b: Any) -> Any:
        return getattr(namespace(a, b), name)(a, _aligned(node, a, b))

    return run


def _variadic(name: str) -> Callable[..., Any]:
    return lambda node, *inputs: reduce(getattr(namespace(*inputs), name), inputs)


for _name, _function in _UNARY.items():
    operator(_name)(_unary(_function))
for _name, _function in _BINARY.items():
    operator(_name)(_binary(_function))
for _name, _function in _VARIADIC.items():
    operator(_name)(_variadic(_function))


def _aligned(node: Node, a: Any, b: Any) -> Any:
    """The second operand as it broadcasts: before opset 7 its axes stand for those of the first from `axis` on."""
    axis = node.get("axis")
    if node.opset >= 7 or axis is None or not node.get("broadcast", 0):
        return b
    return b.reshape(b.shape + (1,) * (a.ndim - axis % a.ndim - b.ndim))


@operator("Mean")
def mean(node: Node, *inputs: Any) -> Any:
    xp = namespace(*inputs)
    return reduce(xp.add, inputs) / len(inputs)


@operator("Equal")
def equal(node: Node, a: Any, b: Any) -> Any:
    return (a == _aligned(node, a, b)).astype(bool)


@operator("Div")
def div(node: Node, a: Any, b: Any) -> Any:
    """Of integers, the quotient rounded towards 0."""
    xp, b = namespace(a, b), _aligned(node, a, b)
    if a.dtype.kind not in "iu":
        return xp.divide(a, b)
    quotient = xp.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    inexact = (xp.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return quotient + inexact.astype(quotient.dtype)


@operator("Mod")
def mod(node: Node, a: Any, b: Any) -> Any:
    xp = namespace(a, b)
    return xp.fmod(a, b) if node.get("fmod", 0) else xp.remainder(a, b)


@operator("Pow")
def power(node: Node, a: Any, b: Any) -> Any:
    """The result has the dtype of the base."""
    xp, b = namespace(a, b), _aligned(node, a, b)
    if b.dtype == a.dtype:
        return xp.pow(a, b)
    wide = (
        a
        if a.dtype.kind == "f" and a.dtype.itemsize >= b.dtype.itemsize
        else a.astype(np.result_type(a.dtype, b.dtype, np.float32))
    )
    return xp.pow(wide, b.astype(wide.dtype)).astype(a.dtype)


@operator("Reciprocal")
def reciprocal(node: Node, x: Any) -> Any:
    return 1 / x


@operator("BitShift")
def bit_shift(node: Node, x: Any, bits: Any) -> Any:
    xp = namespace(x, bits)
    return (xp.bitwise_left_shift if node.get("direction") == "LEFT" else xp.bitwise_right_shift)(x, bits)


@operator("Clip")
def clip(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    """The bounds are attributes before opset 11."""
    xp = namespace(x)
    if node.opset < 11:
        low, high = node.get("min"), node.get("max")
    if low is not None:
        x = xp.maximum(x, xp.asarray(low, dtype=x.dtype))
    return x if high is None else xp.minimum(x, xp.asarray(high, dtype=x.dtype))


@operator("Shrink")
def shrink(node: Node, x: Any) -> Any:
    xp, bias, lambd = namespace(x), node.get("bias", 0.0), node.get("lambd", 0.5)
    return xp.where(x < -lambd, x + bias, xp.where(x > lambd, x - bias, xp.zeros_like(x))).astype(x.dtype)


@operator("IsInf")
def is_inf(node: Node, x: Any) -> Any:
    xp = namespace(x)
    found = xp.isinf(x)
    if not node.get("detect_negative", 1):
        found = found & (x > 0)
    return found if node.get("detect_positive", 1) else found & (x < 0)


@operator("Where")
def where(node: Node, condition: Any, a: Any, b: Any) -> Any:
    return namespace(condition, a, b).where(condition, a, b)


@operator("Erf")
def error_function(node: Node, x: Any) -> Any:
    if not on_host(x):
        from cupyx.scipy.special import erf

        return erf(x).astype(x.dtype)
    return _erf(x.astype(np.float64)).astype(x.dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    """In float64: by the power series near 0, where 2 F - 1 would lose digits, and by the distribution F elsewhere."""
    from dnnarray._cpu.erf import normal_cdf

    far = 2 * normal_cdf(np.atleast_1d(x) * np.sqrt(2.0)).reshape(x.shape) - 1
    square, term = np.minimum(x * x, 0.25), x * (2 / np.sqrt(np.pi))
    near = np.zeros_like(x)
    for n in range(14):
        near = near + term / (2 * n + 1)
        term = -term * square / (n + 1)
    return np.where(np.abs(x) <= 0.5, near, far)
