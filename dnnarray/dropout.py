"""Dropout, alone and fused."""

from __future__ import annotations

from collections.abc import Sequence

from dnnarray._call.operation import operation
from dnnarray._problems import dropout as problems
from dnnarray._problems.dropout import BiasDropoutAddGradients
from dnnarray._typing import Array, ArrayT

__all__ = ["bias_dropout_add", "bias_dropout_add_backward", "dropout", "dropout_backward"]

_RUNTIME = ("seed", "offset")


@operation(problems.dropout, runtime=_RUNTIME)
def dropout(
    x: ArrayT,
    /,
    *,
    p: float = 0.5,
    seed: int,
    offset: int = 0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Set elements to 0 at random and scale the others up, so that the expected value stays.

    ``y = x * keep / (1 - p)``, with keep 0 with probability p, else 1. Which elements are dropped depends on `seed`, on
    ``offset + e`` (e the flat index of the element in C order) and on `p` alone: it is the same for every dtype, memory
    order and engine. The part of an array that starts at element e, with ``offset + e`` for `offset`, is treated as it
    is inside the whole.

    Parameters
    ----------
    x : array, any shape
        float64, float32, float16 or bfloat16.
    p : float, optional
        Probability of being dropped, 0 to 1; 0.5 by default. With 1 the result is ``x * 0``.
    seed : int
        0 to 2**64 - 1; names the stream of random numbers (Philox4x32-10).
    offset : int, optional
        0 to 2**64 - 1; place in the stream of the number for the first element, 0 by default. Calls with one seed and
        offsets at least ``x.size`` apart are independent.
    out : array, optional
        Where to write the result: shape and dtype of `x`. It may be `x` itself, which is then overwritten; no other
        memory in common with it.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`. NaN and infinity that are dropped become NaN, as in PyTorch.

    Raises
    ------
    DTypeError
        `x` is not floating.
    OptionError
        `p`, `seed` or `offset` is out of range.
    ArrayTypeError
        `x` is no array.

    References
    ----------
    Srivastava, Hinton, Krizhevsky, Sutskever and Salakhutdinov, "Dropout: a simple way to prevent neural networks from
    overfitting", JMLR 15 (2014). Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.ones(8, np.float32)
    >>> dnn.dropout(x, p=0.5, seed=5)
    array([2., 0., 2., 2., 0., 0., 2., 0.], dtype=float32)
    >>> dnn.dropout(x[3:], p=0.5, seed=5, offset=3)
    array([2., 0., 0., 2., 0.], dtype=float32)
    """


@operation(problems.dropout_backward, runtime=_RUNTIME)
def dropout_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    p: float = 0.5,
    seed: int,
    offset: int = 0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `dropout` with respect to `x`: ``grad * keep / (1 - p)``, the mask drawn again from `seed` and
    `offset`.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array
        Input of the forward, or its `Spec`; only its shape and dtype are looked at.
    p, seed, offset
        As in `dropout`, the same as in the forward.
    out, workspace : array, optional
        As in `dropout`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError
        `grad` does not match `x`.
    OptionError
        As in `dropout`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.ones(4)
    >>> bool(np.all(dnn.dropout_backward(x, x, seed=5) == dnn.dropout(x, seed=5)))
    True
    """


@operation(problems.bias_dropout_add, runtime=_RUNTIME)
def bias_dropout_add(
    x: ArrayT,
    bias: Array,
    residual: Array,
    /,
    *,
    p: float,
    seed: int,
    offset: int = 0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Bias, dropout and residual in one pass, as after each part of a transformer layer.

    ``y = (x + bias) * keep / (1 - p) + residual``, with the mask of `dropout`.

    Parameters
    ----------
    x : array, shape (*, C)
        float64, float32, float16 or bfloat16.
    bias : array, shape (C,)
        Along the last axis of `x`.
    residual : array, shape of `x`
        Added last, after the dropout.
    p : float
        Probability of being dropped, 0 to 1.
    seed, offset : int
        As in `dropout`.
    out, workspace : array, optional
        As in `dropout`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError
        `bias` or `residual` does not fit `x`.
    DTypeError
        The arrays differ in dtype or are not floating.
    OptionError
        `p`, `seed` or `offset` is out of range.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.bias_dropout_add(np.ones((2, 2)), np.array([0.0, 1.0]), np.full((2, 2), 10.0), p=0.5, seed=5)
    array([[12., 10.],
           [12., 14.]])
    """


@operation(problems.bias_dropout_add_backward, runtime=_RUNTIME)
def bias_dropout_add_backward(
    grad: ArrayT,
    x: Array,
    bias: Array,
    residual: Array,
    /,
    *,
    p: float,
    seed: int,
    offset: int = 0,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> BiasDropoutAddGradients[ArrayT]:
    """Gradients of `bias_dropout_add`.

    With respect to `x`: ``g = grad * keep / (1 - p)``; to `bias`: the sum of g over all axes but the last; to
    `residual`: ``grad``.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x, bias, residual : array
        As in `bias_dropout_add`; only their shapes and dtypes are looked at.
    p, seed, offset
        As in `bias_dropout_add`, the same as in the forward.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of arrays, optional
        Where to write the three results.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    BiasDropoutAddGradients
        ``x``, ``bias`` and ``residual``, each in the shape of its array.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `bias_dropout_add`, or `grad` does not match `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.ones((2, 2))
    >>> dnn.bias_dropout_add_backward(x, x, x[0], x, p=0.5, seed=5).bias
    array([4., 2.])
    """
