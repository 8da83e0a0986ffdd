"""Compiled convolution and attention: nothing is read or written beyond an array, any number of threads gives the same
bits."""

import threading

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu.compiled import compiler
from tests import guarded

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")


_CONVOLUTIONS = {
    "rows of 7": ((2, 5, 7, 7), (7, 5, 3, 3), {"padding": 1}),
    "rows of 17, stride": ((1, 3, 17, 19), (13, 3, 3, 5), {"padding": (1, 2), "stride": 2}),
    "no padding": ((3, 4, 9, 11), (6, 4, 3, 3), {}),
    "dilation": ((1, 4, 13, 13), (6, 4, 3, 3), {"dilation": 3}),
    "one pixel": ((2, 37, 5, 3), (19, 37, 1, 1), {}),
    "one pixel, many channels": ((3, 700, 7, 9), (35, 700, 1, 1), {}),
    "one pixel, rows": ((2, 45, 301), (21, 45, 1), {}),
    "depthwise": ((2, 6, 23, 23), (6, 1, 5, 5), {"groups": 6, "padding": 2}),
    "depthwise, strips": ((2, 3, 41, 37), (6, 1, 9, 4), {"groups": 3, "padding": (4, 1)}),
    "depthwise, strips of many vectors": ((1, 2, 7, 70), (2, 1, 4, 31), {"groups": 2, "padding": (0, 15)}),
    "depthwise, fewer rows than a strip": ((1, 2, 5, 40), (2, 1, 5, 5), {"groups": 2, "padding": (1, 2)}),
    "grouped": ((2, 8, 14, 14), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    "one axis": ((2, 3, 67), (5, 3, 3), {}),
    "three axes": ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), {"padding": 1}),
    "several tiles of channels": ((1, 5, 9, 11), (70, 5, 3, 3), {"padding": 1}),
    "tiles of several vectors": ((3, 9, 30, 34), (20, 9, 3, 3), {"padding": 1}),
    "images beyond the caches": ((1, 3, 301, 353), (19, 3, 3, 3), {}),
    "long rows": ((1, 3, 5, 451), (20, 3, 3, 3), {"padding": 1, "stride": 2}),
    "pixels that no tap meets": ((1, 9, 11, 13), (17, 9, 2, 1), {"stride": 3}),
    "stride beside dilation": ((2, 4, 15, 17), (33, 4, 3, 2), {"padding": 2, "stride": (2, 3), "dilation": (3, 2)}),
}


_GRADIENTS = {
    "planes of whole tiles": ((2, 3, 64, 64), (3, 1, 3, 3), {"groups": 3, "padding": 1}),
    "planes with a stride": ((2, 3, 5, 9, 33), (3, 1, 3, 3, 3), {"groups": 3, "padding": 1, "stride": 2}),
    "volumes with a stride": ((1, 5, 7, 9, 21), (6, 5, 3, 3, 3), {"padding": 1, "stride": 2}),
    "many channels": ((2, 40, 17, 19), (13, 40, 3, 3), {"padding": 1, "stride": 2}),
    "first layer": ((2, 3, 37, 41), (8, 3, 7, 7), {"padding": 3, "stride": 2}),
    "first layer, many outputs": ((3, 3, 41, 83), (70, 3, 7, 7), {"padding": 3, "stride": 2}),
    "wide images": ((3, 5, 11, 301), (33, 5, 3, 3), {"padding": (2, 0)}),
    "many outputs of groups": (
        (2, 6, 21, 19),
        (66, 3, 5, 3),
        {"groups": 2, "padding": 1, "stride": (1, 3), "dilation": (2, 1)},
    ),
    "tiles of many images": ((7, 19, 9, 10), (35, 19, 3, 3), {"padding": 1}),
    "tiles wider than an image": ((2, 40, 2, 3), (17, 40, 3, 3), {"padding": 2}),
}


def _drawn(shapes, dtype="float32"):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s).astype(dtype) for s in shapes]


