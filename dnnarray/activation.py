"""Activations: elementwise nonlinearities and gated units, forward and backward."""

from dnnarray._operation import operation
from dnnarray._problems import activation as problems

__all__ = ["relu", "relu_backward"]


@operation(problems.elementwise("relu"))
def relu(x, /, *, out=None, workspace=None):
    """Rectified linear unit.

    ``y = max(x, 0)``; NaN stays NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
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
    DTypeError
        `x` is not floating.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Nair and Hinton, "Rectified linear units improve restricted Boltzmann machines", ICML 2010.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """


@operation(problems.elementwise_backward("relu"))
def relu_backward(grad, x, /, *, out=None, workspace=None):
    """Gradient of `relu` with respect to `x`: ``grad`` where ``x > 0``, else 0.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array, any shape
        Input of the forward.
    out, workspace : array, optional
        As in `relu`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.relu_backward(np.array([5.0, 5.0]), np.array([-1.0, 2.0]))
    array([0., 5.])
    """
