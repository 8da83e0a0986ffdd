"""Float32 convolution by TF32 products on a card: shapes, groups, what ends a tile, how exact it is, NaN and
infinities."""

import numpy as np
import pytest

import dnnarray as dnn

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_NAME, _GROUPED = "implicit_tma_tf32", "grouped_tma_tf32"
# of the error over that of the result: operands rounded to 11 bits have 2.9e-4, cut off to 11 bits 6e-4 or more
_RMS = 4e-4
_SHAPES = {  # x, weight, options: channels-last
    "raster": ((2, 17, 21, 64), (64, 3, 3, 64), {"padding": 1}),
    "wide": ((2, 14, 13, 136), (260, 3, 3, 136), {"padding": 1}),
    "pointwise": ((3, 9, 11, 72), (128, 1, 1, 72), {}),
    "strided": ((2, 30, 23, 36), (52, 3, 5, 36), {"stride": 2, "padding": (1, 2)}),
    "thin": ((2, 12, 12, 4), (8, 3, 3, 4), {"padding": 1}),
    "groups": ((2, 12, 10, 128), (128, 3, 3, 64), {"padding": 1, "groups": 2}),
    "row": ((2, 300, 64), (64, 5, 64), {"padding": 4, "dilation": 2}),
    "space": ((1, 6, 9, 8, 32), (40, 3, 3, 3, 32), {"padding": 1}),
    "flipped": ((1, 15, 16, 32), (64, 3, 3, 32), {"padding": 1, "flip": True}),
}
_GROUPS = {
    "fours": ((2, 13, 14, 72), (72, 3, 3, 4), {"padding": 1, "groups": 18}),
    "eights": ((2, 17, 9, 40), (40, 3, 3, 8), {"padding": 1, "groups": 5}),
    "eights-strided": ((2, 18, 15, 64), (64, 3, 3, 8), {"padding": 1, "groups": 8, "stride": 2}),
    "sixteens": ((1, 20, 19, 64), (64, 5, 5, 16), {"padding": 2, "groups": 4}),
    "thirty-twos": ((3, 7, 7, 128), (128, 3, 3, 32), {"padding": 1, "groups": 4, "flip": True}),
    "thirty-twos-dilated": ((1, 19, 21, 64), (64, 3, 4, 32), {"padding": 2, "groups": 2, "dilation": (2, 3)}),
    "fours-row": ((2, 200, 32), (32, 3, 4), {"padding": 1, "groups": 8}),
    "fours-space": ((1, 5, 8, 9, 16), (16, 3, 3, 3, 4), {"padding": 1, "groups": 4}),
}
_ALL = [(_NAME, s) for s in _SHAPES] + [(_GROUPED, s) for s in _GROUPS]


def _rms(found, expected):
    return np.sqrt(((cupy.asnumpy(found) - expected) ** 2).mean() / (expected**2).mean())


@pytest.mark.parametrize(("name", "shape"), _ALL)
def test_forward_and_input_gradient(name, shape):
    x_shape, w_shape, options = (_SHAPES | _GROUPS)[shape]
    options = options | {"layout": "channels_last"}
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape))
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), **options)
    bias, residual = (
        rng.standard_normal(w_shape[0]).astype(np.float32),
        rng.standard_normal(expected.shape).astype(np.float32),
    )
    there = [cupy.asarray(a) for a in (x, w, bias, residual)]
    assert _rms(dnn.conv(*there[:2], algorithm=name, **options), expected) < _RMS
    fused = np.maximum(expected + bias + residual, 0)
    assert _rms(dnn.conv(*there[:3], residual=there[3], activation="relu", algorithm=name, **options), fused) < _RMS
    expected = dnn.conv_backward_input(
        residual.astype(np.float64), w.astype(np.float64), input_shape=x_shape, **options
    )
    assert (
        _rms(dnn.conv_backward_input(there[3], there[1], input_shape=x_shape, algorithm=name, **options), expected)
        < _RMS
    )


@pytest.mark.parametrize(("name", "c", "groups"), [(_NAME, 64, 1), (_GROUPED, 4, 16), (_GROUPED, 16, 4)])
def test_weights_in_c_order(name, c, groups):
    rng = np.random.default_rng(2)
    x, w = (
        rng.standard_normal((2, 14, 13, 64)).astype(np.float32),
        rng.standard_normal((64, c, 3, 3)).astype(np.float32),
    )
    first, options = x.transpose(0, 3, 1, 2), {"padding": 1, "groups": groups}
    there = cupy.asarray(x).transpose(0, 3, 1, 2), cupy.asarray(w)
    expected = dnn.conv(first.astype(np.float64), w.astype(np.float64), **options)
    assert _rms(dnn.conv(*there, algorithm=name, **options), expected) < _RMS
    expected = dnn.conv_backward_input(
        first.astype(np.float64), w.astype(np.float64), input_shape=first.shape, **options
    )
    assert _rms(dnn.conv_backward_input(*there, input_shape=first.shape, algorithm=name, **options), expected) < _RMS


@pytest.mark.parametrize(("name", "c"), [(_NAME, 64), (_GROUPED, 4), (_GROUPED, 32)])
def test_nan_and_infinity_stay_in_their_windows(name, c):
    rng = np.random.default_rng(1)
    x, w = (
        rng.standard_normal((1, 20, 18, 64)).astype(np.float32),
        np.abs(rng.standard_normal((64, 3, 3, c))).astype(np.float32),
    )
    x[0, 3, 4, 5], x[0, 10, 17, 6], x[0, 19, 0, 7] = np.inf, -np.inf, np.nan
    options = {"padding": 1, "groups": 64 // c, "layout": "channels_last"}
    expected = dnn.conv(x.astype(np.float64), w.astype(np.float64), algorithm="direct", **options)
    found = cupy.asnumpy(dnn.conv(cupy.asarray(x), cupy.asarray(w), algorithm=name, **options))
    np.testing.assert_array_equal(found[~np.isfinite(expected)], expected[~np.isfinite(expected)])
    assert np.isfinite(found[np.isfinite(expected)]).all()
