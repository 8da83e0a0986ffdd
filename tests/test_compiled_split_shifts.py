"""Convolution on the matrix unit without im2col, beside float64: windows, strides and layouts, numbers that the pieces
cannot hold, any number of threads."""

import threading

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu import matrix_unit
from dnnarray._cpu.compiled import compiler
from tests import guarded
from tests.oracles import conv as oracles
from tests.support import DTYPES, assert_close

_REASON = compiler.missing() or matrix_unit.missing()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
_CASES = {
    "rows of 7": ((3, 5, 7, 7), (7, 5, 3, 3), {"padding": 1}),
    "rows of 17, stride": ((1, 3, 17, 19), (13, 3, 3, 5), {"padding": (1, 2), "stride": 2}),
    "whole blocks": ((2, 64, 28, 32), (32, 64, 3, 3), {"padding": 1}),
    "whole blocks, stride": ((2, 64, 28, 32), (64, 64, 3, 3), {"padding": 1, "stride": 2}),
    "no padding": ((3, 4, 9, 11), (6, 4, 3, 3), {}),
    "padding on one side": ((2, 33, 12, 17), (17, 33, 2, 5), {"padding": ((0, 2), (3, 1))}),
    "padding wider than the window": ((1, 3, 5, 6), (4, 3, 2, 2), {"padding": 5}),
    "dilation": ((1, 31, 13, 19), (16, 31, 3, 3), {"dilation": 3}),
    "dilation beside stride": ((2, 4, 15, 17), (33, 4, 3, 2), {"padding": 2, "stride": (2, 3), "dilation": (3, 2)}),
    "one pixel": ((2, 37, 5, 3), (19, 37, 1, 1), {}),
    "one pixel, stride": ((2, 37, 9, 13), (19, 37, 1, 1), {"stride": 2}),
    "stride wider than the window": ((1, 9, 11, 13), (17, 9, 2, 1), {"stride": 3}),
    "rows of 13 at steps of 4": ((1, 5, 12, 53), (9, 5, 3, 3), {"stride": (1, 4), "padding": 1}),
    "one axis": ((2, 3, 67), (5, 3, 3), {}),
    "one long axis": ((2, 40, 1201), (65, 40, 5), {"padding": 2, "stride": 2}),
    "three axes": ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), {"padding": 1}),
    "three axes, strides": (
        (1, 33, 6, 7, 9),
        (20, 33, 3, 2, 3),
        {"padding": 1, "stride": (1, 2, 3), "dilation": (1, 1, 2)},
    ),
    "three axes, deep stride": (
        (1, 33, 6, 7, 9),
        (20, 33, 3, 2, 3),
        {"padding": 2, "stride": (2, 1, 1), "dilation": (2, 1, 1)},
    ),
    "many channels": ((1, 129, 14, 14), (130, 129, 3, 3), {"padding": 1}),
    "several blocks": ((1, 3, 101, 113), (19, 3, 3, 3), {}),
    "groups of 2": ((2, 8, 9, 21), (12, 2, 3, 3), {"groups": 4, "padding": 1}),
    "groups of 16": ((2, 64, 14, 14), (64, 16, 3, 3), {"groups": 4, "padding": 1}),
    "groups of 40, stride": ((1, 80, 13, 15), (34, 40, 3, 3), {"groups": 2, "padding": 1, "stride": 2}),
    "first layer": ((2, 3, 37, 61), (70, 3, 7, 7), {"padding": 3, "stride": 2}),
    "eight channels, wide windows": ((2, 8, 12, 33), (17, 8, 2, 9), {"padding": (0, 4)}),
    "four channels, deep": ((1, 4, 5, 9, 40), (5, 4, 3, 2, 5), {"padding": 1, "stride": (2, 1, 1)}),
    "true convolution": ((2, 34, 9, 21), (18, 34, 3, 2), {"padding": 1, "flip": True}),
}


def _drawn(*shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(s, dtype=np.float32) for s in shapes]


def _given(name, layout):
    """Gradient of the output, image, weight and options of a case."""
    x, window, options = _CASES[name]
    grad = dnn.infer("conv", dnn.Spec(x, "float32"), dnn.Spec(window, "float32"), **options).output.shape
    drawn = _drawn(grad, x, window)
    if layout == "channels_last":
        drawn = [np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in drawn]
    return *drawn, options | {"layout": layout}


