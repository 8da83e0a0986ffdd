"""Pooling on a card beyond the shared cases: memory orders, sizes around vectors and blocks, NaN and ties, whole
planes, determinism."""

import math

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._cuda.pool import pipelined_rows, stride_one
from tests.gpu.pooling import ORDERS, both_ways, drawn, in_order, leaves_of, results
from tests.support import BFLOAT16, as_float64, assert_close, call, call_by
from tests.test_pool import no_numbers

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
pytestmark = pytest.mark.gpu

_OPTIONS = {"kernel_size": 3, "stride": 2, "padding": 1}
_WINDOWED = ["max_pool", "max_pool_with_indices", "avg_pool", "lp_pool"]
_ADAPTIVE = ["adaptive_max_pool", "adaptive_max_pool_with_indices", "adaptive_avg_pool"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", _WINDOWED)
@pytest.mark.parametrize("channels", [1, 3, 8, 20])
def test_any_memory_order(op, order, channels):
    both_ways(op, drawn((2, channels, 13, 9)), _OPTIONS, ORDERS[order])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("op", _WINDOWED)
@pytest.mark.parametrize("window", [(5, 2, 2), (5, 1, 2), (4, 2, 1), ((4, 5), 3, 0), ((2, 5), (1, 3), (0, 1))], ids=str)
def test_windows_of_four_and_five(op, order, dtype, window):
    size, stride, padding = window
    x = drawn((2, 8, 13, 24), dtype)
    both_ways(op, x, {"kernel_size": size, "stride": stride, "padding": padding}, ORDERS[order], reduction=100)
    both_ways(
        op, x[:, :3, :, :11], {"kernel_size": size, "stride": stride, "padding": padding}, ORDERS[order], reduction=100
    )


_RANGES = {
    "tiny and huge": [1e-30, -1e-24, 3e-19, 1e24, -1e30, 0.0],
    "zeros": [0.0, 0.0, 0.0, 0.0, 1.5],
    "infinities": [np.inf, 1.0, 0.0],
    "nan": [np.nan, 0.5, 0.0, 2.0],
}


@pytest.mark.parametrize("values", _RANGES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("window", [(3, 2, 0), (3, 1, 1), ((3, 2), (1, 2), 1), (2, 3, 1)], ids=str)
@pytest.mark.parametrize("p", [1.0, 2.0])
def test_norms_of_what_squares_may_not_leave(p, window, order, dtype, values):
    size, stride, padding = window
    if dtype is np.float16 and values == "tiny and huge":
        drawn = np.array([6e-8, -1e-5, 6e3, -3e3, 1.0, 0.0])
    else:
        drawn = np.array(_RANGES[values])
    x = np.random.default_rng(0).choice(drawn, (2, 8, 19, 56)).astype(dtype)
    x[:, 1] = 0
    x[:, 2] = drawn[:3].astype(dtype)[np.arange(19) % 3, None]
    options = {"kernel_size": size, "stride": stride, "padding": padding, "p": p}
    if np.isfinite(drawn).all():
        both_ways("lp_pool", x, options, ORDERS[order])
    else:
        y = dnn.lp_pool(in_order(x, ORDERS[order]), **options)
        assert_close(cupy.asnumpy(y), dnn.lp_pool(as_float64(x), **options), 64)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("op", ["avg_pool", "adaptive_avg_pool"])
def test_gradients_of_means_down_many_rows(op, order, dtype):
    x = drawn((40, 64, 61, 48), dtype)
    for size in ((7, 5), (40, 13)) if op.startswith("adaptive") else ():
        both_ways(op, x, {"output_size": size}, ORDERS[order])
    if op == "avg_pool":
        both_ways(
            op,
            x,
            {"kernel_size": (7, 9), "stride": (4, 2), "padding": (3, 0), "count_include_pad": False},
            ORDERS[order],
            reduction=100,
        )
        both_ways(op, x, {"kernel_size": (6, 4), "stride": (7, 6)}, ORDERS[order])


_EVERY = {
    "max_pool": [
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": 2},
        {"kernel_size": 5, "stride": 2, "padding": 2},
        {"kernel_size": (16, 24)},
    ],
    "avg_pool": [
        {"kernel_size": 3, "stride": 1, "padding": 1},
        {"kernel_size": 4},
        {"kernel_size": 7, "stride": 4},
        {"kernel_size": (16, 24)},
    ],
    "lp_pool": [
        {"kernel_size": 3, "stride": 2, "p": 2.0},
        {"kernel_size": 8, "p": 3.0},
        {"kernel_size": 2, "p": math.inf},
    ],
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last", "mixed"])
@pytest.mark.parametrize("op", _EVERY)
def test_every_algorithm_does_what_the_definition_says(op, order, dtype):
    """Also those that are not chosen for a problem of this size."""
    x = drawn((4, 16, 16, 24), dtype)
    there = in_order(x, ORDERS[order])
    for options in _EVERY[op]:
        expected = call(op, (as_float64(x),), options)
        for algorithm in dnn.algorithms(op, there, **options):
            y = call_by(algorithm.name, op, (there,), options)
            assert_close(cupy.asnumpy(y), expected, 400, note=algorithm.name)
        grad = drawn(expected.shape, dtype, 1)
        arrays = in_order(grad, ORDERS[order]), there
        places = (
            [in_order(dnn.max_pool_with_indices(as_float64(x), **options)[1], ORDERS[order])]
            if op == "max_pool"
            else []
        )
        expected = call(f"{op}_backward", (as_float64(grad), as_float64(x)), options)
        for given in {0, len(places)}:
            for algorithm in dnn.algorithms(f"{op}_backward", *arrays, *places[:given], **options):
                dx = call_by(algorithm.name, f"{op}_backward", (*arrays, *places[:given]), options)
                assert_close(cupy.asnumpy(dx), expected, 400, note=algorithm.name)


@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("op", _ADAPTIVE)
@pytest.mark.parametrize("size", [1, (3, 4), (5, 13), (1, 3)])
def test_adaptive_windows(op, order, size):
    both_ways(op, drawn((3, 16, 15, 9)), {"output_size": size}, ORDERS[order])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last", "mixed"])
@pytest.mark.parametrize("op", _ADAPTIVE)
@pytest.mark.parametrize("size", [(5, 7), (30, 3), (13, 50), (24, 40)])
def test_adaptive_windows_over_rows_of_vectors(op, order, dtype, size):
    both_ways(op, drawn((2, 8, 24, 40), dtype), {"output_size": size}, ORDERS[order])


_SLIDING = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "count_include_pad": False},
    {"kernel_size": (2, 3), "padding": "same"},
    {"kernel_size": (3, 2), "padding": ((1, 1), (0, 1)), "count_include_pad": False},
    {"kernel_size": (1, 3), "padding": (0, 1)},
    {"kernel_size": (3, 1), "padding": ((2, 0), (0, 0))},
    {"kernel_size": 3},
]


@pytest.mark.parametrize("walks", [False, True], ids=["a row", "down rows"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("options", _SLIDING, ids=str)
def test_means_of_windows_that_move_by_one(options, order, dtype, walks, monkeypatch):
    monkeypatch.setattr(stride_one, "_MANY", 0 if walks else 1 << 30)
    for space in ((9, 24), (3, 8), (14, 40)):
        both_ways("avg_pool", drawn((2 + walks, 24, *space), dtype), {"stride": 1, **options}, ORDERS[order])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", ["max_pool", "max_pool_with_indices"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 5, "stride": 2, "padding": 2},
        {"kernel_size": 5, "stride": 1},
        {"kernel_size": 4, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": (2, 4), "stride": 1, "padding": (1, 0)},
        {"kernel_size": (5, 3), "stride": (2, 1), "padding": (0, 1)},
    ],
    ids=str,
)
def test_maxima_by_pipelined_rows(options, op, dtype, monkeypatch):
    monkeypatch.setattr(pipelined_rows, "_ENOUGH", 0)  # small problems too
    rng = np.random.default_rng(6)
    for channels, space in ((56, (23, 37)), (64, (41, 70)), (8, (31, 6))):
        x = rng.integers(-30, 30, (3, channels, *space)).astype(dtype)
        x[rng.random(x.shape) < 0.01] = np.nan
        x[rng.random(x.shape) < 0.02] = np.inf
        x[0][rng.random(x[0].shape) < 0.95] = -np.inf
        actual, expected = call(op, (in_order(x, ORDERS["channels-last"]),), options), call(op, (x,), options)
        for a, e in zip(results(actual), leaves_of(expected), strict=True):
            np.testing.assert_array_equal(as_float64(a), as_float64(e))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize(("order", "channels"), [("channels-first", 5), ("channels-last", 72)])
@pytest.mark.parametrize("op", _WINDOWED)
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 5, "stride": 2, "padding": 2},
        {"kernel_size": (4, 12), "stride": (1, 7), "padding": (1, 5), "dilation": (2, 1)},
        {"kernel_size": 8},
        {"kernel_size": (2, 36), "ceil_mode": True, "stride": (3, 5)},
    ],
)
def test_large_windows_over_rows_of_vectors(op, order, channels, dtype, options):
    if "max" not in op:
        options = {name: value for name, value in options.items() if name != "dilation"}
    both_ways(op, drawn((3, channels, 24, 40), dtype), options, ORDERS[order])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("op", _WINDOWED)
