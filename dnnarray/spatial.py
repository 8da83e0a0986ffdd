"""Sampling, resizing, region pooling, shuffles, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dnnarray._call.operation import operation
from dnnarray._problems import spatial as problems
from dnnarray._problems.spatial import GridSampleGradients
from dnnarray._typing import Array, ArrayT, Ints, Layout

__all__ = [
    "GridSampleGradients",
    "affine_grid",
    "affine_grid_backward",
    "channel_shuffle",
    "channel_shuffle_backward",
    "embedding",
    "embedding_backward",
    "grid_sample",
    "grid_sample_backward",
    "interpolate",
    "interpolate_backward",
    "one_hot",
    "pixel_shuffle",
    "pixel_shuffle_backward",
    "pixel_unshuffle",
    "pixel_unshuffle_backward",
    "roi_align",
    "roi_align_backward",
]


@operation(problems.grid_sample, gradients=("x", "grid"))
def grid_sample(
    x: ArrayT,
    grid: Array,
    /,
    *,
    mode: Literal["bilinear", "nearest", "bicubic"] = "bilinear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
    algorithm: str | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Sample `x` at the places that `grid` names.

    ``y[n, c, p, q] = sum over taps (i, j) of weight(i - h) * weight(j - w) * x[n, c, i, j]``, where ``(w, h)`` is
    ``grid[n, p, q]`` in pixels; with three spatial axes likewise. A coordinate of the grid runs from -1 to 1 over an
    axis and the components stand in the order x, y, z: the last axis of `x` comes first.

    Parameters
    ----------
    x : array, (N, C, H, W) or (N, C, D, H, W)
        What is sampled: float64, float32, float16 or bfloat16.
    grid : array, (N, P, Q, 2) or (N, O, P, Q, 3)
        Where to sample, dtype of `x`.
    mode : {"bilinear", "nearest", "bicubic"}, optional
        "bilinear" has two taps an axis (trilinear for a 5-dimensional `x`), "nearest" one (halves go to the even
        pixel), "bicubic" four with the cubic convolution kernel of parameter -0.75 (4-dimensional `x` only).
    padding_mode : {"zeros", "border", "reflection"}, optional
        What stands outside of `x`: 0, the nearest border pixel, or the image mirrored at its border. For "bicubic" each
        tap by itself is read so.
    align_corners : bool, optional
        Whether -1 and 1 mean the centres of the first and the last pixel; otherwise (the default) their outer edges.
    algorithm : str, optional
        One of `algorithms`, "pixels" or "planes" on the CPU; the default chooses.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells its size.

    Returns
    -------
    array, (N, C, P, Q) or (N, C, O, P, Q)
        Dtype of `x`, in its memory order.

    Raises
    ------
    ShapeError
        A rank, the batch or the last axis of `grid` does not fit, or a spatial extent of `x` is 0.
    DTypeError
        An array is not floating, or the dtypes differ.
    OptionError
        An option is none of its values.
    UnsupportedError
        "bicubic" for a 5-dimensional `x`.

    Notes
    -----
    A NaN coordinate gives NaN under "zeros" and in mode "bicubic", 0 for "nearest" under "zeros", and is taken for the
    first pixel otherwise: what PyTorch does for a 4-dimensional `x`, here for both ranks.

    References
    ----------
    Jaderberg et al., "Spatial transformer networks", NeurIPS 2015. Keys, "Cubic convolution interpolation for digital
    image processing", IEEE Transactions on Acoustics, Speech, and Signal Processing, 1981.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> dnn.grid_sample(x, np.array([[[[0.0, 0.0], [0.5, -0.5]]]]))
    array([[[[2.5, 2. ]]]])
    """