_WINOGRAD = ("rows of 7", "no padding", "grouped", "tiles of several vectors")  # what F(4x4, 3x3) takes
_CORRELATIONS = [(name, algorithm) for algorithm in ("shifted", "channel_lanes") for name in _CONVOLUTIONS] + [
    (name, "winograd_4x4") for name in _WINOGRAD
]


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "algorithm"), _CORRELATIONS)
def test_convolution_stays_within_its_arrays(name, algorithm, dtype, at_end):
    *shapes, options = _CONVOLUTIONS[name]
    x, weight = _drawn(shapes, dtype)
    expected = dnn.conv(x, weight, **options, algorithm="gemm")
    out = guarded.like(np.zeros_like(expected), at_end)
    dnn.conv(guarded.like(x, at_end), guarded.like(weight, at_end), **options, algorithm=algorithm, out=out)
    _assert_near(out, expected)


def _assert_near(found, expected):
    tolerance = 1e-5 if found.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


_NINE = {
    "a vector": ((1, 2, 5, 16), 1, {"padding": 1}),
    "rows of 17, two of each channel": ((2, 3, 9, 17), 2, {"padding": 1}),
    "one row": ((1, 2, 1, 33), 1, {"padding": 1}),
    "three rows": ((1, 2, 3, 40), 1, {"padding": 1}),
    "blocks of rows": ((1, 1, 301, 257), 1, {"padding": 1}),
    "no padding": ((2, 3, 7, 35), 1, {}),
    "padding of rows": ((1, 2, 6, 19), 1, {"padding": (2, 0)}),
    "padding of columns": ((1, 2, 6, 19), 1, {"padding": (0, 1)}),
    "wide padding": ((1, 2, 6, 19), 1, {"padding": 2}),
    "padding on one side": ((1, 2, 6, 33), 1, {"padding": ((0, 1), (1, 0))}),
    "padding on the other side": ((1, 2, 6, 33), 1, {"padding": ((1, 0), (0, 1))}),
}


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", _NINE)
def test_depthwise_windows_of_nine_stay_within_their_arrays(name, layout, dtype, at_end):
    shape, multiplier, options = _NINE[name]
    options = options | {"groups": shape[1], "layout": layout}
    x, weight = _drawn((shape, (multiplier * shape[1], 1, 3, 3)), dtype)
    if layout == "channels_last":
        x, weight = (np.ascontiguousarray(a.transpose(0, 2, 3, 1)) for a in (x, weight))
    expected = dnn.conv(x.astype(np.float64), weight.astype(np.float64), **options, algorithm="gemm").astype(dtype)
    out = guarded.like(np.zeros_like(expected), at_end)
    for threads in (1, 2, 8):
        with dnn.options(threads=threads):
            dnn.conv(guarded.like(x, at_end), guarded.like(weight, at_end), **options, algorithm="shifted", out=out)
        _assert_near(out, expected)


