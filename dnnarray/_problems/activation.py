"""Activations, alone and fused: names, parameters and the problems of elementwise operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dnnarray._errors import OptionError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._spec import Spec


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters in the order of `PARAMETERS`: what an epilogue needs to know."""

    name: str
    parameters: tuple[float | str, ...] = ()


def _finite(op: str, name: str, value: Any) -> float:
    return checks.number(op, name, value)


def _any(op: str, name: str, value: Any) -> float:
    return checks.number(op, name, value, finite=False)


def _positive(op: str, name: str, value: Any) -> float:
    return checks.number(op, name, value, 0, finite=False)


def _divisor(op: str, name: str, value: Any) -> float:
    number = checks.number(op, name, value)
    if number == 0:
        fail(OptionError, op, name, value, "a finite number other than 0")
    return number


def _approximation(op: str, name: str, value: Any) -> str:
    return checks.choice(op, name, value, ("none", "tanh"))


REQUIRED = inspect.Parameter.empty
SELU_ALPHA = 1.6732632423543772
SELU_GAMMA = 1.0507009873554805

# name -> parameter -> (check, default). The order of the parameters is the order the engines receive them in.
PARAMETERS: dict[str, dict[str, tuple[Callable[[str, str, Any], Any], Any]]] = {
    "relu": {},
    "relu6": {},
    "clipped_relu": {"max": (_positive, 6.0)},
    "leaky_relu": {"negative_slope": (_finite, 0.01)},
    "elu": {"alpha": (_finite, 1.0)},
    "selu": {"alpha": (_finite, SELU_ALPHA), "gamma": (_finite, SELU_GAMMA)},
    "celu": {"alpha": (_divisor, 1.0)},
    "sigmoid": {},
    "hard_sigmoid": {"alpha": (_finite, 1 / 6), "beta": (_finite, 0.5)},
    "log_sigmoid": {},
    "tanh": {},
    "hard_tanh": {"min": (_any, -1.0), "max": (_any, 1.0)},
    "softplus": {"beta": (_divisor, 1.0), "threshold": (_any, 20.0)},
    "softsign": {},
    "gelu": {"approximate": (_approximation, "none")},
    "silu": {"beta": (_finite, 1.0)},
    "hard_swish": {},
    "mish": {},
    "threshold": {"threshold": (_any, REQUIRED), "value": (_any, REQUIRED)},
}
FUSED = tuple(name for name, table in PARAMETERS.items() if all(default is not REQUIRED for _, default in table.values()))


def named(op: str, name: str, **parameters: Any) -> Activation:
    """The activation called `name`, its parameters checked; those not given take their defaults."""
    table = PARAMETERS[name]
    values = tuple(check(op, p, parameters.get(p, default)) for p, (check, default) in table.items())
    if name == "hard_tanh" and values[0] > values[1]:
        fail(OptionError, op, "min", values[0], f"at most max, which is {values[1]}")
    return Activation(name, values)


def fused(op: str, name: Any) -> Activation | None:
    """The `activation=` option of a fused operation: None or the name of an activation, which then has its default parameters."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in FUSED:
        fail(OptionError, op, "activation", repr(name), "None or one of " + ", ".join(map(repr, FUSED)))
    return named(op, name)


@dataclass(frozen=True, kw_only=True)
class ElementwiseProblem(Problem):
    """y = activation(x), or its gradient: every element by itself."""

    activation: Activation


def elementwise(name: str) -> Callable[..., ElementwiseProblem]:
    """The builder for the stand-alone activation `name`."""

    def build(op: str, x: Spec, **parameters: Any) -> ElementwiseProblem:
        checks.floating(op, "x", x)
        return ElementwiseProblem(op=op, inputs=(x,), outputs=(x.like(),), activation=named(op, name, **parameters))

    return build


def elementwise_backward(name: str) -> Callable[..., ElementwiseProblem]:
    """The builder for the gradient of the stand-alone activation `name`."""

    def build(op: str, grad: Spec, x: Spec, **parameters: Any) -> ElementwiseProblem:
        checks.same_dtype(op, x=x, grad=grad)
        checks.gradient(op, grad, x)
        return ElementwiseProblem(op=op, inputs=(grad, x), outputs=(x.like(),), activation=named(op, name, **parameters))

    return build
