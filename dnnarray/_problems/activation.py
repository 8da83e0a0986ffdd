"""Activations, alone and fused: names, parameters and the problems of elementwise operations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import ArrayTypeError, OptionError, ShapeError, closest, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Overwriting, leaves
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT


@frozen
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
FUSED = tuple(
    name for name, table in PARAMETERS.items() if all(default is not REQUIRED for _, default in table.values())
)


def named(op: str, name: str, **parameters: Any) -> Activation:
    """The activation called `name`, its parameters checked; those not given take their defaults."""
    table = PARAMETERS[name]
    values = tuple(check(op, p, parameters.get(p, default)) for p, (check, default) in table.items())
    if name == "hard_tanh" and values[0] > values[1]:
        fail(OptionError, op, "min", values[0], f"at most max, which is {values[1]}")
    return Activation(name, values)


def fused(op: str, name: Any) -> Activation | None:
    """The `activation=` option of a fused operation: None or the name of an activation, which then has its default
    parameters."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in FUSED:
        fail(
            OptionError,
            op,
            "activation",
            repr(name),
            "None or one of " + ", ".join(map(repr, FUSED)),
            closest(name, FUSED),
        )
    return named(op, name)


@frozen(kw_only=True)
class ElementwiseProblem(Overwriting):
    """y = activation(x), or its gradient: every element by itself."""

    activation: Activation

    @property
    def by_result(self) -> bool:
        """Whether it is a gradient from the result of the forward, which is the input behind x then."""
        return len(self.inputs) == 3 and self.inputs[2] is not None

    @property
    def unread(self) -> frozenset[int]:
        """Beside the result, the input of the forward is."""
        return frozenset((1,)) if self.by_result else self.shapes


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
        return ElementwiseProblem(
            op=op, inputs=(grad, x), outputs=(x.like(),), activation=named(op, name, **parameters)
        )

    return build


def backward_by_result(name: str) -> Callable[..., ElementwiseProblem]:
    """The builder for a gradient that is computed from the result of the forward where that is given, else from its
    input."""

    def build(op: str, grad: Spec, x: Spec | None, y: Spec | None) -> ElementwiseProblem:
        given = y if x is None else x
        if given is None:
            fail(ArrayTypeError, op, "x", "None", "an array, unless y, the result of the forward, is given")
        checks.same_dtype(op, x=x, y=y, grad=grad)
        checks.gradient(op, grad, given)
        if y is not None:
            checks.gradient(op, y, given, "y")
        return ElementwiseProblem(op=op, inputs=(grad, x, y), outputs=(given.like(),), activation=named(op, name))

    return build


# --- a slope per channel ----------------------------------------------------------------------------------------------


class PReLUGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `prelu`."""

    x: ArrayT
    weight: ArrayT


@frozen(kw_only=True)
class PReLUProblem(Overwriting):
    """`slope_shape` is the weight's shape with the axes of x, 1 where it repeats; `shared` are those axes."""

    slope_shape: tuple[int, ...]
    shared: tuple[int, ...]

    @property
    def unread(self) -> frozenset[int]:
        """The gradient of the weight alone takes none of its values."""
        return frozenset((2,)) if self.outputs[0] is None else frozenset()


def prelu(op: str, x: Spec, weight: Spec) -> PReLUProblem:
    """The builder for `prelu`."""
    checks.same_dtype(op, x=x, weight=weight)
    slope_shape = _slope_shape(op, x, weight)
    shared = tuple(i for i, n in enumerate(slope_shape) if n == 1)
    return PReLUProblem(op=op, inputs=(x, weight), outputs=(x.like(),), slope_shape=slope_shape, shared=shared)


def _slope_shape(op: str, x: Spec, weight: Spec) -> tuple[int, ...]:
    if weight.size == 1:
        return (1,) * x.ndim
    if x.ndim > 1 and weight.shape == (x.shape[1],):
        return tuple(n if i == 1 else 1 for i, n in enumerate(x.shape))
    axes = "the shape of x; or one element; or (C,) along axis 1"
    checks.broadcastable(op, "weight", weight, x.shape, axes)
    return (1,) * (x.ndim - weight.ndim) + weight.shape


def prelu_backward(op: str, grad: Spec, x: Spec, weight: Spec) -> PReLUProblem:
    """The builder for the gradients of `prelu`."""
    forward = prelu(op, x, weight)
    checks.gradient(op, grad, x)
    return replace(forward, inputs=(grad, x, weight), outputs=(x.like(), weight.like()), returns=PReLUGradients)


# --- gated units ------------------------------------------------------------------------------------------------------


class GatedGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of a gated unit."""

    gate: ArrayT
    x: ArrayT


@frozen(kw_only=True)
class GatedProblem(Overwriting):
    """y = activation(gate) * x; with an `axis`, x and the gate are the first and the second half of one array."""

    activation: Activation
    axis: int | None = None

    @property
    def unread(self) -> frozenset[int]:
        """The gradient of x alone takes none of its values."""
        return frozenset((2,)) if self.outputs[0] is None else frozenset()


def gated(name: str) -> Callable[..., GatedProblem]:
    """The builder for ``activation(gate) * x``."""

    def build(op: str, gate: Spec, x: Spec) -> GatedProblem:
        checks.same_dtype(op, x=x, gate=gate)
        checks.shape(op, "gate", gate, x.shape, "the shape of x")
        return GatedProblem(op=op, inputs=(gate, x), outputs=(x.like(),), activation=named(op, name))

    return build


def gated_backward(name: str) -> Callable[..., GatedProblem]:
    """The builder for the gradients of ``activation(gate) * x``."""
    build_forward = gated(name)

    def build(op: str, grad: Spec, gate: Spec, x: Spec) -> GatedProblem:
        forward = build_forward(op, gate, x)
        checks.gradient(op, grad, x)
        return replace(forward, inputs=(grad, gate, x), outputs=(gate.like(), x.like()), returns=GatedGradients)

    return build


def glu(op: str, x: Spec, *, axis: int) -> GatedProblem:
    """The builder for `glu`."""
    checks.floating(op, "x", x)
    if x.ndim == 0:
        fail(ShapeError, op, "x", "0-dimensional ()", "1 dimension or more, one of them to be halved")
    axis = checks.axis(op, "axis", axis, x.ndim)
    if x.shape[axis] % 2:
        fail(ShapeError, op, "x", f"of shape {x.shape}", f"an even extent on axis {axis}, which is halved")
    half = tuple(n // 2 if i == axis else n for i, n in enumerate(x.shape))
    return GatedProblem(op=op, inputs=(x,), outputs=(x.like(half),), activation=named(op, "sigmoid"), axis=axis)


def glu_backward(op: str, grad: Spec, x: Spec, *, axis: int) -> GatedProblem:
    """The builder for the gradient of `glu`."""
    forward = glu(op, x, axis=axis)
    checks.same_dtype(op, x=x, grad=grad)
    (y,) = leaves(forward.outputs)
    checks.gradient(op, grad, y)
    return replace(forward, inputs=(grad, x), outputs=(x.like(),))


# --- bias, residual, activation ---------------------------------------------------------------------------------------


class BiasActivationGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `bias_activation`."""

    x: ArrayT
    bias: ArrayT
    residual: ArrayT


@frozen(kw_only=True)
class BiasActivationProblem(Overwriting):
    """`bias_shape` is the bias's shape with the axes of x; `others` are all axes but the bias's."""

    activation: Activation | None
    bias_shape: tuple[int, ...]
    others: tuple[int, ...]

    @property
    def unread(self) -> frozenset[int]:
        """Without an activation gradients are sums and copies of the incoming one."""
        return frozenset() if self.activation is not None or self.returns is None else frozenset((1, 2, 3))


def bias_activation(
    op: str, x: Spec, bias: Spec, residual: Spec | None, *, activation: Any, axis: Any
) -> BiasActivationProblem:
    """The builder for `bias_activation`."""
    checks.same_dtype(op, x=x, bias=bias, residual=residual)
    if x.ndim == 0:
        fail(ShapeError, op, "x", "0-dimensional ()", "1 dimension or more, one of them the axis of the bias")
    axis = checks.axis(op, "axis", axis, x.ndim)
    checks.shape(op, "bias", bias, (x.shape[axis],), f"C, the extent of x on axis {axis}")
    if residual is not None:
        checks.shape(op, "residual", residual, x.shape, "the shape of x")
    return BiasActivationProblem(
        op=op,
        inputs=(x, bias, residual),
        outputs=(x.like(),),
        activation=fused(op, activation),
        bias_shape=tuple(n if i == axis else 1 for i, n in enumerate(x.shape)),
        others=tuple(i for i in range(x.ndim) if i != axis),
    )


def bias_activation_backward(
    op: str, grad: Spec, x: Spec, bias: Spec, residual: Spec | None, **options: Any
) -> BiasActivationProblem:
    """The builder for the gradients of `bias_activation`."""
    forward = bias_activation(op, x, bias, residual, **options)
    checks.gradient(op, grad, x)
    outputs = (x.like(), bias.like(), None if residual is None else residual.like())
    return replace(forward, inputs=(grad, x, bias, residual), outputs=outputs, returns=BiasActivationGradients)