@pytest.mark.parametrize("window", [(4, 4), (5, 7), (31, 31)], ids=str)
def test_infinity_and_nan_meet_their_windows_alone_in_strips(window):
    x, weight = _drawn(((1, 2, 40, 45), (2, 1, *window)))
    x[0, 0, 20, 13], x[0, 1, 7, 30] = np.inf, np.nan
    options = {"groups": 2, "padding": (window[0] // 2, window[1] // 2)}
    found, expected = (dnn.conv(x, weight, **options, algorithm=a) for a in ("shifted", "direct"))
    assert 0 < np.isfinite(expected).sum() < expected.size
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    inside = np.isfinite(expected)
    _assert_near(found[inside], expected[inside])


def test_zeros_beside_the_image_meet_infinite_weights_of_nine():
    x, weight = _drawn(((1, 2, 6, 33), (2, 1, 3, 3)))
    weight[1, 0, 0, 2] = weight[0, 0, 2, 1] = np.inf
    found, expected = (dnn.conv(x, weight, padding=1, groups=2, algorithm=a) for a in ("shifted", "direct"))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    assert np.isnan(found[0, 1, :, -1]).all()
    assert np.isnan(found[0, 0, -1]).all()


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", [*_CONVOLUTIONS, *_GRADIENTS])
def test_gradients_of_weight_and_input_stay_within_their_arrays(name, layout, dtype, at_end):
    x, window, options = (_CONVOLUTIONS | _GRADIENTS)[name]
    grad = dnn.infer("conv", dnn.Spec(x, dtype), dnn.Spec(window, dtype), **options).output.shape
    drawn = _drawn((grad, x, window), dtype)
    if layout == "channels_last":
        drawn = [np.moveaxis(a, 1, -1).copy() for a in drawn]
    grad, x, weight = drawn
    options = options | {"layout": layout}
    placed = [guarded.like(a, at_end) for a in (grad, x, weight)]
    for function, other, target, algorithm in (
        (dnn.conv_backward_weight, 1, "weight_shape", "shifted"),
        (dnn.conv_backward_weight, 1, "weight_shape", "winograd_4x4"),
        (dnn.conv_backward_input, 2, "input_shape", "shifted"),
        (dnn.conv_backward_input, 2, "input_shape", "channel_lanes"),
    ):
        options_of = options | {target: drawn[3 - other].shape}
        if algorithm == "winograd_4x4" and not (
            window[2:] == (3, 3) and options.keys() <= {"padding", "groups", "layout"}
        ):
            continue
        expected = function(grad, drawn[other], **options_of, algorithm="gemm")
        out = guarded.like(np.zeros_like(expected), at_end)
        function(placed[0], placed[other], **options_of, algorithm=algorithm, out=out)
        _assert_near(out, expected)


def _added_one_by_one(x, weight):
    """The convolution in float32, one product after the other."""
    _, channels, *window = weight.shape
    height, width = (n - r + 1 for n, r in zip(x.shape[2:], window, strict=True))
    total = np.zeros((x.shape[0], weight.shape[0], height, width), np.float32)
    for c, r, s in np.ndindex(channels, *window):
        total += x[:, None, c, r : r + height, s : s + width] * weight[None, :, c, r, s, None, None]
    return total


@pytest.mark.parametrize("channels", [12, 16, 64])
def test_winograd_is_as_exact_as_a_sequential_sum(channels):
    """Its class is "highest": the largest float32 error stays within four times that of adding up one product after the
    other."""
    x, weight = _drawn(((2, channels, 21, 22), (channels, channels, 3, 3)))
    exact = dnn.conv(x.astype(np.float64), weight.astype(np.float64), algorithm="gemm")
    most = 4 * np.abs(_added_one_by_one(x, weight) - exact).max()
    assert np.abs(dnn.conv(x, weight, algorithm="winograd_4x4") - exact).max() <= most
    turned = weight[:, :, ::-1, ::-1].swapaxes(0, 1)  # the same sums as a gradient
    found = dnn.conv_backward_input(x, turned, input_shape=(2, channels, 19, 20), padding=2, algorithm="winograd_4x4")
    assert np.abs(found - exact).max() <= most


@pytest.mark.parametrize("channels", [1, 5, 11])
def test_winograd_of_few_channels_is_left_out_at_the_highest_precision(channels):
    """A short sum is more exact than the transforms."""
    x, weight = _drawn(((1, channels, 9, 9), (16, channels, 3, 3)))
    grad = _drawn(((1, 16, 7, 7),))[0]
    dnn.conv(x, weight, algorithm="winograd_4x4")  # who names it has decided
    dnn.conv_backward_input(grad, weight, input_shape=x.shape, algorithm="winograd_4x4")
    assert "winograd_4x4" not in _named("conv", x, weight)
    assert "winograd_4x4" in _named(
        "conv_backward_input", grad, weight, input_shape=x.shape
    )  # which sums over the outputs
    assert "winograd_4x4" in _named("conv", x.astype(np.float64), weight.astype(np.float64))
    with dnn.options(float32_precision="high"):
        assert "winograd_4x4" in _named("conv", x, weight)


def _named(op, *arrays, **options):
    return [a.name for a in dnn.algorithms(op, *arrays, **options)]


def _rms(found, exact):
    return np.sqrt(np.mean(np.square(found - exact)) / np.mean(np.square(exact)))


@pytest.mark.parametrize(
    ("shape", "window", "options", "algorithm", "most"),
    [
        ((2, 8, 40, 40), (8, 4, 3, 3), {"groups": 2, "padding": 1}, "shifted", 0.8e-7),
        ((1, 16, 1000), (128, 16, 3), {"padding": 1}, "shifted", 1.3e-7),
        ((2, 1024, 14, 14), (64, 1024, 1, 1), {}, "shifted", 1.7e-7),
        ((1, 16, 30, 30), (96, 16, 3, 3), {"padding": 1}, "channel_lanes", 1.5e-7),
        ((1, 32, 27, 27), (256, 32, 1, 1), {}, "channel_lanes", 1.4e-7),
    ],
)
def test_gradients_add_up_short_chains(shape, window, options, algorithm, most):
    """One chain of 36, 384, 864 and 256 terms would round by 1.1, 3.5, 5 and 2.9e-7 of the result."""
    x, weight = _drawn((shape, window))
    grad = _drawn((dnn.infer("conv", x, weight, **options).output.shape,))[0]
    double = [a.astype(np.float64) for a in (grad, x, weight)]
    exact = dnn.conv_backward_input(double[0], double[2], input_shape=shape, **options, algorithm="gemm")
    found = dnn.conv_backward_input(grad, weight, input_shape=shape, **options, algorithm=algorithm)
    assert _rms(found, exact) < most
    exact = dnn.conv_backward_weight(*double[:2], weight_shape=window, **options, algorithm="gemm")
    assert _rms(dnn.conv_backward_weight(grad, x, weight_shape=window, **options, algorithm="shifted"), exact) < 2.2e-7


def test_gradients_of_large_depthwise_windows_add_up_short_chains():
    """One chain for each lane would round by 2.7e-7 of the result with AVX-512, more with shorter vectors."""
    x, grad = _drawn(((4, 5, 56, 56), (4, 5, 56, 56)))
    options = {"weight_shape": (5, 1, 11, 11), "groups": 5, "padding": 5}
    exact = dnn.conv_backward_weight(grad.astype(np.float64), x.astype(np.float64), **options, algorithm="direct")
    assert _rms(dnn.conv_backward_weight(grad, x, **options, algorithm="shifted"), exact) < 2e-7


def test_strided_views_and_read_only_arrays_go_by_channel_lanes():
    x, weight = _drawn(((4, 7, 26, 30), (12, 6, 5, 3)))
    x, weight = x[::2, :6, ::2, 28::-1], weight[:, :, ::2]
    x.flags.writeable = weight.flags.writeable = False
    options = {"stride": (1, 2)}
    found, expected = (dnn.conv(x, weight, **options, algorithm=a) for a in ("channel_lanes", "gemm"))
    _assert_near(found, expected)
    grad = _drawn((expected.shape,))[0]
    found, expected = (
        dnn.conv_backward_input(grad, weight, input_shape=x.shape, **options, algorithm=a)
        for a in ("channel_lanes", "gemm")
    )
    _assert_near(found, expected)


def test_sums_of_channel_lanes_are_no_less_exact_than_sequential_ones():
    """Passes of a few hundred products, added up one after the other."""
    x, weight = _drawn(((1, 200, 9, 10), (24, 200, 3, 3)))
    exact = dnn.conv(x.astype(np.float64), weight.astype(np.float64), algorithm="gemm")
    sequential = _added_one_by_one(x, weight)
    found = dnn.conv(x, weight, algorithm="channel_lanes")
    assert np.abs(found - exact).max() <= np.abs(sequential - exact).max()


@pytest.mark.parametrize("algorithm", ["winograd_4x4", "channel_lanes"])
def test_what_is_not_finite_stays_in_its_windows(algorithm):
    x, weight = _drawn(((2, 5, 13, 14), (6, 5, 3, 3)))
    x[1, 2, 7, 7] = np.nan
    found = dnn.conv(x, weight, padding=1, algorithm=algorithm)
    touched = np.zeros(found.shape, bool)
    touched[1, :, 6:9, 6:9] = True
    np.testing.assert_array_equal(np.isnan(found), touched)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("queries", [1, 5, 33])
def test_attention_stays_within_its_arrays(queries, at_end):
    dnn.warmup("attention", progress=False)
    q, k, v = _drawn(((1, 4, queries, 13), (1, 2, 41, 13), (1, 2, 41, 7)))
    out = guarded.like(np.zeros((1, 4, queries, 7), np.float32), at_end)
    dnn.attention(*(guarded.like(a, at_end) for a in (q, k, v)), causal=True, out=out)
    expected = dnn.attention(*(a.astype(np.float64) for a in (q, k, v)), causal=True)
    np.testing.assert_allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize(("width", "values"), [(13, 7), (37, 70)])  # a last tile of one vector, of two or of three
@pytest.mark.parametrize("queries", [1, 5, 77])
def test_gradients_of_attention_stay_within_their_arrays(queries, width, values, at_end):
    dnn.warmup("attention_backward", dtypes=["float32"], progress=False)
    grad, q, k, v = _drawn(((1, 4, queries, values), (1, 4, queries, width), (1, 2, 101, width), (1, 2, 101, values)))
    expected = dnn.attention_backward(*(a.astype(np.float64) for a in (grad, q, k, v)), causal=True)
    out = tuple(guarded.like(np.zeros_like(a), at_end) for a in (q, k, v))
    with dnn.options(threads=1):
        alone = dnn.attention_backward(grad, q, k, v, causal=True)
    dnn.attention_backward(*(guarded.like(a, at_end) for a in (grad, q, k, v)), causal=True, out=(*out, None, None))
    for found, single, exact in zip(out, alone, expected, strict=False):
        _assert_near(found, exact)
        np.testing.assert_array_equal(found, single)


def test_one_query_rounds_little():
    """A log-sum-exp in float32 is off by up to 5e-7 here, and so would all weights be; one chain of 4096 values gives
    11e-7."""
    dnn.warmup("attention", dtypes=["float32"], progress=False)
    dnn.warmup("attention_backward", dtypes=["float32"], progress=False)
    q, k, v, grad = _drawn(((1, 8, 1, 64), (1, 8, 4096, 64), (1, 8, 4096, 64), (1, 8, 1, 64)))
    double = [a.astype(np.float64) for a in (grad, q, k, v)]
    y, lse = dnn.attention(q, k, v, return_lse=True)
    exact, exact_lse = dnn.attention(*double[1:], return_lse=True)
    assert _rms(y, exact) < 4e-7
    assert (np.abs(lse - exact_lse) < 0.6 * np.spacing(lse)).all()
    expected = dnn.attention_backward(*double)
    for found in (
        dnn.attention_backward(grad, q, k, v, output=y, lse=lse),
        dnn.attention_backward(grad, q, k, v),
    ):
        assert _rms(found.k, expected.k) < 2.2e-7
        assert _rms(found.v, expected.v) < 2.2e-7
        assert _rms(found.q, expected.q) < 5e-7


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [(name, algorithm) for algorithm in ("shifted", "channel_lanes") for name in ("rows of 7", "grouped", "three axes")]
    + [("rows of 7", "winograd_4x4"), ("one pixel, many channels", "shifted")],
)
def test_threads_do_not_change_a_bit_of_a_convolution(name, algorithm):
    *shapes, options = _CONVOLUTIONS[name]
    shapes = [(8, *shapes[0][1:]), shapes[1]]
    x, weight = _drawn(shapes)
    results = []
    for threads in (1, 2, 8):
        with dnn.options(threads=threads):
            results.append(dnn.conv(x, weight, **options, algorithm=algorithm))
    assert all(np.array_equal(results[0], r) for r in results[1:])


def test_callers_on_several_threads_do_not_meet():
    x, weight = _drawn(((8, 16, 28, 28), (24, 16, 3, 3)))
    expected, found = dnn.conv(x, weight, padding=1, algorithm="shifted"), []

    def call():
        found.extend(np.array_equal(dnn.conv(x, weight, padding=1, algorithm="shifted"), expected) for _ in range(10))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert found == [True] * 40


def test_the_tile_follows_the_target():
    tile = pytest.importorskip("dnnarray._cpu.compiled.tile")
    assert [
        tile.vector_bytes(f) for f in ("+sse2,+avx,+avx512f", "+sse2,+avx2,+avx", "+sse2", "+neon", "-avx512f,+avx")
    ] == [
        64,
        32,
        16,
        16,
        32,
    ]
    assert tile.shape_of(32, "+sse2,+avx") == (6, 2)
    assert tile.shape_of(64, "+sse2,+avx512f") == tile.shape_of(16, "+neon") == (8, 3)
