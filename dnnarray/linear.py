"""Linear (fully connected) layers."""

from __future__ import annotations

from collections.abc import Sequence

from dnnarray._call.operation import operation
from dnnarray._problems import linear as problems
from dnnarray._problems.linear import LinearGradients, LinearResidualGradients
from dnnarray._typing import Array, ArrayT

__all__ = ["LinearGradients", "LinearResidualGradients", "linear", "linear_backward"]


@operation(problems.linear, arrays=("bias", "residual"))
def linear(
    x: ArrayT,
    weight: Array,
    /,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Linear (fully connected) layer, with an optional residual and activation in the same pass.

    ``y = activation(x @ weight.T + bias + residual)``, each row of `x` by itself.

    Parameters
    ----------
    x : array, shape (*rows, in)
        float64, float32, float16 or bfloat16; any number of leading axes, also none.
    weight : array, shape (out, in)
        dtype of `x`. With ``in == 0`` the product is 0.
    bias : array, shape (out,), optional
        dtype of `x`.
    activation : str, optional
        Name of an activation, applied last with its default parameters; None (the default) for none.
    residual : array, shape (*rows, out), optional
        Added before the activation; dtype of `x`.
    out : array, optional
        Where to write the result: shape (*rows, out), dtype of `x`, no memory in common with an input.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, shape (*rows, out)
        dtype of `x`, in C order. Half types are multiplied and summed in float32 and rounded once.

    Raises
    ------
    ShapeError
        The last axis of `x` is not as long as that of `weight`, or `weight`, `bias` or `residual` has another shape.
    DTypeError
        An array is not floating, or has another dtype than `x`.
    OptionError
        `activation` names none.
    ArrayTypeError
        An argument is no array, or arrays of different namespaces meet.

    See Also
    --------
    linear_backward : the gradients.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> weight = np.array([[1.0, 2.0], [3.0, 4.0], [-1.0, -1.0]])
    >>> dnn.linear(np.array([[1.0, 1.0]]), weight)
    array([[ 3., 7., -2.]])
    >>> dnn.linear(np.array([1.0, 1.0]), weight, np.array([10.0, 10.0, 0.0]), activation="relu")
    array([13., 17., 0.])
    """


@operation(problems.linear_backward, arrays=("bias", "residual"))
def linear_backward(
    grad: ArrayT,
    x: Array,
    weight: Array,
    /,
    bias: Array | None = None,
    *,
    activation: str | None = None,
    residual: Array | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> LinearGradients[ArrayT] | LinearResidualGradients[ArrayT]:
    """Gradients of `linear` with respect to its arrays.

    With ``g = grad * activation'(x @ weight.T + bias + residual)``, or ``g = grad`` without an activation: ``g @
    weight`` for `x`, ``g.T @ x`` for `weight`, the sum of `g` over the rows for `bias`, `g` for `residual`. What stood
    before the activation is computed again.

    Parameters
    ----------
    grad : array, shape (*rows, out)
        Gradient of the output; dtype of `x`.
    x, weight, bias, activation, residual
        As in the forward call; without an activation the `Spec` of `bias` and of `residual` will do.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the results, one array for each that is not None.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    LinearGradients or LinearResidualGradients
        Named tuple ``(x, weight, bias)``, with ``residual`` as a fourth field where one was given; each of the shape
        and dtype of its array. ``bias`` is None where no bias was given.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `linear`, and where `grad` has not the shape and dtype of the output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])
    >>> dnn.linear_backward(np.array([[1.0]]), x, weight)
    LinearGradients(x=array([[3., 4.]]), weight=array([[1., 2.]]), bias=None)
    """
