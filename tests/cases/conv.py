"""Cases of the conv family."""

import math
from typing import Any

from tests.support import Case, normal


def _conv(name: str, x: tuple, weight: tuple, reason: str, *, bias: bool = False, residual: tuple | None = None, **options: Any) -> Case:
    arrays = (normal(*x), normal(*weight), normal(weight[0]) if bias else None, normal(*residual) if residual else None)
    return Case("conv", name, arrays, options, reason, reduction=max(math.prod(weight[1:]), 1))


def _transpose(name: str, x: tuple, weight: tuple, reason: str, *, bias: int | None = None, **options: Any) -> Case:
    arrays = (normal(*x), normal(*weight), normal(bias) if bias else None)
    return Case("conv_transpose", name, arrays, options, reason, reduction=math.prod(weight))


LAST: dict[str, Any] = {"layout": "channels_last"}

_CONV = [
    _conv("2d", (2, 3, 7, 5), (4, 3, 3, 3), "a plain 3x3 window with everything added", bias=True, residual=(2, 4, 7, 5), padding=1),
    _conv("1d", (2, 3, 11), (4, 3, 4), "one axis, an even window", bias=True, padding=2),
    _conv("3d", (2, 2, 4, 5, 6), (3, 2, 2, 3, 2), "three axes, different windows", padding=1),
    _conv("1d_last", (2, 11, 3), (4, 4, 3), "one axis, channels last", bias=True, padding=2, **LAST),
    _conv("2d_last", (2, 7, 5, 3), (4, 3, 3, 3), "channels last, everything added", bias=True, residual=(2, 7, 5, 4), padding=1, **LAST),
    _conv("3d_last", (1, 4, 5, 6, 2), (3, 2, 3, 2, 2), "three axes, channels last", stride=(1, 2, 1), **LAST),
    _conv("3d_strided", (1, 2, 7, 6, 5), (3, 2, 3, 3, 3), "strides along outer axes", stride=(2, 3, 2), padding=1, dilation=(1, 1, 2)),
    _conv("pointwise", (3, 4, 5, 3), (5, 4, 1, 1), "one pixel windows: the image is the matrix", bias=True),
    _conv("pointwise_last", (3, 5, 3, 4), (5, 1, 1, 4), "the same, channels last", **LAST),
    _conv("pointwise_strided", (2, 4, 5, 7), (3, 4, 1, 1), "most phases of the gradient are 0", stride=2),
    _conv("pointwise_groups", (2, 6, 4, 3), (4, 3, 1, 1), "one pixel windows in groups", groups=2),
    _conv("strided", (2, 3, 9, 8), (2, 3, 3, 3), "stride 2 with a remainder", stride=2, padding=1),
    _conv("stride_over_window", (2, 2, 11, 9), (3, 2, 2, 2), "pixels that no window sees", stride=(4, 3)),
    _conv("dilated", (1, 2, 11, 9), (3, 2, 3, 2), "gaps between taps, another for each axis", dilation=(2, 3), padding=(2, 1)),
    _conv("strided_dilated", (1, 2, 13, 12), (2, 2, 3, 3), "stride and dilation share a factor", stride=(4, 2), dilation=(2, 4), padding=4),
    _conv(
        "coprime", (1, 2, 13, 11), (2, 2, 4, 3), "stride and dilation without a common factor", stride=(3, 2), dilation=(2, 3), padding=2
    ),
    _conv("asymmetric", (2, 2, 6, 5), (3, 2, 3, 3), "another padding on each side", padding=((0, 2), (3, 1))),
    _conv("wide_padding", (1, 2, 3, 4), (2, 2, 2, 2), "padding larger than the window: outputs of zeros only", padding=4, bias=True),
    _conv("same", (1, 2, 7, 6), (3, 2, 4, 2), "output as large as the input, the odd zero after", padding="same"),
    _conv("same_lower", (1, 2, 7, 6), (3, 2, 4, 2), "the odd zero before", padding="same_lower"),
    _conv("same_strided", (1, 2, 7, 6), (3, 2, 3, 3), "ceil(n / stride)", padding="same", stride=(2, 3)),
    _conv("valid", (1, 2, 5, 5), (2, 2, 5, 5), "a window as large as the image", padding="valid"),
    _conv("groups", (2, 6, 6, 5), (4, 3, 3, 3), "two groups", groups=2, padding=1, bias=True),
    _conv("groups_last", (2, 6, 5, 6), (4, 3, 3, 3), "two groups, channels last", groups=2, padding=1, stride=(1, 2), **LAST),
    _conv("depthwise", (2, 5, 7, 6), (5, 1, 3, 3), "a window for each channel", groups=5, padding=1),
    _conv("depthwise_last", (2, 7, 6, 5), (5, 3, 3, 1), "the same, channels last", groups=5, padding=1, **LAST),
    _conv("multiplier", (2, 3, 7, 6), (6, 1, 3, 2), "depthwise with two outputs for each channel", groups=3, stride=2, dilation=(1, 2)),
    _conv("depthwise_1d", (2, 4, 9), (4, 1, 4), "a causal filter for each channel", groups=4, padding=((3, 0),)),
    _conv("depthwise_3d", (1, 2, 4, 5, 4), (2, 1, 3, 2, 3), "three axes", groups=2, padding=1, bias=True),
    _conv("depthwise_whole_vectors", (1, 9, 8, 8), (8, 3, 3, 1), "channels in vectors of 16 bytes", groups=8, padding=1, bias=True, **LAST),
    _conv(
        "depthwise_residual",
        (1, 5, 6, 4),
        (4, 3, 3, 1),
        "everything added to a window for each channel",
        bias=True,
        residual=(1, 5, 6, 4),
        groups=4,
        padding=1,
        activation="relu",
        **LAST,
    ),
    _conv("depthwise_strips", (1, 24, 23, 8), (8, 5, 5, 1), "enough pixels to fill a matrix", groups=8, padding=2, bias=True, **LAST),
    _conv(
        "depthwise_matrix",
        (3, 9, 11, 8),
        (8, 7, 7, 1),
        "a window for the tensor cores, several images",
        groups=8,
        padding=3,
        bias=True,
        **LAST,
    ),
    _conv(
        "depthwise_cubes",
        (2, 3, 4, 9, 8),
        (8, 3, 3, 3, 1),
        "a window of three axes for the tensor cores",
        groups=8,
        padding=1,
        bias=True,
        **LAST,
    ),
    _conv("depthwise_row", (2, 17, 8), (8, 3, 1), "one axis in whole vectors", groups=8, padding=1, **LAST),
    _conv("depthwise_steps", (1, 9, 18, 8), (8, 3, 3, 1), "strips of a strided window", groups=8, padding=1, stride=2, **LAST),
    _conv("depthwise_beyond", (1, 4, 5, 8), (8, 3, 3, 1), "windows that see padding alone, above and below", groups=8, padding=4, **LAST),
    _conv("flip", (1, 2, 5, 6), (3, 2, 3, 2), "true convolution", flip=True, padding=(1, 0)),
    _conv("flip_last", (1, 5, 6, 2), (3, 3, 2, 2), "true convolution, channels last, strided", flip=True, stride=2, **LAST),
    _conv(
        "relu",
        (2, 2, 5, 4),
        (3, 2, 3, 3),
        "an activation behind bias and residual",
        bias=True,
        residual=(2, 3, 5, 4),
        padding=1,
        activation="relu",
    ),
    _conv("gelu_last", (1, 4, 5, 2), (3, 2, 2, 2), "a curved activation", bias=True, activation="gelu", **LAST),
    _conv("large_window", (1, 2, 19, 21), (2, 2, 9, 7), "a large window", padding=(4, 3)),
    _conv("long", (1, 1, 301), (2, 1, 5), "a signal longer than a block or a tile", padding=2),
    _conv("tall", (1, 2, 67, 3), (2, 2, 3, 3), "odd tiles on a tall image", padding=1),
    _conv("one_pixel", (2, 3, 1, 1), (2, 3, 3, 3), "an image of one pixel", padding=1),
    _conv("one_channel", (1, 4, 4, 1), (1, 3, 3, 1), "one channel in and out", padding=1, **LAST),
    _conv("chunks_last", (1, 5, 4, 16), (8, 3, 3, 16), "channels in whole vectors", padding=1, bias=True, **LAST),
    _conv("blocks_last", (1, 4, 5, 64), (64, 3, 3, 64), "channels in whole tiles", padding=1, bias=True, activation="relu", **LAST),
    _conv("blocks_strided_last", (1, 5, 4, 64), (64, 3, 2, 64), "the same with phases of the gradient", stride=2, **LAST),
    _conv("thin_groups_last", (1, 5, 4, 32), (32, 3, 3, 4), "groups thinner than a vector", groups=8, padding=1, **LAST),
    _conv("empty_batch", (0, 3, 5, 5), (2, 3, 3, 3), "a batch of nothing", padding=1, bias=True),
    _conv("no_input_channels", (2, 0, 4, 4), (3, 0, 3, 3), "a sum over nothing leaves the bias", bias=True),
    _conv("no_output_channels", (2, 3, 4, 4), (0, 3, 3, 3), "no output channels"),
]