def test_dtypes_with_vectors(op, order, dtype):
    both_ways(op, drawn((2, 64, 28, 31), dtype), _OPTIONS, ORDERS[order])


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("space", [(7, 7), (6, 5), (3, 1), (1, 2)])
def test_many_short_planes_of_halves(space, dtype):
    both_ways("adaptive_avg_pool", drawn((43, 99, *space), dtype), {"output_size": 1})


@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("space", [(1, 1), (2, 1), (7, 7), (8, 8), (14, 15), (56, 56), (131, 127)])
@pytest.mark.parametrize("op", [*_ADAPTIVE, "lp_pool"])
def test_whole_planes(op, space, order):
    options = {"kernel_size": space} if op == "lp_pool" else {"output_size": 1}
    both_ways(op, drawn((3, 24, *space)), options, ORDERS[order], math.prod(space))


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, math.inf])
@pytest.mark.parametrize("size", [3, (12, 10)])
def test_exponents(p, size):
    x = drawn((2, 8, 12, 10))
    x += np.where(x < 0, -1, 1).astype(x.dtype)
    both_ways("lp_pool", x, {"kernel_size": size, "p": p}, reduction=400)


@pytest.mark.parametrize("side", [63, 95, 127, 157])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_planes_of_odd_extent(side, dtype):
    both_ways("max_pool", drawn((1, 3, side, side), dtype), {"kernel_size": 5})
    both_ways("avg_pool", drawn((1, 3, side, side), dtype), {"kernel_size": 5, "padding": 2})


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, (2, 3), (7, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
def test_windows_and_strides(window, stride):
    for op in ("max_pool", "avg_pool"):
        for order in ("channels-first", "channels-last"):
            both_ways(op, drawn((2, 8, 19, 23)), {"kernel_size": window, "stride": stride}, ORDERS[order])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("op", ["max_pool_with_indices", "adaptive_max_pool_with_indices"])
def test_ties_and_nan_are_those_of_the_cpu_engine(op, order, dtype):
    rng = np.random.default_rng(5)
    x = rng.integers(-2, 2, (2, 8, 12, 12)).astype(dtype)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[rng.random(x.shape) < 0.1] = -0.0
    x[rng.random(x.shape) < 0.05] = np.inf
    x[0, :, :6] = -np.inf
    windows = [
        _OPTIONS,
        {"kernel_size": 3, "padding": 1, "stride": 1},
        {"kernel_size": (2, 3), "stride": (1, 2)},
        {"kernel_size": 2},
        {"kernel_size": 5, "stride": 3, "padding": 2},
        {"kernel_size": 12},
    ]
    for options in windows if op.startswith("max") else [{"output_size": 5}, {"output_size": 1}]:
        y, indices = call(op, (in_order(x, ORDERS[order]),), options)
        expected = call(op, (x,), options)
        np.testing.assert_array_equal(as_float64(cupy.asnumpy(y)), as_float64(expected.y))
        np.testing.assert_array_equal(cupy.asnumpy(indices), expected.indices)
        grad = rng.integers(1, 9, y.shape).astype(dtype)
        backward = f"{op}_backward"
        wanted = call(backward, (grad, x), options)
        there = in_order(x, ORDERS[order])
        for saved in (None, indices, indices.astype(np.int32)):
            got = call(backward, (in_order(grad, ORDERS[order]), there), options | {"indices": saved})
            np.testing.assert_array_equal(cupy.asnumpy(got), wanted)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_integers(dtype):
    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min, info.max, (2, 16, 9, 11), dtype, endpoint=True)
    for order in ORDERS.values():
        np.testing.assert_array_equal(
            cupy.asnumpy(dnn.max_pool(in_order(x, order), **_OPTIONS)), dnn.max_pool(x, **_OPTIONS)
        )


