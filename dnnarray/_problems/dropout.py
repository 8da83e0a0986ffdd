"""Dropout, alone and fused: the problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Overwriting
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT

_FLOPS = 30  # per element: a quarter of ten rounds of Philox, and the scaling


class BiasDropoutAddGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `bias_dropout_add`."""

    x: ArrayT
    bias: ArrayT
    residual: ArrayT


@frozen(kw_only=True)
class DropoutProblem(Overwriting):
    """Each element is dropped with probability `p`; those kept are multiplied by `scale`."""

    p: float
    scale: float

    @property
    def draws(self) -> bool:
        """Whether a result takes the mask: the gradient of a residual does not."""
        return any(self.outputs[:2])

    @property
    def flops(self) -> int:
        return _FLOPS * self.inputs[0].size * self.draws


def dropout(op: str, x: Spec, *, p: Any) -> DropoutProblem:
    """The builder for `dropout`."""
    checks.floating(op, "x", x)
    p = checks.number(op, "p", p, 0, 1)
    return DropoutProblem(op=op, inputs=(x,), outputs=(x.like(),), p=p, scale=1 / (1 - p) if p < 1 else 0.0)


def dropout_backward(op: str, grad: Spec, x: Spec, *, p: Any) -> DropoutProblem:
    """The builder for the gradient of `dropout`."""
    forward = dropout(op, x, p=p)
    checks.same_dtype(op, x=x, grad=grad)
    checks.gradient(op, grad, x)
    return replace(forward, inputs=(grad, x), shapes=frozenset((1,)))


def bias_dropout_add(op: str, x: Spec, bias: Spec, residual: Spec, *, p: Any) -> DropoutProblem:
    """The builder for `bias_dropout_add`."""
    checks.same_dtype(op, x=x, bias=bias, residual=residual)
    if x.ndim == 0:
        fail(ShapeError, op, "x", "0-dimensional ()", "1 dimension or more, the last one the axis of the bias")
    checks.shape(op, "bias", bias, x.shape[-1:], "C, the last extent of x")
    checks.shape(op, "residual", residual, x.shape, "the shape of x")
    return replace(dropout(op, x, p=p), inputs=(x, bias, residual))


def bias_dropout_add_backward(op: str, grad: Spec, x: Spec, bias: Spec, residual: Spec, *, p: Any) -> DropoutProblem:
    """The builder for the gradients of `bias_dropout_add`."""
    forward = bias_dropout_add(op, x, bias, residual, p=p)
    checks.gradient(op, grad, x)
    outputs = (x.like(), bias.like(), residual.like())
    inputs = (grad, x, bias, residual)
    return replace(
        forward, inputs=inputs, outputs=outputs, returns=BiasDropoutAddGradients, shapes=frozenset((1, 2, 3))
    )