def _terms(weight, outputs):
    return weight.size // outputs


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", _CASES)
def test_convolutions_and_gradients(name, layout):
    grad, x, weight, options = _given(name, layout)
    channel = 1 if layout == "channels_first" else -1
    bias, residual = _drawn((weight.shape[0],), grad.shape)
    for given in ((x, weight), (x, weight, bias)):
        more = {"residual": residual, "activation": "relu"} if len(given) == 3 else {}
        y = dnn.conv(*given, **options, **more, algorithm="split_shifted")
        assert_close(
            y, oracles.conv(*(a.astype(np.float64) for a in given), **options, **more), _terms(weight, weight.shape[0])
        )
    wide = grad.astype(np.float64), weight.astype(np.float64)
    dx = dnn.conv_backward_input(grad, weight, input_shape=x.shape, **options, algorithm="split_shifted")
    assert_close(
        dx, oracles.conv_backward_input(*wide, input_shape=x.shape, **options), _terms(weight, weight.shape[channel])
    )
    got = dnn.conv_backward(grad, x, weight, bias, **options, algorithm="split_shifted")
    assert got.x.tobytes() == dx.tobytes()
    exact = oracles.conv_backward_weight(wide[0], x.astype(np.float64), weight_shape=weight.shape, **options)
    assert_close(got.weight, exact, grad.size // weight.shape[0])


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize(
    ("shape", "window", "options"),
    [
        ((2, 33, 7, 9), (33, 20, 4, 4), {"stride": 2, "padding": 1}),
        ((1, 16, 40), (16, 5, 3), {"stride": 3, "output_padding": 1}),
        ((2, 5, 6, 7), (5, 17, 3, 3), {"dilation": 2, "padding": 1}),
    ],
)
def test_transposed_convolutions(shape, window, options, layout):
    x, weight, bias = _drawn(shape, window, (window[1],))
    if layout == "channels_last":
        x, weight = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, weight))
    options = options | {"layout": layout}
    y = dnn.conv_transpose(x, weight, bias, **options, algorithm="split_shifted")
    exact = oracles.conv_transpose(*(a.astype(np.float64) for a in (x, weight, bias)), **options)
    assert_close(y, exact, weight.size // window[1])


@pytest.mark.parametrize("at_end", [True, False], ids=["end", "start"])
@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
@pytest.mark.parametrize("name", _CASES)
def test_they_stay_within_their_arrays(name, layout, at_end):
    grad, x, weight, options = _given(name, layout)
    placed = [guarded.like(a, at_end) for a in (grad, x, weight)]
    calls = (
        (dnn.conv, (1, 2), {}),
        (dnn.conv_backward_input, (0, 2), {"input_shape": x.shape}),
    )
    for function, which, more in calls:
        expected = function(*((grad, x, weight)[i] for i in which), **options, **more, algorithm="gemm")
        out = guarded.like(np.full_like(expected, np.nan), at_end)
        function(*(placed[i] for i in which), **options, **more, algorithm="split_shifted", out=out)
        np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["whole blocks, stride", "rows of 17, stride", "one long axis", "three axes"])
def test_any_number_of_threads_gives_the_same_bits(name):
    grad, x, weight, options = _given(name, "channels_first")

    def results():
        y = dnn.conv(x, weight, **options, algorithm="split_shifted")
        return (
            y.tobytes()
            + dnn.conv_backward_input(grad, weight, input_shape=x.shape, **options, algorithm="split_shifted").tobytes()
        )

    found = set()
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            found.add(results())
    own = [threading.Thread(target=lambda: found.add(results())) for _ in range(4)]
    for thread in own:
        thread.start()
    for thread in own:
        thread.join()
    assert len(found) == 1


