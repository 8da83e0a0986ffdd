"""Activations, gated units, bias and activation."""

from __future__ import annotations

from functools import partial

from dnnarray._problems.activation import FUSED
from tests.fuzz.drawer import Drawer, Drawn

_PARAMETERS = {
    "clipped_relu": {"max": (0.0, 3.0)},
    "leaky_relu": {"negative_slope": (-1.0, 2.0)},
    "elu": {"alpha": (-1.0, 2.0)},
    "selu": {"alpha": (0.1, 2.0), "gamma": (0.5, 2.0)},
    "celu": {"alpha": (0.2, 2.0)},
    "hard_sigmoid": {"alpha": (0.05, 1.0), "beta": (-0.5, 1.0)},
    "hard_tanh": {"min": (-2.0, 0.0), "max": (0.0, 2.0)},
    "softplus": {"beta": (0.3, 3.0), "threshold": (1.0, 25.0)},
    "silu": {"beta": (-1.0, 2.0)},
}


def activation(d: Drawer) -> str | None:
    """For the option of a fused operation."""
    return None if d.maybe(0.4) else str(d.choice(FUSED))


def _elementwise(op: str, d: Drawer) -> Drawn:
    x = d.floats(*d.shape(d.integer(0, 5)), scale=d.choice((1.0, 1.0, 4.0)))
    ranges = _PARAMETERS.get(op, {})
    options = {name: round(d.number(*ends), 3) for name, ends in ranges.items() if d.maybe()}
    if op == "gelu" and d.maybe():
        options["approximate"] = "tanh"
    if op == "threshold":
        options = {"threshold": round(d.number(-1, 1), 3), "value": d.choice((0.0, -2.0, 1.5))}
    return Drawn(op, (x,), options)


def _prelu(d: Drawer) -> Drawn:
    shape = d.shape(d.integer(0, 4))
    forms = [(1,), (), tuple(n if d.maybe() else 1 for n in shape)]
    if shape:
        forms += [shape[1:2] or shape, shape, shape[-1:]]
    return Drawn("prelu", (d.floats(*shape), d.floats(*d.choice(forms))), reduction=d.budget)


def _glu(d: Drawer) -> Drawn:
    shape = list(d.shape(d.integer(1, 4)))
    axis = d.integer(0, len(shape) - 1)
    shape[axis] *= 2
    signed = axis - len(shape) if d.maybe() else axis
    options = {} if axis == len(shape) - 1 and d.maybe() else {"axis": signed}
    return Drawn("glu", (d.floats(*shape),), options)


def _gated(op: str, d: Drawer) -> Drawn:
    shape = d.shape(d.integer(0, 4))
    return Drawn(op, (d.floats(*shape), d.floats(*shape)))


def _bias_activation(d: Drawer) -> Drawn:
    shape = d.shape(d.integer(1, 5))
    axis = d.integer(0, len(shape) - 1)
    options = {"activation": activation(d), "axis": axis - len(shape) if d.maybe() else axis}
    if axis == 1 and d.maybe():
        del options["axis"]
    residual = d.floats(*shape) if d.maybe() else None
    return Drawn("bias_activation", (d.floats(*shape), d.floats(shape[axis]), residual), options, reduction=d.budget)


DRAWERS = {op: partial(_elementwise, op) for op in (*FUSED, "threshold")} | {
    "prelu": _prelu,
    "glu": _glu,
    "swiglu": partial(_gated, "swiglu"),
    "geglu": partial(_gated, "geglu"),
    "bias_activation": _bias_activation,
}