_GRADIENTS = [
    Case(
        "conv_backward_input",
        "2d",
        (normal(2, 4, 4, 3), normal(4, 3, 3, 3)),
        {"input_shape": (2, 3, 8, 6), "stride": 2, "padding": 1},
        "an extent that the stride rounds",
        36,
        gradient=False,
    ),
    Case(
        "conv_backward_input",
        "last",
        (normal(1, 5, 6, 4), normal(4, 2, 3, 2)),
        {"input_shape": (1, 6, 6, 4), "groups": 2, "padding": ((0, 0), (1, 1)), "flip": True, **LAST},
        "groups, channels last, flipped",
        24,
        gradient=False,
    ),
    Case(
        "conv_backward_weight",
        "2d",
        (normal(2, 4, 4, 3), normal(2, 3, 8, 6)),
        {"weight_shape": (4, 3, 3, 3), "stride": 2, "padding": 1},
        "an extent that the stride rounds",
        24,
        gradient=False,
    ),
    Case(
        "conv_backward_weight",
        "last",
        (normal(1, 5, 6, 4), normal(1, 6, 6, 4)),
        {"weight_shape": (4, 2, 3, 2), "groups": 2, "padding": ((0, 0), (1, 1)), "flip": True, **LAST},
        "groups, channels last, flipped",
        30,
        gradient=False,
    ),
]