def test_unaligned_memory():
    whole = cupy.asarray(drawn(2 * 8 * 9 * 8 + 1, np.float16))
    x = whole[1:].reshape(2, 9, 8, 8)
    host = cupy.asnumpy(x)
    for op in ("max_pool", "avg_pool"):
        actual = call(op, (x,), _OPTIONS | {"layout": "channels_last"})
        assert_close(
            cupy.asnumpy(actual), call(op, (host.astype(np.float64),), _OPTIONS | {"layout": "channels_last"}), 9
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("space", [(9, 32), (12, 24), (7, 7), (1, 16), (17, 40)])
def test_vectors_along_the_row_and_across_it(space, order, dtype):
    x = drawn((2, 8, *space), dtype)
    for window, stride, padding in (
        (3, 2, 1),
        (3, 1, 1),
        (2, 2, 0),
        (2, 1, 1),
        (3, 3, 1),
        (1, 2, 0),
        (3, 2, ((0, 1), (2, 0))),
    ):
        if min(space) + 2 * (padding if isinstance(padding, int) else 0) < window:
            continue
        for op in ("max_pool_with_indices", "avg_pool", "lp_pool"):
            options = {"kernel_size": window, "stride": stride, "padding": padding, "ceil_mode": stride > 1}
            both_ways(op, x, options, ORDERS[order])


@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("size", [3, 8, (9, 40)])
@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e25])
def test_norms_at_the_ends_of_the_range(scale, size, order):
    x = (drawn((2, 8, 9, 40)) * scale).astype(np.float32)
    both_ways("lp_pool", x, {"kernel_size": size}, ORDERS[order], reduction=360)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16, np.float64], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("p", [0.5, 1, 2, 3])
