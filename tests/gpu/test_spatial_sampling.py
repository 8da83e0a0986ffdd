"""Sampling, resizing and region pooling on a card: larger and odd extents, both layouts, determinism, infinities."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import BFLOAT16, assert_close

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_DTYPES = [np.float32, np.float16, BFLOAT16, np.float64]


def _there(array, last):
    """The array on the device; `last` puts its channels last in memory under the same shape."""
    if not last:
        return cupy.asarray(array)
    axes = (0, *range(2, array.ndim), 1)
    return cupy.asarray(np.ascontiguousarray(array.transpose(axes))).transpose(tuple(np.argsort(axes).tolist()))


def _grid_inputs(shape, places, dtype, seed=0):
    rng = np.random.default_rng(seed)
    grid = rng.integers(-150, 150, (shape[0], *places, len(places))) / 128 + 1 / 256
    return rng.standard_normal(shape).astype(dtype), grid.astype(dtype), rng.standard_normal((*shape[:2], *places)).astype(dtype)


def _close(actual, expected, terms):
    assert_close(cupy.asnumpy(actual), np.asarray(expected), terms, 64.0)


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape, places", [((2, 16, 31, 33), (40, 21)), ((1, 3, 100, 90), (64, 64)), ((2, 5, 9, 11, 13), (4, 7, 6))])
def test_grid_sample(shape, places, last, dtype):
    x, grid, g = _grid_inputs(shape, places, dtype)
    wide = [a.astype(np.float64) for a in (x, grid, g)]
    _close(dnn.grid_sample(_there(x, last), cupy.asarray(grid)), dnn.grid_sample(*wide[:2]), 8)
    expected = dnn.grid_sample_backward(wide[2], *wide[:2])
    for deterministic in (False, True):
        with dnn.options(deterministic=deterministic):
            actual = dnn.grid_sample_backward(_there(g, last), _there(x, last), cupy.asarray(grid))
            again = dnn.grid_sample_backward(_there(g, last), _there(x, last), cupy.asarray(grid))
        _close(actual.x, expected.x, 64)
        _close(actual.grid, expected.grid, shape[1] * 8)
        if deterministic:
            assert cupy.asnumpy(actual.x).tobytes() == cupy.asnumpy(again.x).tobytes()


def test_infinite_gradients_stay_where_they_are():
    x, grid, g = _grid_inputs((1, 2, 6, 6), (5, 5), np.float32)
    g[0, 0, 1, 1], g[0, 1, 2, 2], g[0, 1, 3, 3] = np.inf, np.nan, -np.inf
    expected = dnn.grid_sample_backward(g, x, grid).x
    with dnn.options(deterministic=True):
        actual = cupy.asnumpy(dnn.grid_sample_backward(*map(cupy.asarray, (g, x, grid))).x)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic", "area"])
@pytest.mark.parametrize("size", [(97, 33), (20, 150)])
def test_interpolate(mode, layout, size, dtype):
    x = np.random.default_rng(0).standard_normal((2, 16, 47, 61) if layout == "channels_first" else (2, 47, 61, 16)).astype(dtype)
    options = {"size": size, "mode": mode, "layout": layout}
    expected = dnn.interpolate(x.astype(np.float64), **options)
    _close(dnn.interpolate(cupy.asarray(x), **options), expected, 64)
    g = np.random.default_rng(1).standard_normal(expected.shape).astype(dtype)
    expected = dnn.interpolate_backward(g.astype(np.float64), x.astype(np.float64), **options)
    _close(dnn.interpolate_backward(cupy.asarray(g), cupy.asarray(x), **options), expected, 64)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_interpolate_antialias(mode):
    x = np.random.default_rng(0).standard_normal((1, 3, 300, 200))
    options = {"size": (37, 210), "mode": mode, "antialias": True}
    expected = dnn.interpolate(x, **options)
    _close(
        dnn.interpolate(cupy.asarray(x, dtype=np.float32), **options),
        dnn.interpolate(x.astype(np.float32).astype(np.float64), **options),
        256,
    )
    g = np.random.default_rng(1).standard_normal(expected.shape)
    _close(dnn.interpolate_backward(cupy.asarray(g), cupy.asarray(x), **options), dnn.interpolate_backward(g, x, **options), 256)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("last", [False, True])
def test_roi_align(last, ratio, mode):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 8, 50, 40)).astype(np.float32)
    corner, size = rng.integers(-20, 150, (30, 2)) / 4, rng.integers(1, 160, (30, 2)) / 4
    boxes = np.concatenate([rng.integers(0, 2, (30, 1)), corner, corner + size], axis=1).astype(np.float32)
    options = {"output_size": (7, 5), "sampling_ratio": ratio, "mode": mode, "aligned": True}
    wide = x.astype(np.float64), boxes.astype(np.float64)
    expected = dnn.roi_align(*wide, **options)
    _close(dnn.roi_align(_there(x, last), cupy.asarray(boxes), **options), expected, 64)
    g = rng.standard_normal(expected.shape).astype(np.float32)
    gradient = dnn.roi_align_backward(g.astype(np.float64), *wide, **options)
    with dnn.options(deterministic=True):
        _close(dnn.roi_align_backward(_there(g, last), _there(x, last), cupy.asarray(boxes), **options), gradient, 256)


def test_a_box_that_names_no_image_gives_nan():
    x, boxes = cupy.ones((1, 2, 4, 4), np.float32), cupy.asarray([[0, 0, 0, 3, 3], [1, 0, 0, 3, 3], [0, 0, 0, 1e30, 3]], dtype=np.float32)
    y = dnn.roi_align(x, boxes, output_size=2)
    assert cupy.asnumpy(cupy.isnan(y).all(axis=(1, 2, 3))).tolist() == [False, True, True]
