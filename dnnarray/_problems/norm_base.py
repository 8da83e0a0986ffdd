"""What all norms share: their results, the geometry of statistics and parameters, `NormProblem`."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Generic, NamedTuple

from dnnarray._problems import checks
from dnnarray._problems.activation import Activation
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT

OPERATIONS_PER_VALUE = 8  # mean, centre, square, sum, scale and shift, per element


class BatchNormOutput(NamedTuple, Generic[ArrayT]):
    """What `batch_norm_train` returns; the running statistics are None where none were given."""

    y: ArrayT
    mean: ArrayT
    rstd: ArrayT
    running_mean: ArrayT
    running_var: ArrayT


class LayerNormOutput(NamedTuple, Generic[ArrayT]):
    """What `layer_norm` returns with ``return_stats=True``."""

    y: ArrayT
    mean: ArrayT
    rstd: ArrayT


class GroupNormOutput(NamedTuple, Generic[ArrayT]):
    """What `group_norm` and `instance_norm` return with ``return_stats=True``."""

    y: ArrayT
    mean: ArrayT
    rstd: ArrayT


class RMSNormOutput(NamedTuple, Generic[ArrayT]):
    """What `rms_norm` returns with ``return_stats=True``."""

    y: ArrayT
    rstd: ArrayT


class AddNormOutput(NamedTuple, Generic[ArrayT]):
    """What `add_layer_norm` and `add_rms_norm` return: the normalised sum and the sum."""

    y: ArrayT
    sum: ArrayT


class BatchNormGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `batch_norm`; None for what was omitted."""

    x: ArrayT
    mean: ArrayT
    variance: ArrayT
    weight: ArrayT
    bias: ArrayT


class BatchNormResidualGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `batch_norm` with a residual."""

    x: ArrayT
    mean: ArrayT
    variance: ArrayT
    weight: ArrayT
    bias: ArrayT
    residual: ArrayT


class NormGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of a norm with weight and bias; None for what was omitted."""

    x: ArrayT
    weight: ArrayT
    bias: ArrayT


class NormResidualGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `batch_norm_train` with a residual."""

    x: ArrayT
    weight: ArrayT
    bias: ArrayT
    residual: ArrayT


class RMSNormGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `rms_norm`; None for an omitted weight."""

    x: ArrayT
    weight: ArrayT


class AddLayerNormGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `add_layer_norm`; those of `x` and `residual` are equal."""

    x: ArrayT
    residual: ArrayT
    weight: ArrayT
    bias: ArrayT


class AddRMSNormGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `add_rms_norm`; those of `x` and `residual` are equal."""

    x: ArrayT
    residual: ArrayT
    weight: ArrayT


@frozen(kw_only=True)
class Geometry:
    """Where the statistics and the parameters of a norm stand.

    Attributes
    ----------
    view : the shape in which the engine sees x; group norm splits its channels into (groups, channels of a group)
    axes : the axes of `view` that a statistic is taken over
    parameter : extents of weight and bias along `view`, 1 where they broadcast
    """

    view: tuple[int, ...]
    axes: tuple[int, ...]
    parameter: tuple[int, ...]

    @cached_property
    def statistic(self) -> tuple[int, ...]:
        """Extents of a statistic along `view`, 1 where it broadcasts."""
        return tuple(1 if i in self.axes else n for i, n in enumerate(self.view))

    @cached_property
    def count(self) -> int:
        """Values behind one statistic."""
        return math.prod(self.view[i] for i in self.axes)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The axes of `view` that statistics keep."""
        return tuple(i for i in range(len(self.view)) if i not in self.axes)

    @cached_property
    def _along(self) -> frozenset[int]:
        """The axes that weight and bias run along; one of extent 1 belongs to them or not with the same result."""
        return frozenset(i for i, n in enumerate(self.parameter) if n != 1)

    @cached_property
    def fine(self) -> tuple[int, ...]:
        """Axes that both a statistic and a parameter gradient sum over: summed first, for both."""
        return tuple(i for i in self.axes if i not in self._along)

    @cached_property
    def within(self) -> tuple[int, ...]:
        """Axes that only a statistic sums over."""
        return tuple(i for i in self.axes if i in self._along)

    @cached_property
    def folds(self) -> bool:
        """Whether rstd times weight is smaller than the array, so that it is worth computing first."""
        return any(self.view[i] > 1 for i in self.fine)

    @cached_property
    def across(self) -> tuple[int, ...]:
        """Axes that only a parameter gradient sums over."""
        return tuple(i for i in self.kept if i not in self._along)


@frozen(kw_only=True)
class NormProblem(Problem):
    """A norm by statistics, forward or backward; `centred` is False where only the mean square counts (RMS). `arrays`
    are the names of a gradient's inputs."""

    geometry: Geometry
    eps: float
    centred: bool = True
    activation: Activation | None = None
    momentum: float = 0.0
    arrays: tuple[str, ...] = ()

    @property
    def unread(self) -> frozenset[int]:
        """Running statistics, and without an activation what is no more than added behind the norm: the gradient of
        that asks for no other array."""
        added = {"bias"} if self.op.startswith("add_") else {"bias", "residual"}
        wanted = {field for field, spec in zip(self.fields, self.outputs, strict=False) if spec is not None}
        names = {"running_mean", "running_var"}
        if self.activation is None:
            names |= added
            names |= {"weight"} if wanted <= {"weight", *added} else set()
            names |= {"x", "residual", "mean", "rstd", "variance"} if wanted <= added else set()
        return frozenset(i for i, name in enumerate(self.arrays) if name in names)

    @property
    def flops(self) -> int:
        return OPERATIONS_PER_VALUE * sum(s.size for s in self.outputs if s is not None)

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """Running statistics are moved on where they are."""
        return ((3, 3), (4, 4)) if self.returns is BatchNormOutput else ()


def epsilon(op: str, value: Any) -> float:
    return checks.number(op, "eps", value, 0)


def parameters(op: str, x: Spec, expected: tuple[int, ...], axes: str, **arrays: Any) -> None:
    """Weight, bias and statistics: their shape, and the dtype of x or float32 beside a half x."""
    for name, spec in arrays.items():
        if spec is not None:
            checks.shape(op, name, spec, expected, axes)
    checks.parameter_dtype(op, x, **arrays)


def plain(*specs: Spec | None) -> tuple[Spec | None, ...]:
    """C-contiguous results of these shapes and dtypes."""
    return tuple(None if s is None else Spec(s.shape, s.dtype) for s in specs)