@pytest.mark.parametrize(("size", "stride", "padding"), [(3, 2, 1), (3, 1, 1), (2, 2, 0), (5, 2, 2), (16, 1, 0)])
def test_gradient_of_norms_that_are_no_numbers(size, stride, padding, p, order, dtype):
    x = no_numbers((2, 16, 16, 16)).astype(dtype)
    options = {"kernel_size": size, "stride": stride, "padding": padding, "p": p}
    grad = drawn(dnn.lp_pool(x, **options).shape, dtype)
    dx = dnn.lp_pool_backward(in_order(grad, ORDERS[order]), in_order(x, ORDERS[order]), **options)
    expected = dnn.lp_pool_backward(as_float64(grad), as_float64(x), **options)
    assert_close(cupy.asnumpy(dx), expected, 64)


@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("size", [3, 5])
def test_a_norm_beyond_the_range_of_numbers_is_infinite_to_its_gradient(size, order):
    x = np.full((1, 8, 10, 8), np.finfo(np.float32).max, np.float32)
    grad = np.ones(dnn.lp_pool(x, size).shape, np.float32)
    dx = dnn.lp_pool_backward(in_order(grad, ORDERS[order]), in_order(x, ORDERS[order]), size)
    np.testing.assert_array_equal(cupy.asnumpy(dx), 0 * x)


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("op", ["max_pool_with_indices", "avg_pool", "lp_pool"])
def test_a_large_batch_is_many_small_ones(op, order, dtype):
    # Large problems share the work among threads in another way.
    x = in_order(drawn((70, 64, 112, 112), dtype), ORDERS[order])
    grad = in_order(drawn((70, 64, 56, 56), dtype, 1), ORDERS[order])
    backward = f"{find(op).base}_backward"
    large = (*leaves_of(call(op, (x,), _OPTIONS)), call(backward, (grad, x), _OPTIONS))
    for i in (0, 41, 69):
        small = (
            *leaves_of(call(op, (x[i : i + 1],), _OPTIONS)),
            call(backward, (grad[i : i + 1], x[i : i + 1]), _OPTIONS),
        )
        for a, b in zip(large, small, strict=True):
            part, whole = (as_float64(cupy.asnumpy(r)) for r in (a[i : i + 1], b))
            # The compiler may fuse products and sums differently; a maximum is the same in any case.
            allowed = 0 if op.startswith("max") else (2.0**-7 if dtype == BFLOAT16 else 2.0**-22) * np.abs(whole).max()
            assert (np.abs(part - whole) <= allowed).all()


