"""Normalization: batch, group, instance, local response: the problems (`norm_axes` holds layer and RMS norm).

All but local response are one thing: the array is seen in a shape `view`, statistics are taken over some of its axes,
and weight and bias broadcast along it. `NormProblem` says so in axes and extents, and an engine needs no more than
that."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dnnarray._errors import OptionError, ShapeError, UnsupportedError, fail
from dnnarray._problems import checks
from dnnarray._problems.activation import fused
from dnnarray._problems.base import Problem
from dnnarray._problems.norm_base import (
    OPERATIONS_PER_VALUE,
    BatchNormGradients,
    BatchNormOutput,
    BatchNormResidualGradients,
    Geometry,
    GroupNormOutput,
    NormGradients,
    NormProblem,
    NormResidualGradients,
    epsilon,
    parameters,
    plain,
)
from dnnarray._records import frozen
from dnnarray._spec import Spec

_RANKS = (2, 3, 4, 5)


@frozen(kw_only=True)
class LocalResponseProblem(Problem):
    """Local response normalization: `before` and `after` are the reach of the window around a channel."""

    axis: int
    size: int
    alpha: float
    beta: float
    k: float

    @property
    def before(self) -> int:
        return self.size // 2

    @property
    def after(self) -> int:
        return (self.size - 1) // 2

    @property
    def flops(self) -> int:
        return (self.size + OPERATIONS_PER_VALUE) * sum(s.size for s in self.outputs if s is not None)


# --- channels: batch, group, instance ---------------------------------------------------------------------------------


def _channels(op: str, x: Spec, layout: Any, residual: Spec | None, **named: Spec | None) -> int:
    """Checks what batch, group and instance norm have in common; gives the axis of the channels."""
    checks.floating(op, "x", x)
    checks.layout(op, layout)
    checks.rank(op, "x", x, _RANKS, checks.layout_axes(layout, 0 if x.ndim == 2 else x.ndim - 2))
    axis = checks.channel_axis(layout, x.ndim)
    parameters(op, x, (x.shape[axis],), "one value per channel", **named)
    if residual is not None:
        checks.shape(op, "residual", residual, x.shape, "the shape of x")
        checks.same_dtype(op, x=x, residual=residual)
    return axis


def _per_channel(x: Spec, axis: int, axes: tuple[int, ...]) -> Geometry:
    return Geometry(view=x.shape, axes=axes, parameter=tuple(n if i == axis else 1 for i, n in enumerate(x.shape)))


def _over_batch(x: Spec, axis: int) -> Geometry:
    return _per_channel(x, axis, tuple(i for i in range(x.ndim) if i != axis))


def batch_norm(
    op: str,
    x: Spec,
    mean: Spec,
    variance: Spec,
    weight: Spec | None,
    bias: Spec | None,
    residual: Spec | None,
    **options: Any,
) -> NormProblem:
    """The problem of `batch_norm`: given statistics."""
    axis = _channels(op, x, options["layout"], residual, mean=mean, variance=variance, weight=weight, bias=bias)
    return NormProblem(
        op=op,
        inputs=(x, mean, variance, weight, bias, residual),
        outputs=(x.like(),),
        geometry=_over_batch(x, axis),
        eps=epsilon(op, options["eps"]),
        activation=fused(op, options["activation"]),
    )


def batch_norm_backward(
    op: str,
    grad: Spec,
    x: Spec,
    mean: Spec,
    variance: Spec,
    weight: Spec | None,
    bias: Spec | None,
    residual: Spec | None,
    **options: Any,
) -> NormProblem:
    """The problem of `batch_norm_backward`."""
    forward = batch_norm(op, x, mean, variance, weight, bias, residual, **options)
    checks.gradient(op, grad, x)
    outputs = (x.like(), *plain(mean, variance, weight, bias))
    return NormProblem(
        op=op,
        inputs=(grad, *forward.inputs),
        arrays=("grad", "x", "mean", "variance", "weight", "bias", "residual"),
        outputs=outputs if residual is None else (*outputs, x.like()),
        returns=BatchNormGradients if residual is None else BatchNormResidualGradients,
        geometry=forward.geometry,
        eps=forward.eps,
        activation=forward.activation,
    )


def _batch_norm_train(
    op: str, x: Spec, residual: Spec | None, named: dict[str, Spec | None], options: dict[str, Any]
) -> dict[str, Any]:
    """Checks of the training forward that its gradient shares; gives the fields of both problems."""
    axis = _channels(op, x, options["layout"], residual, **named)
    geometry = _over_batch(x, axis)
    if options["group"] is not None:
        fix = "Synchronised statistics come with the distributed module of a later version."
        fail(UnsupportedError, op, "group", repr(options["group"]), "None", fix)
    if geometry.count == 1:
        fix = "With a single value its variance is 0; use batch_norm with running statistics."
        fail(ShapeError, op, "x", f"of shape {x.shape}", "more than one value per channel", fix)
    return {
        "geometry": geometry,
        "eps": epsilon(op, options["eps"]),
        "activation": fused(op, options["activation"]),
        "momentum": checks.number(op, "momentum", options["momentum"], 0, 1),
    }


def batch_norm_train(
    op: str,
    x: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    residual: Spec | None,
    **options: Any,
) -> NormProblem:
    """The problem of `batch_norm_train`: statistics of the batch, running ones moved on."""
    named = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
    fields = _batch_norm_train(op, x, residual, named, options)
    statistic = Spec((math.prod(fields["geometry"].statistic),), checks.statistics_dtype(x))
    return NormProblem(
        op=op,
        inputs=(x, weight, bias, running_mean, running_var, residual),
        outputs=(x.like(), statistic, statistic, *plain(running_mean, running_var)),
        returns=BatchNormOutput,
        **fields,
    )


def batch_norm_train_backward(
    op: str,
    grad: Spec,
    x: Spec,
    weight: Spec | None,
    bias: Spec | None,
    running_mean: Spec | None,
    running_var: Spec | None,
    residual: Spec | None,
    mean: Spec | None,
    rstd: Spec | None,
    **options: Any,
) -> NormProblem:
    """The problem of `batch_norm_train_backward`."""
    named = {
        "weight": weight,
        "bias": bias,
        "running_mean": running_mean,
        "running_var": running_var,
        "mean": mean,
        "rstd": rstd,
    }
    fields = _batch_norm_train(op, x, residual, named, options)
    checks.gradient(op, grad, x)
    outputs = (x.like(), *plain(weight, bias))
    return NormProblem(
        op=op,
        inputs=(grad, x, weight, bias, running_mean, running_var, residual, mean, rstd),
        arrays=("grad", "x", "weight", "bias", "running_mean", "running_var", "residual", "mean", "rstd"),
        outputs=outputs if residual is None else (*outputs, x.like()),
        returns=NormGradients if residual is None else NormResidualGradients,
        **fields,
    )


def _group_norm(
    op: str, x: Spec, weight: Spec | None, bias: Spec | None, num_groups: Any, eps: Any, layout: Any, activation: Any
) -> dict[str, Any]:
    """The fields of both group norm problems: channels split into (groups, channels of a group)."""
    axis = _channels(op, x, layout, None, weight=weight, bias=bias)
    groups, channels = checks.integer(op, "num_groups", num_groups, 1), x.shape[axis]
    if channels % groups:
        fail(OptionError, op, "num_groups", groups, f"a divisor of the {channels} channels of x")
    split = (groups, channels // groups)
    view = (*x.shape[:axis], *split, *x.shape[axis + 1 :])
    return {
        "geometry": Geometry(
            view=view,
            axes=tuple(i for i in range(1, len(view)) if i != axis),
            parameter=(*(1,) * axis, *split, *(1,) * (x.ndim - axis - 1)),
        ),
        "eps": epsilon(op, eps),
        "activation": fused(op, activation),
    }


def _instance_norm(op: str, x: Spec, weight: Spec | None, bias: Spec | None, eps: Any, layout: Any) -> dict[str, Any]:
    """The fields of both instance norm problems; one value in space has no variance, as in PyTorch."""
    axis = _channels(op, x, layout, None, weight=weight, bias=bias)
    geometry = _per_channel(x, axis, tuple(i for i in range(1, x.ndim) if i != axis))
    if geometry.count == 1:
        fail(
            ShapeError,
            op,
            "x",
            f"of shape {x.shape}",
            "more than one value in space",
            "With a single value its variance is 0.",
        )
    return {"geometry": geometry, "eps": epsilon(op, eps)}


def _per_group(geometry: Geometry) -> tuple[int, ...]:
    """The shape of a statistic for each sample and group, or channel."""
    return tuple(geometry.view[i] for i in geometry.kept)


def _forward(fields_of: Callable[..., dict[str, Any]]) -> Callable[..., NormProblem]:
    """The builder of a norm with statistics for each sample."""

    def build(
        op: str, x: Spec, weight: Spec | None, bias: Spec | None, *, return_stats: Any, **options: Any
    ) -> NormProblem:
        fields = fields_of(op, x, weight, bias, **options)
        stats = checks.boolean(op, "return_stats", return_stats)
        statistic = Spec(_per_group(fields["geometry"]), checks.statistics_dtype(x)) if stats else None
        outputs, returns = (x.like(), statistic, statistic), GroupNormOutput if stats else None
        return NormProblem(op=op, inputs=(x, weight, bias), outputs=outputs, returns=returns, **fields)

    return build


def _backward(fields_of: Callable[..., dict[str, Any]], of: str) -> Callable[..., NormProblem]:
    """The builder of its gradient with respect to (x, weight, bias); there is a statistic for each sample and `of`."""

    def build(
        op: str,
        grad: Spec,
        x: Spec,
        weight: Spec | None,
        bias: Spec | None,
        mean: Spec | None,
        rstd: Spec | None,
        *,
        return_stats: Any,
        **options: Any,
    ) -> NormProblem:
        fields = fields_of(op, x, weight, bias, **options)
        checks.boolean(op, "return_stats", return_stats)
        checks.gradient(op, grad, x)
        parameters(op, x, _per_group(fields["geometry"]), f"one value per sample and {of}", mean=mean, rstd=rstd)
        return NormProblem(
            op=op,
            inputs=(grad, x, weight, bias, mean, rstd),
            arrays=("grad", "x", "weight", "bias", "mean", "rstd"),
            outputs=(x.like(), *plain(weight, bias)),
            returns=NormGradients,
            **fields,
        )

    return build


group_norm, instance_norm = _forward(_group_norm), _forward(_instance_norm)
group_norm_backward, instance_norm_backward = _backward(_group_norm, "group"), _backward(_instance_norm, "channel")


# --- local response ---------------------------------------------------------------------------------------------------


def local_response_norm(
    op: str, x: Spec, *, size: Any, alpha: Any, beta: Any, k: Any, layout: Any
) -> LocalResponseProblem:
    """The problem of `local_response_norm`."""
    axis = _channels(op, x, layout, None)
    return LocalResponseProblem(
        op=op,
        inputs=(x,),
        outputs=(x.like(),),
        axis=axis,
        size=checks.integer(op, "size", size, 1),
        alpha=checks.number(op, "alpha", alpha),
        beta=checks.number(op, "beta", beta),
        k=checks.number(op, "k", k),
    )


def local_response_norm_backward(op: str, grad: Spec, x: Spec, **options: Any) -> LocalResponseProblem:
    """The problem of `local_response_norm_backward`."""
    forward = local_response_norm(op, x, **options)
    checks.gradient(op, grad, x)
    return LocalResponseProblem(
        op=op,
        inputs=(grad, x),
        outputs=forward.outputs,
        axis=forward.axis,
        size=forward.size,
        alpha=forward.alpha,
        beta=forward.beta,
        k=forward.k,
    )
