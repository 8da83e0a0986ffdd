"""Convolution, its gradients, transposed convolution, unfold and fold."""

from __future__ import annotations

from collections.abc import Sequence

from dnnarray._call.operation import operation, ranked
from dnnarray._problems import conv as problems
from dnnarray._problems import conv_unfold as unfold_problems
from dnnarray._problems.conv import ConvGradients, ConvResidualGradients
from dnnarray._spec import Spec
from dnnarray._typing import Array, ArrayT, Ints, Layout, Padding

__all__ = [
    "ConvGradients",
    "ConvResidualGradients",
    "conv",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_backward",
    "conv_backward_input",
    "conv_backward_weight",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "conv_transpose_backward",
    "fold",
    "fold_backward",
    "unfold",
    "unfold_backward",
]


@operation(problems.conv, arrays=("bias", "residual"))
def conv(
    x: ArrayT,
    weight: Array,
    /,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    residual: Array | None = None,
    activation: str | None = None,
    flip: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> ArrayT:
    """Convolution over one, two or three spatial axes, with bias, residual and activation in the same call.

    ``y[n, k, p] = activation(sum over c and r of weight[k, c, r] * x[n, c, p * stride + r * dilation - before] +
    bias[k] + residual[n, k, p])``, where p and r stand for one index per spatial axis, x is 0 outside of its extents,
    and c runs over the channels of the group that k belongs to. As deep learning has it, this is cross-correlation;
    ``flip=True`` reverses the window along every spatial axis, which is convolution as mathematics has it. The output
    extent along an axis is ``floor((n + before + after - dilation * (window - 1) - 1) / stride) + 1``.

    Parameters
    ----------
    x : array, shape (N, C, *space)
        float64, float32, float16 or bfloat16; ``(N, *space, C)`` in channels_last. One to three spatial axes.
    weight : array, shape (K, C/groups, *window)
        dtype of `x`; ``(K, *window, C/groups)`` in channels_last.
    bias : array, shape (K,), optional
        Added to each output channel.
    stride : int or tuple of int, default 1
        Input pixels between neighbouring outputs, one for all or one per spatial axis; it may be larger than the
        window.
    padding : int, tuple or str, default 0
        Zeros around `x`: an int, one per axis, one ``(before, after)`` pair per axis, ``"valid"`` (none), ``"same"``
        (output = ceil(n / stride), the odd zero after) or ``"same_lower"`` (the odd zero before). It may be larger than
        the window.
    dilation : int or tuple of int, default 1
        Input pixels between neighbouring taps of the window.
    groups : int, default 1
        The channels fall into this many groups which do not see each other; C groups give a depthwise convolution, K a
        multiple of C.
    layout : {"channels_first", "channels_last"}
        Where the channels stand in `x`, `weight`, `residual` and the result.
    residual : array, shape of the output, optional
        Added before the activation.
    activation : str, optional
        The name of an activation, with its default parameters.
    flip : bool, default False
        True for convolution in the mathematical sense.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory of at least ``infer("conv", ...).workspace`` bytes.
    algorithm : str, optional
        ``"direct"``, ``"implicit_gemm"``, ``"gemm"``, ``"winograd"``, ``"fft"``, ``"fft_tiled"`` or ``"depthwise"``, on
        the CPU with Numba ``"shifted"``, ``"channel_lanes"`` and ``"winograd_4x4"``, too; by default the one that is
        predicted to be the fastest.

    Returns
    -------
    array, shape (N, K, *output)
        dtype and memory order of `x`; ``(N, *output, K)`` in channels_last.

    Raises
    ------
    ShapeError
        The shapes do not fit each other, or the window is empty or larger than the padded input.
    DTypeError
        `x` is not floating, or the dtypes differ.
    OptionError
        An option is outside of its range, or `groups` does not divide both channel counts.
    UnsupportedError
        `algorithm` does not do this problem.

    Notes
    -----
    Half types accumulate in float32. NaN and infinity reach the outputs whose window holds them and no others, with
    every algorithm: those that would spread them over a tile or a spectrum hand such data to ``direct``.

    References
    ----------
    Dumoulin and Visin, "A guide to convolution arithmetic for deep learning", arXiv:1603.07285, 2016. Chellapilla et
    al., "High performance convolutional neural networks for document processing", 2006 (im2col). Lavin and Gray, "Fast
    algorithms for convolutional neural networks", CVPR 2016 (Winograd).

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    >>> dnn.conv(x, np.array([[[1.0, 0.0, -1.0]]]), padding=1)
    array([[[-2., -2., -2.,  3.]]])
    >>> dnn.conv(x, np.array([[[1.0, 0.0, -1.0]]]), np.array([1.0]), padding=1, activation="relu")
    array([[[0., 0., 0., 4.]]])
    """


@operation(problems.conv_backward_input)
def conv_backward_input(
    grad: ArrayT,
    weight: Array,
    /,
    *,
    input_shape: Sequence[int] | Spec,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    flip: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> ArrayT:
    """Gradient of `conv` with respect to `x`, without bias, residual and activation.

    ``dx[n, c, i] = sum over k, p and r with p * stride + r * dilation - before == i of weight[k, c, r] * grad[n, k,
    p]``

    Parameters
    ----------
    grad : array, shape (N, K, *output)
        Gradient of the output; ``(N, *output, K)`` in channels_last.
    weight : array, shape (K, C/groups, *window)
        Weight of the forward.
    input_shape : tuple of int or Spec
        Shape of `x`, in the axes of `layout`; or ``dnn.Spec(shape, dtype, strides)``, which also says how `x` lies in
        memory.
    stride, padding, dilation, groups, layout, flip
        As in `conv`, the same as in the forward.
    out, workspace, algorithm
        As in `conv`.

    Returns
    -------
    array, shape `input_shape`
        dtype of `grad`, in the memory order of `x` where `input_shape` is a Spec, else in that of `grad`.

    Raises
    ------
    ShapeError
        The shapes do not fit each other, or `grad` is not as the forward's output.
    DTypeError
        `grad` is not floating, or the dtypes differ.
    OptionError, UnsupportedError
        As in `conv`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.conv_backward_input(np.array([[[1.0, 10.0]]]), np.array([[[1.0, 2.0, 3.0]]]), input_shape=(1, 1, 4))
    array([[[ 1., 12., 23., 30.]]])
    """


@operation(problems.conv_backward_weight)
def conv_backward_weight(
    grad: ArrayT,
    x: Array,
    /,
    *,
    weight_shape: Sequence[int] | Spec,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    flip: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> ArrayT:
    """Gradient of `conv` with respect to `weight`, without bias, residual and activation.

    ``dw[k, c, r] = sum over n and p of grad[n, k, p] * x[n, c, p * stride + r * dilation - before]``

    Parameters
    ----------
    grad : array, shape (N, K, *output)
        Gradient of the output; ``(N, *output, K)`` in channels_last.
    x : array, shape (N, C, *space)
        Input of the forward.
    weight_shape : tuple of int or Spec
        Shape of `weight`, in the axes of `layout`; or ``dnn.Spec(shape, dtype, strides)``, which also says how `weight`
        lies in memory.
    stride, padding, dilation, groups, layout, flip
        As in `conv`, the same as in the forward.
    out, workspace : array, optional
        As in `conv`.
    algorithm : str, optional
        ``"direct"``, ``"implicit_gemm"``, ``"gemm"``, ``"fft"`` or ``"depthwise"``.

    Returns
    -------
    array, shape `weight_shape`
        dtype of `x`, in the memory order of `weight` where `weight_shape` is a Spec; else channels-last where `x` is,
        or in C order.

    Raises
    ------
    ShapeError
        The shapes do not fit each other, or `grad` is not as the forward's output.
    DTypeError
        `x` is not floating, or the dtypes differ.
    OptionError, UnsupportedError
        As in `conv`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.conv_backward_weight(np.array([[[1.0, 10.0]]]), np.array([[[1.0, 2.0, 3.0, 4.0]]]), weight_shape=(1, 1, 3))
    array([[[21., 32., 43.]]])
    """


@operation(problems.conv_backward, arrays=("bias", "residual"))
def conv_backward(
    grad: ArrayT,
    x: Array,
    weight: Array,
    /,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    residual: Array | None = None,
    activation: str | None = None,
    flip: bool = False,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> ConvGradients[ArrayT]:
    """Gradients of `conv` with respect to all its arrays.

    With an activation, what stands before it is computed again from the arrays and `grad` is first multiplied by its
    slope there. Then ``dx`` and ``dw`` are those of `conv_backward_input` and `conv_backward_weight`, ``db[k] = sum
    over n and p of grad[n, k, p]`` and the gradient of the residual is `grad` itself.

    Parameters
    ----------
    grad : array, shape (N, K, *output)
        Gradient of the output; ``(N, *output, K)`` in channels_last.
    x : array, shape (N, C, *space)
        Input of the forward.
    weight : array, shape (K, C/groups, *window)
        Weight of the forward.
    bias : array, shape (K,), optional
        Bias of the forward; without an activation its `Spec` will do.
    stride, padding, dilation, groups, layout, residual, activation, flip
        As in `conv`, the same as in the forward.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        One array for each gradient that is not None.
    workspace : uint8 array, optional
        Scratch memory of at least ``infer("conv_backward", ...).workspace`` bytes.
    algorithm : str, optional
        As in `conv_backward_weight`; it does both gradients.

    Returns
    -------
    ConvGradients
        ``(x, weight, bias)``, `bias` None where it was omitted; with a residual a `ConvResidualGradients` that holds
        its gradient, too.

    Raises
    ------
    ShapeError, DTypeError
        As in `conv`, and where `grad` is not as the forward's output.
    OptionError, UnsupportedError
        As in `conv`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, weight, bias = np.array([[[1.0, 2.0, 3.0]]]), np.array([[[1.0, -1.0]]]), np.array([0.5])
    >>> dnn.conv_backward(np.array([[[1.0, 10.0]]]), x, weight, bias)
    ConvGradients(x=array([[[  1.,   9., -10.]]]), weight=array([[[21., 32.]]]), bias=array([11.]))
    """


@operation(problems.conv_transpose, arrays=("bias",))
def conv_transpose(
    x: ArrayT,
    weight: Array,
    /,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    activation: str | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> ArrayT:
    """Transposed convolution over one, two or three spatial axes: the gradient of a `conv` with respect to its input,
    as a function.

    ``y[n, k, i] = activation(sum over c, p and r with p * stride + r * dilation - before == i of weight[c, k, r] * x[n,
    c, p] + bias[k])``. The output extent along an axis is ``(n - 1) * stride - before - after + dilation * (window - 1)
    + 1 + output_padding``.

    Parameters
    ----------
    x : array, shape (N, C, *space)
        float64, float32, float16 or bfloat16; ``(N, *space, C)`` in channels_last. One to three spatial axes.
    weight : array, shape (C, K/groups, *window)
        dtype of `x`; ``(C, *window, K/groups)`` in channels_last.
    bias : array, shape (K,), optional
        Added to each output channel.
    stride : int or tuple of int, default 1
        Output pixels between the windows of neighbouring inputs.
    padding : int, tuple or str, default 0
        Pixels taken away around the output: every form of `conv`; ``"same"`` and ``"same_lower"`` give an output of ``n
        * stride``, the transpose of the convolution with this padding.
    output_padding : int or tuple of int, default 0
        Pixels added at the end of each axis of the output, to choose among the extents that a stride rounds to the same
        one; less than the stride or the dilation, and 0 beside ``"same"``.
    dilation : int or tuple of int, default 1
        Output pixels between neighbouring taps of the window.
    groups : int, default 1
        The channels fall into this many groups which do not see each other.
    layout : {"channels_first", "channels_last"}
        Where the channels stand in `x`, `weight` and the result.
    activation : str, optional
        The name of an activation, with its default parameters.
    out, workspace, algorithm
        As in `conv`.

    Returns
    -------
    array, shape (N, K, *output)
        dtype and memory order of `x`; ``(N, *output, K)`` in channels_last.

    Raises
    ------
    ShapeError
        The shapes do not fit each other, the window is empty, or an output extent would be below 1.
    DTypeError
        `x` is not floating, or the dtypes differ.
    OptionError
        An option is outside of its range.
    UnsupportedError
        `algorithm` does not do this problem.

    References
    ----------
    Zeiler et al., "Deconvolutional networks", CVPR 2010.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.conv_transpose(np.array([[[1.0, 10.0]]]), np.array([[[1.0, 2.0, 3.0]]]), stride=2)
    array([[[ 1.,  2., 13., 20., 30.]]])
    """


@operation(problems.conv_transpose_backward, arrays=("bias",))
def conv_transpose_backward(
    grad: ArrayT,
    x: Array,
    weight: Array,
    /,
    bias: Array | None = None,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    output_padding: Ints = 0,
    dilation: Ints = 1,
    groups: int = 1,
    layout: Layout = "channels_first",
    activation: str | None = None,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
    algorithm: str | None = None,
) -> ConvGradients[ArrayT]:
    """Gradients of `conv_transpose` with respect to all its arrays.

    With an activation, what stands before it is computed again and `grad` is first multiplied by its slope there. Then
    ``dx[n, c, p] = sum over k and r of weight[c, k, r] * grad[n, k, p * stride + r * dilation - before]``, ``dw[c, k,
    r] = sum over n and p of x[n, c, p] * grad[n, k, p * stride + r * dilation - before]`` and ``db[k] = sum over n and
    i of grad[n, k, i]``.

    Parameters
    ----------
    grad : array, shape (N, K, *output)
        Gradient of the output; ``(N, *output, K)`` in channels_last.
    x : array, shape (N, C, *space)
        Input of the forward.
    weight : array, shape (C, K/groups, *window)
        Weight of the forward.
    bias : array, shape (K,), optional
        Bias of the forward; without an activation its `Spec` will do.
    stride, padding, output_padding, dilation, groups, layout, activation
        As in `conv_transpose`, the same as in the forward.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        One array for each gradient that is not None.
    workspace : uint8 array, optional
        Scratch memory of at least ``infer("conv_transpose_backward", ...).workspace`` bytes.
    algorithm : str, optional
        As in `conv_backward_weight`; it does both gradients.

    Returns
    -------
    ConvGradients
        ``(x, weight, bias)``, `bias` None where it was omitted.

    Raises
    ------
    ShapeError, DTypeError
        As in `conv_transpose`, and where `grad` is not as the forward's output.
    OptionError, UnsupportedError
        As in `conv_transpose`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x, weight = np.array([[[1.0, 10.0]]]), np.array([[[1.0, 2.0]]])
    >>> dnn.conv_transpose_backward(np.array([[[1.0, 0.0, 2.0]]]), x, weight)
    ConvGradients(x=array([[[1., 4.]]]), weight=array([[[ 1., 20.]]]), bias=None)
    """


@operation(unfold_problems.unfold)
def unfold(
    x: ArrayT,
    /,
    kernel_size: Ints,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """The windows of an image as columns (im2col), over one, two or three spatial axes.

    ``y[n, (c, r), p] = x[n, c, p * stride + r * dilation - before]``, 0 outside of x; (c, r) and p are flat, the last
    axis fastest. Then ``conv`` is a matrix product: ``weight.reshape(K, -1) @ y``.

    Parameters
    ----------
    x : array, shape (N, C, *space)
        float64, float32, float16 or bfloat16; ``(N, *space, C)`` in channels_last.
    kernel_size : int or tuple of int
        Extents of the window, one for all or one per spatial axis.
    stride, padding, dilation
        As in `conv`.
    layout : {"channels_first", "channels_last"}
        Where the channels stand in `x`.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, shape (N, C * window, L)
        L windows; in channels_last ``(N, L, window * C)``, so that ``y @ weight.reshape(K, -1).T`` is the convolution.

    Raises
    ------
    ShapeError
        `x` has the wrong rank, or the window is larger than the padded input.
    DTypeError
        `x` is not floating.
    OptionError
        An option is outside of its range.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.unfold(np.array([[[1.0, 2.0, 3.0]]]), 2)
    array([[[1., 2.],
            [2., 3.]]])
    """


@operation(unfold_problems.unfold_backward)
def unfold_backward(
    grad: ArrayT,
    x: Array,
    /,
    kernel_size: Ints,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `unfold` with respect to `x`: `fold` of `grad`, each pixel the sum over the windows that hold it.

    Parameters
    ----------
    grad : array, shape (N, C * window, L)
        Gradient of the output; ``(N, L, window * C)`` in channels_last.
    x : array, shape (N, C, *space)
        Input of the forward, or its `Spec`; only its shape and dtype matter.
    kernel_size, stride, padding, dilation, layout
        As in `unfold`, the same as in the forward.
    out, workspace : array, optional
        As in `unfold`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError
        As in `unfold`, and where `grad` is not as the forward's output.
    OptionError
        As in `unfold`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.unfold_backward(np.ones((1, 2, 2)), np.array([[[1.0, 2.0, 3.0]]]), 2)
    array([[[1., 2., 1.]]])
    """


@operation(unfold_problems.fold)
def fold(
    x: ArrayT,
    /,
    output_size: Ints,
    kernel_size: Ints,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """The image that sums up columns of windows (col2im), over one, two or three spatial axes.

    ``y[n, c, i] = sum over p and r with p * stride + r * dilation - before == i of x[n, (c, r), p]``: the transpose of
    `unfold`, not its inverse where windows overlap.

    Parameters
    ----------
    x : array, shape (N, C * window, L)
        float64, float32, float16 or bfloat16; ``(N, L, window * C)`` in channels_last, as `unfold` gives it. L must be
        the number of windows that fit into `output_size`.
    output_size : int or tuple of int
        Extents of the image, without its padding. Its entries, else those of `kernel_size`, count the spatial axes; two
        integers mean two axes, as in PyTorch.
    kernel_size : int or tuple of int
        Extents of the window.
    stride, padding, dilation
        As in `conv`.
    layout : {"channels_first", "channels_last"}
        Where the channels stand in `x` and in the result.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, shape (N, C, *output_size)
        dtype of `x`; ``(N, *output_size, C)`` in channels_last.

    Raises
    ------
    ShapeError
        `x` is not what `unfold` gives for `output_size`, or the window is larger than the padded image.
    DTypeError
        `x` is not floating.
    OptionError
        An option is outside of its range.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.fold(np.array([[[1.0, 2.0], [2.0, 3.0]]]), (3,), (2,))
    array([[[1., 4., 3.]]])
    """


@operation(unfold_problems.fold_backward)
def fold_backward(
    grad: ArrayT,
    x: Array,
    /,
    output_size: Ints,
    kernel_size: Ints,
    *,
    stride: Ints = 1,
    padding: Padding = 0,
    dilation: Ints = 1,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `fold` with respect to `x`: `unfold` of `grad`.

    Parameters
    ----------
    grad : array, shape (N, C, *output_size)
        Gradient of the output; ``(N, *output_size, C)`` in channels_last.
    x : array, shape (N, C * window, L)
        Input of the forward, or its `Spec`; only its shape and dtype matter.
    output_size, kernel_size, stride, padding, dilation, layout
        As in `fold`, the same as in the forward.
    out, workspace : array, optional
        As in `fold`.

    Returns
    -------
    array
        Shape, dtype and memory order of `x`.

    Raises
    ------
    ShapeError, DTypeError
        As in `fold`, and where `grad` is not as the forward's output.
    OptionError
        As in `fold`.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.fold_backward(np.array([[[1.0, 2.0, 3.0]]]), np.zeros((1, 2, 2)), (3,), (2,))
    array([[[1., 2.],
            [2., 3.]]])
    """


conv1d, conv2d, conv3d = (ranked(f"conv{n}d", conv, n) for n in (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = (
    ranked(f"conv_transpose{n}d", conv_transpose, n) for n in (1, 2, 3)
)
