"""Gradients of maxima on a card by every way that is taken for many windows: strips, rings, long runs of rows; where
the maxima stand."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.gpu.pooling import ORDERS, both_ways, drawn, in_order
from tests.support import BFLOAT16, as_float64

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_WHERE_MAXIMA_STAND = {
    "both zeros": [-0.0, 0.0, -1.0],
    "infinities": [np.inf, -np.inf, 1.0, 0.0],
    "nan": [np.nan, np.inf, -np.inf, 1.0],
    "only -inf": [-np.inf],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("window", [(3, 1, 1), (5, 2, 2), ((3, 2), (2, 1), (1, 0))], ids=str)
def test_the_gradient_of_many_given_places_is_that_of_sought_ones(window, dtype):
    size, stride, padding = window
    options = {"kernel_size": size, "stride": stride, "padding": padding, "layout": "channels_last"}
    x = cupy.asarray(drawn((6, 90, 83, 96)).astype(dtype))
    y, places = dnn.max_pool_with_indices(x, **options)
    grad = cupy.asarray(np.rint(drawn(y.shape) * 4).astype(dtype))  # sums of whole numbers are the same in any order
    given, sought = dnn.max_pool_backward(grad, x, indices=places, **options), dnn.max_pool_backward(grad, x, **options)
    np.testing.assert_array_equal(cupy.asnumpy(given), cupy.asnumpy(sought))
    places[:, ::2] = -1
    places[:, 1::4] += 1 << 40
    grad[:, ::2] = 0
    grad[:, 1::4] = 0
    given, sought = dnn.max_pool_backward(grad, x, indices=places, **options), dnn.max_pool_backward(grad, x, **options)
    np.testing.assert_array_equal(cupy.asnumpy(given), cupy.asnumpy(sought))


@pytest.mark.parametrize("values", _WHERE_MAXIMA_STAND)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize(
    "window", [(3, 1, 1), (3, 2, 1), ((3, 2), (2, 1), (1, 0)), ((2, 3), (3, 2), 1), (4, 2, 1), (5, 1, 2)], ids=str
)
def test_the_gradient_of_a_maximum_goes_where_it_stands(window, order, dtype, values):
    size, stride, padding = window
    x = np.random.default_rng(0).choice(_WHERE_MAXIMA_STAND[values], (2, 6, 37, 24)).astype(dtype)
    options = {"kernel_size": size, "stride": stride, "padding": padding}
    both_ways("max_pool", x, options, ORDERS[order])
    indices = cupy.asnumpy(dnn.max_pool_with_indices(in_order(x, ORDERS[order]), **options)[1])
    np.testing.assert_array_equal(indices, dnn.max_pool_with_indices(as_float64(x), **options)[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("space", [(131, 40), (64, 12), (33, 7)])
@pytest.mark.parametrize(
    "window", [(3, 1, 1), (5, 1, 2), (4, 1, 0), (5, 2, 2), ((5, 3), (2, 1), (1, 0)), ((1, 5), 1, (0, 1))], ids=str
)
def test_gradients_of_maxima_down_several_strips(window, space, order, dtype):
    size, stride, padding = window
    rng = np.random.default_rng(7)
    x = rng.integers(-2, 3, (2, 6, *space)).astype(dtype)
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[rng.random(x.shape) < 0.02] = value
    options = {"kernel_size": size, "stride": stride, "padding": padding}
    there, indices = in_order(x, ORDERS[order]), dnn.max_pool_with_indices(x, **options)[1]
    grad = rng.integers(1, 9, indices.shape).astype(dtype)
    expected, given = dnn.max_pool_backward(grad, x, **options), in_order(grad, ORDERS[order])
    for saved in (None, indices, indices.astype(np.int32)):
        places = None if saved is None else in_order(saved, ORDERS[order])
        np.testing.assert_array_equal(
            cupy.asnumpy(dnn.max_pool_backward(given, there, indices=places, **options)), expected
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(
    "shape", [(36, 31, 29, 64), (9, 46, 53, 128), (5, 19, 222, 64), (9, 46, 222, 64), (33, 25, 108, 64)], ids=str
)
@pytest.mark.parametrize(
    "window",
    [(2, 1, 0), (3, 1, 1), (3, 1, 0), (5, 1, 2), (3, 2, 1), (4, 2, 1), (5, 2, 2), ((5, 3), (2, 1), (1, 0))],
    ids=str,
)
def test_gradients_of_maxima_whose_windows_threads_share(window, shape, dtype):
    size, stride, padding = window
    rng = np.random.default_rng(11)
    x = rng.integers(-2, 3, shape).astype(dtype)
    for value in (np.nan, np.inf, -np.inf, -0.0):
        x[rng.random(x.shape) < 0.01] = value
    options = {"kernel_size": size, "stride": stride, "padding": padding, "layout": "channels_last"}
    indices = dnn.max_pool_with_indices(cupy.asarray(x), **options)[1]
    grad = cupy.asarray(rng.integers(1, 9, indices.shape).astype(dtype))
    dx, given = (dnn.max_pool_backward(grad, cupy.asarray(x), indices=places, **options) for places in (None, indices))
    np.testing.assert_array_equal(cupy.asnumpy(dx), cupy.asnumpy(given))
    some = slice(0, 2)
    expected = dnn.max_pool_backward(cupy.asnumpy(grad[some]), x[some], **options)
    np.testing.assert_array_equal(cupy.asnumpy(dx[some]), expected)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "not finite"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(33, 64, 61, 64), (9, 64, 112, 112), (41, 64, 53, 40), (3, 64, 230, 112)], ids=str)
@pytest.mark.parametrize(
    "window",
    [(3, 1, 1), (5, 1, 2), (3, 2, 1), (4, 2, 1), (5, 2, 2), ((5, 3), (2, 1), (1, 1)), (2, 1, ((0, 1), (0, 1)))],
    ids=str,
)
def test_gradients_of_maxima_by_long_runs_of_rows(window, shape, dtype, special):
    size, stride, padding = window
    rng = np.random.default_rng(5)
    x = rng.integers(-2, 3, shape).astype(dtype)
    for value in (np.nan, np.inf, -np.inf) * special:
        x.ravel()[rng.integers(0, x.size, x.size // 100)] = value
    x[:, 1, 20:31] = -np.inf if special else -2
    options, there = {"kernel_size": size, "stride": stride, "padding": padding}, cupy.asarray(x)
    indices = dnn.max_pool_with_indices(there, **options)[1]
    grad = cupy.asarray(rng.integers(1, 9, indices.shape).astype(dtype))
    dx, given, short = (
        dnn.max_pool_backward(grad, there, indices=i, **options) for i in (None, indices, indices.astype(np.int32))
    )
    np.testing.assert_array_equal(cupy.asnumpy(dx), cupy.asnumpy(given))
    np.testing.assert_array_equal(cupy.asnumpy(dx), cupy.asnumpy(short))
    some = slice(0, 2), slice(0, 4)
    expected = dnn.max_pool_backward(cupy.asnumpy(grad[some]), x[some], **options)
    np.testing.assert_array_equal(cupy.asnumpy(dx[some]), expected)


@pytest.mark.parametrize("special", [False, True], ids=["finite", "not finite"])
@pytest.mark.parametrize(
    "shape", [(33, 64, 64, 64), (9, 64, 112, 112), (41, 64, 53, 32), (12, 64, 230, 112), (3, 700, 7, 32)], ids=str
)
@pytest.mark.parametrize(
    "window",
    [(5, 2, 2), ((5, 5), 2, (1, 2)), ((5, 4), 2, (2, 1)), ((5, 3), (2, 1), (1, 1)), (5, 2, ((2, 2), (1, 2)))],
    ids=str,
)
def test_places_of_maxima_by_long_runs_of_rows(window, shape, special):
    size, stride, padding = window
    rng = np.random.default_rng(3)
    x = rng.integers(-2, 3, shape).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf, -0.0) * special:
        x.ravel()[rng.integers(0, x.size, x.size // 100)] = value
    x[:, 1, 2:31] = -np.inf if special else -2
    options = {"kernel_size": size, "stride": stride, "padding": padding}
    y, places = dnn.max_pool_with_indices(cupy.asarray(x), **options)
    np.testing.assert_array_equal(cupy.asnumpy(y), cupy.asnumpy(dnn.max_pool(cupy.asarray(x), **options)))
    some = slice(0, 3), slice(0, 5)
    expected = dnn.max_pool_with_indices(x[some], **options)
    np.testing.assert_array_equal(cupy.asnumpy(y[some]), expected[0])
    np.testing.assert_array_equal(cupy.asnumpy(places[some]), expected[1])
