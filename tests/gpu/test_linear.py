"""Linear layers on a card: weights and inputs in any memory, blocks of rows, precision classes."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cuda import linear as plans
from tests.support import BFLOAT16, assert_close, call_by

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("weight_order", ["C", "F"])
@pytest.mark.parametrize("x_order", ["C", "F"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("scratch", [None, 10_000], ids=["whole", "blocks"])
def test_memory_and_blocks(weight_order, x_order, activation, scratch, monkeypatch):
    if scratch:
        monkeypatch.setattr(plans, "_SCRATCH", scratch)
    rng = np.random.default_rng(0)
    for dtype in (np.float32, BFLOAT16, np.float16):
        x, w, b, r, g = (
            rng.standard_normal(s).astype(dtype) for s in ((3, 37, 65), (41, 65), 41, (3, 37, 41), (3, 37, 41))
        )
        wide = [a.astype(np.float64) for a in (x, w, b, r)]
        there = (cupy.asarray(x, order=x_order), cupy.asarray(w, order=weight_order), cupy.asarray(b), cupy.asarray(r))
        y = dnn.linear(*there[:3], activation=activation, residual=there[3])
        assert_close(cupy.asnumpy(y), dnn.linear(*wide[:3], activation=activation, residual=wide[3]), 65)
        actual = dnn.linear_backward(cupy.asarray(g), *there[:3], activation=activation, residual=there[3])
        expected = dnn.linear_backward(g.astype(np.float64), *wide[:3], activation=activation, residual=wide[3])
        for a, e in zip(actual, expected, strict=True):
            assert_close(cupy.asnumpy(a), e, 111)


@pytest.mark.parametrize(
    ("precision", "low", "high"), [("highest", 0, 1e-6), ("high", 1e-5, 2e-3), ("medium", 1e-4, 2e-2)]
)
def test_precision(precision, low, high):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((512, 256)).astype(np.float32), rng.standard_normal((384, 256)).astype(np.float32)
    expected = x.astype(np.float64) @ w.astype(np.float64).T
    with dnn.options(float32_precision=precision):
        y = cupy.asnumpy(dnn.linear(cupy.asarray(x), cupy.asarray(w)))
    assert low <= np.abs(y - expected).max() / np.abs(expected).max() < high


@pytest.mark.parametrize("weight_order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3, 37, 65, 41), (300, 1, 128, 256), (1, 7, 9, 3)], ids=str)
@pytest.mark.parametrize(
    ("name", "exact"), [("parts_sm90", True), ("parts_sm90_tf32", False), ("parts_sm90_bf16", False)]
)
def test_products_of_parts(name, exact, shape, weight_order):
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("it takes sm_90a")
    rng, (n, t, features, outs) = np.random.default_rng(0), shape
    x, w, b, r, g = (
        rng.standard_normal(s).astype(np.float32)
        for s in ((n, t, features), (outs, features), outs, (n, t, outs), (n, t, outs))
    )
    wide, there = (
        [a.astype(np.float64) for a in (x, w, b, r)],
        [cupy.asarray(x), cupy.asarray(w, order=weight_order), cupy.asarray(b)],
    )
    plain = {"activation": "gelu" if exact else None}
    y = call_by(name, "linear", (*there, cupy.asarray(r)), plain)
    found = call_by(name, "linear_backward", (cupy.asarray(g), *there, cupy.asarray(r)), plain)
    expected = (
        dnn.linear(*wide[:3], residual=wide[3], **plain),
        *dnn.linear_backward(g.astype(np.float64), *wide[:3], residual=wide[3], **plain),
    )
    for a, e in zip((y, *found), expected, strict=True):
        if exact:
            assert_close(cupy.asnumpy(a), e, max(features, n * t))
        else:
            assert np.abs(cupy.asnumpy(a) - e).max() < 2e-2 * np.abs(e).max() + 1e-3


@pytest.mark.parametrize("weight_order", ["C", "F"])
@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("shape", [(3, 37, 65, 41), (300, 1, 128, 256), (1, 7, 9, 3), (2, 129, 264, 136)], ids=str)
@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16], ids=lambda d: np.dtype(d).name)
def test_the_kernel_of_convolutions_for_half_types(dtype, shape, activation, weight_order):
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("it takes sm_90a")
    rng, (n, t, features, outs) = np.random.default_rng(0), shape
    x, w, b, r, g = (
        rng.standard_normal(s).astype(dtype)
        for s in ((n, t, features), (outs, features), outs, (n, t, outs), (n, t, outs))
    )
    wide, there = (
        [a.astype(np.float64) for a in (x, w, b, r)],
        [cupy.asarray(x), cupy.asarray(w, order=weight_order), cupy.asarray(b)],
    )
    y = call_by("implicit_tma_sm90", "linear", (*there, cupy.asarray(r)), {"activation": activation})
    found = call_by(
        "implicit_tma_sm90", "linear_backward", (cupy.asarray(g), *there, cupy.asarray(r)), {"activation": activation}
    )
    expected = (
        dnn.linear(*wide[:3], residual=wide[3], activation=activation),
        *dnn.linear_backward(g.astype(np.float64), *wide[:3], residual=wide[3], activation=activation),
    )
    for a, e in zip((y, *found), expected, strict=True):
        assert_close(cupy.asnumpy(a), e, max(features, n * t))


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
def test_addresses_that_the_copy_engine_does_not_take(dtype):
    """Every algorithm is right for them."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(70 * 33 + 1).astype(dtype), rng.standard_normal((20, 33)).astype(dtype)
    there = cupy.asarray(x)[1:].reshape(70, 33), cupy.asarray(w)
    expected = x[1:].reshape(70, 33).astype(np.float64) @ w.astype(np.float64).T
    for a in dnn.algorithms("linear", *there):
        if a.precision == "highest":
            assert_close(cupy.asnumpy(call_by(a.name, "linear", there, {})), expected, 33)
