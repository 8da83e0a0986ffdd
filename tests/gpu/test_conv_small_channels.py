"""Float32 convolution of inputs of few channels on a card: shapes, how exact it is, magnitudes far apart, NaN and
infinities."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cuda.conv import small_channels

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_NAME, _PRECISE = (
    small_channels.NAMES["highest"],
    {"few_channels": 3e-7, "few_channels_tf32": 6e-4, "few_channels_bf16": 5e-3},
)  # rms of the result
_SHAPES = {  # input, weight, options
    "7x7/2": ((3, 3, 45, 67), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "3x3": ((2, 1, 33, 40), (32, 1, 3, 3), {"padding": 1}),
    "5x5/2 cropped": ((2, 4, 31, 50), (64, 4, 5, 5), {"stride": 2, "padding": ((2, 0), (0, 3)), "flip": True}),
    "4x4/4": ((2, 3, 64, 65), (32, 3, 4, 4), {"stride": 4}),
    "7x7": ((1, 3, 40, 40), (64, 3, 7, 7), {"padding": 3}),
    "row": ((2, 2, 1, 150), (32, 2, 1, 9), {"padding": (0, 4), "stride": (1, 1)}),
}
_WITHOUT_INPUT = {
    "dilated": ((2, 2, 37, 41), (40, 2, 3, 5), {"dilation": (2, 1), "padding": (5, 1)}),
    "odd step": ((2, 3, 30, 47), (136, 3, 3, 3), {"stride": (2, 3), "padding": 1}),
}


_FORWARD = {"9x9/3": ((2, 3, 61, 67), (72, 3, 9, 9), {"stride": 3, "padding": 2})}


def _drawn(shape, seed=0):
    x_shape, w_shape, options = (_SHAPES | _WITHOUT_INPUT | _FORWARD)[shape]
    rng = np.random.default_rng(seed)
    y_shape = dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape
    x, w, grad = (rng.standard_normal(s).astype(np.float32) for s in (x_shape, w_shape, y_shape))
    return x, w, grad, options


def _there(a):
    """On the device, channels-last in memory."""
    return cupy.moveaxis(cupy.asarray(np.ascontiguousarray(np.moveaxis(a, 1, -1))), -1, 1)


def _said(a):
    """The same as an array of the layout channels_last: memory does not tell where a single channel stands."""
    return cupy.ascontiguousarray(cupy.moveaxis(_there(a), 1, -1))


def _operations(x, w, grad, options, name, with_input=True):
    """Forward and gradients on the device, in float64 on the host where `name` is None."""
    single = name is not None and x.shape[1] == 1
    chosen = options | ({"algorithm": name} if name else {}) | ({"layout": "channels_last"} if single else {})
    x, w, grad = (a.astype(np.float64) if name is None else _said(a) if single else _there(a) for a in (x, w, grad))
    results = [dnn.conv(x, w, **chosen), dnn.conv_backward_weight(grad, x, weight_shape=w.shape, **chosen)]
    if with_input:
        results.append(dnn.conv_backward_input(grad, w, input_shape=x.shape, **chosen))
    results = [cupy.asnumpy(r) for r in results]
    return [np.moveaxis(r, -1, 1) for r in results] if single else results


def _rms(a, b=0.0):
    return float(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2)))


@pytest.mark.parametrize("name", _PRECISE)
@pytest.mark.parametrize("shape", [*_SHAPES, *_WITHOUT_INPUT])
def test_every_shape(shape, name):
    x, w, grad, options = _drawn(shape)
    exact = _operations(x, w, grad, options, None, shape in _SHAPES)
    for found, e in zip(_operations(x, w, grad, options, name, shape in _SHAPES), exact, strict=True):
        assert _rms(found, e) <= _PRECISE[name] * _rms(e)


@pytest.mark.parametrize("name", _PRECISE)
def test_everything_behind_it(name):
    """Bias, residual and activation, a tile of channels that is not full."""
    x, w, grad, options = _drawn("9x9/3")
    bias, options = np.linspace(-1, 1, len(w), dtype=np.float32), options | {"activation": "gelu"}
    expected = dnn.conv(*(a.astype(np.float64) for a in (x, w, bias)), residual=grad.astype(np.float64), **options)
    found = dnn.conv(_there(x), _there(w), cupy.asarray(bias), residual=_there(grad), algorithm=name, **options)
    assert _rms(cupy.asnumpy(found), expected) <= _PRECISE[name] * _rms(expected)


def test_all_gradients_with_an_activation():
    x, w, grad, options = _drawn("7x7/2")
    options = options | {"activation": "silu"}
    expected = dnn.conv_backward(*(a.astype(np.float64) for a in (grad, x, w)), **options)
    found = dnn.conv_backward(*(_there(a) for a in (grad, x, w)), algorithm=_NAME, **options)
    for f, e in zip(found[:2], expected[:2], strict=True):
        assert _rms(cupy.asnumpy(f), e) <= 1e-6 * _rms(e)


@pytest.mark.parametrize("power", [-140, -60, 60, 100])
def test_any_magnitude(power):
    x, w, grad, options = _drawn("7x7/2", 1)
    usual = _operations(x, w, grad, options, _NAME)
    scaled = _operations(
        np.ldexp(x, power).astype(np.float32), w, np.ldexp(grad, -7).astype(np.float32), options, _NAME
    )
    expected = [np.ldexp(r.astype(np.float64), p) for r, p in zip(usual, (power, power - 7, -7), strict=True)]
    for found, e in zip(scaled, expected, strict=True):
        assert np.abs(found - e).max() <= max(2.0**-22 * np.abs(e).max(), 2.0**-149 * 6000)


def test_magnitudes_far_apart():
    """Images of very different magnitude keep their digits; the weight's gradient has those of the largest, whichever
    comes first."""
    x, w, grad, options = _drawn("7x7/2", 2)
    for exponents in ((0, -40, 30), (30, 0, -40), (-40, 30, 0)):
        there = np.ldexp(x, np.array(exponents)[:, None, None, None]).astype(np.float32)
        y, dw, _ = _operations(there, w, grad, options, _NAME)
        expected, of_weight, _ = _operations(there, w, grad, options, None)
        for found, e in zip((*y, dw), (*expected, of_weight), strict=True):
            assert _rms(found, e) <= 1e-6 * _rms(e)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [_NAME, "few_channels_tf32"])
def test_nan_and_infinity(name, bad):
    """They reach what the definition says, as what it says, and spoil no digit of what lies beside."""
    x, w, grad, options = _drawn("7x7/2", 3)
    w = np.round(np.abs(w) + 0.5)  # numbers without a second part
    x[1, 1, 20, 30], grad[0, 2, 7, 9] = bad, bad
    for found, e in zip(_operations(x, w, grad, options, name), _operations(x, w, grad, options, None), strict=True):
        assert np.array_equal(np.isnan(found), np.isnan(e))
        assert np.array_equal(np.isposinf(found), np.isposinf(e))
        assert np.array_equal(np.isneginf(found), np.isneginf(e))
        usual = np.isfinite(e)
        assert _rms(found[usual], e[usual]) <= _PRECISE[name] * _rms(e[usual])


def test_the_same_bits_at_every_run():
    x, w, grad, options = _drawn("7x7/2", 4)
    first, second = (_operations(x, w, grad, options, _NAME) for _ in range(2))
    assert all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
