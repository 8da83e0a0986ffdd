"""Pooling, its gradients and its inverse."""

from __future__ import annotations

from collections.abc import Sequence

from dnnarray._call.operation import find, operation, ranked
from dnnarray._problems import pool as problems
from dnnarray._problems.pool import MaxPoolOutput
from dnnarray._typing import Array, ArrayT, Ints, Layout, Padding

__all__ = [
    "MaxPoolOutput",
    "adaptive_avg_pool",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_avg_pool_backward",
    "adaptive_max_pool",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "adaptive_max_pool_backward",
    "adaptive_max_pool_with_indices",
    "adaptive_max_pool_with_indices_backward",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "avg_pool_backward",
    "lp_pool",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "lp_pool_backward",
    "max_pool",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_pool_backward",
    "max_pool_with_indices",
    "max_pool_with_indices_backward",
    "max_unpool",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "max_unpool_backward",
]


def _indices_saved(name, *, returned):
    """The `save` of a maximum: the operation `name` finds the indices; `returned` says whether the user gets them
    too."""

    def save(x, **options):
        result = find(name).function(x, **options)
        return result if returned else result.y, {"indices": result.indices}

    return save


# --- maximum ----------------------------------------------------------------------------------------------------------


@operation(problems.max_pool, save=_indices_saved("max_pool_with_indices", returned=False))
def max_pool(
    x: ArrayT,
    /,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Maximum of each window.

    ``y[n, c, p, q] = max over r, s of x[n, c, p * stride - before + r * dilation, q * stride - before + s *
    dilation]``, where only what lies inside of `x` counts: the padding never wins. A window with a NaN gives NaN.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16, bfloat16 or any integer dtype.
    kernel_size : int or tuple of int
        Extent of the window, in elements, for all spatial axes or one per axis.
    stride : int or tuple of int, optional
        Elements between neighbouring windows; None (the default) takes `kernel_size`.
    padding : int, tuple, or str, default 0
        Elements around `x`: an int, one per spatial axis, one pair (before, after) per axis, ``"valid"`` for none,
        ``"same"`` for an output of extent ceil(n / stride) with the odd element after, or ``"same_lower"`` with it
        before. At most the extent that the window covers, less one.
    dilation : int or tuple of int, default 1
        Elements between neighbouring taps of a window, which then covers ``(kernel_size - 1) * dilation + 1`` elements.
    ceil_mode : bool, default False
        Also take a last window that the end of the padded input cuts, if it starts inside of the input or of the
        padding before it.
    layout : str, default "channels_first"
        Order of the logical axes: ``"channels_first"`` (N C D H W) or ``"channels_last"`` (N D H W C).
    out : array, optional
        Where to write the result: its shape and dtype, no memory in common with an input.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, shape (N, C, *outputs) or (N, *outputs, C)
        dtype and memory order of `x`. Along each axis there are ``floor((n + before + after - covered) / stride) + 1``
        outputs, with ceil instead of floor in `ceil_mode`.

    Raises
    ------
    ShapeError
        `x` has not 1 to 3 spatial axes, one of them is empty, or the window is larger than the padded input.
    DTypeError
        `x` holds neither floating numbers nor integers.
    OptionError
        An option is outside of what is said above.
    ArrayTypeError
        `x` is no array.

    See Also
    --------
    max_pool_with_indices : gives the positions of the maxima too.

    Notes
    -----
    With a dilation, all taps of a window may miss a short input; such a window gives -inf (for integers the least
    number).

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[1.0, 5.0, 2.0, 3.0, 4.0]]])
    >>> dnn.max_pool(x, 2)
    array([[[5., 3.]]])
    >>> dnn.max_pool(x, 2, ceil_mode=True)
    array([[[5., 3., 4.]]])
    >>> dnn.max_pool(x, 3, stride=2, padding=1)
    array([[[5., 5., 4.]]])
    """


@operation(problems.backward(problems.max_pool), arrays=("indices",), values=problems.indices_inside)
def max_pool_backward(
    grad: ArrayT,
    x: Array,
    /,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    indices: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `max_pool` with respect to `x`: each element of `grad` goes to the maximum of its window.

    Of equal maxima the first gets it; where windows overlap, an element collects the gradients of all that it is the
    maximum of.

    Parameters
    ----------
    grad : array, shape of the output of `max_pool`
        Gradient of the output; dtype of `x`.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward; floating.
    kernel_size, stride, padding, dilation, ceil_mode, layout
        As in the forward call.
    indices : integer array, shape of `grad`, optional
        The ``indices`` of `max_pool_with_indices`, which save looking for the maxima again.
    out, workspace : array, optional
        As in `max_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `max_pool`; `grad` or `indices` do not match the output; an index is no position in `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.max_pool_backward(np.array([[[10.0, 20.0]]]), np.array([[[1.0, 5.0, 2.0, 3.0]]]), 2)
    array([[[ 0., 10., 0., 20.]]])
    """


