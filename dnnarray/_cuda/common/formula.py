"""Activations as kernels of any family take them: a type of ``kernels/include/dnnarray/core/activation.cuh`` and its
two parameters."""

from __future__ import annotations

import numpy as np

from dnnarray._problems.activation import Activation
from dnnarray._records import frozen
from dnnarray._spec import HALF

_CURVED = (
    "elu",
    "selu",
    "celu",
    "sigmoid",
    "log_sigmoid",
    "tanh",
    "softplus",
    "softsign",
    "gelu",
    "gelu_tanh",
    "silu",
    "mish",
)


def struct_name(activation: str, dtype: np.dtype | None = None) -> str:
    """The C++ name of an activation: ``hard_swish`` is ``dnnarray::HardSwish``. For half types the curved ones have a
    faster form."""
    prefix = "Half" if dtype in HALF and activation in _CURVED else ""
    return f"dnnarray::{prefix}" + "".join(part.capitalize() for part in activation.split("_"))


@frozen
class Formula:
    """An activation as kernels take it: its name in symbols, the C++ type, the two parameters."""

    name: str
    type: str
    p: float = 0.0
    q: float = 0.0


def formula(activation: Activation | None, dtype: np.dtype, by_result: bool = False) -> Formula:
    """What a kernel needs to know of an activation, or (`by_result`) of its gradient from the result; None is the
    identity."""
    name = "identity" if activation is None else activation.name
    if activation is not None and "tanh" in activation.parameters:
        name = f"{name}_tanh"
    name += "_by_result" * by_result
    numbers = () if activation is None else tuple(v for v in activation.parameters if not isinstance(v, str))
    return Formula(name, struct_name(name, dtype), *map(float, numbers))
