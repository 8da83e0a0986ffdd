"""Linear (fully connected) layers: the problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import ShapeError, fail
from dnnarray._problems import activation as activations
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT


class LinearGradients(NamedTuple, Generic[ArrayT]):
    """Result of `linear_backward`."""

    x: ArrayT
    weight: ArrayT
    bias: ArrayT


class LinearResidualGradients(NamedTuple, Generic[ArrayT]):
    """Result of `linear_backward` where a residual was given."""

    x: ArrayT
    weight: ArrayT
    bias: ArrayT
    residual: ArrayT


@frozen(kw_only=True)
class LinearProblem(Problem):
    """y = activation(x weight^T + bias + residual) over `rows` rows of x, or its gradients (`backward`)."""

    rows: int
    features: int
    outs: int
    backward: bool = False
    activation: activations.Activation | None = None

    @property
    def forwards(self) -> bool:
        """Whether x weight^T is formed: a backward does so again for the slope of its activation."""
        return not self.backward or self.activation is not None

    @property
    def products(self) -> int:
        """Matrix products that the outputs ask for."""
        return self.forwards + self.backward * sum(spec is not None for spec in self.outputs[:2])

    @property
    def unread(self) -> frozenset[int]:
        if self.forwards:
            return frozenset()
        x, weight = self.outputs[:2]
        return frozenset((3, 4, *(1,) * (weight is None), *(2,) * (x is None)))

    @property
    def flops(self) -> int:
        return 2 * self.products * self.rows * self.features * self.outs


def linear(
    op: str, x: Spec, weight: Spec, bias: Spec | None, residual: Spec | None, *, activation: Any
) -> LinearProblem:
    checks.same_dtype(op, x=x, weight=weight, bias=bias, residual=residual)
    if x.ndim == 0:
        fail(ShapeError, op, "x", "0-dimensional ()", "1 dimension or more (*rows, in)")
    checks.rank(op, "weight", weight, 2, "out in")
    outs, features = weight.shape
    if x.shape[-1] != features:
        swapped = x.shape[-1] == outs
        fix = "The weight is (out, in); pass weight.T if yours is (in, out)." if swapped else None
        fail(
            ShapeError,
            op,
            "x",
            f"of shape {x.shape}",
            f"(*rows, {features}), {features} being the second axis of weight",
            fix,
        )
    y = Spec((*x.shape[:-1], outs), x.dtype)
    if bias is not None:
        checks.shape(op, "bias", bias, (outs,), "out")
    if residual is not None:
        checks.shape(op, "residual", residual, y.shape, "*rows out, the shape of the output")
    return LinearProblem(
        op=op,
        inputs=(x, weight, bias, residual),
        outputs=(y,),
        rows=Spec(x.shape[:-1], x.dtype).size,
        features=features,
        outs=outs,
        activation=activations.fused(op, activation),
    )


def linear_backward(
    op: str, grad: Spec, x: Spec, weight: Spec, bias: Spec | None, residual: Spec | None, *, activation: Any
) -> LinearProblem:
    forward = linear(op, x, weight, bias, residual, activation=activation)
    y = forward.outputs[0]
    assert y is not None
    checks.gradient(op, grad, y)
    gradients = (x.like(), weight.like(), None if bias is None else bias.like())
    return replace(
        forward,
        inputs=(grad, *forward.inputs),
        outputs=gradients if residual is None else (*gradients, Spec(y.shape, y.dtype)),
        returns=LinearGradients if residual is None else LinearResidualGradients,
        backward=True,
    )
