"""Linear layers: errors, special numbers, drawn shapes, comparison with PyTorch."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from tests.oracles.linear import ORACLES
from tests.support import assert_close

_X, _WEIGHT, _BIAS = np.ones((2, 3)), np.ones((4, 3)), np.ones(4)


@pytest.mark.parametrize(
    ("error", "arrays", "options", "message"),
    [
        (dnn.ShapeError, (np.ones(()), _WEIGHT), {}, r"x is 0-dimensional \(\); expected 1 dimension or more"),
        (dnn.ShapeError, (_X, _BIAS), {}, r"weight is 1-dimensional \(4,\); expected 2 dimensions \(out in\)"),
        (dnn.ShapeError, (np.ones((2, 5)), _WEIGHT), {}, r"x is of shape \(2, 5\); expected \(\*rows, 3\)"),
        (
            dnn.ShapeError,
            (np.ones((2, 4)), _WEIGHT),
            {},
            r"expected \(\*rows, 3\).* pass weight.T if yours is \(in, out\)",
        ),
        (dnn.ShapeError, (_X, _WEIGHT, np.ones(3)), {}, r"bias is of shape \(3,\); expected \(4,\) \(out\)"),
        (dnn.ShapeError, (_X, _WEIGHT, np.ones((1, 4))), {}, r"bias is of shape \(1, 4\); expected \(4,\) \(out\)"),
        (dnn.ShapeError, (_X, _WEIGHT), {"residual": _X}, r"residual is of shape \(2, 3\); expected \(2, 4\)"),
        (dnn.ShapeError, (_X, _WEIGHT), {"residual": _BIAS}, r"residual is of shape \(4,\); expected \(2, 4\)"),
        (dnn.DTypeError, (_X.astype(int), _WEIGHT), {}, "x is int64; expected float64, float32, float16 or bfloat16"),
        (dnn.DTypeError, (_X, _WEIGHT.astype("f4")), {}, "weight is float32; expected float64, the dtype of x"),
        (dnn.DTypeError, (_X, _WEIGHT, _BIAS.astype("f4")), {}, "bias is float32; expected float64, the dtype of x"),
        (
            dnn.DTypeError,
            (_X, _WEIGHT),
            {"residual": np.ones((2, 4), "f2")},
            "residual is float16; expected float64, the dtype of x",
        ),
        (
            dnn.OptionError,
            (_X, _WEIGHT),
            {"activation": "cube"},
            "activation is 'cube'; expected None or one of .*'relu'",
        ),
        (dnn.OptionError, (_X, _WEIGHT), {"activation": True}, "activation is True; expected None or one of .*'relu'"),
        (dnn.ArrayTypeError, (_X, [[1.0]]), {}, "weight is list"),
    ],
)
def test_wrong_arguments(error, arrays, options, message):
    with pytest.raises(error, match=rf"^linear: .*{message}"):
        dnn.linear(*arrays, **options)


def test_gradient_must_match_the_output():
    with pytest.raises(dnn.ShapeError, match=r"^linear_backward: grad is of shape \(2, 3\); expected \(2, 4\)"):
        dnn.linear_backward(_X, _X, _WEIGHT)
    with pytest.raises(dnn.DTypeError, match=r"^linear_backward: grad is float32; expected float64"):
        dnn.linear_backward(np.ones((2, 4), np.float32), _X, _WEIGHT)
    with pytest.raises(dnn.ShapeError, match=r"^linear_backward: bias is of shape \(3,\)"):
        dnn.linear_backward(np.ones((2, 4)), _X, _WEIGHT, np.ones(3))


def test_gradients_are_named_after_the_arrays_given():
    grad, residual = np.ones((2, 4)), np.zeros((2, 4))
    plain = dnn.linear_backward(grad, _X, _WEIGHT)
    assert plain._fields == ("x", "weight", "bias")
    assert plain.bias is None
    full = dnn.linear_backward(grad, _X, _WEIGHT, residual=residual)
    assert full._fields == ("x", "weight", "bias", "residual")
    assert full.bias is None
    np.testing.assert_array_equal(full.residual, grad)
    _, pullback = dnn.vjp("linear", _X, _WEIGHT, _BIAS, residual=residual, activation="relu")
    assert [g.shape for g in pullback(grad)] == [(2, 3), (4, 3), (4,), (2, 4)]


def test_nothing_to_sum():
    np.testing.assert_array_equal(dnn.linear(np.ones((2, 0)), np.ones((4, 0))), np.zeros((2, 4)))
    np.testing.assert_array_equal(dnn.linear(np.ones((2, 0)), np.ones((4, 0)), _BIAS), np.ones((2, 4)))
    gradients = dnn.linear_backward(np.ones((0, 4)), np.ones((0, 3)), _WEIGHT, _BIAS)
    np.testing.assert_array_equal(gradients.weight, np.zeros((4, 3)))
    np.testing.assert_array_equal(gradients.bias, np.zeros(4))
    assert gradients.x.shape == (0, 3)


def test_nan_and_infinity_stay_in_their_rows():
    x = np.array([[1.0, 2.0, 3.0], [math.nan, 0.0, 0.0], [math.inf, 1.0, 1.0]])
    y = dnn.linear(x, _WEIGHT, _BIAS, activation="relu")
    np.testing.assert_array_equal(y, np.repeat([[7.0], [math.nan], [math.inf]], 4, axis=1))


def test_strided_out():
    wide = np.zeros((2, 8))
    result = dnn.linear(_X, _WEIGHT, _BIAS, out=wide[:, ::2])
    np.testing.assert_array_equal(result, np.full((2, 4), 4.0))
    np.testing.assert_array_equal(wide[:, 1::2], 0)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 6),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, "relu", "leaky_relu", "gelu"]),
)
def test_drawn_shapes_agree_with_the_oracle(leading, features, outs, with_bias, with_residual, activation):
    rng = np.random.default_rng(features * 7 + outs)
    x, weight = rng.standard_normal((*leading, features)), rng.standard_normal((outs, features))
    bias = rng.standard_normal(outs) if with_bias else None
    residual = rng.standard_normal((*leading, outs)) if with_residual else None
    y = dnn.linear(x, weight, bias, residual=residual, activation=activation)
    expected = ORACLES["linear"](x, weight, bias, residual, activation=activation)
    terms = ORACLES["linear"](*(None if a is None else abs(a) for a in (x, weight, bias, residual)))
    # Terms of both signs may leave little of their size.
    cancelled = terms.max(initial=0) / max(abs(expected).max(initial=0), 1e-300)
    assert_close(y, expected, features + 2, condition=max(cancelled, 1.0))


@pytest.mark.parametrize("leading", [(), (5,), (2, 3, 4)])
@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_agrees_with_pytorch(leading, activation):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((*leading, 7), (6, 7), (6,), (*leading, 6))]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = torch.nn.functional.linear(*tensors[:3]) + tensors[3]
    expected = getattr(torch.nn.functional, activation)(expected) if activation else expected
    result, pullback = dnn.vjp("linear", *arrays[:3], residual=arrays[3], activation=activation)
    np.testing.assert_allclose(result, expected.detach().numpy(), rtol=1e-12, atol=1e-13)
    grad = rng.standard_normal(result.shape)
    expected.backward(torch.from_numpy(grad))
    for got, tensor in zip(pullback(grad), tensors, strict=True):
        np.testing.assert_allclose(got, tensor.grad.numpy(), rtol=1e-12, atol=1e-12)
