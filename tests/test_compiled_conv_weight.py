"""The compiled gradients of a convolution's weight: errors, classes of numerics, what is not finite, threads."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")


def _drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s, dtype=np.float32) for s in shapes]


def _named(op, *arrays, **options):
    return [a.name for a in dnn.algorithms(op, *arrays, **options)]


def _weight_gradient_one_by_one(grad, x):
    """Pixel after pixel in float32, windows of 3x3 without padding."""
    total = np.zeros((grad.shape[1], x.shape[1], 3, 3), np.float32)
    for n, p, q in np.ndindex(grad.shape[0], *grad.shape[2:]):
        total += grad[n, :, p, q, None, None, None] * x[n, None, :, p : p + 3, q : q + 3]
    return total


@pytest.mark.parametrize("size", [12, 17, 32])
def test_weight_gradient_of_winograd_is_as_exact_as_a_sequential_sum(size):
    """Its class is "highest" where so many pixels are added up: within four times the largest error of adding up one
    product after the other."""
    x, grad = _drawn((1, 16, size + 2, size + 2), (1, 24, size, size))
    options = {"weight_shape": (24, 16, 3, 3)}
    exact = dnn.conv_backward_weight(grad.astype(np.float64), x.astype(np.float64), **options, algorithm="gemm")
    found = dnn.conv_backward_weight(grad, x, **options, algorithm="winograd_4x4")
    assert np.abs(found - exact).max() <= 4 * np.abs(_weight_gradient_one_by_one(grad, x) - exact).max()
    assert "winograd_4x4" in _named("conv_backward_weight", grad, x, **options)


def test_weight_gradient_of_winograd_over_few_pixels_is_left_out_at_the_highest_precision():
    x, grad = _drawn((1, 16, 13, 13), (1, 24, 11, 11))
    options = {"weight_shape": (24, 16, 3, 3)}
    dnn.conv_backward_weight(grad, x, **options, algorithm="winograd_4x4")
    assert "winograd_4x4" not in _named("conv_backward_weight", grad, x, **options)
    with dnn.options(float32_precision="high"):
        assert "winograd_4x4" in _named("conv_backward_weight", grad, x, **options)


@pytest.mark.parametrize("place", [(1, 3, 0, 0), (1, 3, 9, 13), (0, 0, 5, 7)], ids=str)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_taps(place, value):
    """At a corner it meets four taps of nine: those of its own channel, or of its own output."""
    x, grad = _drawn((2, 5, 10, 14), (2, 17, 10, 14))
    options = {"weight_shape": (17, 5, 3, 3), "padding": 1}
    for array in (x, grad):
        before, array[place] = array[place], value
        found, expected = (
            dnn.conv_backward_weight(grad, x, **options, algorithm=a) for a in ("winograd_4x4", "direct")
        )
        assert not np.isfinite(expected).all()
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
        array[place] = before


@pytest.mark.parametrize("outputs", [3, 20])  # as rows, and in the lanes
@pytest.mark.parametrize("algorithm", ["shifted", "winograd_4x4"])
def test_threads_do_not_change_a_bit_of_a_weight_gradient(algorithm, outputs):
    x, grad = _drawn((8, 12, 30, 30), (8, outputs, 28, 28))
    results = []
    for threads in (1, 2, 8):
        with dnn.options(threads=threads):
            results.append(dnn.conv_backward_weight(grad, x, weight_shape=(outputs, 12, 3, 3), algorithm=algorithm))
    assert all(np.array_equal(results[0], r) for r in results[1:])
