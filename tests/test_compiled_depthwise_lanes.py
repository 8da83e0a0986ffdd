"""Depthwise convolution whose channels lie side by side, compiled: every direction beside the definition in float64,
and nothing read or written beside the arrays."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler
from tests import guarded
from tests.oracles.conv import ORACLES

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")

# Shapes (N, *space), channels, windows and options.
_CASES = {
    "3x3": ((2, 15, 17), 32, (3, 3), {"padding": 1}),
    "fewer channels than lanes": ((2, 9, 8), 5, (3, 3), {"padding": 1}),
    "four channels": ((1, 6, 20), 4, (2, 3), {}),
    "channels between two vectors": ((2, 7, 13), 39, (3, 3), {"padding": 1}),
    "stride 2": ((2, 16, 15), 48, (3, 3), {"stride": 2, "padding": 1}),
    "stride 3, dilation 2": ((1, 19, 23), 24, (3, 2), {"stride": (3, 2), "dilation": 2, "padding": (2, 3)}),
    "as far apart as the pixels": ((1, 20, 29), 33, (3, 5), {"stride": 2, "dilation": 2, "padding": 4}),
    "5x5": ((2, 11, 12), 17, (5, 5), {"padding": 2}),
    "7x7": ((1, 14, 14), 96, (7, 7), {"padding": 3}),
    "a window larger than the image": ((2, 3, 4), 16, (7, 7), {"padding": 3}),
    "rows that are all padding": ((1, 4, 5), 20, (3, 3), {"padding": 4}),
    "uneven padding": ((1, 8, 9), 16, (4, 3), {"padding": ((0, 2), (3, 1))}),
    "long rows": ((2, 700), 18, (9,), {"padding": 4}),
    "three axes": ((2, 5, 6, 7), 19, (3, 2, 3), {"padding": 1, "stride": (1, 2, 1)}),
    "one pixel": ((3, 10, 11), 64, (1, 1), {}),
    "one pixel, stride": ((3, 10, 11), 64, (1, 1), {"stride": 2}),
    "many rows": ((6, 40, 9), 16, (3, 3), {"padding": 1}),
}


def _calls(name, dtype):
    """(function, its two arrays, options) of every direction."""
    shape, channels, window, options = _CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((*shape, channels)).astype(dtype)
    w = rng.standard_normal((channels, *window, 1)).astype(dtype)
    options = {"groups": channels, "layout": "channels_last", **options}
    y = dnn.conv(x, w, algorithm="direct", **options)
    grad = rng.standard_normal(y.shape).astype(dtype)
    return [
        (dnn.conv, (x, w), options),
        (dnn.conv_backward_input, (grad, w), options | {"input_shape": x.shape}),
        (dnn.conv_backward_weight, (grad, x), options | {"weight_shape": w.shape}),
    ]


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", _CASES)
def test_close_to_the_definition_and_within_its_arrays(name, dtype, at_end):
    for function, arrays, options in _calls(name, dtype):
        exact = ORACLES[function.__name__](*(a.astype(np.float64) for a in arrays), **options)
        out = guarded.like(np.zeros(exact.shape, dtype), at_end)
        function(*(guarded.like(a, at_end) for a in arrays), algorithm="depthwise_lanes", out=out, **options)
        tolerance = 2e-6 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(
            out, exact, rtol=0, atol=tolerance * max(np.abs(exact).max(), 1), err_msg=function.__name__
        )


@pytest.mark.parametrize("name", ["3x3", "channels between two vectors", "stride 2"])
def test_channels_that_do_not_lie_side_by_side(name):
    """Views of every other channel, and results in another order of memory."""
    for function, arrays, options in _calls(name, "float32"):
        expected = function(*arrays, algorithm="depthwise_lanes", **options)
        spread = [np.repeat(a, 2, axis=-1)[..., ::2] if a.shape[-1] > 1 else a for a in arrays]
        out = np.full((*expected.shape[:-1], 2 * expected.shape[-1]), np.nan, np.float32)
        into = out[..., ::2]
        function(*spread, algorithm="direct", out=into, **options)
        np.testing.assert_allclose(into, expected, rtol=0, atol=1e-4)
        into[...] = np.nan
        function(*arrays, algorithm="depthwise_lanes", out=into, **options)
        np.testing.assert_array_equal(into, expected)
        assert np.isnan(out[..., 1::2]).all()


def test_what_is_no_number_stays_in_its_channel_and_window():
    (_, (x, w), options), _, (_, (grad, _), of_weight) = _calls("3x3", "float32")
    x[1, 7, 8, 3], w[20, 1, 1] = np.nan, np.inf
    y = dnn.conv(x, w, algorithm="depthwise_lanes", **options)
    assert np.isnan(y[1, 6:9, 7:10, 3]).all()
    y[1, 6:9, 7:10, 3] = 0
    assert np.isinf(y[..., 20]).any()
    assert np.isfinite(np.delete(y, 20, -1)).all()
    weight = dnn.conv_backward_weight(grad, x, algorithm="depthwise_lanes", **of_weight)
    assert np.isnan(weight[3]).all()
    assert np.isfinite(np.delete(weight, 3, 0)).all()


def test_a_pixel_does_not_depend_on_its_place():
    """The same bits wherever a window stands, in a run of pixels or beside the edge, and for any number of threads."""
    w = np.random.default_rng(1).standard_normal((24, 3, 3, 1)).astype(np.float32)
    patch = np.random.default_rng(2).standard_normal((3, 3, 24)).astype(np.float32)
    x = np.tile(patch, (1, 10, 11, 1))
    for count in (1, 2, 3):
        with dnn.options(threads=count):
            y = dnn.conv(x, w, groups=24, layout="channels_last", algorithm="depthwise_lanes")
        assert (y[:, ::3, ::3] == y[:, :1, :1]).all()


@pytest.mark.parametrize(("name", "bound"), [("many rows", 2.2e-7), ("long rows", 2.2e-7), ("7x7", 2e-7)])
def test_the_gradient_of_the_weight_rounds_little(name, bound):
    function, arrays, options = _calls(name, "float32")[2]
    exact = ORACLES[function.__name__](*(a.astype(np.float64) for a in arrays), **options)
    found = function(*arrays, algorithm="depthwise_lanes", **options)
    assert np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)) < bound


def test_all_gradients_at_once():
    for name in ("3x3", "stride 2", "three axes"):
        (_, (x, w), options), (_, (grad, _), _), _ = _calls(name, "float64")
        found = dnn.conv_backward(grad, x, w, algorithm="depthwise_lanes", **options)
        expected = dnn.conv_backward(grad, x, w, algorithm="direct", **options)
        for a, b in zip(found[:2], expected[:2], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("shape", "groups", "layout", "reason"),
    [
        ((1, 8, 8, 16), 8, "channels_last", "2 input"),
        ((1, 16, 8, 8), 16, "channels_first", "side by side"),
        ((1, 8, 8, 3), 3, "channels_last", "3 channels"),
    ],
)
def test_what_it_does_not_do_is_refused(shape, groups, layout, reason):
    channels = shape[-1 if layout == "channels_last" else 1]
    inner = channels // groups
    w = np.ones((channels, 3, 3, inner) if layout == "channels_last" else (channels, inner, 3, 3), np.float32)
    with pytest.raises(dnn.UnsupportedError, match=reason):
        dnn.conv(np.ones(shape, np.float32), w, groups=groups, layout=layout, algorithm="depthwise_lanes")


def test_it_is_chosen(pytestconfig):
    if pytestconfig.getoption("--compiled"):
        pytest.skip("all compiled algorithms are as fast as each other then")
    x, w = np.ones((4, 56, 56, 96), np.float32), np.ones((96, 3, 3, 1), np.float32)
    options = {"padding": 1, "groups": 96, "layout": "channels_last"}
    for name, arrays, more in (
        ("conv", (x, w), {}),
        ("conv_backward_input", (x, w), {"input_shape": x.shape}),
        ("conv_backward_weight", (x, x), {"weight_shape": w.shape}),
    ):
        getattr(dnn, name)(*arrays, algorithm="depthwise_lanes", **options, **more)
        assert dnn.algorithms(name, *arrays, **options, **more)[0].name == "depthwise_lanes"
