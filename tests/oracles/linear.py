"""Linear (fully connected) layers, by definition, in float64."""

import math
from collections.abc import Callable

import numpy as np

_ACTIVATIONS = {
    None: lambda v: v,
    "relu": lambda v: max(v, 0.0),
    "leaky_relu": lambda v: v if v > 0 else 0.01 * v,
    "gelu": lambda v: 0.5 * v * (1 + math.erf(v / math.sqrt(2))),
}


def linear(x, weight, bias=None, residual=None, *, activation=None):
    y = np.einsum("...i,oi->...o", x, weight)
    if bias is not None:
        y = y + bias
    if residual is not None:
        y = y + residual
    return np.array([_ACTIVATIONS[activation](float(v)) for v in y.flat]).reshape(y.shape)


ORACLES: dict[str, Callable] = {"linear": linear}