_TRANSPOSED = [
    _transpose("2d", (2, 3, 4, 5), (3, 4, 3, 3), "upsampling by two", bias=4, stride=2, padding=1, output_padding=1),
    _transpose("1d", (2, 3, 6), (3, 2, 4), "one axis", bias=2, stride=3),
    _transpose("3d", (1, 2, 3, 4, 2), (2, 3, 2, 3, 2), "three axes", stride=(1, 2, 3), padding=(0, 1, 0)),
    _transpose("last", (2, 4, 5, 3), (3, 3, 3, 4), "channels last", bias=4, stride=2, padding=1, **LAST),
    _transpose("plain", (2, 3, 5, 4), (3, 2, 3, 3), "stride 1", padding=1),
    _transpose("groups", (1, 4, 4, 3), (4, 3, 2, 3), "two groups", bias=6, groups=2, stride=2, activation="relu"),
    _transpose("depthwise", (1, 3, 5, 4), (3, 1, 4, 4), "a window for each channel", groups=3, stride=2, padding=1),
    _transpose(
        "dilated",
        (1, 2, 4, 5),
        (2, 3, 3, 2),
        "dilation above the stride, padded by more than the stride",
        stride=2,
        dilation=3,
        output_padding=2,
        padding=(1, 0),
    ),
    _transpose("stride_over_window", (1, 2, 3, 4), (2, 2, 2, 1), "outputs that no window meets", bias=2, stride=3),
    _transpose("asymmetric", (1, 2, 5, 4), (2, 2, 3, 4), "another padding on each side", padding=((0, 2), (1, 0)), stride=2),
    _transpose("same", (1, 2, 5, 4), (2, 3, 3, 4), "output n * stride", padding="same", stride=2),
    _transpose(
        "same_lower",
        (1, 2, 5, 4),
        (2, 3, 2, 3),
        "the odd pixel at the other end, a window below the stride",
        padding="same_lower",
        stride=3,
    ),
    _transpose("gelu", (1, 2, 3, 3), (2, 2, 2, 2), "a curved activation", bias=2, activation="gelu"),
    _transpose("empty_batch", (0, 2, 3, 3), (2, 2, 2, 2), "a batch of nothing", bias=2),
]

_UNFOLD = [
    Case("unfold", "2d", (normal(2, 3, 6, 5),), {"kernel_size": 3, "padding": 1, "stride": 2}, "as PyTorch"),
    Case("unfold", "1d", (normal(2, 3, 9),), {"kernel_size": 4, "dilation": 2, "padding": ((1, 2),)}, "one axis"),
    Case("unfold", "3d", (normal(1, 2, 3, 4, 5),), {"kernel_size": (2, 3, 2), "stride": (1, 1, 2)}, "three axes"),
    Case("unfold", "last", (normal(2, 6, 5, 3),), {"kernel_size": (2, 3), "padding": 2, **LAST}, "channels last"),
    Case("unfold", "sparse", (normal(1, 2, 7, 7),), {"kernel_size": 2, "stride": 3, "padding": 3}, "windows in the padding only"),
    Case("unfold", "empty", (normal(0, 2, 4, 4),), {"kernel_size": 2}, "a batch of nothing"),
    Case("fold", "2d", (normal(2, 27, 9),), {"output_size": (6, 5), "kernel_size": 3, "padding": 1, "stride": 2}, "as PyTorch", 9),
    Case("fold", "square", (normal(1, 8, 9),), {"output_size": 4, "kernel_size": 2}, "integers mean two axes", 4),
    Case("fold", "1d", (normal(2, 12, 6),), {"output_size": (9,), "kernel_size": (4,), "dilation": 2, "padding": ((1, 2),)}, "one axis", 4),
    Case("fold", "3d", (normal(1, 24, 8),), {"output_size": (3, 4, 4), "kernel_size": (2, 3, 2), "stride": (1, 1, 2)}, "three axes", 12),
    Case("fold", "last", (normal(2, 63, 18),), {"output_size": (6, 5), "kernel_size": (2, 3), "padding": 2, **LAST}, "channels last", 6),
    Case("fold", "empty", (normal(0, 8, 9),), {"output_size": (4, 4), "kernel_size": 2}, "a batch of nothing"),
]

CASES = [*_CONV, *_GRADIENTS, *_TRANSPOSED, *_UNFOLD]
