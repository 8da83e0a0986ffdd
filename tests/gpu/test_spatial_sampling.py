"""Sampling, resizing and region pooling on a card: larger and odd extents, both layouts, determinism, infinities."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._options import Options
from dnnarray._spec import Spec
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


def _by(algorithm, op, *arrays, **options):
    """A call that one algorithm must serve, or the first of several that does it, whatever the selection prefers."""
    from dnnarray._cuda.engine import Prepared, device, methods

    operation = find(op)
    specs = tuple(Spec(a.shape, a.dtype, tuple(s // a.itemsize for s in a.strides)) for a in arrays)
    bound, chosen = operation.bind(specs, options)
    problem = operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})
    named = [m for m in methods(operation) if m.name in ((algorithm,) if isinstance(algorithm, str) else algorithm)]
    method = named[0] if len(named) == 1 else next(m for m in named if m.rejects(problem, device()) is None)
    return Prepared(operation, problem, method, Options()).call(arrays, (), None, None)


def _grid_inputs(shape, places, dtype, seed=0):
    rng = np.random.default_rng(seed)
    grid = rng.integers(-150, 150, (shape[0], *places, len(places))) / 128 + 1 / 256
    return (
        rng.standard_normal(shape).astype(dtype),
        grid.astype(dtype),
        rng.standard_normal((*shape[:2], *places)).astype(dtype),
    )


def _close(actual, expected, terms):
    assert_close(cupy.asnumpy(actual), np.asarray(expected), terms, 64.0)


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "shape, places", [((2, 16, 31, 33), (40, 21)), ((1, 3, 100, 90), (64, 64)), ((2, 5, 9, 11, 13), (4, 7, 6))]
)
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


@pytest.mark.parametrize(
    "algorithm",
    ["grid_sample_lists", "grid_sample_gradients", "grid_sample_scatter_atomic", "grid_sample_scatter_fixed_point"],
)
@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("last", "gradient_last"), [(False, False), (True, True), (False, True), (True, False)])
@pytest.mark.parametrize(
    "shape, places", [((3, 10, 61, 47), (53, 40)), ((1, 2, 200, 301), (260, 230)), ((2, 3, 9, 11, 13), (4, 7, 6))]
)
def test_every_way_to_the_gradient_of_grid_sample(shape, places, last, gradient_last, dtype, algorithm):
    if algorithm == "grid_sample_gradients" and (last or shape[2] == 200 or dtype == np.float64):
        pytest.skip("planes that lie apart, or are too large, or sums of fewer digits")
    x, grid, g = _grid_inputs(shape, places, dtype)
    expected = dnn.grid_sample_backward(*[a.astype(np.float64) for a in (g, x, grid)])
    dx, dgrid = _by(algorithm, "grid_sample_backward", _there(g, gradient_last), _there(x, last), cupy.asarray(grid))
    _close(dx, expected.x, 64)
    _close(dgrid, expected.grid, shape[1] * 8)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_the_gradient_of_a_grid_that_crowds_into_corners(padding, mode):
    x, grid, g = _grid_inputs((2, 6, 20, 30), (64, 65), np.float32)
    grid *= 3
    options = {"mode": mode, "padding_mode": padding}
    expected = dnn.grid_sample_backward(*[a.astype(np.float64) for a in (g, x, grid)], **options)
    there = tuple(map(cupy.asarray, (g, x, grid)))
    for algorithm in ("grid_sample_lists", "grid_sample_gradients"):
        first, second = (_by(algorithm, "grid_sample_backward", *there, **options) for _ in range(2))
        _close(first[0], expected.x, 4096)
        _close(first[1], expected.grid, 64)
        assert all((a == b).all() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("algorithm", ["grid_sample_lists", "grid_sample_gradients", "grid_sample_scatter_fixed_point"])
def test_infinite_gradients_stay_where_they_are(algorithm):
    x, grid, g = _grid_inputs((1, 2, 6, 6), (5, 5), np.float32)
    g[0, 0, 1, 1], g[0, 1, 2, 2], g[0, 1, 3, 3] = np.inf, np.nan, -np.inf
    expected = dnn.grid_sample_backward(g, x, grid).x
    actual = cupy.asnumpy(_by(algorithm, "grid_sample_backward", *map(cupy.asarray, (g, x, grid)))[0])
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic", "area"])
@pytest.mark.parametrize("size", [(97, 33), (20, 150)])
def test_interpolate(mode, layout, size, dtype):
    x = (
        np.random.default_rng(0)
        .standard_normal((2, 16, 47, 61) if layout == "channels_first" else (2, 47, 61, 16))
        .astype(dtype)
    )
    options = {"size": size, "mode": mode, "layout": layout}
    expected = dnn.interpolate(x.astype(np.float64), **options)
    _close(dnn.interpolate(cupy.asarray(x), **options), expected, 64)
    g = np.random.default_rng(1).standard_normal(expected.shape).astype(dtype)
    expected = dnn.interpolate_backward(g.astype(np.float64), x.astype(np.float64), **options)
    _close(dnn.interpolate_backward(cupy.asarray(g), cupy.asarray(x), **options), expected, 64)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "size, target",
    [((301, 259), (605, 518)), ((520, 1024), (260, 333)), ((9, 11, 128), (31, 17, 127)), ((2000,), (3001,))],
)
def test_interpolate_of_more_than_a_few(size, target, mode, dtype):
    mode = "linear" if mode == "cubic" and len(size) != 2 else mode
    x = np.random.default_rng(0).standard_normal((4, max(1, 700_000 // np.prod(target)), *size)).astype(dtype)
    options = {"size": target, "mode": mode}
    expected = dnn.interpolate(x.astype(np.float64), **options)
    _close(dnn.interpolate(cupy.asarray(x), **options), expected, 64)
    g = np.random.default_rng(1).standard_normal(expected.shape).astype(dtype)
    gradient = dnn.interpolate_backward(g.astype(np.float64), x.astype(np.float64), **options)
    for algorithm in ("resize_rows", "resize"):
        _close(_by(algorithm, "interpolate", cupy.asarray(x), **options)[0], expected, 64)
        _close(_by(algorithm, "interpolate_backward", cupy.asarray(g), cupy.asarray(x), **options)[0], gradient, 64)


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
    _close(
        dnn.interpolate_backward(cupy.asarray(g), cupy.asarray(x), **options),
        dnn.interpolate_backward(g, x, **options),
        256,
    )


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
    for algorithm in ("roi_align_lists", "roi_align_scatter_atomic", "roi_align_scatter_fixed_point"):
        if algorithm == "roi_align_lists" and (mode == "max" or not ratio):
            continue
        for gradient_last in (last, not last):
            arrays = _there(g, gradient_last), _there(x, last), cupy.asarray(boxes)
            _close(_by(algorithm, "roi_align_backward", *arrays, **options)[0], gradient, 256)


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("size", [(7, 7), (3, 40), (1, 1)])
@pytest.mark.parametrize("ratio", [1, 2, 4, 8, 3])
def test_roi_align_by_samples(ratio, size, mode, dtype):
    rng = np.random.default_rng(ratio)
    x = rng.standard_normal((2, 13, 31, 45)).astype(dtype)
    corner, extent = rng.integers(-20, 150, (20, 2)) / 4, rng.integers(1, 100, (20, 2)) / 4
    boxes = np.concatenate([rng.integers(0, 2, (20, 1)), corner, corner + extent], axis=1).astype(dtype)
    options = {"output_size": size, "sampling_ratio": ratio, "mode": mode}
    expected = dnn.roi_align(x.astype(np.float64), boxes.astype(np.float64), **options)
    for algorithm in ("roi_align_planes", "roi_align_rows", "roi_align") if ratio != 3 else ("roi_align",):
        _close(_by(algorithm, "roi_align", cupy.asarray(x), cupy.asarray(boxes), **options)[0], expected, 64)
    _close(dnn.roi_align(_there(x[:, :8], True), cupy.asarray(boxes), **options), expected[:, :8], 64)


def test_affine_grid_of_many_places():
    rng = np.random.default_rng(0)
    for shape in ((3, 1, 200, 301), (2, 1, 65, 300), (2, 1, 7, 30, 52), (1, 1, 5, 6, 7)):
        rank = len(shape) - 2
        theta = rng.standard_normal((shape[0], rank, rank + 1)).astype(np.float32)
        for corners in (False, True):
            options = {"align_corners": corners}
            expected = dnn.affine_grid(theta.astype(np.float64), shape, **options)
            _close(dnn.affine_grid(cupy.asarray(theta), shape, **options), expected, 8)
            g = rng.standard_normal(expected.shape).astype(np.float32)
            expected = dnn.affine_grid_backward(g.astype(np.float64), theta.astype(np.float64), shape, **options)
            _close(dnn.affine_grid_backward(cupy.asarray(g), cupy.asarray(theta), shape, **options), expected, g.size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: np.dtype(d).name)
def test_the_ends_of_an_affine_grid_are_exact(dtype):
    theta = cupy.asarray(np.eye(2, 3, dtype=dtype)[None])
    for extent in (2, 3, 7, 50, 101, 640, 1023, 4099):
        grid = cupy.asnumpy(dnn.affine_grid(theta, (1, 1, extent, extent + 1), align_corners=True))[0]
        np.testing.assert_array_equal([grid[0, 0], grid[-1, -1]], [[-1, -1], [1, 1]])


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_many_boxes_of_a_few_planes(dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 40, 96, 88)).astype(dtype)
    corners = np.sort(rng.integers(-32, 400, (2100, 2, 2)) / 4, 1).reshape(2100, 4)
    boxes = np.concatenate([rng.integers(-1, 2, (2100, 1)), corners], 1).astype(dtype)
    boxes = boxes[boxes[:, 0] >= 0]
    options = {"output_size": (5, 3), "sampling_ratio": 2, "aligned": True}
    expected = dnn.roi_align(x.astype(np.float64), boxes.astype(np.float64), **options)
    _close(_by("roi_align_planes", "roi_align", cupy.asarray(x), cupy.asarray(boxes), **options)[0], expected, 64)


def test_a_box_that_names_no_image_gives_nan():
    x, boxes = (
        cupy.ones((1, 2, 4, 4), np.float32),
        cupy.asarray([[0, 0, 0, 3, 3], [1, 0, 0, 3, 3], [0, 0, 0, 1e30, 3]], dtype=np.float32),
    )
    for algorithm, ratio in (("roi_align", 0), ("roi_align", 2), ("roi_align_rows", 2), ("roi_align_planes", 2)):
        (y,) = _by(algorithm, "roi_align", x, boxes, output_size=2, sampling_ratio=ratio)
        assert cupy.asnumpy(cupy.isnan(y).all(axis=(1, 2, 3))).tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", _DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "nearest_exact", "linear", "cubic", "area"])
@pytest.mark.parametrize(
    "space, target",
    [
        ((30, 36), (60, 72)),
        ((9, 7), (36, 28)),
        ((40, 24), (20, 12)),
        ((36, 20), (9, 5)),
        ((6, 5), (24, 10)),
        ((67, 8), (134, 16)),
        ((1, 6), (2, 12)),
        ((37, 128), (74, 256)),  # rows of whole warps
        ((5, 192), (10, 384)),
        ((9, 64), (36, 256)),
    ],
)
def test_interpolate_by_whole_factors(space, target, mode, last, dtype):
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((2, 16, *s)).astype(dtype) for s in (space, target))
    here = [_there(a, last) for a in (x, g)]
    expected = dnn.interpolate(x.astype(np.float64), size=target, mode=mode)
    _close(_by("resize_polyphase", "interpolate", here[0], size=target, mode=mode)[0], expected, 64)
    expected = dnn.interpolate_backward(g.astype(np.float64), x.astype(np.float64), size=target, mode=mode)
    _close(
        _by(
            ("resize_walk", "resize_polyphase", "resize_rows", "resize"),
            "interpolate_backward",
            here[1],
            here[0],
            size=target,
            mode=mode,
        )[0],
        expected,
        64,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=lambda d: np.dtype(d).name)
def test_interpolate_by_whole_factors_of_unaligned_memory(dtype):
    whole = np.random.default_rng(0).standard_normal(2 * 6 * 8 + 1).astype(dtype)
    x = cupy.asarray(whole)[1:].reshape(1, 2, 6, 8)
    actual = _by("resize_polyphase", "interpolate", x, size=(12, 16), mode="cubic")
    _close(
        actual[0], dnn.interpolate(whole[1:].reshape(1, 2, 6, 8).astype(np.float64), size=(12, 16), mode="cubic"), 64
    )
