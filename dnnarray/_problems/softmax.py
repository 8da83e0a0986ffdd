"""Softmax and its relatives: the problems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec

_FLOPS = 5  # per element: compare, subtract, exp, add, divide


@frozen(kw_only=True)
class SoftmaxProblem(Problem):
    """The elements along `axis` share a sum of 1; an array without axes counts as one element along axis 0."""

    axis: int

    @property
    def flops(self) -> int:
        return _FLOPS * self.inputs[0].size


def softmax(op: str, x: Spec, *, axis: Any) -> SoftmaxProblem:
    """The builder for `softmax`, `log_softmax` and `softmin`."""
    checks.floating(op, "x", x)
    return SoftmaxProblem(op=op, inputs=(x,), outputs=(x.like(),), axis=checks.axis(op, "axis", axis, max(x.ndim, 1)))


def softmax_backward(op: str, grad: Spec, x: Spec, y: Spec | None, *, axis: Any) -> SoftmaxProblem:
    """The builder for the gradients of `softmax`, `log_softmax` and `softmin`."""
    forward = softmax(op, x, axis=axis)
    checks.same_dtype(op, x=x, grad=grad, y=y)
    checks.gradient(op, grad, x)
    if y is not None:
        checks.gradient(op, y, x, "y")
    return replace(forward, inputs=(grad, x, y), shapes=frozenset(() if y is None else (1,)))
