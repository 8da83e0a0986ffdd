"""Normalization: batch, layer, RMS, group, instance, local response, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from dnnarray._call.operation import find, operation
from dnnarray._problems import norm as problems
from dnnarray._problems import norm_axes as axes_problems
from dnnarray._problems.norm_base import (
    AddLayerNormGradients,
    AddNormOutput,
    AddRMSNormGradients,
    BatchNormGradients,
    BatchNormOutput,
    BatchNormResidualGradients,
    GroupNormOutput,
    LayerNormOutput,
    NormGradients,
    NormResidualGradients,
    RMSNormGradients,
    RMSNormOutput,
)
from dnnarray._typing import Array, ArrayT, Axes, Layout

__all__ = [
    "AddLayerNormGradients",
    "AddNormOutput",
    "AddRMSNormGradients",
    "BatchNormGradients",
    "BatchNormOutput",
    "BatchNormResidualGradients",
    "GroupNormOutput",
    "LayerNormOutput",
    "NormGradients",
    "NormResidualGradients",
    "RMSNormGradients",
    "RMSNormOutput",
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_train",
    "batch_norm_train_backward",
    "group_norm",
    "group_norm_backward",
    "instance_norm",
    "instance_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "local_response_norm",
    "local_response_norm_backward",
    "rms_norm",
    "rms_norm_backward",
]


@operation(problems.batch_norm, arrays=("weight", "bias", "residual"))
def batch_norm(
    x: ArrayT,
    mean: Array,
    variance: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    residual: Array | None = None,
    activation: str | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Batch normalization with given statistics, as at inference.

    ``y = activation((x - mean) / sqrt(variance + eps) * weight + bias + residual)``, one value of each parameter per
    channel.

    Parameters
    ----------
    x : array (N, C, *space), or (N, *space, C) in channels-last layout
        float64, float32, float16 or bfloat16; 0 to 3 spatial axes.
    mean, variance : array (C,)
        The running statistics. Dtype of `x`, or float32 beside a half `x`.
    weight, bias : array (C,), optional
        Scale and shift (gamma and beta); 1 and 0 where omitted. Dtype as for `mean`.
    eps : float, default 1e-5
        Added to the variance; 0 or more.
    layout : {"channels_first", "channels_last"}
        Where the channels stand.
    residual : array, shape and dtype of `x`, optional
        Added before the activation.
    activation : str, optional
        Name of an activation that takes one array, with its default parameters.
    out : array, optional
        Where to write the result: shape and dtype of `x`, no memory in common with the inputs.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`. An empty batch gives an empty result.

    Raises
    ------
    ShapeError
        `x` has not 2 to 5 axes, a parameter is not (C,), or `residual` has not the shape of `x`.
    DTypeError
        `x` is not floating, or another array has a dtype that does not go with it.
    OptionError
        `eps` is negative, or `layout` or `activation` is unknown.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization", ICML 2015.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> dnn.batch_norm(x, np.array([2.0, 20.0]), np.array([1.0, 100.0]), eps=0.0)
    array([[-1., -1.],
           [ 1.,  1.]])
    """