@pytest.mark.parametrize("lying", ["strided", "backwards", "turned", "unaligned"])
def test_arrays_that_lie_otherwise(lying):
    x, weight = _drawn((2, 33, 9, 21), (18, 33, 3, 3))
    lay = {
        "strided": lambda a: np.repeat(np.repeat(a, 2, axis=-1), 2, axis=1)[:, ::2, :, ::2],
        "backwards": lambda a: a[:, ::-1, ::-1, ::-1].copy()[:, ::-1, ::-1, ::-1],
        "turned": lambda a: np.ascontiguousarray(a.transpose(3, 0, 2, 1)).transpose(1, 3, 2, 0),
        "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
    }[lying]
    exact = oracles.conv(x.astype(np.float64), weight.astype(np.float64), padding=1, stride=2)
    out = np.full((2, 11, 5, 36), np.nan, np.float32).transpose(0, 3, 2, 1)[:, ::2]
    for given in ((lay(x), weight), (x, lay(weight)), (lay(x), lay(weight))):
        assert dnn.conv(*given, padding=1, stride=2, algorithm="split_shifted", out=out) is out
        assert_close(out, exact, 33 * 9)


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, -np.inf, float(np.finfo(np.float32).max), 1e-40, 2.0**-104, 1e-25, 0.0]
)
@pytest.mark.parametrize("name", ["rows of 7", "whole blocks, stride", "one pixel, stride"])
def test_numbers_that_pieces_do_not_hold(name, value):
    grad, x, weight, options = _given(name, "channels_first")
    calls = (
        (dnn.conv, oracles.conv, x, {}),
        (dnn.conv_backward_input, oracles.conv_backward_input, grad, {"input_shape": x.shape}),
    )
    for function, oracle, image, more in calls:
        for array, place in ((image, (-1, 0, 2, 3)), (image, (0,)), (weight, (0, -1)), (weight, (-1, 0, 0, 0))):
            kept = array.copy()
            array[place] = value
            with np.errstate(all="ignore"):
                got, ordinary = (
                    function(image, weight, **options, **more, algorithm=a) for a in ("split_shifted", "direct")
                )
                exact = oracle(image.astype(np.float64), weight.astype(np.float64), **options, **more)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(ordinary))
            np.testing.assert_array_equal(np.isinf(got), np.isinf(ordinary))
            finite = np.isfinite(ordinary)
            assert_close(got[finite], exact[finite], _terms(weight, 1))
            array[...] = kept


def test_images_of_small_numbers_keep_their_digits():
    x, weight = _drawn((2, 5, 9, 11), (7, 5, 3, 3))
    for power in (-140, -120, -103, -95, -60, -52):
        small = x * np.float32(2.0**power)
        got = dnn.conv(small, weight, padding=1, algorithm="split_shifted")
        exact = oracles.conv(small.astype(np.float64), weight.astype(np.float64), padding=1)
        np.testing.assert_allclose(got, exact, rtol=0, atol=45 * (2.0**-149 + 2.0**-24 * np.abs(exact).max()))


@pytest.mark.parametrize("depth", [16, 64, 512])
def test_sums_round_no_more_than_those_of_the_other_algorithms(depth):
    x, weight = _drawn((1, depth, 14, 14), (48, depth, 3, 3))
    exact = oracles.conv(x.astype(np.float64), weight.astype(np.float64), padding=1)
    own, other = (
        np.sqrt(np.square(dnn.conv(x, weight, padding=1, algorithm=a) - exact).mean())
        for a in ("split_shifted", "channel_lanes")
    )
    assert own <= other


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_half_types_arrive_widened(dtype):
    x, weight = (a.astype(dtype) for a in _drawn((2, 33, 9, 21), (18, 33, 3, 3)))
    y = dnn.conv(x, weight, padding=1, algorithm="split_shifted")
    assert y.dtype == dtype
    assert_close(y, oracles.conv(x.astype(np.float64), weight.astype(np.float64), padding=1), 33 * 9)


def test_what_it_refuses_and_what_it_needs():
    x, weight = _drawn((2, 4, 9, 21), (18, 2, 3, 3))
    with pytest.raises(dnn.UnsupportedError, match="float64: the matrix unit multiplies float32 in pieces"):
        dnn.conv(x.astype(np.float64), weight[:, :1].repeat(4, 1).astype(np.float64), algorithm="split_shifted")
    weight = weight.repeat(2, 1)
    for options in ({}, {"stride": 2, "padding": 1}):
        y = dnn.conv(x, weight, **options, algorithm="split_shifted")
        needed = dnn.infer("conv", x, weight, **options, algorithm="split_shifted").workspace
        memory = np.full(needed + 64, 7, np.uint8)
        again = dnn.conv(x, weight, **options, algorithm="split_shifted", workspace=memory[:needed])
        assert again.tobytes() == y.tobytes()
        assert (memory[needed:] == 7).all()
        with pytest.raises(dnn.WorkspaceError):
            dnn.conv(x, weight, **options, algorithm="split_shifted", workspace=memory[: needed - 1])


def test_nothing_to_do():
    for x, weight in (((0, 3, 9, 9), (4, 3, 3, 3)), ((2, 0, 9, 9), (4, 0, 3, 3)), ((2, 3, 9, 9), (0, 3, 3, 3))):
        given = _drawn(x, weight)
        y = dnn.conv(*given, padding=1, algorithm="split_shifted")
        assert y.shape == (x[0], weight[0], 9, 9)
        assert not y.any()
        dx = dnn.conv_backward_input(np.ones_like(y), given[1], input_shape=x, padding=1, algorithm="split_shifted")
        assert dx.shape == x
        assert not dx.any() or weight[0]
