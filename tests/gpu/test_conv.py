"""Depthwise convolution on a card: windows, strides, layouts, multipliers, epilogues, determinism."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16, assert_close

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_ORDERS = {"channels-first": (0, 1, 2, 3), "channels-last": (0, 2, 3, 1), "mixed": (2, 0, 3, 1)}
_WINDOWS = [
    (3, 1, 1, 1),
    (3, 2, 1, 1),
    (5, 1, 1, 2),
    (7, 1, 1, 3),
    (7, 2, 1, 3),
    ((3, 4), (2, 1), (1, 2), ((0, 2), (3, 1))),
    (1, 1, 1, 0),
    (2, 3, 1, 0),
    (21, 1, 1, 10),
]


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
        assert_close(
            cupy.asnumpy(dx), dnn.conv_backward_input(grad.astype(np.float64), w.astype(np.float64), **options), 882
        )
        del options["input_shape"]
        options["weight_shape"] = w.shape
        dw = dnn.conv_backward_weight(_in_order(grad, _ORDERS[order]), _in_order(x, _ORDERS[order]), **options)
        assert_close(
            cupy.asnumpy(dw),
            dnn.conv_backward_weight(grad.astype(np.float64), x.astype(np.float64), **options),
            2 * expected[0, 0].size,
        )


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_epilogue(layout):
    rng = np.random.default_rng(0)
    last = layout == "channels_last"
    x, w, b = (
        rng.standard_normal((2, 16, 16, 16)),
        rng.standard_normal((16, 3, 3, 1) if last else (16, 1, 3, 3)),
        rng.standard_normal(16),
    )
    r = rng.standard_normal(x.shape)
    options = {"groups": 16, "padding": 1, "activation": "relu", "layout": layout}
    expected = dnn.conv(x, w, bias=b, residual=r, **options)
    y = dnn.conv(cupy.asarray(x), cupy.asarray(w), bias=cupy.asarray(b), residual=cupy.asarray(r), **options)
    assert_close(cupy.asnumpy(y), expected, 9)
    y = dnn.conv(cupy.asarray(x), cupy.asarray(w), residual=cupy.asarray(r), **options)
    assert_close(cupy.asnumpy(y), dnn.conv(x, w, residual=r, **options), 9)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_all_gradients(dtype, activation, order):
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal(s).astype(dtype) for s in ((2, 24, 17, 20), (24, 1, 3, 3), (24,), (2, 24, 17, 20))]
    grad, options = (
        rng.standard_normal(arrays[0].shape).astype(dtype),
        {"padding": 1, "groups": 24, "activation": activation},
    )
    x, w, bias, residual = (a.astype(np.float64) for a in arrays)
    there = [_in_order(arrays[0], order), *map(cupy.asarray, arrays[1:3]), _in_order(arrays[3], order)]
    for b, r in ((True, True), (True, False), (False, False)):
        named = [{"bias": p if b else None, "residual": q if r else None} for p, q in ((bias, residual), there[2:])]
        expected = dnn.conv_backward(grad.astype(np.float64), x, w, **named[0], **options)
        results = [dnn.conv_backward(_in_order(grad, order), *there[:2], **named[1], **options) for _ in range(2)]
        for a, again, e in zip(*results, expected, strict=True):
            if e is not None:
                assert_close(cupy.asnumpy(a), e, x.size)
                assert cupy.asnumpy(a).tobytes() == cupy.asnumpy(again).tobytes()


_LARGE = [(3, 96, 112, 112, 3), (2, 192, 56, 56, 7), (2, 40, 30, 57, 5), (1, 24, 61, 130, 7), (5, 8, 9, 200, 3)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("batch", "channels", "height", "width", "side"), _LARGE)
def test_several_tiles(batch, channels, height, width, side, dtype):
    rng = np.random.default_rng(2)
    x, grad = (rng.standard_normal((batch, height, width, channels)).astype(dtype) for _ in range(2))
    w, bias = rng.standard_normal((channels, side, side, 1)).astype(dtype), rng.standard_normal(channels).astype(dtype)
    options = {"padding": side // 2, "groups": channels, "layout": "channels_last"}
    wide = [a.astype(np.float64) for a in (x, w, bias, grad)]
    there = [cupy.asarray(a) for a in (x, w, bias, grad)]
    for flip in (False, True):
        y = dnn.conv(*there[:2], bias=there[2], activation="relu", flip=flip, **options)
        expected = dnn.conv(*wide[:2], bias=wide[2], activation="relu", flip=flip, **options)
        assert_close(cupy.asnumpy(y), expected, side * side)
        dw = dnn.conv_backward_weight(there[3], there[0], weight_shape=w.shape, flip=flip, **options)
        again = dnn.conv_backward_weight(there[3], there[0], weight_shape=w.shape, flip=flip, **options)
        expected = dnn.conv_backward_weight(wide[3], wide[0], weight_shape=w.shape, flip=flip, **options)
        assert_close(cupy.asnumpy(dw), expected, batch * height * width)
        assert cupy.asnumpy(dw).tobytes() == cupy.asnumpy(again).tobytes()


# many images for each block; windows, paddings: rows above and below that neighbours share, that they do not, and
# windows of nothing else
_RUNS = [
    ((150, 5, 9, 264), 7, 3),
    ((67, 14, 14, 264), 7, ((3, 3), (6, 0))),
    ((120, 4, 17, 264), 5, ((4, 0), (0, 4))),
    ((200, 7, 7, 520), 7, ((0, 6), (3, 3))),
    ((90, 3, 8, 520), 5, ((7, 9), (2, 5))),
    ((80, 9, 8, 264), 7, ((1, 2), (0, 0))),
    ((9, 30, 140, 520), 7, 3),
]


@pytest.mark.parametrize(("shape", "side", "padding"), _RUNS, ids=str)
def test_images_one_after_the_other(shape, side, padding):
    rng, channels = np.random.default_rng(9), shape[-1]
    x, w = (
        rng.standard_normal(shape).astype(BFLOAT16),
        np.abs(rng.standard_normal((channels, side, side, 1))).astype(BFLOAT16),
    )
    x[3, -1, 2, 1], x[5, 0, 0, 34], x[8, 1, -1, -1] = np.inf, np.nan, -np.inf
    options = {"padding": padding, "groups": channels, "layout": "channels_last"}
    wide, there = ([convert(a) for a in (x, w)] for convert in (lambda a: a.astype(np.float64), cupy.asarray))
    expected = dnn.conv(*wide, **options)
    assert_close(cupy.asnumpy(dnn.conv(*there, **options)), expected, side * side)
    grad = rng.standard_normal(expected.shape).astype(BFLOAT16)
    expected = dnn.conv_backward_input(grad.astype(np.float64), wide[1], input_shape=shape, **options)
    assert_close(
        cupy.asnumpy(dnn.conv_backward_input(cupy.asarray(grad), there[1], input_shape=shape, **options)),
        expected,
        side * side,
    )


_PLANES = {  # shape, multiplier, window and options
    "1-D": ((3, 5, 1000), 1, (5,), {"padding": 2}),
    "1-D causal": ((2, 3, 4104), 1, (7,), {"padding": ((6, 0),), "flip": True}),
    "1-D, two outputs for a channel": ((2, 3, 96), 2, (3,), {"padding": 1, "stride": 2}),
    "2-D": ((2, 4, 17, 24), 1, (3, 3), {"padding": 1}),
    "2-D, pieces of four": ((2, 6, 19, 28), 1, (7, 7), {"padding": 3}),
    "2-D, pieces of two": ((3, 7, 14, 14), 1, (5, 5), {"padding": 2}),
    "2-D, patches": ((2, 4, 9, 40), 2, (5, 5), {"padding": ((1, 0), (3, 1))}),
    "2-D, more padding than rows": ((2, 3, 6, 16), 1, (3, 3), {"padding": ((5, 4), (0, 2))}),
    "2-D, one row of windows": ((2, 3, 7, 48), 1, (1, 5), {"padding": ((0, 0), (2, 2)), "flip": True}),
    "2-D, strided": ((2, 3, 33, 48), 1, (7, 7), {"padding": 3, "stride": 2}),
    "2-D, uneven window": ((2, 3, 16, 16), 1, (4, 5), {"padding": ((0, 3), (4, 0)), "stride": (2, 1)}),
    "2-D, cropped": ((2, 3, 16, 24), 1, (3, 7), {"padding": ((0, 0), (3, 3)), "stride": (3, 1)}),
    "3-D": ((2, 3, 6, 7, 16), 1, (3, 3, 3), {"padding": 1}),
    "3-D, dilated depth": (
        (1, 2, 9, 8, 16),
        2,
        (2, 3, 3),
        {"padding": ((3, 1), (1, 1), (1, 1)), "dilation": (3, 1, 1), "stride": (2, 1, 1)},
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", _PLANES)
def test_planes(name, dtype):
    shape, multiplier, window, options = _PLANES[name]
    rng, options = np.random.default_rng(8), options | {"groups": shape[1]}
    x, w, bias = (
        rng.standard_normal(shape),
        rng.standard_normal((multiplier * shape[1], 1, *window)),
        rng.standard_normal(multiplier * shape[1]),
    )
    x, w, bias = (a.astype(dtype) for a in (x, w, bias))
    x[0, 1, ..., 3], x[-1, 0, ..., -1] = np.inf, np.nan
    wide = [a.astype(np.float64) for a in (x, w)]
    there = [cupy.asarray(a) for a in (x, w)]
    for added in ({}, {"bias": bias, "activation": "relu"}):
        expected = dnn.conv(
            *wide, **options | {n: a if n == "activation" else a.astype(np.float64) for n, a in added.items()}
        )
        y = dnn.conv(*there, **options | {n: a if n == "activation" else cupy.asarray(a) for n, a in added.items()})
        assert_close(cupy.asnumpy(y), expected, math.prod(window))
    grad = rng.standard_normal(expected.shape).astype(dtype)
    dx = dnn.conv_backward_input(cupy.asarray(grad), there[1], input_shape=shape, **options)
    assert_close(
        cupy.asnumpy(dx),
        dnn.conv_backward_input(grad.astype(np.float64), wide[1], input_shape=shape, **options),
        multiplier * math.prod(window),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    ("shape", "stride", "before"),
    [((2, 5, 9, 30, 64), 1, 1), ((1, 7, 20, 57, 40), (2, 1, 1), 1), ((2, 2, 1, 29, 72), 1, 2)],
    ids=str,
)
def test_cubes(shape, stride, before, dtype):
    rng = np.random.default_rng(9)
    x, w, bias = (rng.standard_normal(s).astype(dtype) for s in (shape, (shape[4], 3, 3, 3, 1), shape[4:]))
    options = {"padding": ((before, 1),) * 3, "stride": stride, "groups": shape[4], "layout": "channels_last"}
    wide, there = ([convert(a) for a in (x, w, bias)] for convert in (lambda a: a.astype(np.float64), cupy.asarray))
    for flip in (False, True):
        expected = dnn.conv(*wide[:2], bias=wide[2], activation="relu", flip=flip, **options)
        assert_close(
            cupy.asnumpy(dnn.conv(*there[:2], bias=there[2], activation="relu", flip=flip, **options)), expected, 27
        )
    grad = rng.standard_normal(expected.shape).astype(dtype)
    expected = dnn.conv_backward_input(grad.astype(np.float64), wide[1], input_shape=shape, **options)
    assert_close(
        cupy.asnumpy(dnn.conv_backward_input(cupy.asarray(grad), there[1], input_shape=shape, **options)), expected, 27
    )


@pytest.mark.parametrize("side", [3, 5, 7])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_infinity_and_nan_stay_in_their_windows(dtype, side):
    x = np.random.default_rng(3).standard_normal((1, 28, 28, 16)).astype(dtype)
    x[0, 5, 9, 3], x[0, 20, 27, 0], x[0, 0, 0, 15] = np.inf, -np.inf, np.nan
    w = np.abs(np.random.default_rng(4).standard_normal((16, side, side, 1))).astype(dtype)
    options = {"padding": side // 2, "groups": 16, "layout": "channels_last"}
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), **options)
    assert_close(cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), **options)), expected, side * side)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(1, 5, 14, 30, 40), (5, 4, 9, 13, 16)], ids=str)
def test_infinity_and_nan_stay_in_their_cubes(shape, dtype):
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    x[0, 2, 5, 9, 3], x[-1, 3, -1, -1, 0], x[0, 0, 0, 0, 15] = np.inf, -np.inf, np.nan
    w = np.abs(np.random.default_rng(4).standard_normal((shape[4], 3, 3, 3, 1))).astype(dtype)
    options = {"padding": 1, "groups": shape[4], "layout": "channels_last"}
    for flip in (False, True):
        expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), flip=flip, **options)
        assert_close(cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), flip=flip, **options)), expected, 27)


@pytest.mark.parametrize("name", ["implicit_gemm_sm90", "implicit_tma_sm90"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_infinity_and_nan_stay_in_their_groups(dtype, layout, name):
    shape, weight = ((1, 64, 12, 12), (64, 4, 3, 3)) if layout == "channels_first" else ((1, 12, 12, 64), (64, 3, 3, 4))
    x = np.random.default_rng(6).standard_normal(shape).astype(dtype)
    x[0, 2, 3, 5], x[0, 7, 8, 9] = np.inf, np.nan
    w = np.abs(np.random.default_rng(7).standard_normal(weight)).astype(dtype)
    options = {"padding": 1, "groups": 16, "layout": layout, "algorithm": name}
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), **options | {"algorithm": "direct"})
    assert_close(cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), **options)), expected, 36)
    expected = dnn.conv_backward_input(
        x.astype(np.float64), w.astype(np.float64), input_shape=shape, **options | {"algorithm": "direct"}
    )
    assert_close(
        cupy.asnumpy(dnn.conv_backward_input(cupy.asarray(x), cupy.asarray(w), input_shape=shape, **options)),
        expected,
        36,
    )


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_unaligned_pointers(dtype):
    rng = np.random.default_rng(5)
    host, w = rng.standard_normal(2 * 20 * 20 * 16 + 1).astype(dtype), rng.standard_normal((16, 3, 3, 1)).astype(dtype)
    x, options = host[1:].reshape(2, 20, 20, 16), {"padding": 1, "groups": 16, "layout": "channels_last"}
    there = cupy.asarray(host)[1:].reshape(x.shape)
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), **options)
    assert_close(cupy.asnumpy(dnn.conv(there, cupy.asarray(w), **options)), expected, 9)
    dw = dnn.conv_backward_weight(there, there, weight_shape=w.shape, **options)
    assert_close(
        cupy.asnumpy(dw),
        dnn.conv_backward_weight(x.astype(np.float64), x.astype(np.float64), weight_shape=w.shape, **options),
        800,
    )


def test_gradients_of_an_empty_batch():
    x, w = cupy.zeros((0, 5, 5, 8), np.float32), cupy.ones((8, 3, 3, 1), np.float32)
    gradients = dnn.conv_backward(x, x, w, bias=cupy.ones(8, np.float32), groups=8, padding=1, layout="channels_last")
    assert not cupy.asnumpy(gradients.weight).any()
    assert not cupy.asnumpy(gradients.bias).any()


@pytest.mark.parametrize(
    ("x_shape", "w_shape", "options", "algorithm"),
    [
        ((64, 32, 56, 57), (32, 1, 7, 7), {"padding": 3, "groups": 32}, "depthwise"),  # tiles
        ((23, 20, 31, 29), (12, 20, 1, 1), {}, "gemm"),  # 40 parts and a rest
        ((40, 6, 43, 41), (10, 6, 3, 3), {"stride": 2, "padding": 2}, "gemm"),  # of columns
        ((64, 64, 56, 56), (256, 64, 1, 1), {}, "gemm"),
    ],
    ids=str,
)
def test_long_sums_of_weight_gradients_round_little(x_shape, w_shape, options, algorithm):
    """Rounding grows with the terms that are added one after the other: sums over all pixels are taken in parts."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal(x_shape, dtype=np.float32)
    grad = rng.standard_normal(
        dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape,
        np.float32,
    )
    there = [_in_order(cupy.asarray(a), (0, 2, 3, 1)) for a in (grad, x)]
    exact = cupy.asnumpy(
        dnn.conv_backward_weight(
            *(a.astype(np.float64) for a in there), weight_shape=w_shape, algorithm="direct", **options
        )
    )
    dw = dnn.conv_backward_weight(*there, weight_shape=w_shape, algorithm=algorithm, **options)
    error = np.sqrt(np.mean((cupy.asnumpy(dw) - exact) ** 2) / np.mean(exact**2))
    assert error < (3e-7 if algorithm == "depthwise" else 4.5e-7)