@operation(problems.batch_norm_backward, arrays=("weight", "bias", "residual"))
def batch_norm_backward(
    grad: ArrayT,
    x: Array,
    mean: Array,
    variance: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    residual: Array | None = None,
    activation: str | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> BatchNormGradients[ArrayT] | BatchNormResidualGradients[ArrayT]:
    """Gradients of `batch_norm`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of the output.
    x, mean, variance, weight, bias, residual : array
        The arrays of the forward.
    eps, layout, activation
        As in `batch_norm`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `batch_norm`.

    Returns
    -------
    BatchNormGradients or BatchNormResidualGradients
        ``x, mean, variance, weight, bias``, each of the shape and dtype of its array, None for what was omitted; with a
        residual also ``residual``.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `batch_norm`, or `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, one = np.array([[1.0], [3.0]]), np.ones(1)
    >>> gradients = dnn.batch_norm_backward(np.ones((2, 1)), x, 2 * one, 4 * one, one, eps=0.0)
    >>> gradients.mean, gradients.weight
    (array([-1.]), array([0.]))
    """


def _train_and_save(*arrays: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    result = find("batch_norm_train").call(arrays, options)
    return result, {"mean": result.mean, "rstd": result.rstd}


@operation(
    problems.batch_norm_train,
    arrays=("weight", "bias", "running_mean", "running_var", "residual"),
    save=_train_and_save,
)
def batch_norm_train(
    x: ArrayT,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    residual: Array | None = None,
    activation: str | None = None,
    group: None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> BatchNormOutput[ArrayT]:
    """Batch normalization with the statistics of the batch, as in training.

    ``y = activation((x - mean) * rstd * weight + bias + residual)`` with ``rstd = 1 / sqrt(var + eps)``; `mean` and
    `var` (biased: divided by the number M of values) are those of each channel over batch and space. The running
    statistics move to ``(1 - momentum) * running + momentum * new``, where `running_var` takes the unbiased variance
    ``var * M / (M - 1)``.

    Parameters
    ----------
    x : array (N, C, *space), or (N, *space, C) in channels-last layout
        float64, float32, float16 or bfloat16; 0 to 3 spatial axes.
    weight, bias : array (C,), optional
        Scale and shift; 1 and 0 where omitted. Dtype of `x`, or float32 beside a half `x`.
    running_mean, running_var : array (C,), optional
        Statistics so far; they are not changed, the new ones are returned, unless `out` names them. Dtype as for
        `weight`.
    momentum : float, default 0.1
        Weight of the new value, from 0 to 1 (some other libraries weigh the old one).
    eps, layout, residual, activation
        As in `batch_norm`.
    group : None
        Kept for statistics over several devices.
    out : tuple of array, optional
        Where to write the results that are not None. The places of `running_mean` and `running_var` may hold these
        arrays themselves, which are then moved on where they are.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    BatchNormOutput
        ``y``, shape and dtype of `x`; ``mean`` and ``rstd`` (C,) of the batch, float32 for a half `x`, else of its
        dtype; ``running_mean`` and ``running_var``, new arrays in the dtypes of those given, None where none was. An
        empty batch gives an empty `y`, mean 0 and variance 0, and hands the running statistics on as they are.

    Raises
    ------
    ShapeError
        As in `batch_norm`, or a channel has a single value, which has no variance.
    DTypeError, OptionError
        As in `batch_norm`; `momentum` is outside 0 to 1.
    UnsupportedError
        `group` is given.

    References
    ----------
    Ioffe and Szegedy, "Batch normalization", ICML 2015.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> result = dnn.batch_norm_train(np.array([[1.0], [3.0]]), None, None, np.zeros(1), np.ones(1), eps=0.0)
    >>> result.y
    array([[-1.],
           [ 1.]])
    >>> result.mean, result.running_mean, result.running_var
    (array([2.]), array([0.2]), array([1.1]))
    """


@operation(
    problems.batch_norm_train_backward,
    arrays=("weight", "bias", "running_mean", "running_var", "residual", "mean", "rstd"),
)
def batch_norm_train_backward(
    grad: ArrayT,
    x: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    momentum: float = 0.1,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    residual: Array | None = None,
    activation: str | None = None,
    group: None = None,
    mean: Array | None = None,
    rstd: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> NormGradients[ArrayT] | NormResidualGradients[ArrayT]:
    """Gradients of `batch_norm_train` from the gradient of its `y`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of `y`.
    x, weight, bias, residual : array
        The arrays of the forward.
    running_mean, running_var : array (C,), optional
        Taken so that the forward's arguments fit; they have no part in the gradient.
    momentum, eps, layout, activation, group
        As in `batch_norm_train`.
    mean, rstd : array (C,), optional
        What the forward returned; found again where omitted.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `batch_norm_train`.

    Returns
    -------
    NormGradients or NormResidualGradients
        ``x, weight, bias``, each of the shape and dtype of its array, None for what was omitted; with a residual also
        ``residual``.

    Raises
    ------
    ShapeError, DTypeError, OptionError, UnsupportedError
        As in `batch_norm_train`, or `grad`, `mean` or `rstd` does not match.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, grad = np.array([[1.0], [3.0]]), np.array([[0.0], [2.0]])
    >>> dnn.batch_norm_train_backward(grad, x, np.ones(1), np.zeros(1), eps=0.0)
    NormGradients(x=array([[0.], [0.]]), weight=array([2.]), bias=array([2.]))
    """


def _with_statistics(name: str) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """The norm of this name, which keeps its statistics for the gradient."""

    def save(*arrays: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = find(name).call(arrays, options | {"return_stats": True})
        y, *statistics = result
        return result if options["return_stats"] else y, dict(zip(result._fields[1:], statistics, strict=True))

    return save


@overload
def layer_norm(
    x: ArrayT,
    /,
    weight: Array | None = ...,
    bias: Array | None = ...,
    *,
    axis: Axes = ...,
    eps: float = ...,
    return_stats: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def layer_norm(
    x: ArrayT,
    /,
    weight: Array | None = ...,
    bias: Array | None = ...,
    *,
    axis: Axes = ...,
    eps: float = ...,
    return_stats: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> LayerNormOutput[ArrayT]: ...


@operation(axes_problems.layer_norm, arrays=("weight", "bias"), save=_with_statistics("layer_norm"))
def layer_norm(
    x: ArrayT,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-5,
    return_stats: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Layer normalization: mean 0 and variance 1 along the given axes.

    ``y = (x - mean) * rstd * weight + bias`` with ``rstd = 1 / sqrt(var + eps)``; the variance is the biased one.

    Parameters
    ----------
    x : array, any shape with an axis
        float64, float32, float16 or bfloat16.
    weight, bias : array, optional
        Scale and shift, of the extents of the normalised axes in the order in which `x` has them. Dtype of `x`, or
        float32 beside a half `x`. Either may be given without the other.
    axis : int or tuple of int, default -1
        Exactly the axes to normalise along, in any order; they need not be the last ones.
    eps : float, default 1e-5
        Added to the variance; 0 or more.
    return_stats : bool, default False
        Return the statistics too.
    out : array, or tuple of array with `return_stats`, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array or LayerNormOutput
        ``y``, shape and dtype of `x`; with `return_stats` also ``mean`` and ``rstd``, of the shape of `x` with extent 1
        along the normalised axes, float32 for a half `x`, else of its dtype. Axes without elements give an empty `y`,
        mean 0 and variance 0.

    Raises
    ------
    ShapeError
        `weight` or `bias` has not the extents of the normalised axes.
    DTypeError
        `x` is not floating, or a parameter has a dtype that does not go with it.
    OptionError
        `axis` is no axis of `x` or repeats one, `eps` is negative, or `return_stats` is no boolean.

    References
    ----------
    Ba, Kiros and Hinton, "Layer normalization", arXiv:1607.06450, 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[1.0, 3.0], [10.0, 30.0]])
    >>> dnn.layer_norm(x, eps=0.0)
    array([[-1.,  1.],
           [-1.,  1.]])
    >>> dnn.layer_norm(x, axis=0, eps=0.0, return_stats=True).mean
    array([[ 5.5, 16.5]])
    """


@operation(axes_problems.layer_norm_backward, arrays=("weight", "bias", "mean", "rstd"))
def layer_norm_backward(
    grad: ArrayT,
    x: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-5,
    return_stats: bool = False,
    mean: Array | None = None,
    rstd: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> NormGradients[ArrayT]:
    """Gradients of `layer_norm` from the gradient of its `y`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of `y`.
    x, weight, bias : array
        The arrays of the forward.
    axis, eps
        As in `layer_norm`.
    return_stats : bool
        Taken so that the forward's options fit; the statistics have no gradient.
    mean, rstd : array, optional
        What the forward returned; found again where omitted.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `layer_norm`.

    Returns
    -------
    NormGradients
        ``x, weight, bias``, each of the shape and dtype of its array, None for what was omitted.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `layer_norm`, or `grad`, `mean` or `rstd` does not match.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.layer_norm_backward(np.array([[0.0, 2.0]]), np.array([[1.0, 3.0]]), np.ones(2), eps=0.0)
    NormGradients(x=array([[0., 0.]]), weight=array([0., 2.]), bias=None)
    """


@overload
def rms_norm(
    x: ArrayT,
    /,
    weight: Array | None = ...,
    *,
    axis: Axes = ...,
    eps: float = ...,
    return_stats: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def rms_norm(
    x: ArrayT,
    /,
    weight: Array | None = ...,
    *,
    axis: Axes = ...,
    eps: float = ...,
    return_stats: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> RMSNormOutput[ArrayT]: ...


@operation(axes_problems.rms_norm, arrays=("weight",), save=_with_statistics("rms_norm"))
def rms_norm(
    x: ArrayT,
    /,
    weight: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-6,
    return_stats: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Root mean square normalization: mean square 1 along the given axes, without a shift.

    ``y = x * rstd * weight`` with ``rstd = 1 / sqrt(average(x**2) + eps)``.

    Parameters
    ----------
    x : array, any shape with an axis
        float64, float32, float16 or bfloat16.
    weight : array, optional
        Scale, of the extents of the normalised axes in the order in which `x` has them. Dtype of `x`, or float32 beside
        a half `x`.
    axis : int or tuple of int, default -1
        Exactly the axes to normalise along.
    eps : float, default 1e-6
        Added to the mean square; 0 or more.
    return_stats : bool, default False
        Return `rstd` too.
    out : array, or tuple of array with `return_stats`, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array or RMSNormOutput
        ``y``, shape and dtype of `x`; with `return_stats` also ``rstd``, of the shape of `x` with extent 1 along the
        normalised axes, float32 for a half `x`, else of its dtype.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `layer_norm`.

    References
    ----------
    Zhang and Sennrich, "Root mean square layer normalization", NeurIPS 2019.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.rms_norm(np.array([[3.0, -3.0], [0.0, 2.0]]), eps=0.0).round(4)
    array([[ 1.    , -1.    ],
           [ 0.    ,  1.4142]])
    """


@operation(axes_problems.rms_norm_backward, arrays=("weight", "rstd"))
def rms_norm_backward(
    grad: ArrayT,
    x: Array,
    /,
    weight: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-6,
    return_stats: bool = False,
    rstd: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> RMSNormGradients[ArrayT]:
    """Gradients of `rms_norm` from the gradient of its `y`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of `y`.
    x, weight : array
        The arrays of the forward.
    axis, eps
        As in `rms_norm`.
    return_stats : bool
        Taken so that the forward's options fit; `rstd` has no gradient.
    rstd : array, optional
        What the forward returned; found again where omitted.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `rms_norm`.

    Returns
    -------
    RMSNormGradients
        ``x, weight``, each of the shape and dtype of its array, None for an omitted weight.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `rms_norm`, or `grad` or `rstd` does not match.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.rms_norm_backward(np.array([[1.0, 1.0]]), np.array([[2.0, -2.0]]), np.ones(2), eps=0.0)
    RMSNormGradients(x=array([[0.5, 0.5]]), weight=array([ 1., -1.]))
    """


@operation(axes_problems.add_layer_norm, arrays=("weight", "bias"))
def add_layer_norm(
    x: ArrayT,
    residual: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-5,
    out: Array | None = None,
    workspace: Array | None = None,
) -> AddNormOutput[ArrayT]:
    """An addition and the layer normalization of the sum, in one.

    ``sum = x + residual``, ``y = layer_norm(sum, weight, bias)``. For half types `y` is made from the sum before it is
    rounded.

    Parameters
    ----------
    x : array, any shape with an axis
        float64, float32, float16 or bfloat16.
    residual : array, shape and dtype of `x`
        What is added.
    weight, bias : array or None
        As in `layer_norm`.
    axis, eps
        As in `layer_norm`.
    out : tuple of two arrays, optional
        Where to write `y` and `sum`.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    AddNormOutput
        ``y`` and ``sum``, shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `layer_norm`, or `residual` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.add_layer_norm(np.array([[1.0, 2.0]]), np.array([[0.0, 1.0]]), None, None, eps=0.0)
    AddNormOutput(y=array([[-1., 1.]]), sum=array([[1., 3.]]))
    """


@operation(axes_problems.add_layer_norm_backward, arrays=("weight", "bias"), nested=("grad",))
def add_layer_norm_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    residual: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-5,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> AddLayerNormGradients[ArrayT]:
    """Gradients of `add_layer_norm` from those of both its results.

    Parameters
    ----------
    grad : array, or tuple of two arrays
        Gradient of `y`, or the pair (of `y`, of `sum`), either of them None where that result is not used further.
    x, residual, weight, bias : array
        The arrays of the forward.
    axis, eps
        As in `add_layer_norm`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `add_layer_norm`.

    Returns
    -------
    AddLayerNormGradients
        ``x, residual, weight, bias``, each of the shape and dtype of its array, None for what was omitted. The first
        two are equal.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `add_layer_norm`, or `grad` does not match `x`.
    ArrayTypeError
        `grad` holds no array, or not two entries.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, grad = np.array([[1.0, 3.0]]), np.array([[0.0, 2.0]])
    >>> dnn.add_layer_norm_backward((grad, np.ones((1, 2))), x, x, None, None, eps=0.0).residual
    array([[1., 1.]])
    """


@operation(axes_problems.add_rms_norm, arrays=("weight",))
def add_rms_norm(
    x: ArrayT,
    residual: Array,
    /,
    weight: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-6,
    out: Array | None = None,
    workspace: Array | None = None,
) -> AddNormOutput[ArrayT]:
    """An addition and the RMS normalization of the sum, in one.

    ``sum = x + residual``, ``y = rms_norm(sum, weight)``. For half types `y` is made from the sum before it is rounded.

    Parameters
    ----------
    x : array, any shape with an axis
        float64, float32, float16 or bfloat16.
    residual : array, shape and dtype of `x`
        What is added.
    weight : array or None
        As in `rms_norm`.
    axis, eps
        As in `rms_norm`.
    out : tuple of two arrays, optional
        Where to write `y` and `sum`.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    AddNormOutput
        ``y`` and ``sum``, shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `rms_norm`, or `residual` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.add_rms_norm(np.array([[1.0, -2.0]]), np.array([[1.0, 0.0]]), np.ones(2), eps=0.0)
    AddNormOutput(y=array([[ 1., -1.]]), sum=array([[ 2., -2.]]))
    """


@operation(axes_problems.add_rms_norm_backward, arrays=("weight",), nested=("grad",))
def add_rms_norm_backward(
    grad: ArrayT | tuple[ArrayT | None, ...],
    x: Array,
    residual: Array,
    /,
    weight: Array | None = None,
    *,
    axis: Axes = -1,
    eps: float = 1e-6,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> AddRMSNormGradients[ArrayT]:
    """Gradients of `add_rms_norm` from those of both its results.

    Parameters
    ----------
    grad : array, or tuple of two arrays
        Gradient of `y`, or the pair (of `y`, of `sum`), either of them None where that result is not used further.
    x, residual, weight : array
        The arrays of the forward.
    axis, eps
        As in `add_rms_norm`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `add_rms_norm`.

    Returns
    -------
    AddRMSNormGradients
        ``x, residual, weight``, each of the shape and dtype of its array, None for an omitted weight. The first two are
        equal.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `add_rms_norm`, or `grad` does not match `x`.
    ArrayTypeError
        `grad` holds no array, or not two entries.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[1.0, -1.0]])
    >>> dnn.add_rms_norm_backward(np.ones((1, 2)), x, x, np.ones(2), eps=0.0).x
    array([[0.5, 0.5]])
    """


@overload
def group_norm(
    x: ArrayT,
    /,
    num_groups: int,
    weight: Array | None = ...,
    bias: Array | None = ...,
    *,
    eps: float = ...,
    layout: Layout = ...,
    activation: str | None = ...,
    return_stats: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def group_norm(
    x: ArrayT,
    /,
    num_groups: int,
    weight: Array | None = ...,
    bias: Array | None = ...,
    *,
    eps: float = ...,
    layout: Layout = ...,
    activation: str | None = ...,
    return_stats: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> GroupNormOutput[ArrayT]: ...


@operation(problems.group_norm, arrays=("weight", "bias"), save=_with_statistics("group_norm"))
def group_norm(
    x: ArrayT,
    /,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    activation: str | None = None,
    return_stats: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Group normalization: statistics over space and a group of neighbouring channels, for each sample.

    ``y = activation((x - mean) / sqrt(var + eps) * weight + bias)``; the variance is the biased one. One group is layer
    normalization over all but the batch, C groups are instance normalization.

    Parameters
    ----------
    x : array (N, C, *space), or (N, *space, C) in channels-last layout
        float64, float32, float16 or bfloat16; 0 to 3 spatial axes.
    num_groups : int
        Number of groups; a divisor of C.
    weight, bias : array (C,), optional
        Scale and shift; 1 and 0 where omitted. Dtype of `x`, or float32 beside a half `x`.
    eps : float, default 1e-5
        Added to the variance; 0 or more.
    layout : {"channels_first", "channels_last"}
        Where the channels stand.
    activation : str, optional
        Name of an activation that takes one array, with its default parameters.
    return_stats : bool, default False
        Return the statistics too.
    out : array, or tuple of array with `return_stats`, optional
        Where to write the result: shape and dtype of `x`, no memory in common with the inputs.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array or GroupNormOutput
        ``y``, shape and dtype of `x`; with `return_stats` also ``mean`` and ``rstd = 1 / sqrt(var + eps)``, (N,
        num_groups) in either layout, float32 for a half `x`, else of its dtype. A group of a single value has variance
        0 and gives ``activation(bias)``.

    Raises
    ------
    ShapeError
        `x` has not 2 to 5 axes, or a parameter is not (C,).
    DTypeError
        `x` is not floating, or a parameter has a dtype that does not go with it.
    OptionError
        `num_groups` does not divide C, `eps` is negative, `layout` or `activation` is unknown, or `return_stats` is no
        boolean.

    References
    ----------
    Wu and He, "Group normalization", ECCV 2018.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, eps=0.0)
    array([[-1.,  1., -1.,  1.]])
    >>> dnn.group_norm(np.array([[1.0, 3.0, 10.0, 30.0]]), 2, return_stats=True).mean
    array([[ 2., 20.]])
    """


@operation(problems.group_norm_backward, arrays=("weight", "bias", "mean", "rstd"))
def group_norm_backward(
    grad: ArrayT,
    x: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    num_groups: int,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    activation: str | None = None,
    return_stats: bool = False,
    mean: Array | None = None,
    rstd: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> NormGradients[ArrayT]:
    """Gradients of `group_norm` from the gradient of its `y`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of `y`.
    x, weight, bias : array
        The arrays of the forward.
    num_groups, eps, layout, activation
        As in `group_norm`.
    return_stats : bool
        Taken so that the forward's options fit; the statistics have no gradient.
    mean, rstd : array (N, num_groups), optional
        What the forward returned; found again where omitted.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `group_norm`.

    Returns
    -------
    NormGradients
        ``x, weight, bias``, each of the shape and dtype of its array, None for what was omitted.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `group_norm`, or `grad`, `mean` or `rstd` does not match.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> grad, x = np.array([[0.0, 2.0]]), np.array([[1.0, 3.0]])
    >>> dnn.group_norm_backward(grad, x, np.ones(2), np.zeros(2), num_groups=1, eps=0.0)
    NormGradients(x=array([[0., 0.]]), weight=array([0., 2.]), bias=array([0., 2.]))
    """


@overload
def instance_norm(
    x: ArrayT,
    /,
    weight: Array | None = ...,
    bias: Array | None = ...,
    *,
    eps: float = ...,
    layout: Layout = ...,
    return_stats: Literal[False] = ...,
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> ArrayT: ...


@overload
def instance_norm(
    x: ArrayT,
    /,
    weight: Array | None = ...,
    bias: Array | None = ...,
    *,
    eps: float = ...,
    layout: Layout = ...,
    return_stats: Literal[True],
    out: Array | None = ...,
    workspace: Array | None = ...,
) -> GroupNormOutput[ArrayT]: ...


@operation(problems.instance_norm, arrays=("weight", "bias"), save=_with_statistics("instance_norm"))
def instance_norm(
    x: ArrayT,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    return_stats: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Instance normalization: statistics over space, for each sample and channel.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``; the variance is the biased one.

    Parameters
    ----------
    x : array (N, C, *space), or (N, *space, C) in channels-last layout
        float64, float32, float16 or bfloat16; 1 to 3 spatial axes.
    weight, bias : array (C,), optional
        Scale and shift; 1 and 0 where omitted. Dtype of `x`, or float32 beside a half `x`.
    eps : float, default 1e-5
        Added to the variance; 0 or more.
    layout : {"channels_first", "channels_last"}
        Where the channels stand.
    return_stats : bool, default False
        Return the statistics too.
    out : array, or tuple of array with `return_stats`, optional
        Where to write the result: shape and dtype of `x`, no memory in common with the inputs.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array or GroupNormOutput
        ``y``, shape and dtype of `x`; with `return_stats` also ``mean`` and ``rstd = 1 / sqrt(var + eps)``, (N, C) in
        either layout, float32 for a half `x`, else of its dtype.

    Raises
    ------
    ShapeError
        `x` has a single value in space (or no spatial axes), which has no variance; more than 5 axes; or a parameter is
        not (C,).
    DTypeError
        `x` is not floating, or a parameter has a dtype that does not go with it.
    OptionError
        `eps` is negative, `layout` is unknown, or `return_stats` is no boolean.

    References
    ----------
    Ulyanov, Vedaldi and Lempitsky, "Instance normalization", arXiv:1607.08022, 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.instance_norm(np.array([[[1.0, 3.0], [10.0, 30.0]]]), np.array([1.0, 5.0]), eps=0.0)
    array([[[-1.,  1.],
            [-5.,  5.]]])
    >>> dnn.instance_norm(np.array([[[1.0, 3.0], [10.0, 30.0]]]), eps=0.0, return_stats=True).rstd
    array([[1. , 0.1]])
    """


@operation(problems.instance_norm_backward, arrays=("weight", "bias", "mean", "rstd"))
def instance_norm_backward(
    grad: ArrayT,
    x: Array,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    eps: float = 1e-5,
    layout: Layout = "channels_first",
    return_stats: bool = False,
    mean: Array | None = None,
    rstd: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> NormGradients[ArrayT]:
    """Gradients of `instance_norm` from the gradient of its `y`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of `y`.
    x, weight, bias : array
        The arrays of the forward.
    eps, layout
        As in `instance_norm`.
    return_stats : bool
        Taken so that the forward's options fit; the statistics have no gradient.
    mean, rstd : array (N, C), optional
        What the forward returned; found again where omitted.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the gradients that are not None.
    workspace : uint8 array, optional
        As in `instance_norm`.

    Returns
    -------
    NormGradients
        ``x, weight, bias``, each of the shape and dtype of its array, None for what was omitted.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `instance_norm`, or `grad`, `mean` or `rstd` does not match.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.instance_norm_backward(np.array([[[0.0, 2.0]]]), np.array([[[1.0, 3.0]]]), np.ones(1), eps=0.0)
    NormGradients(x=array([[[0., 0.]]]), weight=array([2.]), bias=None)
    """


@operation(problems.local_response_norm)
def local_response_norm(
    x: ArrayT,
    /,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Local response normalization: division by the energy of the neighbouring channels.

    ``y[c] = x[c] / (k + alpha / size * sum(x[j]**2))**beta``, the sum over channels ``c - size // 2`` to ``c + (size -
    1) // 2`` that exist. An even window reaches one channel further down than up, as in PyTorch (ONNX has it the other
    way round).

    Parameters
    ----------
    x : array (N, C, *space), or (N, *space, C) in channels-last layout
        float64, float32, float16 or bfloat16; 0 to 3 spatial axes.
    size : int
        Channels in the window; 1 or more.
    alpha, beta, k : float, default 1e-4, 0.75, 1.0
        Scale of the average, exponent, and what is added.
    layout : {"channels_first", "channels_last"}
        Where the channels stand.
    out : array, optional
        Where to write the result: shape and dtype of `x`, no memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError
        `x` has not 2 to 5 axes.
    DTypeError
        `x` is not floating.
    OptionError
        `size` is below 1, a number is not finite, or `layout` is unknown.

    References
    ----------
    Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks", NeurIPS 2012.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.local_response_norm(np.array([[1.0, 2.0, 2.0]]), 3, alpha=3.0, beta=1.0, k=0.0)
    array([[0.2       , 0.22222222, 0.25      ]])
    """


@operation(problems.local_response_norm_backward)
def local_response_norm_backward(
    grad: ArrayT,
    x: Array,
    /,
    size: int,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `local_response_norm` with respect to `x`.

    Parameters
    ----------
    grad : array, shape and dtype of `x`
        Gradient of the output.
    x : array
        The array of the forward.
    size, alpha, beta, k, layout
        As in `local_response_norm`.
    out, workspace : array, optional
        As in `local_response_norm`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `local_response_norm`, or `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.local_response_norm_backward(np.ones((1, 1)), np.full((1, 1), 2.0), 1, alpha=1.0, beta=1.0, k=0.0)
    array([[-0.25]])
    """
