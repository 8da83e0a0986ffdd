"""Activations on a card: every size and memory order against the CPU engine in float64, special values, sums with the
same bits."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._problems.activation import PARAMETERS
from dnnarray._problems.base import leaves
from tests.support import BFLOAT16, assert_close, call

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu
_DTYPES = pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name
)
_NAMES = [*(n for n in PARAMETERS if n != "threshold"), "gelu_tanh"]


def _options(name):
    return ("gelu", {"approximate": "tanh"}) if name == "gelu_tanh" else (name, {})


def _draw(rng, dtype, *shape):
    return np.asarray(rng.standard_normal(shape) * 2).astype(dtype)


def check(op, arrays, options, reduction=1, order=None):
    """The results on the card against the CPU engine's in float64; twice, with the same bits."""
    there = tuple(None if a is None else cupy.asarray(a) for a in arrays)
    if order is not None:
        there = tuple(a if a is None or a.ndim != len(order) else lying(a, order) for a in there)
    actual = [cupy.asnumpy(a) for a in leaves(call(op, there, options))]
    again = [cupy.asnumpy(a) for a in leaves(call(op, there, options))]
    expected = leaves(call(op, tuple(None if a is None else a.astype(np.float64) for a in arrays), options))
    for a, b, e in zip(actual, again, expected, strict=True):
        assert a.tobytes() == b.tobytes()
        assert_close(a, e, max(reduction, 1), 1.0, op)


def lying(array, order):
    """The same values with the axes in this order in memory."""
    back = np.argsort(order)
    return cupy.ascontiguousarray(array.transpose(order)).transpose(back.tolist())


@_DTYPES
@pytest.mark.parametrize("name", _NAMES)
def test_a_whole_curve(name, dtype):
    op, options = _options(name)
    x = np.linspace(-30, 30, 100_003).astype(dtype)
    check(op, (x,), options)
    check(f"{op}_backward", (_draw(np.random.default_rng(1), dtype, x.size), x), options)


@_DTYPES
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("order", [None, (2, 0, 1)], ids=str)
def test_gradients_from_the_result(name, order, dtype):
    rng = np.random.default_rng(2)
    g, y = _draw(rng, dtype, 7, 11, 1301), rng.uniform(0 if name == "sigmoid" else -1, 1, (7, 11, 1301)).astype(dtype)
    check(f"{name}_backward", (g, None, y), {}, order=order)
    check(f"{name}_backward", (g, np.full_like(y, np.nan), y), {}, order=order)
    there = cupy.asarray(y[0, 0, 1:])  # at an address that no vector may begin at
    assert_close(
        cupy.asnumpy(getattr(dnn, f"{name}_backward")(cupy.asarray(g[0, 0, 1:]), y=there, out=there)),
        call(f"{name}_backward", (g[0, 0, 1:].astype(np.float64), None, y[0, 0, 1:].astype(np.float64)), {}),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", _NAMES)
def test_special_values_as_on_the_host(name, dtype):
    op, options = _options(name)
    special = np.array([0, -0.0, 1, -1, 3, -3, 6, 20, 1e4, -1e4, np.inf, -np.inf, np.nan]).astype(dtype)
    x, g = np.repeat(special, special.size), np.tile(special, special.size)
    for arrays, which in (((special,), op), ((g, x), f"{op}_backward")):
        expected = np.asarray(call(which, arrays, options)).astype(np.float64)
        actual = cupy.asnumpy(call(which, tuple(map(cupy.asarray, arrays)), options)).astype(np.float64)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), err_msg=which)
        np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected), err_msg=which)


def test_softsign_at_the_end_of_the_range():
    x = np.array([1e37, -9e37, 3e38, -3e38]).astype(BFLOAT16)
    np.testing.assert_array_equal(cupy.asnumpy(dnn.softsign(cupy.asarray(x))).astype(np.float32), [1, -1, 1, -1])


_SHAPES = [
    (1, 1, 1),
    (20, 16, 49),
    (9, 8, 7),
    (4, 1, 9),
    (5, 3, 7),
    (3, 64, 49),
    (2, 5, 1000),
    (700, 3, 1),
    (333, 40, 1),
    (100, 257, 1),
    (2, 1024, 8),
    (1, 4099, 3),
]
_ORDERS = [None, (0, 2, 1), (1, 0, 2), (2, 1, 0)]


