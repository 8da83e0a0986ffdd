"""Softmax and its relatives: errors, infinity and NaN, large rows, PyTorch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu.blocks import BLOCK
from tests.oracles.softmax import ORACLES

_NAMES = sorted(ORACLES)
_RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", _NAMES)
def test_arguments_are_checked(name):
    op, backward = getattr(dnn, name), getattr(dnn, f"{name}_backward")
    x = np.ones((2, 3))
    with pytest.raises(dnn.DTypeError, match=f"{name}: x is int64; expected float64, float32"):
        op(np.arange(3))
    with pytest.raises(
        dnn.OptionError, match=f"{name}: axis is 2; expected an axis of an array with 2 dimensions, -2 to 1"
    ):
        op(x, axis=2)
    with pytest.raises(dnn.OptionError, match=f"{name}: axis is 1.5; expected an integer"):
        op(x, axis=1.5)
    with pytest.raises(dnn.OptionError, match=f"{name}: axis is 1; expected an axis of an array with 1 dimensions"):
        op(np.ones(()), axis=1)
    with pytest.raises(dnn.ShapeError, match=rf"{name}_backward: grad is of shape \(3,\); expected \(2, 3\)"):
        backward(np.ones(3), x)
    with pytest.raises(dnn.ShapeError, match=rf"{name}_backward: y is of shape \(3,\); expected \(2, 3\)"):
        backward(x, x, y=np.ones(3))
    with pytest.raises(dnn.DTypeError, match=f"{name}_backward: y is float32; expected float64"):
        backward(x, x, y=np.ones((2, 3), np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", _NAMES)
def test_infinity_and_nan_as_in_pytorch(name, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    inf, nan = np.inf, np.nan
    x = np.array(
        [
            [-inf] * 4,
            [inf] * 4,
            [1, -inf, 2, -inf],
            [1, inf, 2, 3],
            [nan, 1, 2, 3],
            [1e30, 1e30, -1e30, 0],
            [700, 800, 900, 0],
        ],
        dtype,
    )
    expected = getattr(torch.nn.functional, name)(torch.from_numpy(x), dim=-1).numpy()
    np.testing.assert_allclose(getattr(dnn, name)(x), expected, rtol=1e-6 if dtype == np.float32 else 1e-14)


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gradient_as_in_pytorch(name, axis):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, grad = _RNG.standard_normal((2, 3, 4, 5)) * 3, _RNG.standard_normal((2, 3, 4, 5))
    t = torch.tensor(x, requires_grad=True)
    getattr(torch.nn.functional, name)(t, dim=axis).backward(torch.from_numpy(grad))
    np.testing.assert_allclose(
        getattr(dnn, f"{name}_backward")(grad, x, axis=axis), t.grad.numpy(), rtol=1e-11, atol=1e-15
    )


@pytest.mark.parametrize("name", _NAMES)
def test_the_saved_output_gives_the_same_gradient(name):
    op, backward = getattr(dnn, name), getattr(dnn, f"{name}_backward")
    x, grad = _RNG.standard_normal((5, 7)), _RNG.standard_normal((5, 7))
    expected = backward(grad, x, axis=0)
    np.testing.assert_array_equal(backward(grad, np.full_like(x, np.nan), axis=0, y=op(x, axis=0)), expected)
    y, pullback = dnn.vjp(name, x, axis=0)
    x[...] = np.nan  # only the saved output is needed any more
    np.testing.assert_array_equal(pullback(grad)[0], expected)
    assert not np.isnan(y).any()


_LARGE = {
    "rows": ((70, 1000), -1),
    "columns": ((1000, 70), 0),
    "image": ((2, 19, 60, 50), 1),
    "long_row": ((2, BLOCK + 9), 1),
    "long_vector": ((3 * BLOCK,), 0),
}


@pytest.mark.parametrize("shape, axis", _LARGE.values(), ids=_LARGE)
def test_arrays_of_many_blocks(shape, axis):
    x, grad = _RNG.standard_normal(shape) * 4, _RNG.standard_normal(shape)
    e = np.exp(x)
    y = e / e.sum(axis=axis, keepdims=True)
    expected = y * (grad - (grad * y).sum(axis=axis, keepdims=True))
    np.testing.assert_allclose(dnn.softmax(x, axis=axis), y, rtol=1e-12)
    np.testing.assert_allclose(
        dnn.log_softmax(x, axis=axis), np.log(y), rtol=1e-12, atol=1e-15
    )  # near 1, y itself has no more digits
    np.testing.assert_allclose(dnn.softmin(-x, axis=axis), y, rtol=1e-12)
    np.testing.assert_allclose(dnn.softmax_backward(grad, x, axis=axis), expected, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(dnn.softmax_backward(grad, x, axis=axis, y=y), expected, rtol=1e-9, atol=1e-15)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(_NAMES), st.data())
def test_any_shape_and_axis(name, data):
    shape = tuple(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = np.random.default_rng(data.draw(st.integers(0, 999))).standard_normal(shape) * 5
    np.testing.assert_allclose(getattr(dnn, name)(x, axis=axis), ORACLES[name](x, axis=axis), rtol=1e-12, atol=1e-14)
