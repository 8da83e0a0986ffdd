"""Norms over channels: the arrays of a problem by name, and how x lies in memory as (outer, channels, inner). What all
their algorithms share."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from dnnarray._cuda.core.extents import order_of
from dnnarray._problems.norm_base import NormProblem
from dnnarray._spec import HALF

MIXED = "in the memory of x the axes of batch, channels and space are interleaved; copy x to C order"
_EXACT = (
    "relu",
    "relu6",
    "clipped_relu",
    "hard_tanh",
    "threshold",
)  # activations whose gradient is grad or 0, which half types hold


class Inputs(NamedTuple):
    """The arrays of a problem by what they are, as specs or as launch arguments."""

    x: Any
    grad: Any = None
    mean: Any = None
    rstd: Any = None
    variance: Any = None
    weight: Any = None
    bias: Any = None
    running_mean: Any = None
    running_var: Any = None
    residual: Any = None


_FIELDS = {
    "batch_norm": ("x", "mean", "variance", "weight", "bias", "residual"),
    "batch_norm_train": ("x", "weight", "bias", "running_mean", "running_var", "residual", "mean", "rstd"),
    "group_norm": ("x", "weight", "bias", "mean", "rstd"),
    "instance_norm": ("x", "weight", "bias", "mean", "rstd"),
}


def operands(problem: NormProblem, arrays: tuple[Any, ...]) -> Inputs:
    """`arrays` (as in ``problem.inputs``) by name, None for what the operation does not have."""
    name = problem.op.removesuffix("_backward")
    fields = ("grad",) * problem.op.endswith("_backward") + _FIELDS[name]
    return Inputs(**dict(zip(fields, arrays, strict=False)))


def specs_of(problem: NormProblem) -> Inputs:
    return operands(problem, problem.inputs)


class View(NamedTuple):
    """x in memory: (outer, channels, inner), or with `last` (outer, inner, channels); statistics per outer index if
    `per_batch`."""

    outer: int
    channels: int
    inner: int
    last: bool
    per_batch: bool
    groups: int

    @property
    def batch(self) -> int:
        return self.outer if self.per_batch else 1

    @property
    def instances(self) -> int:
        return self.batch * self.channels

    @property
    def statistics(self) -> int:
        return self.batch * self.groups

    @property
    def size(self) -> int:
        return self.outer * self.channels * self.inner


def view(problem: NormProblem) -> View | None:
    """How x lies; None where batch, channels and space are mixed so that no view shows them."""
    x, geometry = specs_of(problem).x, problem.geometry
    per_batch, axis = len(geometry.kept) == 2, geometry.kept[-1]
    channels, groups = x.shape[axis], geometry.view[axis]
    order = [i for i in order_of(x) if x.shape[i] != 1 or i == axis]
    if channels == 1:
        order.remove(axis)
        order.insert(order.index(0) + 1 if per_batch and 0 in order else 0, axis)
    place = order.index(axis)
    before, after = order[:place], order[place + 1 :]
    outer, inner = prod(x.shape[i] for i in before), prod(x.shape[i] for i in after)
    batch = x.shape[0] if per_batch else 1
    if not after and (not per_batch or 0 not in order or order[0] == 0):
        return View(batch, channels, outer // max(batch, 1), True, per_batch, groups)
    if per_batch and before != [0] * (x.shape[0] != 1):
        return None
    return View(outer, channels, inner, False, per_batch, groups)


def view_of(problem: NormProblem) -> View:
    """`view` of a problem that has one."""
    found = view(problem)
    assert found is not None
    return found


def shares(problem: NormProblem) -> tuple[float, float]:
    """How many values there are behind a statistic, and 1 over it."""
    count = problem.geometry.count
    return float(count), 1.0 / max(count, 1)


def exact_gradient(problem: NormProblem) -> bool:
    """Whether the gradient before the activation is a value of the dtype of x, not only rounded to one."""
    return specs_of(problem).x.dtype not in HALF or problem.activation is None or problem.activation.name in _EXACT