@pytest.mark.parametrize(
    "options", [_OPTIONS, {"kernel_size": 2}, {"kernel_size": 5, "stride": 2, "padding": 2}, {"kernel_size": (57, 59)}]
)
def test_gradients_have_the_same_bits_from_run_to_run(options):
    x = cupy.asarray(drawn((8, 32, 57, 59)))
    for op in ("max_pool", "avg_pool", "lp_pool"):
        grad = cupy.asarray(drawn(call(op, (x,), options).shape))
        first = call(f"{op}_backward", (grad, x), options)
        assert all((first == call(f"{op}_backward", (grad, x), options)).all() for _ in range(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_gradient_that_is_no_number_does_not_spoil_its_neighbours(stride, order, dtype):
    rng = np.random.default_rng(4)
    options = {"kernel_size": 3, "stride": stride, "padding": 1}
    x = drawn((2, 16, 13, 12), dtype)
    grad = rng.integers(-8, 9, dnn.max_pool(x, **options).shape).astype(dtype)
    grad[0, 3, 2, 1], grad[0, 9, 4, 5], grad[1, 15, 6, 0] = np.nan, np.inf, -np.inf
    dx = dnn.max_pool_backward(in_order(grad, ORDERS[order]), in_order(x, ORDERS[order]), **options)
    expected = dnn.max_pool_backward(grad, x, **options)
    np.testing.assert_array_equal(cupy.asnumpy(dx).astype(np.float32), expected.astype(np.float32))


def test_more_rows_than_a_grid_has():
    x = drawn((1, 70_000 * 16, 2, 1))
    np.testing.assert_array_equal(cupy.asnumpy(dnn.max_pool(cupy.asarray(x), (2, 1))), x.max(2, keepdims=True))


@pytest.mark.heavy
def test_more_than_two_to_the_31_elements():
    x = cupy.zeros((3, 1, 30_000, 30_000), np.int8)
    x[2, 0, 29_999, 29_998] = 7
    x[0, 0, 1, 1] = 5
    y, indices = dnn.max_pool_with_indices(x, 2)
    assert int(y[2, 0, -1, -1]) == 7
    assert int(indices[2, 0, -1, -1]) == 29_999 * 30_000 + 29_998
    assert int(y.astype(np.int32).sum()) == 12


@pytest.mark.heavy
@pytest.mark.parametrize("order", ["channels-first", "channels-last"])
def test_many_planes_of_more_than_two_to_the_31_elements(order):
    shape = (13_500, 4, 200, 200)
    x = cupy.random.default_rng(0).integers(-999, 999, 4 * 200 * 200 * 7).astype(np.float16)
    x = (
        cupy.resize(x, shape)
        if order == "channels-first"
        else cupy.resize(x, (13_500, 200, 200, 4)).transpose(0, 3, 1, 2)
    )
    y = dnn.max_pool(x, **_OPTIONS)
    dx = dnn.max_pool_backward(y, x, **_OPTIONS)
    for i in (0, 13_499):
        one = x[i : i + 1]
        assert bool((y[i : i + 1] == dnn.max_pool(one, **_OPTIONS)).all())
        assert bool((dx[i : i + 1] == dnn.max_pool_backward(y[i : i + 1], one, **_OPTIONS)).all())