@operation(problems.with_indices(problems.max_pool), save=_indices_saved("max_pool_with_indices", returned=True))
def max_pool_with_indices(
    x: ArrayT,
    /,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> MaxPoolOutput[ArrayT]:
    """Maximum of each window and where it stands.

    As `max_pool`, with the flat position of each maximum in the spatial extent of its channel: ``h * W + w`` in two
    dimensions.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        As in `max_pool`.
    kernel_size, stride, padding, dilation, ceil_mode, layout
        As in `max_pool`.
    out : tuple of two arrays, optional
        Where to write the results.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    MaxPoolOutput
        Named tuple of ``y``, as from `max_pool`, and ``indices``, int64 of the same shape. Of equal maxima the first is
        named, of several NaN the last (as in PyTorch). A window with no element in it (see the notes of `max_pool`) has
        index -1.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `max_pool`.

    See Also
    --------
    max_unpool : puts the maxima back.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> y, indices = dnn.max_pool_with_indices(np.array([[[[1, 5], [7, 2]]]]), (1, 2))
    >>> y
    array([[[[5], [7]]]])
    >>> indices
    array([[[[1], [2]]]])
    """


@operation(problems.backward(problems.max_pool), arrays=("indices",), values=problems.indices_inside)
def max_pool_with_indices_backward(
    grad: ArrayT,
    x: Array,
    /,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    indices: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of ``y`` of `max_pool_with_indices` with respect to `x`; the same as `max_pool_backward`.

    Parameters
    ----------
    grad : array, shape of ``y``
        Gradient of ``y``; dtype of `x`. The indices have no gradient.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward; floating.
    kernel_size, stride, padding, dilation, ceil_mode, layout
        As in the forward call.
    indices : integer array, shape of `grad`, optional
        The ``indices`` of the forward, which save looking for the maxima again.
    out, workspace : array, optional
        As in `max_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `max_pool_backward`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[1.0, 5.0, 2.0, 3.0]]])
    >>> y, indices = dnn.max_pool_with_indices(x, 2)
    >>> dnn.max_pool_with_indices_backward(np.array([[[10.0, 20.0]]]), x, 2, indices=indices)
    array([[[ 0., 10., 0., 20.]]])
    """


# --- average and norm -------------------------------------------------------------------------------------------------


@operation(problems.avg_pool)
def avg_pool(
    x: ArrayT,
    /,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Mean of each window.

    The sum of the elements of each window that lie inside of `x`, divided by how many there are; with
    `count_include_pad` the elements of the padding count as zeros. What a last window of `ceil_mode` has beyond the
    padding never counts.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16 or bfloat16.
    kernel_size, stride, padding, dilation, ceil_mode, layout
        As in `max_pool`.
    count_include_pad : bool, default True
        Whether the padding counts in the divisor.
    out, workspace : array, optional
        As in `max_pool`.

    Returns
    -------
    array, shape (N, C, *outputs) or (N, *outputs, C)
        As in `max_pool`. Half types are summed in float32 and rounded once.

    Raises
    ------
    ShapeError, OptionError, ArrayTypeError
        As in `max_pool`.
    DTypeError
        `x` is not floating.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[1.0, 5.0, 2.0, 4.0]]])
    >>> dnn.avg_pool(x, 2)
    array([[[3., 3.]]])
    >>> dnn.avg_pool(x, 2, padding=1)
    array([[[0.5, 3.5, 2. ]]])
    >>> dnn.avg_pool(x, 2, padding=1, count_include_pad=False)
    array([[[1. , 3.5, 4. ]]])
    """


@operation(problems.backward(problems.avg_pool, linear=True))
def avg_pool_backward(
    grad: ArrayT,
    x: Array,
    /,
    kernel_size: Ints,
    *,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `avg_pool` with respect to `x`: each element of `grad`, divided as in the forward, goes to its whole
    window.

    Parameters
    ----------
    grad : array, shape of the output of `avg_pool`
        Gradient of the output; dtype of `x`.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    kernel_size, stride, padding, dilation, ceil_mode, count_include_pad, layout
        As in the forward call.
    out, workspace : array, optional
        As in `max_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `avg_pool`; `grad` does not match the output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.avg_pool_backward(np.array([[[10.0, 20.0]]]), np.zeros((1, 1, 3)), 2, stride=1)
    array([[[ 5., 15., 10.]]])
    """


@operation(problems.lp_pool)
def lp_pool(
    x: ArrayT,
    /,
    kernel_size: Ints,
    *,
    p: float = 2,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Lp norm of each window.

    ``y = (sum over the window of |x|^p)^(1/p)``; the padding adds nothing. Windows are scaled by their largest element,
    so that the powers neither overflow nor vanish where the norm itself does not.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16 or bfloat16.
    kernel_size, stride, padding, dilation, ceil_mode, layout
        As in `max_pool`.
    p : float, default 2
        Exponent, above 0; ``math.inf`` gives the largest magnitude.
    out, workspace : array, optional
        As in `max_pool`.

    Returns
    -------
    array, shape (N, C, *outputs) or (N, *outputs, C)
        As in `max_pool`. Half types are summed in float32 and rounded once.

    Raises
    ------
    ShapeError, OptionError, ArrayTypeError
        As in `max_pool`.
    DTypeError
        `x` is not floating.

    Notes
    -----
    PyTorch's ``lp_pool`` sums ``x^p`` without the magnitude, which differs for negative elements and odd `p`, and in
    `ceil_mode` weighs a window that is cut at the end as if it were whole.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[3.0, -4.0, 5.0, 12.0]]])
    >>> dnn.lp_pool(x, 2)
    array([[[ 5., 13.]]])
    >>> dnn.lp_pool(x, 2, p=1)
    array([[[ 7., 17.]]])
    """


@operation(problems.backward(problems.lp_pool))
def lp_pool_backward(
    grad: ArrayT,
    x: Array,
    /,
    kernel_size: Ints,
    *,
    p: float = 2,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `lp_pool` with respect to `x`: ``grad * sign(x) * (|x| / y)^(p - 1)``, summed over the windows of
    each element.

    It is 0 where ``x`` is 0. For infinite `p` it goes to the first element of largest magnitude. Of an infinite norm,
    also one beyond the range of numbers, and `p` above 1, finite elements get 0 and infinite ones NaN; of a norm that
    is NaN all do.

    Parameters
    ----------
    grad : array, shape of the output of `lp_pool`
        Gradient of the output; dtype of `x`.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward.
    kernel_size, p, stride, padding, dilation, ceil_mode, layout
        As in the forward call.
    out, workspace : array, optional
        As in `max_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `lp_pool`; `grad` does not match the output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.lp_pool_backward(np.array([[[1.0]]]), np.array([[[3.0, -4.0]]]), 2)
    array([[[ 0.6, -0.8]]])
    """


# --- adaptive ---------------------------------------------------------------------------------------------------------


@operation(problems.adaptive)
def adaptive_avg_pool(
    x: ArrayT,
    /,
    output_size: int | Sequence[int | None],
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Mean of windows that share the input out among a given number of outputs.

    Along an axis of extent n, output i of o takes the elements from ``floor(i * n / o)`` up to, not including,
    ``ceil((i + 1) * n / o)``; neighbouring windows overlap where o does not divide n.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16 or bfloat16.
    output_size : int or tuple of int or None
        Spatial extents of the output: one for all axes or one per axis; a None inside of a tuple keeps the extent of
        `x`. It may be larger than that of `x`. An extent of 0 gives an empty result.
    layout : str, default "channels_first"
        Order of the logical axes: ``"channels_first"`` (N C D H W) or ``"channels_last"`` (N D H W C).
    out : array, optional
        Where to write the result: its shape and dtype, no memory in common with an input.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, shape (N, C, *output_size) or (N, *output_size, C)
        dtype and memory order of `x`. Half types are summed in float32 and rounded once.

    Raises
    ------
    ShapeError
        `x` has not 1 to 3 spatial axes, or one of them is empty.
    DTypeError
        `x` is not floating.
    OptionError
        `output_size` or `layout` is outside of what is said above.
    ArrayTypeError
        `x` is no array.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[1.0, 2.0, 3.0, 4.0, 5.0]]])
    >>> dnn.adaptive_avg_pool(x, 1)
    array([[[3.]]])
    >>> dnn.adaptive_avg_pool(x, 2)
    array([[[2., 4.]]])
    """


@operation(problems.backward(problems.adaptive, linear=True))
def adaptive_avg_pool_backward(
    grad: ArrayT,
    x: Array,
    /,
    output_size: int | Sequence[int | None],
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `adaptive_avg_pool` with respect to `x`: each element of `grad` is shared out evenly over its window.

    Parameters
    ----------
    grad : array, shape of the output of `adaptive_avg_pool`
        Gradient of the output; dtype of `x`.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    output_size, layout
        As in the forward call.
    out, workspace : array, optional
        As in `adaptive_avg_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `adaptive_avg_pool`; `grad` does not match the output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.adaptive_avg_pool_backward(np.array([[[4.0]]]), np.zeros((1, 1, 4)), 1)
    array([[[1., 1., 1., 1.]]])
    """


@operation(problems.adaptive, save=_indices_saved("adaptive_max_pool_with_indices", returned=False))
def adaptive_max_pool(
    x: ArrayT,
    /,
    output_size: int | Sequence[int | None],
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Maximum of windows that share the input out among a given number of outputs.

    The windows are those of `adaptive_avg_pool`. A window with a NaN gives NaN.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16 or bfloat16.
    output_size : int or tuple of int or None
        As in `adaptive_avg_pool`.
    layout, out, workspace
        As in `adaptive_avg_pool`.

    Returns
    -------
    array, shape (N, C, *output_size) or (N, *output_size, C)
        dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `adaptive_avg_pool`.

    See Also
    --------
    adaptive_max_pool_with_indices : gives the positions of the maxima too.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.adaptive_max_pool(np.array([[[1.0, 5.0, 2.0, 3.0, 4.0]]]), 2)
    array([[[5., 4.]]])
    """


@operation(problems.backward(problems.adaptive), arrays=("indices",), values=problems.indices_inside)
def adaptive_max_pool_backward(
    grad: ArrayT,
    x: Array,
    /,
    output_size: int | Sequence[int | None],
    *,
    layout: Layout = "channels_first",
    indices: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `adaptive_max_pool` with respect to `x`: each element of `grad` goes to the maximum of its window.

    Of equal maxima the first gets it.

    Parameters
    ----------
    grad : array, shape of the output of `adaptive_max_pool`
        Gradient of the output; dtype of `x`.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward.
    output_size, layout
        As in the forward call.
    indices : integer array, shape of `grad`, optional
        The ``indices`` of `adaptive_max_pool_with_indices`, which save looking for the maxima again.
    out, workspace : array, optional
        As in `adaptive_avg_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `adaptive_max_pool`; `grad` or `indices` do not match the output; an index is no position in `x`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.adaptive_max_pool_backward(np.array([[[10.0]]]), np.array([[[1.0, 5.0, 2.0]]]), 1)
    array([[[ 0., 10., 0.]]])
    """


@operation(
    problems.with_indices(problems.adaptive), save=_indices_saved("adaptive_max_pool_with_indices", returned=True)
)
def adaptive_max_pool_with_indices(
    x: ArrayT,
    /,
    output_size: int | Sequence[int | None],
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> MaxPoolOutput[ArrayT]:
    """Maximum of windows that share the input out among a given number of outputs, and where it stands.

    As `adaptive_max_pool`, with the flat position of each maximum in the spatial extent of its channel.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16 or bfloat16.
    output_size : int or tuple of int or None
        As in `adaptive_avg_pool`.
    layout : str, default "channels_first"
        As in `adaptive_avg_pool`.
    out : tuple of two arrays, optional
        Where to write the results.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    MaxPoolOutput
        Named tuple of ``y``, as from `adaptive_max_pool`, and ``indices``, int64 of the same shape. Of equal maxima the
        first is named, of several NaN the last (as in PyTorch).

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `adaptive_avg_pool`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.adaptive_max_pool_with_indices(np.array([[[1.0, 5.0, 2.0, 3.0, 4.0]]]), 2).indices
    array([[[1, 4]]])
    """


@operation(problems.backward(problems.adaptive), arrays=("indices",), values=problems.indices_inside)
def adaptive_max_pool_with_indices_backward(
    grad: ArrayT,
    x: Array,
    /,
    output_size: int | Sequence[int | None],
    *,
    layout: Layout = "channels_first",
    indices: Array | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of ``y`` of `adaptive_max_pool_with_indices` with respect to `x`; the same as
    `adaptive_max_pool_backward`.

    Parameters
    ----------
    grad : array, shape of ``y``
        Gradient of ``y``; dtype of `x`. The indices have no gradient.
    x : array, shape (N, C, *space) or (N, *space, C)
        Input of the forward.
    output_size, layout
        As in the forward call.
    indices : integer array, shape of `grad`, optional
        The ``indices`` of the forward, which save looking for the maxima again.
    out, workspace : array, optional
        As in `adaptive_avg_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `adaptive_max_pool_backward`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.adaptive_max_pool_with_indices_backward(np.array([[[10.0]]]), np.array([[[1.0, 5.0, 2.0]]]), 1)
    array([[[ 0., 10., 0.]]])
    """


# --- the inverse of a maximum -----------------------------------------------------------------------------------------


@operation(problems.max_unpool, values=problems.indices_inside)
def max_unpool(
    x: ArrayT,
    indices: Array,
    /,
    output_size: Ints,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Puts elements back where they stood: the partial inverse of `max_pool_with_indices`.

    Each element of `x` goes to the flat spatial position of its channel that its index names; everything else is 0.

    Parameters
    ----------
    x : array, shape (N, C, *space) or (N, *space, C)
        1 to 3 spatial axes; float64, float32, float16 or bfloat16.
    indices : integer array, shape of `x`
        Flat positions in `output_size`. They should be different within a channel, as those of windows that do not
        overlap are.
    output_size : int or tuple of int
        Spatial extents of the output, for all axes or one per axis: those of the input of the pooling.
    layout, out, workspace
        As in `max_pool`.

    Returns
    -------
    array, shape (N, C, *output_size) or (N, *output_size, C)
        dtype and memory order of `x`. A position that is named twice holds one of the values, the last in the order of
        the spatial axes.

    Raises
    ------
    ShapeError
        `x` has not 1 to 3 spatial axes, or `indices` has another shape.
    DTypeError
        `x` is not floating, or `indices` holds no integers.
    OptionError
        An index is no position in `output_size`, or `output_size` or `layout` is outside of what is said above.
    ArrayTypeError
        An argument is no array, or arrays of different namespaces meet.

    Notes
    -----
    On a GPU the values of `indices` are not looked at before: one that is no position is left out, and its gradient is
    0.

    References
    ----------
    Zeiler and Fergus, "Visualizing and understanding convolutional networks", ECCV 2014.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> y, indices = dnn.max_pool_with_indices(np.array([[[1.0, 5.0, 3.0, 2.0]]]), 2)
    >>> dnn.max_unpool(y, indices, 4)
    array([[[0., 5., 3., 0.]]])
    """


@operation(problems.max_unpool_backward, values=problems.indices_inside)
def max_unpool_backward(
    grad: ArrayT,
    x: Array,
    indices: Array,
    /,
    output_size: Ints,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `max_unpool` with respect to `x`: the elements of `grad` at the positions that the indices name.

    Where a position is named twice, each of its elements gets the gradient, as in PyTorch.

    Parameters
    ----------
    grad : array, shape of the output of `max_unpool`
        Gradient of the output; dtype of `x`.
    x, indices, output_size, layout
        As in the forward call; of `x` only the shape, dtype and memory order matter, so that its `Spec` will do.
    out, workspace : array, optional
        As in `max_pool`; `out` has shape and dtype of `x`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError, ArrayTypeError
        As in `max_unpool`; `grad` does not match the output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.max_unpool_backward(np.array([[[1.0, 2.0, 3.0, 4.0]]]), np.array([[[5.0, 3.0]]]), np.array([[[1, 2]]]), 4)
    array([[[2., 3.]]])
    """


max_pool1d = ranked("max_pool1d", max_pool, 1)
max_pool2d = ranked("max_pool2d", max_pool, 2)
max_pool3d = ranked("max_pool3d", max_pool, 3)
max_pool1d_with_indices = ranked("max_pool1d_with_indices", max_pool_with_indices, 1)
max_pool2d_with_indices = ranked("max_pool2d_with_indices", max_pool_with_indices, 2)
max_pool3d_with_indices = ranked("max_pool3d_with_indices", max_pool_with_indices, 3)
avg_pool1d = ranked("avg_pool1d", avg_pool, 1)
avg_pool2d = ranked("avg_pool2d", avg_pool, 2)
avg_pool3d = ranked("avg_pool3d", avg_pool, 3)
lp_pool1d = ranked("lp_pool1d", lp_pool, 1)
lp_pool2d = ranked("lp_pool2d", lp_pool, 2)
lp_pool3d = ranked("lp_pool3d", lp_pool, 3)
adaptive_avg_pool1d = ranked("adaptive_avg_pool1d", adaptive_avg_pool, 1)
adaptive_avg_pool2d = ranked("adaptive_avg_pool2d", adaptive_avg_pool, 2)
adaptive_avg_pool3d = ranked("adaptive_avg_pool3d", adaptive_avg_pool, 3)
adaptive_max_pool1d = ranked("adaptive_max_pool1d", adaptive_max_pool, 1)
adaptive_max_pool2d = ranked("adaptive_max_pool2d", adaptive_max_pool, 2)
adaptive_max_pool3d = ranked("adaptive_max_pool3d", adaptive_max_pool, 3)
adaptive_max_pool1d_with_indices = ranked("adaptive_max_pool1d_with_indices", adaptive_max_pool_with_indices, 1)
adaptive_max_pool2d_with_indices = ranked("adaptive_max_pool2d_with_indices", adaptive_max_pool_with_indices, 2)
adaptive_max_pool3d_with_indices = ranked("adaptive_max_pool3d_with_indices", adaptive_max_pool_with_indices, 3)
max_unpool1d = ranked("max_unpool1d", max_unpool, 1)
max_unpool2d = ranked("max_unpool2d", max_unpool, 2)
max_unpool3d = ranked("max_unpool3d", max_unpool, 3)
