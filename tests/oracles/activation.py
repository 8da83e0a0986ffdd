"""Activations by definition, one number at a time in float64."""

import math

import numpy as np


def elementwise(formula):
    """An oracle that applies a formula over Python floats to every element."""

    def oracle(x, **options):
        return np.array([formula(float(v), **options) for v in np.ravel(x)], np.float64).reshape(np.shape(x))

    return oracle


def relu(x):
    return x if math.isnan(x) else max(x, 0.0)


def between(x, low, high):
    return x if math.isnan(x) else min(max(x, low), high)


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x, beta=1.0, threshold=20.0):
    return x if beta * x > threshold else math.log1p(math.exp(beta * x)) / beta


def elu(x, alpha=1.0):
    return x if x > 0 else alpha * math.expm1(x)


def gelu(x, approximate="none"):
    if approximate == "tanh":  # (1 + tanh(u)) / 2, which cancels far below 0, is the logistic function of 2 u
        return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return x * math.erfc(-x / math.sqrt(2)) / 2


def selu(x, alpha=1.6732632423543772, gamma=1.0507009873554805):
    return gamma * elu(x, alpha)


ELEMENTWISE = {
    "relu": relu,
    "relu6": lambda x: between(x, 0.0, 6.0),
    "clipped_relu": lambda x, max=6.0: between(x, 0.0, max),
    "leaky_relu": lambda x, negative_slope=0.01: x if x > 0 else negative_slope * x,
    "elu": elu,
    "selu": selu,
    "celu": lambda x, alpha=1.0: x if x > 0 else alpha * math.expm1(x / alpha),
    "sigmoid": sigmoid,
    "hard_sigmoid": lambda x, alpha=1 / 6, beta=0.5: between(alpha * x + beta, 0.0, 1.0),
    "log_sigmoid": lambda x: -math.log1p(math.exp(-x)) if x > -700 else x,
    "tanh": math.tanh,
    "hard_tanh": lambda x, min=-1.0, max=1.0: between(x, min, max),
    "softplus": softplus,
    "softsign": lambda x: x / (1 + abs(x)),
    "gelu": gelu,
    "silu": lambda x, beta=1.0: x * sigmoid(beta * x),
    "hard_swish": lambda x: x * between(x + 3, 0.0, 6.0) / 6,
    "mish": lambda x: x * math.tanh(softplus(x, threshold=700.0)),
    "threshold": lambda x, threshold, value: value if x <= threshold else x,
}


def prelu(x, weight):
    if weight.size == 1:
        slopes = np.full(x.shape, weight.ravel()[0])
    elif x.ndim > 1 and weight.shape == (x.shape[1],):
        slopes = np.moveaxis(np.broadcast_to(weight, np.moveaxis(x, 1, -1).shape), -1, 1)
    else:
        slopes = np.broadcast_to(weight, x.shape)
    pairs = zip(np.ravel(x), np.ravel(slopes), strict=True)
    return np.array([v if v > 0 else w * v for v, w in pairs], np.float64).reshape(x.shape)


def glu(x, axis=-1):
    a, b = np.split(x, 2, axis=axis)
    return a * elementwise(sigmoid)(b)


def gated(name):
    return lambda gate, x: elementwise(ELEMENTWISE[name])(gate) * x


def bias_activation(x, bias, residual=None, *, activation, axis=1):
    total = np.moveaxis(np.moveaxis(x, axis, -1) + bias, -1, axis)
    total = total if residual is None else total + residual
    return total if activation is None else elementwise(ELEMENTWISE[activation])(total)


ORACLES = {
    **{name: elementwise(formula) for name, formula in ELEMENTWISE.items()},
    "prelu": prelu,
    "glu": glu,
    "swiglu": gated("silu"),
    "geglu": gated("gelu"),
    "bias_activation": bias_activation,
}
