"""Norms of channels that are innermost in memory, compiled: beside the formulas in float64, in both ways to say so, and
within their arrays."""

import math
from fractions import Fraction

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler
from tests import guarded
from tests.support import call_by

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")

_SHAPES = [
    (5, 8),
    (3, 7, 9, 24),
    (2, 5, 6, 64),
    (4, 33, 100),
    (1, 130, 20),
    (2, 2, 3, 4, 40),
    (70, 200),
    (3, 65, 8),
    (2, 300, 12),
]
_EPS = 1e-5
_EACH = {
    "batch_norm_train": None,
    "instance_norm": 1,
    "group_norm": 4,
}  # channels of a statistic's group; all samples together for None


def _draw(shape, dtype, seed=0, mean=0.3, spread=1.7):
    return (np.random.default_rng(seed).standard_normal(shape) * spread + mean).astype(dtype)


def _groups(op, channels):
    return channels if _EACH[op] != 4 else channels // 4


def _formula(op, x, weight, bias, grad):
    """y, dx, dweight, dbias in float64, and mean and variance of each channel's group (samples, channels)."""
    x, weight, bias, grad = (a.astype(np.float64) for a in (x, weight, bias, grad))
    samples = 1 if op == "batch_norm_train" else x.shape[0]
    channels, groups = x.shape[-1], _groups(op, x.shape[-1])
    u, g = (a.reshape(samples, -1, groups, channels // groups) for a in (x, grad))
    mean, variance = u.mean((1, 3), keepdims=True), u.var((1, 3), keepdims=True)
    rstd = 1 / np.sqrt(variance + _EPS)
    w, b = (a.reshape(1, 1, groups, -1) for a in (weight, bias))
    u = (u - mean) * rstd
    h = g * w
    dx = rstd * (h - h.mean((1, 3), keepdims=True) - u * (h * u).mean((1, 3), keepdims=True))
    return (
        (u * w + b).reshape(x.shape),
        dx.reshape(x.shape),
        (g * u).sum((0, 1)).ravel(),
        g.sum((0, 1)).ravel(),
        mean,
        variance,
    )


def _forward(op, x, weight, bias, layout="channels_last"):
    """y, and for batch norm the statistics."""
    options = {"eps": _EPS, "layout": layout}
    if op == "batch_norm_train":
        return call_by("columns", op, (x, weight, bias, None, None, None), options)
    if op == "group_norm":
        options["num_groups"] = _groups(op, x.shape[-1 if layout == "channels_last" else 1])
    return call_by("columns", op, (x, weight, bias), options)


def _backward(op, grad, x, weight, bias, saved=(), layout="channels_last"):
    options = {"eps": _EPS, "layout": layout}
    if op == "batch_norm_train":
        return call_by("columns", f"{op}_backward", (grad, x, weight, bias, None, None, None, *saved), options)
    if op == "group_norm":
        options["num_groups"] = _groups(op, x.shape[-1 if layout == "channels_last" else 1])
    return call_by("columns", f"{op}_backward", (grad, x, weight, bias), options)


def _cases():
    return [(op, shape) for op in _EACH for shape in _SHAPES if op == "batch_norm_train" or len(shape) > 2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("op", "shape"), _cases(), ids=str)
def test_close_to_the_formula(op, shape, dtype):
    x, grad = _draw(shape, dtype), _draw(shape, dtype, 1, mean=0.1)
    weight, bias = _draw(shape[-1:], dtype, 2), _draw(shape[-1:], dtype, 3)
    y, dx, dweight, dbias, mean, variance = _formula(op, x, weight, bias, grad)
    tolerance = 3e-6 if dtype == "float32" else 1e-13
    found, saved = _forward(op, x, weight, bias), ()
    if op == "batch_norm_train":
        saved = tuple(np.asarray(a) for a in found[1:3])
        found = found[0]
        np.testing.assert_allclose(saved[0], mean.ravel(), atol=tolerance)
        np.testing.assert_allclose(saved[1], 1 / np.sqrt(variance.ravel() + _EPS), rtol=tolerance)
    np.testing.assert_allclose(found, y, rtol=0, atol=tolerance * np.abs(y).max())
    gradients = _backward(op, grad, x, weight, bias, saved)
    for name, got, expected in zip(("x", "weight", "bias"), gradients[:3], (dx, dweight, dbias), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * max(np.abs(expected).max(), 1), err_msg=name)


@pytest.mark.parametrize("op", _EACH)
def test_channels_first_axes_over_channels_last_memory(op):
    x, grad = _draw((3, 9, 11, 24), np.float32), _draw((3, 9, 11, 24), np.float32, 1)
    weight, bias = _draw(24, np.float32, 2), _draw(24, np.float32, 3)
    turned = [np.moveaxis(a, -1, 1) for a in (x, grad)]
    expected, found = _forward(op, x, weight, bias), _forward(op, turned[0], weight, bias, "channels_first")
    saved, saved_turned = (), ()
    if op == "batch_norm_train":
        saved, saved_turned, expected, found = expected[1:3], found[1:3], expected[0], found[0]
    assert found.strides == turned[0].strides
    np.testing.assert_array_equal(np.moveaxis(found, 1, -1), expected)
    expected = _backward(op, grad, x, weight, bias, saved)
    found = _backward(op, turned[1], turned[0], weight, bias, saved_turned, "channels_first")
    np.testing.assert_array_equal(np.moveaxis(found[0], 1, -1), expected[0])
    for got, right in zip(found[1:3], expected[1:3], strict=True):
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("op", _EACH)
def test_without_parameters(op):
    x, grad, ones, zeros = (
        _draw((2, 30, 16), np.float32),
        _draw((2, 30, 16), np.float32, 1),
        np.ones(16, np.float32),
        np.zeros(16, np.float32),
    )
    found, expected = _forward(op, x, None, None), _forward(op, x, ones, zeros)
    saved = ()
    if op == "batch_norm_train":
        saved, found, expected = found[1:3], found[0], expected[0]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(
        _backward(op, grad, x, None, None, saved)[0], _backward(op, grad, x, ones, zeros, saved)[0]
    )


@pytest.mark.parametrize("at", [1e4, -3e5])
@pytest.mark.parametrize("op", _EACH)
def test_data_far_from_0(op, at):
    """And blocks of rows that are far from each other: the squares are those around each block's own mean."""
    x = _draw((2, 500, 16), np.float32, mean=at)
    one, zero = np.ones(16, np.float32), np.zeros(16, np.float32)
    found = _forward(op, x, one, zero)
    y = _formula(op, x, one, zero, x)[0]
    np.testing.assert_allclose(
        found[0] if op == "batch_norm_train" else found, y, rtol=0, atol=1e-6 * np.abs(y).max() + abs(at) * 6e-8
    )
    x[:, :250] -= np.float32(at)
    found = _forward(op, x, one, zero)
    y = _formula(op, x, one, zero, x)[0]
    np.testing.assert_allclose(found[0] if op == "batch_norm_train" else found, y, rtol=0, atol=2e-6)


def _exact(op, x):
    """The normalised x, whose mean is a fraction and rounds nowhere."""
    groups = x.reshape(
        1 if op == "batch_norm_train" else x.shape[0],
        -1,
        _groups(op, x.shape[-1]),
        x.shape[-1] // _groups(op, x.shape[-1]),
    )
    y = np.empty_like(groups)
    for sample, group in np.ndindex(groups.shape[0], groups.shape[2]):
        values = groups[sample, :, group]
        mean = sum(map(Fraction, values.ravel())) / values.size
        apart = np.array([float(Fraction(v) - mean) for v in values.ravel()])
        y[sample, :, group] = (apart / math.sqrt(math.fsum(apart * apart) / values.size + _EPS)).reshape(values.shape)
    return y.reshape(x.shape)


@pytest.mark.parametrize("at", [0.0, 1.0, 30.0, 1e6, -1e9])
@pytest.mark.parametrize("shape", [(3, 2, 8), (2, 7, 24), (1, 150, 16)], ids=str)
@pytest.mark.parametrize("op", _EACH)
def test_the_mean_of_float64_is_not_rounded(op, shape, at):
    x = _draw(shape, np.float64, mean=at, seed=92)
    found = _forward(op, x, None, None)
    np.testing.assert_allclose(found[0] if op == "batch_norm_train" else found, _exact(op, x), rtol=0, atol=4e-15)


@pytest.mark.parametrize("op", _EACH)
def test_what_is_no_number_stays_in_its_statistic(op):
    x, w = _draw((2, 40, 16), np.float32), np.ones(16, np.float32)
    x[1, 7, 5] = np.nan
    y = _forward(op, x, w, w)
    y = y[0] if op == "batch_norm_train" else y
    lost = np.isnan(y)
    expected = np.zeros(x.shape, bool)
    samples, channels = slice(None) if op == "batch_norm_train" else 1, slice(4, 8) if op == "group_norm" else 5
    expected[samples, :, channels] = True
    np.testing.assert_array_equal(lost, expected)


@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize("op", ["instance_norm", "group_norm"])
def test_within_its_arrays(op, at_end):
    for channels in (8, 12, 20, 84):
        x, grad, w = (
            _draw((2, 13, channels), np.float32),
            _draw((2, 13, channels), np.float32, 1),
            _draw(channels, np.float32, 2),
        )
        expected, gradients = _forward(op, x, w, w), _backward(op, grad, x, w, w)
        placed = [guarded.like(a, at_end) for a in (x, grad, w)]
        np.testing.assert_array_equal(_forward(op, placed[0], placed[2], placed[2]), expected)
        for got, right in zip(
            _backward(op, placed[1], placed[0], placed[2], placed[2])[:3], gradients[:3], strict=True
        ):
            np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("op", _EACH)
def test_the_same_bits_with_any_number_of_threads(op):
    x, grad, w = _draw((4, 64, 64, 32), np.float32), _draw((4, 64, 64, 32), np.float32, 1), _draw(32, np.float32, 2)
    found = []
    for count in (1, 2, 3):
        with dnn.options(threads=count):
            y, saved = _forward(op, x, w, w), ()
            if op == "batch_norm_train":
                y, saved = y[0], y[1:3]
            found.append((y, *_backward(op, grad, x, w, w, saved)[:3]))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("op", _EACH)
def test_rounds_no_more_than_by_planes(op):
    """The root mean square error of y, of dx and of the parameters' gradients beside that of the same norm over planes
    of channels."""
    x, grad = _draw((4, 24, 25, 32), np.float32, mean=2.0), _draw((4, 24, 25, 32), np.float32, 1)
    weight, bias = _draw(32, np.float32, 2), _draw(32, np.float32, 3)
    y, dx, dweight, dbias, *_ = _formula(op, x, weight, bias, grad)
    found, saved = _forward(op, x, weight, bias), ()
    if op == "batch_norm_train":
        found, saved = found[0], found[1:3]
    for got, exact, bound in zip(
        (found, *_backward(op, grad, x, weight, bias, saved)[:3]),
        (y, dx, dweight, dbias),
        (1e-7, 1.2e-7, 4e-7, 4e-7),
        strict=True,
    ):
        assert np.sqrt(np.mean((got - exact) ** 2) / np.mean(exact**2)) < bound


def test_running_statistics():
    x, w = _draw((6, 5, 24), np.float32), np.ones(24, np.float32)
    mean, variance = _draw(24, np.float32, 4), np.abs(_draw(24, np.float32, 5))
    found = call_by(
        "columns", "batch_norm_train", (x, w, w, mean, variance, None), {"layout": "channels_last", "momentum": 0.25}
    )
    flat = x.reshape(-1, 24).astype(np.float64)
    np.testing.assert_allclose(found[3], 0.75 * mean + 0.25 * flat.mean(0), atol=1e-6)
    np.testing.assert_allclose(found[4], 0.75 * variance + 0.25 * flat.var(0, ddof=1), atol=1e-6)


def test_it_is_chosen(pytestconfig):
    if pytestconfig.getoption("--compiled"):
        pytest.skip("all compiled algorithms are as fast as each other then")
    x, w = _draw((4, 56, 56, 64), np.float32), np.ones(64, np.float32)
    _forward("batch_norm_train", x, w, w)
    assert dnn.algorithms("batch_norm_train", x, w, w, layout="channels_last")[0].name == "columns"
