"""Activations, alone and fused: names, parameters and the problems of elementwise operations."""

from __future__ import annotations

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


def _any(op: str, name: str, value: Any) -> float:
    return checks.number(op, name, value)


def _positive(op: str, name: str, value: Any) -> float:
    return checks.number(op, name, value, above=0)


def _approximation(op: str, name: str, value: Any) -> str:
    return checks.choice(op, name, value, ("none", "tanh"))


# name -> parameter -> (check, default). The order of the parameters is the order the engines receive them in.
PARAMETERS: dict[str, dict[str, tuple[Callable[[str, str, Any], Any], Any]]] = {
    "relu": {},
    "leaky_relu": {"negative_slope": (_any, 0.01)},
    "gelu": {"approximate": (_approximation, "none")},
}


def named(op: str, name: Any, **parameters: Any) -> Activation:
    """The activation called `name`, its parameters checked; those not given take their defaults."""
    if not isinstance(name, str) or name not in PARAMETERS:
        fail(OptionError, op, "activation", repr(name), "one of " + ", ".join(map(repr, PARAMETERS)))
    table = PARAMETERS[name]
    return Activation(name, tuple(check(op, p, parameters.get(p, default)) for p, (check, default) in table.items()))


def fused(op: str, name: Any) -> Activation | None:
    """The `activation=` option of a fused operation: None or a name."""
    return None if name is None else named(op, name)


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
