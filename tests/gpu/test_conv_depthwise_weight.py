"""The weight gradient of depthwise convolution on a card: whole numbers, whose sums are exact, so that every product
must be there once."""

import itertools
import math

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_PROBLEMS = {  # x (N, space, C), outputs for a channel, window, options
    "one tile": ((2, 9, 14, 8), 1, (7, 7), {"padding": 3}),
    "several images, uneven": ((5, 23, 37, 40), 1, (5, 5), {"padding": ((0, 3), (4, 1))}),
    "tall": ((1, 130, 13, 16), 1, (3, 3), {"padding": 1}),
    "wide": ((3, 7, 150, 24), 1, (7, 7), {"padding": 3, "flip": True}),
    "no padding": ((3, 22, 29, 96), 1, (5, 5), {}),
    "more padding than rows": ((9, 4, 3, 8), 1, (5, 5), {"padding": ((6, 5), (5, 7))}),
    "windows of nothing but padding": ((2, 3, 5, 8), 1, (3, 3), {"padding": ((9, 0), (1, 1))}),
    "many channels": ((2, 12, 12, 1064), 1, (3, 3), {"padding": 1}),
    "two outputs for a channel": ((3, 21, 40, 40), 2, (3, 3), {"padding": 1, "flip": True}),
    "two outputs for a channel, 5 x 5": ((4, 9, 11, 8), 2, (5, 5), {"padding": 2}),
    "three outputs for a channel": ((2, 9, 11, 6), 3, (3, 3), {"padding": 1}),
    "single words": ((2, 19, 20, 6), 1, (3, 3), {"padding": ((2, 0), (1, 2))}),
    "strided": ((2, 23, 24, 16), 1, (5, 5), {"padding": 2, "stride": 2}),
    "dilated": ((2, 15, 16, 16), 1, (3, 3), {"padding": 2, "dilation": 2}),
    "three axes": ((3, 5, 9, 34, 40), 1, (3, 3, 3), {"padding": 1}),
    "three axes, uneven": ((2, 4, 7, 70, 16), 1, (3, 3, 3), {"padding": ((0, 2), (2, 1), (1, 0)), "flip": True}),
    "lines": ((3, 1000, 5), 1, (5,), {"padding": 2}),
    "long lines": ((2, 20008, 3), 2, (7,), {"padding": ((6, 0),), "flip": True}),
    "planes": ((3, 17, 24, 4), 1, (3, 3), {"padding": 1}),
    "planes, large windows": ((2, 9, 40, 3), 2, (7, 7), {"padding": ((1, 3), (5, 2))}),
    "planes, one row of windows": ((2, 7, 48, 3), 1, (1, 5), {"padding": ((0, 0), (2, 2))}),
    "planes, odd rows": ((2, 9, 13, 5), 1, (3, 3), {"padding": 1}),
}


def _defined(dy, x, window, multiplier, padding=0, stride=1, dilation=1, flip=False):
    """(K, window) from arrays (N, space, C)."""
    rank = len(window)
    pads = [(padding, padding)] * rank if isinstance(padding, int) else padding
    padded = np.pad(x, [(0, 0), *pads, (0, 0)]).repeat(multiplier, axis=-1)
    dw = np.zeros((dy.shape[-1], *window))
    for tap in itertools.product(*map(range, window)):
        met = tuple(
            slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride)
            for t, n in zip(tap, dy.shape[1:-1], strict=True)
        )
        to = tuple(w - 1 - t for w, t in zip(window, tap, strict=True)) if flip else tap
        dw[(slice(None), *to)] = (padded[(slice(None), *met)] * dy).sum(tuple(range(rank + 1)))
    return dw


def _inside_of_nan(array, dtype, shift):
    """The array `shift` elements behind an aligned address, between values that must not be read."""
    memory = cupy.full(array.size + 128, np.nan, np.float32).astype(dtype)
    there = memory[64 + shift : 64 + shift + array.size].reshape(array.shape)
    there[...] = cupy.asarray(array.astype(dtype))
    return there


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("name", _PROBLEMS)
def test_each_product_once(name, layout, dtype, shift):
    shape, multiplier, window, options = _PROBLEMS[name]
    rng, channels, last = np.random.default_rng(5), shape[-1], layout == "channels_last"
    w_shape = (channels * multiplier, *window, 1) if last else (channels * multiplier, 1, *window)
    lying = (lambda a: a) if last else (lambda a: np.ascontiguousarray(np.moveaxis(a, -1, 1)))
    x = rng.integers(-2, 3, shape).astype(np.float64)
    settings = {"groups": channels, "layout": layout} | options
    y_shape = dnn.infer(
        "conv", dnn.Spec(lying(x).shape, "float64"), dnn.Spec(w_shape, "float64"), **settings
    ).output.shape
    outputs = y_shape[1:-1] if last else y_shape[2:]
    dy = rng.integers(-2, 3, (shape[0], *outputs, channels * multiplier)).astype(np.float64)
    assert 4 * shape[0] * math.prod(outputs) < 1 << 24
    there = [_inside_of_nan(lying(a), dtype, shift) for a in (dy, x)]
    found, again = (cupy.asnumpy(dnn.conv_backward_weight(*there, weight_shape=w_shape, **settings)) for _ in range(2))
    expected = _defined(dy, x, window, multiplier, **options).reshape(w_shape)
    np.testing.assert_array_equal(found, expected.astype(dtype))
    assert found.tobytes() == again.tobytes()
