"""Depthwise convolution on a card: windows, strides, layouts, multipliers, epilogues, determinism."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16, assert_close

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_ORDERS = {"channels-first": (0, 1, 2, 3), "channels-last": (0, 2, 3, 1), "mixed": (2, 0, 3, 1)}
_WINDOWS = [(3, 1, 1, 1), (3, 2, 1, 1), (5, 1, 1, 2), (7, 1, 1, 3), (7, 2, 1, 3), ((3, 4), (2, 1), (1, 2), ((0, 2), (3, 1))), (1, 1, 1, 0),
            (2, 3, 1, 0), (21, 1, 1, 10)]  # fmt: skip


def _in_order(array, order):
    there = cupy.ascontiguousarray(cupy.asarray(array).transpose(order))
    return there.transpose(np.argsort(order))


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("channels", [3, 64, 104])
@pytest.mark.parametrize("order", _ORDERS)
@pytest.mark.parametrize(("window", "stride", "dilation", "padding"), _WINDOWS, ids=str)
def test_depthwise(window, stride, dilation, padding, order, channels, multiplier):
    rng, sides = np.random.default_rng(0), (window, window) if isinstance(window, int) else window
    for dtype in (np.float32, BFLOAT16):
        x = rng.standard_normal((2, channels, 23, 25)).astype(dtype)
        w = rng.standard_normal((channels * multiplier, 1, *sides)).astype(dtype)
        options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": channels}
        expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), **options)
        y = dnn.conv(_in_order(x, _ORDERS[order]), cupy.asarray(w), **options)
        assert_close(cupy.asnumpy(y), expected, 441)
        grad = rng.standard_normal(expected.shape).astype(dtype)
        options["input_shape"] = x.shape
        dx = dnn.conv_backward_input(_in_order(grad, _ORDERS[order]), cupy.asarray(w), **options)
        assert_close(cupy.asnumpy(dx), dnn.conv_backward_input(grad.astype(np.float64), w.astype(np.float64), **options), 882)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_epilogue(layout):
    rng = np.random.default_rng(0)
    last = layout == "channels_last"
    x, w, b = rng.standard_normal((2, 16, 16, 16)), rng.standard_normal((16, 3, 3, 1) if last else (16, 1, 3, 3)), rng.standard_normal(16)
    r = rng.standard_normal(x.shape)
    options = {"groups": 16, "padding": 1, "activation": "relu", "layout": layout}
    expected = dnn.conv(x, w, bias=b, residual=r, **options)
    y = dnn.conv(cupy.asarray(x), cupy.asarray(w), bias=cupy.asarray(b), residual=cupy.asarray(r), **options)
    assert_close(cupy.asnumpy(y), expected, 9)
    y = dnn.conv(cupy.asarray(x), cupy.asarray(w), residual=cupy.asarray(r), **options)
    assert_close(cupy.asnumpy(y), dnn.conv(x, w, residual=r, **options), 9)
