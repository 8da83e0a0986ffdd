"""Activations, softmax and dropout."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import dnnarray as dnn
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import floating, namespace, number

# Operator: function, and its options by name with the attribute and the default that ONNX has for each.
_OPTIONS: dict[str, tuple[Callable[..., Any], dict[str, tuple[str, float]]]] = {
    "Celu": (dnn.celu, {"alpha": ("alpha", 1.0)}),
    "Elu": (dnn.elu, {"alpha": ("alpha", 1.0)}),
    "HardSigmoid": (dnn.hard_sigmoid, {"alpha": ("alpha", 0.2), "beta": ("beta", 0.5)}),
    "HardSwish": (dnn.hard_swish, {}),
    "LeakyRelu": (dnn.leaky_relu, {"negative_slope": ("alpha", 0.01)}),
    "Mish": (dnn.mish, {}),
    "Selu": (dnn.selu, {"alpha": ("alpha", 1.67326319217681884765625), "gamma": ("gamma", 1.05070102214813232421875)}),
    "Sigmoid": (dnn.sigmoid, {}),
    "Softplus": (dnn.softplus, {}),
    "Softsign": (dnn.softsign, {}),
    "Swish": (dnn.silu, {"beta": ("alpha", 1.0)}),
    "Tanh": (dnn.tanh, {}),
}


def _activation(function: Callable[..., Any], options: dict[str, tuple[str, float]]) -> Callable[..., Any]:
    return lambda node, x: function(
        x, **{n: node.get(attribute, default) for n, (attribute, default) in options.items()}
    )


for _name, (_function, _options) in _OPTIONS.items():
    operator(_name)(_activation(_function, _options))


@operator("Relu")
def relu(node: Node, x: Any) -> Any:
    """Integers too."""
    return dnn.relu(x) if floating(x) else namespace(x).maximum(x, namespace(x).zeros_like(x))


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Any) -> Any:
    return dnn.threshold(x, threshold=node.get("alpha", 1.0), value=0.0)


@operator("Gelu")
def gelu(node: Node, x: Any) -> Any:
    return dnn.gelu(x, approximate=node.get("approximate", "none"))


@operator("SwiGLU")
def swiglu(node: Node, gate: Any, x: Any) -> Any:
    alpha = node.get("alpha", 1.0)
    return dnn.swiglu(gate, x) if alpha == 1 else dnn.silu(gate, beta=alpha) * x


@operator("PRelu")
def prelu(node: Node, x: Any, slope: Any) -> Any:
    """Integers too. Before opset 7 the slopes are one, or one for each channel."""
    if node.opset < 7 and slope.size > 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    xp = namespace(x, slope)
    if not floating(x):
        return xp.where(x < 0, x * slope, x)
    slope = slope.reshape((1,) * (x.ndim - slope.ndim) + slope.shape)
    return dnn.prelu(x, slope)


def _coerced(function: Callable[[Any, int], Any], node: Node, x: Any) -> Any:
    """Before opset 13 all axes from `axis` on are one."""
    if node.opset >= 13:
        return function(x, node.get("axis", -1))
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    rows, columns = math.prod(x.shape[:axis]), math.prod(x.shape[axis:])
    return function(x.reshape(rows, columns), -1).reshape(x.shape)


@operator("Softmax")
def softmax(node: Node, x: Any) -> Any:
    return _coerced(lambda x, axis: dnn.softmax(x, axis=axis), node, x)


@operator("LogSoftmax")
def log_softmax(node: Node, x: Any) -> Any:
    return _coerced(lambda x, axis: dnn.log_softmax(x, axis=axis), node, x)


@operator("Hardmax")
def hardmax(node: Node, x: Any) -> Any:
    """1 for the first of the largest, 0 elsewhere."""

    def function(x: Any, axis: int) -> Any:
        xp = namespace(x)
        shape = tuple(n if a == axis % x.ndim else 1 for a, n in enumerate(x.shape))
        return (xp.arange(x.shape[axis]).reshape(shape) == xp.argmax(x, axis=axis, keepdims=True)).astype(x.dtype)

    return _coerced(function, node, x)


@operator("Dropout", host=(1, 2))
def dropout(node: Node, x: Any, ratio: Any = None, training: Any = None) -> Any:
    """The identity but in training. The mask tells which elements are left."""
    p = node.get("ratio", 0.5) if ratio is None else float(number(ratio))
    xp = namespace(x)
    if training is None or not number(training) or p == 0:
        return x, xp.ones(x.shape, dtype=bool)
    seed = node.get("seed", None)
    seed = secrets.randbits(63) if seed is None else int(seed)
    y = dnn.dropout(x, p=p, seed=seed)
    mask = dnn.dropout(xp.ones_like(x), p=p, seed=seed) != 0 if node.wants(1) else None
    return y, mask


@operator("Binarizer", domain="ai.onnx.ml")
def binarizer(node: Node, x: Any) -> Any:
    return (x > node.get("threshold", 0.0)).astype(x.dtype)