@operation(problems.grid_sample_backward)
def grid_sample_backward(
    grad: ArrayT,
    x: Array,
    grid: Array,
    /,
    *,
    mode: Literal["bilinear", "nearest", "bicubic"] = "bilinear",
    padding_mode: Literal["zeros", "border", "reflection"] = "zeros",
    align_corners: bool = False,
    needs: Sequence[str] | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> GridSampleGradients[ArrayT]:
    """Gradients of `grid_sample` with respect to `x` and `grid`.

    Each output's gradient goes to its taps by their weights; that of a coordinate is the sum over taps of the weight's
    slope times the pixel. It is 0 for "nearest", and where "border" or "reflection" hold the place at the border.

    Parameters
    ----------
    grad : array, (N, C, P, Q) or (N, C, O, P, Q)
        Gradient of the output.
    x, grid : array
        Inputs of the forward.
    mode, padding_mode, align_corners : optional
        As in `grid_sample`.
    needs : tuple of str, optional
        Names of the arrays whose gradients are wanted: nothing is computed for the others, whose fields are None. None
        (the default) for all.
    out : tuple of array, optional
        Where to write the results.
    workspace : uint8 array, optional
        As in `grid_sample`.

    Returns
    -------
    GridSampleGradients
        ``x`` and ``grid``, each with the shape and dtype of its array.

    Raises
    ------
    ShapeError, DTypeError, OptionError, UnsupportedError
        As in `grid_sample`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> gradients = dnn.grid_sample_backward(np.ones((1, 1, 1, 1)), x, np.zeros((1, 1, 1, 2)))
    >>> gradients.x
    array([[[[0.25, 0.25],
             [0.25, 0.25]]]])
    >>> gradients.grid
    array([[[[1., 2.]]]])
    """


@operation(problems.affine_grid)
def affine_grid(
    theta: ArrayT,
    /,
    shape: Sequence[int],
    *,
    align_corners: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """The grid of an affine map, for `grid_sample`.

    ``grid[n, h, w] = theta[n] @ (x_w, y_h, 1)``, with a third coordinate ``z_d`` before the 1 for three spatial axes.

    Parameters
    ----------
    theta : array, (N, 2, 3) or (N, 3, 4)
        One map for each image: float64, float32, float16 or bfloat16.
    shape : tuple of int, (N, C, H, W) or (N, C, D, H, W)
        Shape of the image that sampling with the grid is to give; C is of no account.
    align_corners : bool, optional
        Whether the coordinates -1 and 1 mean the centres of the first and the last pixel; otherwise (the default) their
        outer edges. An axis of one pixel has the coordinate 0.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, (N, H, W, 2) or (N, D, H, W, 3)
        Dtype of `theta`; the components stand in the order x, y, z.

    Raises
    ------
    ShapeError
        `theta` does not fit `shape`.
    DTypeError
        `theta` is not floating.
    OptionError
        `shape` is none of the forms above, or a spatial extent is below 1.

    References
    ----------
    Jaderberg et al., "Spatial transformer networks", NeurIPS 2015.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> theta = np.array([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]])
    >>> dnn.affine_grid(theta, (1, 1, 1, 2))
    array([[[[0., 0.],
             [1., 0.]]]])
    """


@operation(problems.affine_grid_backward)
def affine_grid_backward(
    grad: ArrayT,
    theta: Array,
    /,
    shape: Sequence[int],
    *,
    align_corners: bool = False,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `affine_grid` with respect to `theta`: ``sum over h, w of grad[n, h, w] (x_w, y_h, 1)^T``.

    Parameters
    ----------
    grad : array, (N, H, W, 2) or (N, D, H, W, 3)
        Gradient of the output.
    theta : array, (N, 2, 3) or (N, 3, 4)
        Input of the forward, or its `Spec`; only its shape and dtype matter.
    shape, align_corners, out, workspace
        As in `affine_grid`.

    Returns
    -------
    array
        Shape and dtype of `theta`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `affine_grid`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.affine_grid_backward(np.ones((1, 1, 2, 2)), np.zeros((1, 2, 3)), (1, 1, 1, 2))
    array([[[0., 0., 2.],
            [0., 0., 2.]]])
    """


@operation(problems.interpolate)
def interpolate(
    x: ArrayT,
    /,
    *,
    size: Ints | None = None,
    scale: float | Sequence[float] | None = None,
    mode: Literal["nearest", "nearest_exact", "linear", "cubic", "area"] = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Resize the spatial axes of `x`.

    ``y[n, c, p, q] = sum over (i, j) of a[p, i] * b[q, j] * x[n, c, i, j]``: each axis has weights of its own, which
    the mode sets.

    Parameters
    ----------
    x : array, (N, C, *space) or (N, *space, C)
        One to three spatial axes: float64, float32, float16 or bfloat16.
    size : int or tuple of int
        The new extents, one for all axes or one each. Exactly one of `size` and `scale` is given.
    scale : float or tuple of float
        How many times longer the axes become: ``floor(n * scale)``. Positions follow this number, not the ratio of the
        extents (except for "area" and with `align_corners`).
    mode : {"nearest", "nearest_exact", "linear", "cubic", "area"}, optional
        With ``step`` input pixels for each output pixel ``i``: "nearest" reads pixel ``floor(i * step)``;
        "nearest_exact" the one nearest to the centre, ``floor((i + 0.5) * step)``; "linear" and "cubic" weigh the 2 or
        4 pixels around ``(i + 0.5) * step - 0.5`` (cubic convolution of parameter -0.75, the border repeated); "area"
        is the mean of all pixels that the output pixel touches, as in `adaptive_avg_pool`.
    align_corners : bool, optional
        For "linear" and "cubic": the first and last pixels of input and output lie on each other, ``step = (n - 1) / (m
        - 1)`` from n to m pixels.
    antialias : bool, optional
        For "linear" and "cubic": when an axis shrinks, stretch the kernel by ``step`` so that every input pixel counts.
        The cubic kernel then has the parameter -0.5. Both are what PyTorch and Pillow do.
    layout : {"channels_first", "channels_last"}, optional
        Where the channels stand.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, (N, C, *new extents) or (N, *new extents, C)
        Dtype of `x`, in its memory order.

    Raises
    ------
    ShapeError
        `x` has fewer than 3 or more than 5 axes, or a spatial extent of 0.
    DTypeError
        `x` is not floating.
    OptionError
        Not exactly one of `size` and `scale`, an extent below 1, an unknown mode or layout, or `align_corners` or
        `antialias` for a mode without them.

    Notes
    -----
    Positions are computed in float64, for `size` in mode "nearest" in whole numbers; PyTorch takes float32 for some
    dtypes, so it can read the neighbouring pixel where a position falls on the edge between two. As in PyTorch,
    "linear" and antialiased axes that keep their extent are copied, whatever the scale.

    References
    ----------
    Keys, "Cubic convolution interpolation for digital image processing", IEEE Transactions on Acoustics, Speech, and
    Signal Processing, 1981.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.interpolate(np.array([[[1.0, 2.0]]]), size=4)
    array([[[1., 1., 2., 2.]]])
    >>> dnn.interpolate(np.array([[[1.0, 2.0]]]), scale=2, mode="linear")
    array([[[1.  , 1.25, 1.75, 2.  ]]])
    """


@operation(problems.interpolate_backward)
def interpolate_backward(
    grad: ArrayT,
    x: Array,
    /,
    *,
    size: Ints | None = None,
    scale: float | Sequence[float] | None = None,
    mode: Literal["nearest", "nearest_exact", "linear", "cubic", "area"] = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `interpolate` with respect to `x`: the transposed weights applied to `grad`.

    Parameters
    ----------
    grad : array, (N, C, *new extents) or (N, *new extents, C)
        Gradient of the output.
    x : array
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    size, scale, mode, align_corners, antialias, layout, out, workspace
        As in `interpolate`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `interpolate`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.interpolate_backward(np.ones((1, 1, 4)), np.zeros((1, 1, 2)), size=4)
    array([[[2., 2.]]])
    """


@operation(problems.roi_align, values=problems.roi_values)
def roi_align(
    x: ArrayT,
    boxes: Array,
    /,
    *,
    output_size: Ints,
    spatial_scale: float = 1.0,
    sampling_ratio: int = 0,
    aligned: bool = False,
    mode: Literal["avg", "max"] = "avg",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Pool each box of an image to a fixed number of bins, from samples between the pixels.

    A box is divided into P by Q bins of equal size and each bin into a grid of samples; a sample is the bilinear
    interpolation of `x` at its place (the border pixel up to one pixel outside of `x`, 0 further out). The result of a
    bin is the mean of its samples.

    Parameters
    ----------
    x : array, (N, C, H, W)
        float64, float32, float16 or bfloat16.
    boxes : array, (K, 5)
        For each box the index of its image (cut to a whole number) and the corners x1, y1, x2, y2; dtype of `x`.
    output_size : int or tuple of int
        (P, Q), or one number for both.
    spatial_scale : float, optional
        What the coordinates are multiplied with to be in pixels of `x`.
    sampling_ratio : int, optional
        Samples of a bin along each axis, up to 1024; 0 (the default) takes ``ceil(box extent / bins)``, for each box
        and axis its own.
    aligned : bool, optional
        Shift the coordinates by half a pixel, so that pixel centres stand at whole numbers plus a half. Without it,
        boxes are made at least one pixel wide and high. ONNX calls True "half_pixel", False "output_half_pixel".
    mode : {"avg", "max"}, optional
        "max" takes, as ONNX does, the largest of the four weighted pixels of all samples (not the largest interpolated
        sample).
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells its size.

    Returns
    -------
    array, (K, C, P, Q)
        Dtype of `x`. A bin without samples (an empty box, `aligned`, ``sampling_ratio=0``) is 0.

    Raises
    ------
    ShapeError
        `x` or `boxes` has the wrong rank or extents, or an extent of the image is 0.
    DTypeError
        An array is not floating, or the dtypes differ.
    OptionError
        An option is outside of its values, a batch index names no image, or a coordinate is NaN, infinite or 2**24
        pixels and more away.

    Notes
    -----
    On a GPU nothing looks at the boxes before the work: one with such a batch index or coordinate gives NaN, and has no
    gradient.

    References
    ----------
    He et al., "Mask R-CNN", ICCV 2017. ONNX operator RoiAlign.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> x = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> dnn.roi_align(x, np.array([[0.0, 0.0, 0.0, 4.0, 4.0]]), output_size=2, aligned=True)
    array([[[[ 2.5,  4.5],
             [10.5, 12.5]]]])
    """


@operation(problems.roi_align_backward, values=problems.roi_values)
def roi_align_backward(
    grad: ArrayT,
    x: Array,
    boxes: Array,
    /,
    *,
    output_size: Ints,
    spatial_scale: float = 1.0,
    sampling_ratio: int = 0,
    aligned: bool = False,
    mode: Literal["avg", "max"] = "avg",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `roi_align` with respect to `x`; the boxes have none.

    Each bin's gradient goes to the pixels of its samples by their weights over the number of samples; for "max", to the
    pixel of the largest contribution (the first of equal ones) by its weight.

    Parameters
    ----------
    grad : array, (K, C, P, Q)
        Gradient of the output.
    x, boxes : array
        Inputs of the forward; but for "max" the `Spec` of `x` will do.
    output_size, spatial_scale, sampling_ratio, aligned, mode, out, workspace
        As in `roi_align`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `roi_align`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> box = np.array([[0.0, 0.0, 0.0, 2.0, 2.0]])
    >>> dnn.roi_align_backward(np.ones((1, 1, 1, 1)), np.zeros((1, 1, 2, 2)), box, output_size=1, aligned=True)
    array([[[[0.25, 0.25],
             [0.25, 0.25]]]])
    """


@operation(problems.pixel_shuffle)
def pixel_shuffle(
    x: ArrayT,
    /,
    factor: int,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Turn channels into pixels: every axis of the image grows by `factor`, the channels shrink by its power.

    ``y[n, c, h * f + i, w * f + j] = x[n, (c * f + i) * f + j, h, w]``, for any number of spatial axes. ONNX calls it
    DepthToSpace in the mode "CRD".

    Parameters
    ----------
    x : array, (N, C * factor**rank, *space) or (N, *space, C * factor**rank)
        One spatial axis or more (`rank` of them), any dtype.
    factor : int
        1 or more.
    layout : {"channels_first", "channels_last"}, optional
        Where the channels stand.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, (N, C, *factor times the extents) or channels last
        Dtype of `x`.

    Raises
    ------
    ShapeError
        `x` has fewer than 3 axes, or its channels are not divisible by ``factor**rank``.
    OptionError
        `factor` is below 1, or an unknown layout.

    References
    ----------
    Shi et al., "Real-time single image and video super-resolution using an efficient sub-pixel convolutional neural
    network", CVPR 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.pixel_shuffle(np.arange(4).reshape(1, 4, 1, 1), 2)
    array([[[[0, 1],
             [2, 3]]]])
    """


@operation(problems.undone(problems.pixel_shuffle))
def pixel_shuffle_backward(
    grad: ArrayT,
    x: Array,
    /,
    factor: int,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `pixel_shuffle`: the elements of `grad` moved back.

    Parameters
    ----------
    grad : array, shape of the output
        Gradient of the output.
    x : array
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    factor, layout, out, workspace
        As in `pixel_shuffle`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `pixel_shuffle`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.pixel_shuffle_backward(np.arange(4).reshape(1, 1, 2, 2), np.zeros((1, 4, 1, 1), int), 2).ravel()
    array([0, 1, 2, 3])
    """


@operation(problems.pixel_unshuffle)
def pixel_unshuffle(
    x: ArrayT,
    /,
    factor: int,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Turn pixels into channels: the inverse of `pixel_shuffle`.

    ``y[n, (c * f + i) * f + j, h, w] = x[n, c, h * f + i, w * f + j]``, for any number of spatial axes.

    Parameters
    ----------
    x : array, (N, C, *space) or (N, *space, C)
        One spatial axis or more (`rank` of them), any dtype; the extents are divisible by `factor`.
    factor : int
        1 or more.
    layout : {"channels_first", "channels_last"}, optional
        Where the channels stand.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, (N, C * factor**rank, *extents over factor) or channels last
        Dtype of `x`.

    Raises
    ------
    ShapeError
        `x` has fewer than 3 axes, or an extent is not divisible by `factor`.
    OptionError
        `factor` is below 1, or an unknown layout.

    References
    ----------
    Shi et al., "Real-time single image and video super-resolution using an efficient sub-pixel convolutional neural
    network", CVPR 2016.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.pixel_unshuffle(np.arange(4).reshape(1, 1, 2, 2), 2).ravel()
    array([0, 1, 2, 3])
    """


@operation(problems.undone(problems.pixel_unshuffle))
def pixel_unshuffle_backward(
    grad: ArrayT,
    x: Array,
    /,
    factor: int,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `pixel_unshuffle`: the elements of `grad` moved back.

    Parameters
    ----------
    grad : array, shape of the output
        Gradient of the output.
    x : array
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    factor, layout, out, workspace
        As in `pixel_unshuffle`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `pixel_unshuffle`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.pixel_unshuffle_backward(np.arange(4).reshape(1, 4, 1, 1), np.zeros((1, 1, 2, 2), int), 2)
    array([[[[0, 1],
             [2, 3]]]])
    """


@operation(problems.channel_shuffle)
def channel_shuffle(
    x: ArrayT,
    /,
    groups: int,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Interleave groups of channels: channel ``k`` of group ``g`` becomes channel ``g`` of group ``k``.

    ``y[n, k * groups + g] = x[n, g * (C // groups) + k]``.

    Parameters
    ----------
    x : array, (N, C, *space) or (N, *space, C)
        One spatial axis or more, any dtype.
    groups : int
        1 or more, a divisor of C.
    layout : {"channels_first", "channels_last"}, optional
        Where the channels stand.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError
        `x` has fewer than 3 axes, or its channels are not divisible by `groups`.
    OptionError
        `groups` is below 1, or an unknown layout.

    References
    ----------
    Zhang et al., "ShuffleNet: an extremely efficient convolutional neural network for mobile devices", CVPR 2018.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.channel_shuffle(np.arange(6).reshape(1, 6, 1), 2).ravel()
    array([0, 3, 1, 4, 2, 5])
    """


@operation(problems.undone(problems.channel_shuffle))
def channel_shuffle_backward(
    grad: ArrayT,
    x: Array,
    /,
    groups: int,
    *,
    layout: Layout = "channels_first",
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `channel_shuffle`: the elements of `grad` moved back.

    Parameters
    ----------
    grad : array, shape of `x`
        Gradient of the output.
    x : array
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    groups, layout, out, workspace
        As in `channel_shuffle`.

    Returns
    -------
    array
        Shape and dtype of `x`.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `channel_shuffle`, or `grad` does not match its output.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.channel_shuffle_backward(np.arange(6).reshape(1, 6, 1), np.zeros((1, 6, 1), int), 2).ravel()
    array([0, 2, 4, 1, 3, 5])
    """


@operation(problems.embedding, values=problems.embedding_values, gradients=("weight",))
def embedding(
    indices: Array,
    weight: ArrayT,
    /,
    *,
    padding_index: int | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Rows of a table: ``y[*i] = weight[indices[*i]]``.

    Parameters
    ----------
    indices : array, any shape
        Integers from 0 to V - 1; negative ones do not count from the end.
    weight : array, (V, D)
        The table: float64, float32, float16 or bfloat16.
    padding_index : int, optional
        A row (from -V to V - 1) whose gradient is 0; it does not change the result.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, (*indices, D)
        Dtype of `weight`.

    Raises
    ------
    ShapeError
        `weight` does not have two axes.
    DTypeError
        `indices` are no integers, or `weight` is not floating.
    OptionError
        An index or `padding_index` names no row.

    Notes
    -----
    On a GPU the values of `indices` are not looked at before: one that names no row gives a row of NaN.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.embedding(np.array([2, 0]), np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]))
    array([[4., 5.],
           [0., 1.]])
    """


@operation(problems.embedding_backward, values=problems.embedding_values)
def embedding_backward(
    grad: ArrayT,
    indices: Array,
    weight: Array,
    /,
    *,
    padding_index: int | None = None,
    out: Array | None = None,
    workspace: Array | None = None,
) -> ArrayT:
    """Gradient of `embedding` with respect to `weight`: each row is the sum of `grad` where its index stands.

    Parameters
    ----------
    grad : array, (*indices, D)
        Gradient of the output.
    indices : array, any shape
        Input of the forward.
    weight : array, (V, D)
        Input of the forward, or its `Spec`; only its shape, dtype and memory order matter.
    padding_index : int, optional
        A row whose gradient is 0.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; `infer` tells its size.

    Returns
    -------
    array
        Shape and dtype of `weight`; rows that no index names are 0.

    Raises
    ------
    ShapeError, DTypeError, OptionError
        As in `embedding`, or `grad` does not match its output.

    Notes
    -----
    On a GPU an index that names no row is left out.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.embedding_backward(np.ones((3, 1)), np.array([2, 0, 2]), np.zeros((3, 1))).ravel()
    array([1., 0., 2.])
    """


@operation(problems.one_hot, values=problems.one_hot_values)
def one_hot(
    indices: ArrayT, /, num_classes: int, *, out: Array | None = None, workspace: Array | None = None
) -> ArrayT:
    """One-hot vectors: ``y[*i, k]`` is 1 where ``k`` is ``indices[*i]``, else 0.

    Parameters
    ----------
    indices : array, any shape
        Integers from 0 to `num_classes` - 1.
    num_classes : int
        Length of the vectors, from 1 to 2**31 - 1.
    out : array, optional
        Where to write the result.
    workspace : uint8 array, optional
        Scratch memory; none is needed.

    Returns
    -------
    array, (*indices, num_classes)
        int64.

    Raises
    ------
    DTypeError
        `indices` are no integers.
    OptionError
        An index names no class, or `num_classes` is below 1 or above 2**63 - 1.

    Notes
    -----
    On a GPU an index that names no class gives a vector of zeros.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> dnn.one_hot(np.array([2, 0]), 3)
    array([[0, 0, 1],
           [1, 0, 0]])
    """
