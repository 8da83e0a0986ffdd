"""Layer and RMS norm, alone and after an addition: the problems."""

from __future__ import annotations

from typing import Any

from dnnarray._errors import ArrayTypeError, fail
from dnnarray._problems import checks
from dnnarray._problems.norm_base import (
    AddLayerNormGradients,
    AddNormOutput,
    AddRMSNormGradients,
    Geometry,
    LayerNormOutput,
    NormGradients,
    NormProblem,
    RMSNormGradients,
    RMSNormOutput,
    epsilon,
    parameters,
    plain,
)
from dnnarray._spec import Spec


def _any_axes(op: str, x: Spec, axis: Any, eps: Any, **named: Spec | None) -> dict[str, Any]:
    """The fields of a norm over the axes that the caller names."""
    checks.floating(op, "x", x)
    axes = checks.axes(op, "axis", axis, x.ndim)
    parameters(op, x, tuple(x.shape[i] for i in axes), "the extents of the normalised axes", **named)
    along = tuple(n if i in axes else 1 for i, n in enumerate(x.shape))
    return {"geometry": Geometry(view=x.shape, axes=axes, parameter=along), "eps": epsilon(op, eps)}


def _saved(op: str, x: Spec, geometry: Geometry, **statistics: Spec | None) -> None:
    parameters(op, x, geometry.statistic, "the shape of x with extent 1 along the normalised axes", **statistics)


def layer_norm(
    op: str, x: Spec, weight: Spec | None, bias: Spec | None, *, axis: Any, eps: Any, return_stats: Any
) -> NormProblem:
    """The problem of `layer_norm`."""
    fields = _any_axes(op, x, axis, eps, weight=weight, bias=bias)
    stats = checks.boolean(op, "return_stats", return_stats)
    statistic = Spec(fields["geometry"].statistic, checks.statistics_dtype(x)) if stats else None
    return NormProblem(
        op=op,
        inputs=(x, weight, bias),
        outputs=(x.like(), statistic, statistic),
        returns=LayerNormOutput if stats else None,
        **fields,
    )


def layer_norm_backward(
    op: str,
    grad: Spec,
    x: Spec,
    weight: Spec | None,
    bias: Spec | None,
    mean: Spec | None,
    rstd: Spec | None,
    *,
    axis: Any,
    eps: Any,
    return_stats: Any,
) -> NormProblem:
    """The problem of `layer_norm_backward`."""
    fields = _any_axes(op, x, axis, eps, weight=weight, bias=bias)
    checks.boolean(op, "return_stats", return_stats)
    checks.gradient(op, grad, x)
    _saved(op, x, fields["geometry"], mean=mean, rstd=rstd)
    return NormProblem(
        op=op,
        inputs=(grad, x, weight, bias, mean, rstd),
        arrays=("grad", "x", "weight", "bias", "mean", "rstd"),
        outputs=(x.like(), *plain(weight, bias)),
        returns=NormGradients,
        **fields,
    )


def rms_norm(op: str, x: Spec, weight: Spec | None, *, axis: Any, eps: Any, return_stats: Any) -> NormProblem:
    """The problem of `rms_norm`."""
    fields = _any_axes(op, x, axis, eps, weight=weight)
    stats = checks.boolean(op, "return_stats", return_stats)
    statistic = Spec(fields["geometry"].statistic, checks.statistics_dtype(x)) if stats else None
    returns = RMSNormOutput if stats else None
    return NormProblem(
        op=op, inputs=(x, weight), outputs=(x.like(), statistic), returns=returns, centred=False, **fields
    )


def rms_norm_backward(
    op: str, grad: Spec, x: Spec, weight: Spec | None, rstd: Spec | None, *, axis: Any, eps: Any, return_stats: Any
) -> NormProblem:
    """The problem of `rms_norm_backward`."""
    fields = _any_axes(op, x, axis, eps, weight=weight)
    checks.boolean(op, "return_stats", return_stats)
    checks.gradient(op, grad, x)
    _saved(op, x, fields["geometry"], rstd=rstd)
    return NormProblem(
        op=op,
        inputs=(grad, x, weight, rstd),
        arrays=("grad", "x", "weight", "rstd"),
        outputs=(x.like(), *plain(weight)),
        returns=RMSNormGradients,
        centred=False,
        **fields,
    )


def _add(op: str, x: Spec, residual: Spec, axis: Any, eps: Any, **named: Spec | None) -> dict[str, Any]:
    """The fields of a norm over x + residual."""
    fields = _any_axes(op, x, axis, eps, **named)
    checks.same_dtype(op, x=x, residual=residual)
    checks.shape(op, "residual", residual, x.shape, "the shape of x")
    return fields | {"centred": "bias" in named}


def add_layer_norm(
    op: str, x: Spec, residual: Spec, weight: Spec | None, bias: Spec | None, *, axis: Any, eps: Any
) -> NormProblem:
    """The problem of `add_layer_norm`."""
    fields = _add(op, x, residual, axis, eps, weight=weight, bias=bias)
    return NormProblem(
        op=op, inputs=(x, residual, weight, bias), outputs=(x.like(), x.like()), returns=AddNormOutput, **fields
    )


def add_rms_norm(op: str, x: Spec, residual: Spec, weight: Spec | None, *, axis: Any, eps: Any) -> NormProblem:
    """The problem of `add_rms_norm`."""
    fields = _add(op, x, residual, axis, eps, weight=weight)
    return NormProblem(
        op=op, inputs=(x, residual, weight), outputs=(x.like(), x.like()), returns=AddNormOutput, **fields
    )


def _gradients_of_both(op: str, grad: Any, x: Spec) -> None:
    """`grad` is an array (of y) or a pair (of y, of sum), one of which may be None."""
    expected = "an array, or a pair (of y, of sum) of which one may be None"
    entries = (grad, None) if isinstance(grad, Spec) else grad
    if entries is None or entries == (None, None):
        fail(ArrayTypeError, op, "grad", "None", expected)
    if len(entries) != 2 or not all(g is None or isinstance(g, Spec) for g in entries):
        fail(ArrayTypeError, op, "grad", f"a tuple of {len(entries)}", expected)
    for name, entry in zip(("grad", "grad[1]"), entries, strict=True):
        if entry is not None:
            checks.gradient(op, entry, x, name)


def add_layer_norm_backward(
    op: str, grad: Any, x: Spec, residual: Spec, weight: Spec | None, bias: Spec | None, *, axis: Any, eps: Any
) -> NormProblem:
    """The problem of `add_layer_norm_backward`."""
    fields = _add(op, x, residual, axis, eps, weight=weight, bias=bias)
    _gradients_of_both(op, grad, x)
    return NormProblem(
        op=op,
        inputs=(grad, x, residual, weight, bias),
        arrays=("grad", "x", "residual", "weight", "bias"),
        outputs=(x.like(), x.like(), *plain(weight, bias)),
        returns=AddLayerNormGradients,
        **fields,
    )


def add_rms_norm_backward(
    op: str, grad: Any, x: Spec, residual: Spec, weight: Spec | None, *, axis: Any, eps: Any
) -> NormProblem:
    """The problem of `add_rms_norm_backward`."""
    fields = _add(op, x, residual, axis, eps, weight=weight)
    _gradients_of_both(op, grad, x)
    return NormProblem(
        op=op,
        inputs=(grad, x, residual, weight),
        arrays=("grad", "x", "residual", "weight"),
        outputs=(x.like(), x.like(), *plain(weight)),
        returns=AddRMSNormGradients,
        **fields,
    )