@_DTYPES
@pytest.mark.parametrize("shape", _SHAPES, ids=str)
@pytest.mark.parametrize("order", _ORDERS, ids=str)
def test_a_parameter_per_channel(shape, order, dtype):
    rng = np.random.default_rng(3)
    x, g, r = (_draw(rng, dtype, *shape) for _ in range(3))
    w = rng.uniform(0.1, 0.5, shape[1]).astype(dtype)
    reduction = x.size // shape[1]
    check("prelu", (x, w), {}, order=order)
    check("prelu_backward", (g, x, w), {}, reduction, order)
    check("prelu_backward", (g, x, w[:1]), {}, x.size, order)
    for axis, residual, activation in ((1, None, "relu"), (1, r, "gelu"), (-1, r, None)):
        b = _draw(rng, dtype, shape[axis])
        options = {"activation": activation, "axis": axis}
        check("bias_activation", (x, b, residual), options, order=order)
        check("bias_activation_backward", (g, x, b, residual), options, x.size // shape[axis], order)


@_DTYPES
def test_results_in_memory_orders_of_their_own(dtype):
    rng = np.random.default_rng(4)
    shape, order = (3, 5, 7, 8), (0, 2, 3, 1)
    x, g, r = (cupy.asarray(_draw(rng, dtype, *shape)) for _ in range(3))
    b = cupy.asarray(_draw(rng, dtype, shape[1]))
    options = {"activation": "silu", "axis": 1}
    for lie in ((x, r), (lying(x, order), r), (x, lying(r, order))):
        got = call("bias_activation_backward", (g, lie[0], b, lie[1]), options)
        expected = call(
            "bias_activation_backward", tuple(cupy.asnumpy(a).astype(np.float64) for a in (g, x, b, r)), options
        )
        for a, e in zip(got, expected, strict=True):
            assert_close(cupy.asnumpy(a), e, 168)
        for a, e in zip(dnn.swiglu_backward(g, *lie), call("swiglu_backward", tuple(
                cupy.asnumpy(a).astype(np.float64) for a in (g, x, r)), {}), strict=True):  # fmt: skip
            assert_close(cupy.asnumpy(a), e)


@_DTYPES
@pytest.mark.parametrize(
    ("shape", "axis"), [((7, 1000), -1), ((5, 6, 33), 1), ((2, 3, 64, 9), 2), ((4, 2), 0), ((1, 100_006), 1)], ids=str
)
def test_gated(shape, axis, dtype):
    rng = np.random.default_rng(5)
    x = _draw(rng, dtype, *shape)
    half = _draw(rng, dtype, *(n // 2 if i == axis % len(shape) else n for i, n in enumerate(shape)))
    order = tuple(reversed(range(len(shape))))
    for lie in (None, order):
        check("glu", (x,), {"axis": axis}, order=lie)
        check("glu_backward", (half, x), {"axis": axis}, order=lie)
        for op in ("swiglu", "geglu"):
            check(op, (x, x[::-1]), {}, order=lie)
            check(f"{op}_backward", (x * 2, x, x[::-1]), {}, order=lie)


@_DTYPES
def test_weights_of_prelu_with_axes(dtype):
    rng = np.random.default_rng(6)
    x, g = _draw(rng, dtype, 3, 4, 5, 6), _draw(rng, dtype, 3, 4, 5, 6)
    for shape in ((4, 1, 1), (5, 6), (3, 4, 5, 6), (6,), (4, 5, 6), (1, 4, 5, 1)):
        w = rng.uniform(0.1, 0.5, shape).astype(dtype)
        check("prelu", (x, w), {})
        check("prelu_backward", (g, x, w), {}, x.size)
    w = rng.uniform(0.1, 0.5, (4, 5, 6)).astype(dtype)
    check("prelu_backward", (g, x, w), {}, 3, (0, 2, 3, 1))


@pytest.mark.heavy
def test_sums_over_more_than_two_to_the_31_elements():
    n = 2**31 + 4096
    g = cupy.ones((n // 16, 16), np.float16)
    x = cupy.full((n // 16, 16), -(2.0**-17), np.float16)
    got = dnn.prelu_backward(g, x, cupy.full(1, 0.25, np.float16))
    assert float(got.weight[0]) == pytest.approx(-n * 2.0**-17, rel=1e-3)
    assert bool((got.x == 0.25).all())


def test_gelu_in_float32_keeps_digits_of_the_left_side():
    x = np.concatenate([np.linspace(-13, 13, 70_001), np.geomspace(1e-37, 1, 501)]).astype(np.float32)
    expected, slope = dnn.gelu(x.astype(np.float64)), dnn.gelu_backward(np.ones(x.size), x.astype(np.float64))
    y, here = cupy.asnumpy(dnn.gelu(cupy.asarray(x))), cupy.asarray(x)
    assert np.abs(y - expected).max() <= 4.5e-7  # PyTorch's is 4.5e-7 too
    assert np.abs(cupy.asnumpy(dnn.gelu_backward(cupy.ones_like(here), here)) - slope).max() <= 4.5e-7
    tail = (x >= -5) & (x <= -1)
    assert np.abs(y[tail] / expected[tail] - 1).max() <= 2e-3  # 1 + erf has lost all but one digit there
    far = np.array([np.nan, np.inf, -np.inf, 1e38, -1e38, 0], np.float32)
    np.testing.assert_array_equal(
        cupy.asnumpy(dnn.gelu(cupy.asarray(far))), np.array([np.nan, np.inf, np.nan, 1e38, 0, 0], np.float32)
    )
