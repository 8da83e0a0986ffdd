"""Softmax and its relatives."""

from __future__ import annotations

from dnnarray._call.operation import operation
from dnnarray._call.save import result_of
from dnnarray._problems import softmax as problems
from dnnarray._typing import Array, ArrayT

__all__ = [
    "log_softmax",
    "log_softmax_backward",
    "softmax",
    "softmax_backward",
    "softmin",
    "softmin_backward",
]


@operation(problems.softmax, save=result_of("softmax"))
def softmax(x: ArrayT, /, *, axis: int = -1, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Exponentials, scaled so that they sum to 1 along an axis.

    ``y = exp(x) / sum(exp(x))``. The maximum is subtracted first, so that nothing overflows; as in PyTorch, a row of
    -inf alone, or with inf or NaN in it, is NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16. An array without axes counts as one element.
    axis : int, optional
        The axis along which the elements are taken together; the last by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`, no memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`; empty where `x` is.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `x` has no such axis.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Bridle, "Probabilistic interpretation of feedforward classification network outputs", Neurocomputing, 1990.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softmax(np.array([0.0, 0.0, -1000.0]))
    array([0.5, 0.5, 0. ])
    """


@operation(problems.softmax_backward, arrays=("y",))
def softmax_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    axis: int = -1,
    y: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `softmax` with respect to `x`: ``y * (grad - sum(grad * y))``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array
        Input of the forward; its values are not read where `y` is given.
    axis : int, optional
        As in `softmax`.
    y : array, shape of `x`, optional
        Output of the forward; computed again where it is not given. `vjp` keeps it for float64 and float32; rounded to
        a half type it would cost the gradient accuracy.
    out, workspace : array, optional
        As in `softmax`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` or `y` does not match `x`.
    OptionError
        `x` has no such axis.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softmax_backward(np.array([1.0, 0.0]), np.array([3.0, 3.0]))
    array([ 0.25, -0.25])
    """


@operation(problems.softmax, save=result_of("log_softmax"))
def log_softmax(x: ArrayT, /, *, axis: int = -1, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """Logarithm of `softmax`.

    ``y = x - log(sum(exp(x)))``. The maximum is subtracted first, so that nothing overflows; as in PyTorch, a row of
    -inf alone, or with inf or NaN in it, is NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16. An array without axes counts as one element.
    axis : int, optional
        The axis along which the elements are taken together; the last by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`, no memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`; empty where `x` is.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `x` has no such axis.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.log_softmax(np.array([0.0, 0.0, -1000.0]))
    array([-6.93147181e-01, -6.93147181e-01, -1.00069315e+03])
    """


@operation(problems.softmax_backward, arrays=("y",))
def log_softmax_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    axis: int = -1,
    y: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `log_softmax` with respect to `x`: ``grad - exp(y) * sum(grad)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array
        Input of the forward; its values are not read where `y` is given.
    axis : int, optional
        As in `log_softmax`.
    y : array, shape of `x`, optional
        Output of the forward; computed again where it is not given. `vjp` keeps it for float64 and float32; rounded to
        a half type it would cost the gradient accuracy.
    out, workspace : array, optional
        As in `log_softmax`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` or `y` does not match `x`.
    OptionError
        `x` has no such axis.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.log_softmax_backward(np.array([1.0, 0.0]), np.array([3.0, 3.0]))
    array([ 0.5, -0.5])
    """


@operation(problems.softmax, save=result_of("softmin"))
def softmin(x: ArrayT, /, *, axis: int = -1, out: Array | None = None, workspace: Array | None = None) -> ArrayT:
    """`softmax` of the negative: the smallest element gets the largest share.

    ``y = exp(-x) / sum(exp(-x))``. The minimum is subtracted first, so that nothing overflows; as in PyTorch, a row
    of inf alone, or with -inf or NaN in it, is NaN.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16. An array without axes counts as one element.
    axis : int, optional
        The axis along which the elements are taken together; the last by default.
    out : array, optional
        Where to write the result: shape and dtype of `x`, no memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`; empty where `x` is.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `x` has no such axis.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softmin(np.array([0.0, 0.0, -1000.0]))
    array([0., 0., 1.])
    """


@operation(problems.softmax_backward, arrays=("y",))
def softmin_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    axis: int = -1,
    y: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `softmin` with respect to `x`: ``y * (sum(grad * y) - grad)``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array
        Input of the forward; its values are not read where `y` is given.
    axis : int, optional
        As in `softmin`.
    y : array, shape of `x`, optional
        Output of the forward; computed again where it is not given. `vjp` keeps it for float64 and float32; rounded to
        a half type it would cost the gradient accuracy.
    out, workspace : array, optional
        As in `softmin`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` or `y` does not match `x`.
    OptionError
        `x` has no such axis.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.softmin_backward(np.array([1.0, 0.0]), np.array([3.0, 3.0]))
    array([-0.25,  0.25])
    """
