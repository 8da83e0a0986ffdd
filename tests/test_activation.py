"""Activations: errors, saturation and overflow, NaN, PyTorch, the error function, blocks."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._cpu.activation import apply, apply_gradient, gradient_into
from dnnarray._cpu.activation.formulas import FORMULAS
from dnnarray._cpu.blocks import BLOCK, blocks, borrow, constant, drop, give, keep, long_rows, select, slabs
from dnnarray._cpu.erf import gelu_gradient_single, gelu_single, normal_cdf
from dnnarray._problems.activation import FUSED, PARAMETERS, fused, named
from tests.oracles.activation import ELEMENTWISE, elementwise
from tests.support import DTYPES, call_by, candidates

_DTYPES = (np.float32, np.float64)
_OPTIONS = {"threshold": {"threshold": 0.5, "value": 2.0}}
_RNG = np.random.default_rng(0)


def _forward(name, x):
    return getattr(dnn, name)(x, **_OPTIONS.get(name, {}))


def _backward(name, grad, x):
    return getattr(dnn, f"{name}_backward")(grad, x, **_OPTIONS.get(name, {}))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARAMETERS)
def test_elementwise_arguments_are_checked(name):
    with pytest.raises(dnn.DTypeError, match=rf"{name}: x is int64; expected float64, float32"):
        _forward(name, np.arange(3))
    with pytest.raises(dnn.ArrayTypeError, match=f"{name}: x"):
        _forward(name, [1.0, 2.0])
    with pytest.raises(dnn.ShapeError, match=rf"{name}_backward: grad is of shape \(2,\); expected \(3,\)"):
        _backward(name, np.ones(2), np.ones(3))
    with pytest.raises(dnn.DTypeError, match=f"{name}_backward: grad is float32; expected float64"):
        _backward(name, np.ones(3, np.float32), np.ones(3))


_BAD_OPTIONS = [
    ("clipped_relu", {"max": -1.0}, "clipped_relu: max is -1.0; expected a number of 0 or more"),
    ("clipped_relu", {"max": math.nan}, "clipped_relu: max is nan"),
    ("leaky_relu", {"negative_slope": math.inf}, "leaky_relu: negative_slope is inf; expected a finite number"),
    ("elu", {"alpha": "1"}, "elu: alpha is '1'; expected a finite number"),
    ("elu", {"alpha": True}, "elu: alpha is True"),
    ("selu", {"gamma": math.nan}, "selu: gamma is nan"),
    ("celu", {"alpha": 0}, "celu: alpha is 0; expected a finite number other than 0"),
    ("hard_sigmoid", {"beta": None}, "hard_sigmoid: beta is None"),
    ("hard_tanh", {"min": 2.0}, "hard_tanh: min is 2.0; expected at most max, which is 1.0"),
    ("hard_tanh", {"max": math.nan}, "hard_tanh: max is nan"),
    ("softplus", {"beta": 0.0}, "softplus: beta is 0.0; expected a finite number other than 0"),
    ("softplus", {"threshold": math.nan}, "softplus: threshold is nan"),
    ("gelu", {"approximate": "erf"}, "gelu: approximate is 'erf'; expected one of 'none', 'tanh'"),
    ("silu", {"beta": math.inf}, "silu: beta is inf"),
    ("threshold", {"threshold": math.nan, "value": 0.0}, "threshold: threshold is nan"),
    ("threshold", {"threshold": 0.0, "value": "0"}, "threshold: value is '0'"),
]


@pytest.mark.parametrize(("name", "options", "message"), _BAD_OPTIONS)
def test_options_are_checked(name, options, message):
    with pytest.raises(dnn.OptionError, match=message):
        getattr(dnn, name)(np.ones(3), **options)
    with pytest.raises(dnn.OptionError, match=message.replace(":", "_backward:", 1)):
        getattr(dnn, f"{name}_backward")(np.ones(3), np.ones(3), **options)


def test_threshold_has_no_defaults():
    with pytest.raises(TypeError, match="threshold"):
        dnn.threshold(np.ones(3))


def test_arguments_of_prelu_are_checked():
    x = np.ones((2, 3, 4))
    with pytest.raises(dnn.ShapeError, match=r"prelu: weight is of shape \(5,\); expected .*\(C,\) along axis 1"):
        dnn.prelu(x, np.ones(5))
    with pytest.raises(dnn.DTypeError, match="prelu: weight is float32; expected float64, the dtype of x"):
        dnn.prelu(x, np.ones(3, np.float32))
    with pytest.raises(dnn.ShapeError, match="prelu_backward: grad is of shape"):
        dnn.prelu_backward(x[0], x, np.ones(3))


def test_arguments_of_gated_units_are_checked():
    with pytest.raises(dnn.ShapeError, match=r"glu: x is of shape \(2, 3\); expected an even extent on axis 1"):
        dnn.glu(np.ones((2, 3)))
    with pytest.raises(dnn.ShapeError, match="glu: x is 0-dimensional"):
        dnn.glu(np.ones(()))
    with pytest.raises(dnn.OptionError, match="glu: axis is 2; expected an axis of an array with 2 dimensions"):
        dnn.glu(np.ones((2, 4)), axis=2)
    with pytest.raises(dnn.ShapeError, match=r"glu_backward: grad is of shape \(2, 4\); expected \(2, 2\)"):
        dnn.glu_backward(np.ones((2, 4)), np.ones((2, 4)))
    for name in ("swiglu", "geglu"):
        with pytest.raises(
            dnn.ShapeError, match=rf"{name}: gate is of shape \(2,\); expected \(3\,\) \(the shape of x\)"
        ):
            getattr(dnn, name)(np.ones(2), np.ones(3))
        with pytest.raises(dnn.DTypeError, match=f"{name}: gate is float32; expected float64"):
            getattr(dnn, name)(np.ones(2, np.float32), np.ones(2))
        with pytest.raises(dnn.ShapeError, match=f"{name}_backward: grad"):
            getattr(dnn, f"{name}_backward")(np.ones(3), np.ones(2), np.ones(2))


def test_arguments_of_bias_activation_are_checked():
    x = np.ones((2, 3, 4))
    with pytest.raises(dnn.ShapeError, match=r"bias_activation: bias is of shape \(4,\); expected \(3,\)"):
        dnn.bias_activation(x, np.ones(4), activation="relu")
    with pytest.raises(dnn.ShapeError, match="bias_activation: residual is of shape"):
        dnn.bias_activation(x, np.ones(3), activation="relu", residual=x[0])
    with pytest.raises(dnn.DTypeError, match="bias_activation: bias is float32"):
        dnn.bias_activation(x, np.ones(3, np.float32), activation="relu")
    with pytest.raises(dnn.OptionError, match="bias_activation: axis is 3"):
        dnn.bias_activation(x, np.ones(3), activation="relu", axis=3)
    with pytest.raises(dnn.ShapeError, match="bias_activation: x is 0-dimensional"):
        dnn.bias_activation(np.ones(()), np.ones(1), activation="relu")
    for bad in ("prelu", "threshold", "swish", 3):
        with pytest.raises(
            dnn.OptionError, match=r"bias_activation: activation is .*; expected None or one of 'relu', 'relu6'"
        ):
            dnn.bias_activation(x, np.ones(3), activation=bad)
    with pytest.raises(dnn.ShapeError, match="bias_activation_backward: grad"):
        dnn.bias_activation_backward(x[0], x, np.ones(3), activation="relu")


# --- NaN, infinity, overflow, kinks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_nan_stays_nan(name, dtype):
    assert np.isnan(_forward(name, np.array([np.nan], dtype)))[0]


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("name", PARAMETERS)
def test_large_arguments_do_not_overflow(name, dtype):
    largest = float(np.finfo(dtype).max) / 4
    x = np.array([-largest, -1e30, -1e4, -750.0, -120.0, 120.0, 750.0, 1e4, 1e30, largest], dtype)
    y, slope = _forward(name, x), _backward(name, np.ones_like(x), x)
    assert np.isfinite(y).all()
    assert np.isfinite(slope).all()
    assert (np.abs(y) <= 1.1 * np.abs(x)).all() or name in ("hard_sigmoid", "threshold")
    assert (slope >= -0.01).all()
    assert (slope <= 1.06).all()


_FLAT = {
    "relu": -1.0,
    "relu6": 7.0,
    "clipped_relu": 7.0,
    "hard_sigmoid": 4.0,
    "hard_tanh": 2.0,
    "hard_swish": -4.0,
    "threshold": 0.0,
}


@pytest.mark.parametrize("dtype", _DTYPES)
@pytest.mark.parametrize("name", _FLAT)
def test_flat_parts_stop_infinite_and_nan_gradients(name, dtype):
    grad = np.array([np.inf, -np.inf, np.nan, 1.0], dtype)
    np.testing.assert_array_equal(_backward(name, grad, np.full(4, _FLAT[name], dtype)), np.zeros(4))


def test_sigmoid_keeps_its_digits_far_below_zero():
    x = np.array([-40.0, -80.0])
    np.testing.assert_allclose(dnn.sigmoid(x), np.exp(x), rtol=1e-15)
    np.testing.assert_allclose(dnn.sigmoid_backward(np.ones(2), -x), np.exp(x), rtol=1e-15)
    np.testing.assert_allclose(dnn.tanh_backward(np.ones(2), x), 4 * np.exp(2 * x), rtol=1e-14)


_BY_RESULT = {"sigmoid": lambda g, y: g * y * (1 - y), "tanh": lambda g, y: g * (1 - y * y)}
_UP_AND_DOWN = np.concatenate([np.linspace(-1, 1, 4001), [1 - 2**-24, 1 - 2**-11, 2**-20, -(1 - 2**-24)]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", _BY_RESULT)
def test_gradients_from_the_result(name, dtype):
    """By every algorithm, with the input or without it, which is not read; also where the result is next to 1, in
    float64 by definition."""
    y = np.abs(_UP_AND_DOWN).astype(dtype) if name == "sigmoid" else _UP_AND_DOWN.astype(dtype)
    grad = (_RNG.standard_normal(y.size) * 3).astype(dtype)
    exact = [
        Fraction(float(g))
        * (Fraction(float(v)) if name == "sigmoid" else 1 + Fraction(float(v)))
        * (1 - Fraction(float(v)))
        for g, v in zip(grad, y, strict=True)
    ]
    exact = np.array(list(map(float, exact)))
    for x in (None, np.full_like(y, np.nan)):
        for algorithm in candidates(f"{name}_backward", (grad, x, y), {}):
            found = call_by(algorithm, f"{name}_backward", (grad, x, y), {})
            assert found.dtype == dtype
            error = np.abs(found.astype(np.float64) - exact)
            assert (
                error
                <= 4 * float(ml_dtypes.finfo(dtype).eps) * np.abs(exact)
                + float(ml_dtypes.finfo(dtype).smallest_subnormal)
            ).all()


@pytest.mark.parametrize("name", _BY_RESULT)
def test_gradients_from_the_result_in_any_memory(name):
    backward, definition = getattr(dnn, f"{name}_backward"), _BY_RESULT[name]
    for shape in ((), (0, 3), (1, 1), (5, 7, 3)):
        grad, y = _RNG.standard_normal(shape), _RNG.uniform(0, 1, shape)
        np.testing.assert_allclose(backward(grad, y=y), definition(grad, y), rtol=1e-12, atol=1e-15)
    turned, every_other = y.transpose(2, 0, 1).copy().transpose(1, 2, 0), np.repeat(y, 2, axis=1)[:, ::2]
    for algorithm in candidates(f"{name}_backward", (grad, None, y), {}):
        for lying in (turned, every_other, y[::-1, ::-1][::-1, ::-1]):
            found = call_by(algorithm, f"{name}_backward", (grad, None, lying), {})
            np.testing.assert_allclose(found, definition(grad, y), rtol=1e-12, atol=1e-15)
    assert backward(grad, y=turned).strides == turned.strides
    for which in ("grad", "y"):
        arrays = {"grad": grad.copy(), "y": y.copy()}
        assert backward(arrays["grad"], y=arrays["y"], out=arrays[which]) is arrays[which]
        np.testing.assert_allclose(arrays[which], definition(grad, y), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", _BY_RESULT)
def test_arguments_of_gradients_from_the_result_are_checked(name):
    backward, ones = getattr(dnn, f"{name}_backward"), np.ones(3)
    with pytest.raises(
        dnn.ArrayTypeError,
        match=f"{name}_backward: x is None; expected an array, unless y, the result of the forward, is given",
    ):
        backward(ones)
    with pytest.raises(dnn.ShapeError, match=rf"{name}_backward: grad is of shape \(3,\); expected \(2,\)"):
        backward(ones, y=np.ones(2))
    with pytest.raises(dnn.ShapeError, match=rf"{name}_backward: y is of shape \(2,\); expected \(3,\)"):
        backward(ones, ones, y=np.ones(2))
    with pytest.raises(dnn.DTypeError, match=f"{name}_backward: y is float32; expected float64"):
        backward(ones, ones, y=np.ones(3, np.float32))
    with pytest.raises(dnn.DTypeError, match=f"{name}_backward: y is int64; expected float64"):
        backward(ones, y=np.arange(3))


@pytest.mark.parametrize("name", _BY_RESULT)
def test_a_pullback_keeps_the_result_in_the_place_of_the_input(name):
    x, grad = _RNG.standard_normal((4, 5)), _RNG.standard_normal((4, 5))
    expected = _backward(name, grad, x)
    y, pullback = dnn.vjp(name, x)
    assert any(a is y for a in pullback.arrays)
    assert not any(a is x for a in pullback.arrays)
    np.testing.assert_allclose(pullback(grad)[0], expected, rtol=1e-12, atol=1e-15)
    half = x.astype(np.float16)  # where the result would cost the gradient accuracy
    assert any(a is half for a in dnn.vjp(name, half)[1].arrays)


def _torch_function(name):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    f = torch.nn.functional
    return torch, {
        "relu": f.relu,
        "relu6": f.relu6,
        "clipped_relu": lambda x: f.hardtanh(x, 0, 6),
        "leaky_relu": f.leaky_relu,
        "elu": f.elu,
        "selu": f.selu,
        "celu": f.celu,
        "sigmoid": f.sigmoid,
        "hard_sigmoid": f.hardsigmoid,
        "log_sigmoid": f.logsigmoid,
        "tanh": f.tanh,
        "hard_tanh": f.hardtanh,
        "softplus": f.softplus,
        "softsign": f.softsign,
        "gelu": f.gelu,
        "silu": f.silu,
        "hard_swish": f.hardswish,
        "mish": f.mish,
        "threshold": lambda x: f.threshold(x, 0.5, 2.0),
    }[name]


@pytest.mark.parametrize("name", PARAMETERS)
def test_pytorch_agrees_on_and_beside_the_kinks(name):
    torch, function = _torch_function(name)
    places = [-0.0, 0.0, 0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 20.0, 21.0, -20.0, 80.0, -80.0]
    x = np.array([*places, *np.nextafter(places, -100), *np.nextafter(places, 100), *_RNG.standard_normal(32)])
    t = torch.tensor(x, requires_grad=True)
    y = function(t)
    y.backward(torch.full_like(t, 1.5))
    # PyTorch's own 1/6 in the gradient of hardsigmoid is rounded to float32.
    rtol = 1e-7 if name == "hard_sigmoid" else 1e-12
    np.testing.assert_allclose(_forward(name, x), y.detach().numpy(), rtol=rtol, atol=1e-16)
    np.testing.assert_allclose(_backward(name, np.full_like(x, 1.5), x), t.grad.numpy(), rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("name", [n for n in PARAMETERS if n != "gelu"])
def test_pytorch_agrees_on_infinity(name):
    torch, function = _torch_function(name)
    x = np.array([np.inf, -np.inf] * 8)
    np.testing.assert_array_equal(_forward(name, x), function(torch.from_numpy(x)).numpy())


def test_gelu_on_infinity():
    for dtype in (np.float64, np.float32):
        x = np.array([np.inf, -np.inf], dtype)
        np.testing.assert_array_equal(dnn.gelu(x), [np.inf, np.nan])
        np.testing.assert_array_equal(dnn.gelu_backward(np.ones_like(x), x), [np.nan, np.nan])  # x times a density of 0


@pytest.mark.parametrize("shape", [(1,), (3,), (3, 1), (2, 1, 1)])
def test_pytorch_agrees_on_prelu(shape):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, weight, grad = _RNG.standard_normal((2, 3, 4)), _RNG.standard_normal(shape), _RNG.standard_normal((2, 3, 4))
    x[0, 0, 0] = 0
    t, w = torch.tensor(x, requires_grad=True), torch.tensor(weight, requires_grad=True)
    broadcast = w.reshape(3, 1) if shape == (3,) else w
    torch.where(t > 0, t, broadcast * t).backward(torch.from_numpy(grad))
    if len(shape) == 1:
        np.testing.assert_allclose(dnn.prelu(x, weight), torch.nn.functional.prelu(t, w).detach().numpy(), rtol=1e-15)
    gradients = dnn.prelu_backward(grad, x, weight)
    np.testing.assert_allclose(gradients.x, t.grad.numpy(), rtol=1e-14)
    np.testing.assert_allclose(gradients.weight, w.grad.numpy(), rtol=1e-12)


def test_pytorch_agrees_on_glu():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = _RNG.standard_normal((3, 6, 2))
    np.testing.assert_allclose(
        dnn.glu(x, axis=1), torch.nn.functional.glu(torch.from_numpy(x), dim=1).numpy(), rtol=1e-14
    )


# --- fused use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_activation_is_the_function_with_its_defaults(name):
    x, bias, residual, grad = (_RNG.standard_normal(s) for s in ((4, 3, 5), (3,), (4, 3, 5), (4, 3, 5)))
    total = x + bias[:, None] + residual
    y = dnn.bias_activation(x, bias, activation=name, residual=residual)
    np.testing.assert_allclose(y, _forward(name, total), rtol=1e-13)
    gradients = dnn.bias_activation_backward(grad, x, bias, activation=name, residual=residual)
    np.testing.assert_allclose(gradients.x, _backward(name, grad, total), rtol=1e-13)
    np.testing.assert_array_equal(gradients.residual, gradients.x)
    np.testing.assert_allclose(gradients.bias, gradients.x.sum(axis=(0, 2)), rtol=1e-13)


def test_a_residual_that_is_absent_has_no_gradient():
    gradients = dnn.bias_activation_backward(np.ones((2, 3)), np.ones((2, 3)), np.ones(3), activation=None)
    assert gradients.residual is None
    np.testing.assert_array_equal(gradients.bias, [2, 2, 2])


def test_all_activations_but_those_without_defaults_can_be_fused():
    assert set(PARAMETERS) - set(FUSED) == {"threshold"}
    assert set(FORMULAS) == set(PARAMETERS)
    assert fused("conv", None) is None
    assert fused("conv", "gelu") == named("conv", "gelu", approximate="none")


@pytest.mark.parametrize("name", FUSED)
def test_results_may_replace_arguments(name):
    activation = named("test", name)
    x, grad = _RNG.standard_normal((3, 5)), _RNG.standard_normal((3, 5))
    gradient = apply_gradient(activation, grad, x)
    for in_place in (grad.copy(), x.copy()):
        is_grad = np.array_equal(in_place, grad)
        gradient_into(activation, in_place if is_grad else grad, x if is_grad else in_place, in_place)
        np.testing.assert_array_equal(in_place, gradient)
    expected = _forward(name, x)
    apply(activation, x, x)
    np.testing.assert_allclose(x, expected, rtol=1e-13)


def test_apply_without_an_activation_copies():
    x = _RNG.standard_normal(3)
    out = np.empty(3)
    apply(None, x, out)
    np.testing.assert_array_equal(out, x)
    assert apply_gradient(None, x, out) is x


# --- the normal distribution
# -------------------------------------------------------------------------------------------


def _normal(x):
    """Share and density of the normal distribution in float64."""
    share = np.array([math.erfc(-float(v) / math.sqrt(2)) / 2 for v in x])
    return share, np.exp(-0.5 * x.astype(np.float64) ** 2) / math.sqrt(2 * math.pi)


def test_the_normal_distribution_in_float64():
    x = np.concatenate(
        [
            np.linspace(-13, 13, 7001),
            np.linspace(0.65, 0.75, 2001),
            np.linspace(-5.7, -5.6, 2001),
            np.geomspace(1e-37, 1, 501),
        ]
    )
    # z = -x / sqrt(2) and its square are rounded, which the exponential turns into 3 z^2 roundings
    bound = (4 + 1.5 * np.minimum(x, 0) ** 2) * np.finfo(float).eps
    share = _normal(x)[0]
    assert (np.abs(normal_cdf(x) - share) <= bound * share).all()


def test_the_normal_distribution_of_special_values():
    y = normal_cdf(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300, -38.0]))
    np.testing.assert_array_equal(y[:-1], np.array([np.nan, 1, 0, 0.5, 0.5, 1, 0]))
    assert 0 < y[-1] < 1e-300


def test_gelu_in_float32_rounds_no_more_than_its_formula():
    x = np.concatenate([np.linspace(-13, 13, 70001), np.geomspace(1e-37, 1, 501)]).astype(np.float32)
    share, density = _normal(x)
    y, slope, ones = np.empty_like(x), np.empty_like(x), np.ones_like(x)
    gelu_single(x, y)
    gelu_gradient_single(ones, x, slope)
    assert np.abs(y - x * share).max() <= 3e-7  # PyTorch's is 3.7e-7
    assert np.abs(slope - (share + x * density)).max() <= 3e-7
    normal = np.abs(x * share) >= np.finfo(np.float32).tiny
    assert (
        np.abs(y[normal] / (x * share)[normal] - 1).max() <= 1e-5
    )  # the formula 1 + erf has lost all digits from -5.5 on


def test_gelu_in_float32_far_from_zero():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1e38, -1e38, 50, -50, 6.5, -7], np.float32)
    y, slope = np.empty_like(x), np.empty_like(x)
    with np.errstate(all="ignore"):
        gelu_single(x, y)
        gelu_gradient_single(np.ones_like(x), x, slope)
    np.testing.assert_array_equal(y[:9], np.array([np.nan, np.inf, np.nan, 0, 1e38, 0, 50, 0, 6.5], np.float32))
    np.testing.assert_array_equal(
        slope[:9], [np.nan, np.nan, np.nan, 0.5, 1, 0, 1, 0, 1]
    )  # at infinity x times a density of 0


_CURVES = [
    *(
        (name, {})
        for name in (
            "elu",
            "selu",
            "celu",
            "sigmoid",
            "log_sigmoid",
            "tanh",
            "softplus",
            "softsign",
            "gelu",
            "silu",
            "mish",
        )
    ),
    ("gelu", {"approximate": "tanh"}),
    ("silu", {"beta": 1.5}),
    ("softplus", {"threshold": 600.0}),
]


# The derivatives of what saturates, where differences would cancel.
_SLOPES = {
    "elu": lambda x: math.exp(min(x, 0)),
    "selu": lambda x: 1.0507009873554805 * (1 if x > 0 else 1.6732632423543772 * math.exp(x)),
    "celu": lambda x: math.exp(min(x, 0)),
    "sigmoid": lambda x: math.exp(-abs(x)) / (1 + math.exp(-abs(x))) ** 2,
    "tanh": lambda x: 4 * math.exp(-2 * abs(x)) / (1 + math.exp(-2 * abs(x))) ** 2,
}


def _difference(function, x):
    """The derivative by two steps, of the fourth order."""
    step = 1e-3 * np.minimum(1, 1 / np.abs(x))
    near, far = ((function(x + k * step) - function(x - k * step)) / (2 * k * step) for k in (1, 2))
    return (4 * near - far) / 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "options"), _CURVES, ids=str)
def test_tails_are_exact_until_they_are_no_normal_numbers(name, options, dtype):
    """By every algorithm; the exponential of a number that large is not, so the relative error grows with the
    argument."""
    steps = np.geomspace(1.5, 690 if dtype is np.float64 else 120, 500).astype(dtype)
    x, least = np.concatenate([-steps, steps]), float(np.finfo(dtype).tiny)

    def oracle(values):
        return elementwise(ELEMENTWISE[name])(values, **options)

    wide = x.astype(np.float64)
    for algorithm in candidates(name, (x,), options):
        y = call_by(algorithm, name, (x,), options)
        np.testing.assert_allclose(y, oracle(wide), rtol=2e-5, atol=least, err_msg=algorithm)
    expected = elementwise(_SLOPES[name])(wide) if name in _SLOPES else _difference(oracle, wide)
    kept = np.abs(wide) < 600  # beyond that the differences themselves are no normal numbers
    for algorithm in candidates(f"{name}_backward", (np.ones_like(x), x), options):
        slope = call_by(algorithm, f"{name}_backward", (np.ones_like(x), x), options)
        np.testing.assert_allclose(slope[kept], expected[kept], rtol=2e-5, atol=least, err_msg=algorithm)


# --- blocks -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=4), st.integers(1, 40))
def test_slabs_cover_an_array_in_order(shape, limit):
    a = np.arange(math.prod(shape)).reshape(shape)
    parts = [np.ravel(a[index]) for index in slabs(a.shape, limit)]
    assert all(p.size <= limit for p in parts)
    np.testing.assert_array_equal(np.concatenate([np.empty(0, int), *parts]), np.ravel(a))


def test_borrowed_blocks_come_back_to_the_thread_that_gave_them():
    like = np.zeros((100, 200), np.float32)
    first, second = borrow(like), borrow(like)
    assert first.shape == like.shape
    assert first.dtype == like.dtype
    assert not np.shares_memory(first, second)
    give(first, second)
    again = borrow(like[:50])
    assert np.shares_memory(again, first) or np.shares_memory(again, second)
    for shape in ((3,), (8 * BLOCK,)):  # these are not kept
        odd = borrow(np.zeros(shape))
        assert odd.shape == shape
        give(odd)
        assert not np.shares_memory(borrow(np.zeros(shape)), odd)


@pytest.mark.parametrize("length", [3, 5000])
def test_rows_without_the_buffer_of_numpy_are_the_same(length):
    x, column = _RNG.standard_normal((4, length)), _RNG.standard_normal((4, 1))
    before = np.getbufsize()
    with long_rows(length):
        product = x * column
    np.testing.assert_array_equal(product, x * column)
    assert np.getbufsize() == before
    with pytest.raises(ZeroDivisionError), long_rows(length):
        raise ZeroDivisionError
    assert np.getbufsize() == before


@pytest.mark.parametrize("length", [7, BLOCK + 7])
def test_a_constant_is_an_operand_of_any_row(length):
    x = _RNG.standard_normal((2, length))
    np.testing.assert_array_equal(np.maximum(x, constant(0.5, x)), np.maximum(x, 0.5))


@pytest.mark.parametrize("size", [BLOCK + 1, 5 * BLOCK, 9 * BLOCK + 12345])
def test_long_parts_cover_the_arrays_and_have_rows_for_constants(size):
    a, b = np.arange(size), np.arange(size) + 1
    parts = list(blocks(a, b, limit=3 * BLOCK))
    np.testing.assert_array_equal(np.concatenate([np.ravel(p) for p, _ in parts]), a)
    for p, q in parts:
        np.testing.assert_array_equal(p + 1, q)
        assert p.shape[-1] <= BLOCK


_LARGE = {
    "contiguous": lambda: _RNG.standard_normal((3, BLOCK - 5)),
    "channels_last": lambda: np.moveaxis(_RNG.standard_normal((2, 70, 61, 7)), -1, 1),
    "strided": lambda: _RNG.standard_normal((2, 300, 140))[:, ::2, ::-1],
    "long_rows": lambda: _RNG.standard_normal((2, 2 * BLOCK + 7))[:, ::-1],
}


@pytest.mark.parametrize("memory", _LARGE)
def test_arrays_of_many_blocks(memory):
    x = _LARGE[memory]()
    weight = _RNG.standard_normal(x.shape[1])
    np.testing.assert_allclose(dnn.elu(x), elementwise(ELEMENTWISE["elu"])(x), rtol=1e-14)
    view = weight.reshape(-1, *(1,) * (x.ndim - 2))
    np.testing.assert_array_equal(dnn.prelu(x, weight), np.where(x > 0, x, view * x))
    gradients = dnn.prelu_backward(x, x, weight)
    np.testing.assert_array_equal(gradients.x, np.where(x > 0, x, view * x))
    expected = np.where(x > 0, 0, x * x).sum(axis=tuple(i for i in range(x.ndim) if i != 1))
    np.testing.assert_allclose(gradients.weight, expected, rtol=1e-11)
    np.testing.assert_allclose(dnn.swiglu(x, x), dnn.silu(x) * x, rtol=1e-14)


@settings(deadline=None)
@given(st.data())
def test_masks_choose_bit_by_bit(data):
    dtype = data.draw(st.sampled_from(_DTYPES))
    n = data.draw(st.integers(0, 9))
    floats = st.floats(width=32, allow_nan=True)
    a, b = (np.array(data.draw(st.lists(floats, min_size=n, max_size=n)), dtype) for _ in range(2))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), bool)
    out = np.empty_like(a)
    keep(a, mask, out)
    np.testing.assert_array_equal(out, np.where(mask, a, 0))
    drop(a, mask, out)
    np.testing.assert_array_equal(out, np.where(mask, 0, a))
    select(mask, a, b, out)
    np.testing.assert_array_equal(out, np.where(mask, a, b))


def test_blocks_take_arrays_that_broadcast():
    x, row = np.zeros((40, 1000)), np.arange(1000.0).reshape(1, 1000)
    for part, values in blocks(x, row):
        part += values
    np.testing.assert_array_equal(x, np.broadcast_to(row, x.shape))


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(ELEMENTWISE)),
    st.lists(st.integers(0, 4), max_size=3),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 30),
)
def test_any_shape_and_scale(name, shape, seed, scale):
    x = np.random.default_rng(seed).standard_normal(shape) * scale
    options = _OPTIONS.get(name, {})
    expected = elementwise(ELEMENTWISE[name])(x, **options)
    np.testing.assert_allclose(_forward(name, np.asarray(x)), expected, rtol=1e-12, atol=1e-15)
