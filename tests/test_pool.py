"""Pooling: errors, NaN and infinity, drawn shapes and options, memory order, comparison with PyTorch."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray._call.dispatch import dispatch
from dnnarray._call.operation import find
from dnnarray._cpu import threads
from dnnarray._cpu.pool import forms as pool_forms
from tests.oracles.pool import ORACLES
from tests.support import assert_close, call_by, candidates

_X = np.arange(24.0).reshape(1, 2, 3, 4)
_MAXIMA = ("max_pool", "max_pool_with_indices")
_WINDOWED = (*_MAXIMA, "avg_pool", "lp_pool")
_ADAPTIVE = ("adaptive_avg_pool", "adaptive_max_pool", "adaptive_max_pool_with_indices")
NAN, INF = math.nan, math.inf


def _call(op, *arrays, **options):
    return getattr(dnn, op)(*arrays, **options)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", _WINDOWED)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel_size": 0}, "kernel_size is 0; expected an integer of 1 or more"),
        ({"kernel_size": (2, 2, 2)}, r"kernel_size is \(2, 2, 2\); expected an integer or 2 of them"),
        ({"kernel_size": 2.0}, "kernel_size is 2.0; expected an integer"),
        ({"kernel_size": True}, "kernel_size is True; expected an integer"),
        ({"kernel_size": 2, "stride": 0}, "stride is 0; expected an integer of 1 or more"),
        ({"kernel_size": 2, "stride": (1,)}, r"stride is \(1,\); expected an integer or 2 of them"),
        ({"kernel_size": 2, "dilation": 0}, "dilation is 0; expected an integer of 1 or more"),
        ({"kernel_size": 2, "padding": -1}, "padding is -1; expected an integer of 0 or more"),
        (
            {"kernel_size": 2, "padding": 2},
            r"padding is \(2, 2\); expected at most 1, the extent of the window less one",
        ),
        ({"kernel_size": 3, "padding": ((0, 0), (0, 3))}, r"padding is \(0, 3\); expected at most 2"),
        ({"kernel_size": 2, "dilation": 2, "padding": 3}, r"padding is \(3, 3\); expected at most 2"),
        (
            {"kernel_size": 2, "padding": (1, 1, 1)},
            r"padding is \(1, 1, 1\); expected an integer, one per spatial axis",
        ),
        ({"kernel_size": 2, "padding": "full"}, "padding is 'full'; expected one of 'valid', 'same', 'same_lower'"),
        ({"kernel_size": 2, "ceil_mode": 1}, "ceil_mode is 1; expected True or False"),
        ({"kernel_size": 2, "layout": "NCHW"}, "layout is 'NCHW'; expected one of 'channels_first', 'channels_last'"),
    ],
)
def test_wrong_options(op, options, message):
    with pytest.raises(dnn.OptionError, match=f"^{op}: {message}"):
        _call(op, _X, **options)


@pytest.mark.parametrize("op", _WINDOWED)
def test_wrong_shapes(op):
    with pytest.raises(
        dnn.ShapeError, match=rf"^{op}: x is 2-dimensional \(3, 4\); expected 3 or 4 or 5 dimensions \(N C"
    ):
        _call(op, _X[0, 0], kernel_size=2)
    with pytest.raises(dnn.ShapeError, match=f"^{op}: x is 6-dimensional"):
        _call(op, np.zeros((1,) * 6), kernel_size=2)
    with pytest.raises(
        dnn.ShapeError, match=f"^{op}: x is 3 long on a spatial axis, 3 with its padding; expected at least 4"
    ):
        _call(op, _X, kernel_size=4)
    with pytest.raises(
        dnn.ShapeError, match=f"^{op}: x is 3 long on a spatial axis, 3 with its padding; expected at least 7"
    ):
        _call(op, _X, kernel_size=7, stride=2, ceil_mode=True)
    with pytest.raises(
        dnn.ShapeError, match=rf"^{op}: x is of shape \(1, 2, 0, 4\); expected spatial extents of 1 or more in N C H W"
    ):
        _call(op, np.zeros((1, 2, 0, 4)), kernel_size=2)


@pytest.mark.parametrize("op", ("avg_pool", "lp_pool"))
def test_integers_are_for_the_maximum_only(op):
    with pytest.raises(dnn.DTypeError, match=f"^{op}: x is int64; expected float64, float32, float16 or bfloat16"):
        _call(op, _X.astype(np.int64), kernel_size=2)


@pytest.mark.parametrize("op", _MAXIMA)
@pytest.mark.parametrize("dtype", [np.bool_, np.complex64])
def test_maximum_of_what_has_no_order(op, dtype):
    with pytest.raises(
        dnn.DTypeError, match=f"^{op}: x is {np.dtype(dtype).name}; expected float64, .* or an integer dtype"
    ):
        _call(op, _X.astype(dtype), kernel_size=2)


@pytest.mark.parametrize("p", [0, -1.0, NAN, "2", True])
def test_wrong_exponent(p):
    with pytest.raises(dnn.OptionError, match=r"^lp_pool: p is .*; expected a number above 0"):
        dnn.lp_pool(_X, 2, p=p)


def test_wrong_count_include_pad():
    with pytest.raises(dnn.OptionError, match=r"^avg_pool: count_include_pad is 0; expected True or False"):
        dnn.avg_pool(_X, 2, count_include_pad=0)


@pytest.mark.parametrize("op", _ADAPTIVE)
def test_adaptive_errors(op):
    for size, message in (
        (-1, "output_size is -1; expected an integer of 0 or more"),
        ((2,), r"output_size is \(2,\); expected an integer or 2 of them"),
        (None, "output_size is None; expected an integer"),
        ((1.5, 2), "output_size is 1.5; expected an integer"),
    ):
        with pytest.raises(dnn.OptionError, match=f"^{op}: {message}"):
            _call(op, _X, output_size=size)
    with pytest.raises(dnn.ShapeError, match=f"^{op}: x is of shape .* expected spatial extents of 1 or more"):
        _call(op, np.zeros((1, 2, 3, 0)), output_size=1)
    with pytest.raises(dnn.DTypeError, match=f"^{op}: x is int64"):
        _call(op, _X.astype(np.int64), output_size=1)
    with pytest.raises(dnn.OptionError, match=f"^{op}: layout is None"):
        _call(op, _X, output_size=1, layout=None)


def test_unpool_errors():
    x, indices = np.zeros((1, 1, 2)), np.array([[[0, 3]]])
    with pytest.raises(
        dnn.ShapeError, match=r"^max_unpool: indices is of shape \(1, 2\); expected \(1, 1, 2\) \(N C W\)"
    ):
        dnn.max_unpool(x, indices[0], 4)
    with pytest.raises(dnn.DTypeError, match=r"^max_unpool: indices is float64; expected an integer dtype"):
        dnn.max_unpool(x, indices.astype(float), 4)
    with pytest.raises(dnn.DTypeError, match=r"^max_unpool: x is int64"):
        dnn.max_unpool(x.astype(np.int64), indices, 4)
    with pytest.raises(
        dnn.OptionError, match=r"^max_unpool: indices is from 0 to 3; expected flat spatial positions from 0 to 2"
    ):
        dnn.max_unpool(x, indices, 3)
    with pytest.raises(
        dnn.OptionError, match=r"^max_unpool_backward: indices is from -1 to 3; expected flat spatial positions from 0"
    ):
        dnn.max_unpool_backward(np.zeros((1, 1, 4)), x, np.array([[[-1, 3]]]), 4)
    with pytest.raises(dnn.OptionError, match=r"^max_unpool: output_size is None; expected an integer"):
        dnn.max_unpool(x, indices, (None,))
    with pytest.raises(dnn.ShapeError, match=r"^max_unpool_backward: grad is of shape"):
        dnn.max_unpool_backward(np.zeros((1, 1, 5)), x, indices, 4)


@pytest.mark.parametrize("op", _WINDOWED)
def test_gradient_must_match_the_output(op):
    backward = f"{op}_backward"
    with pytest.raises(dnn.ShapeError, match=rf"^{backward}: grad is of shape \(1, 2, 3, 4\); expected \(1, 2, 1, 2\)"):
        _call(backward, _X, _X, kernel_size=2)
    with pytest.raises(dnn.DTypeError, match=f"^{backward}: grad is float32; expected float64"):
        _call(backward, np.zeros((1, 2, 1, 2), np.float32), _X, kernel_size=2)
    with pytest.raises(dnn.DTypeError, match=f"^{backward}: x is int64"):
        _call(backward, np.zeros((1, 2, 1, 2), np.int64), _X.astype(np.int64), kernel_size=2)


@pytest.mark.parametrize("op", _MAXIMA)
def test_saved_indices_are_checked(op):
    backward, grad = f"{op}_backward", np.zeros((1, 2, 1, 2))
    with pytest.raises(dnn.ShapeError, match=rf"^{backward}: indices is of shape \(1, 2, 2\)"):
        _call(backward, grad, _X, kernel_size=2, indices=np.zeros((1, 2, 2), np.int64))
    with pytest.raises(dnn.DTypeError, match=f"^{backward}: indices is float64; expected an integer dtype"):
        _call(backward, grad, _X, kernel_size=2, indices=grad)
    with pytest.raises(
        dnn.OptionError, match=f"^{backward}: indices is from 12 to 12; expected flat spatial positions from -1 to 11"
    ):
        _call(backward, grad, _X, kernel_size=2, indices=np.full(grad.shape, 12))


@pytest.mark.parametrize("dtype", (np.int64, np.int32, np.uint64))
@pytest.mark.parametrize("count", (1, 2, 8))
@pytest.mark.parametrize("op", ("max_pool_backward", "max_pool_with_indices_backward"))
def test_every_algorithm_checks_saved_indices_before_it_writes(monkeypatch, op, count, dtype):
    monkeypatch.setattr(threads, "GRAIN", 1)
    x, grad, options = np.ones((3, 5, 7, 9)), np.ones((3, 5, 3, 4)), {"kernel_size": 2}
    right = np.zeros(grad.shape, dtype)
    for wrong in (63, -2 if dtype != np.uint64 else 2**64 - 1):
        indices, dx = right.copy(), np.full(x.shape, 7.0)
        indices[2, 4, 2, 3] = dtype(wrong)
        named = options | {"indices": indices}
        for algorithm in candidates(op, (grad, x), named):
            bound, chosen = find(op).bind((grad, x), named)
            static = tuple(chosen[n] for n in find(op).static)
            with (
                dnn.options(threads=count),
                pytest.raises(dnn.OptionError, match=f"^{op}: indices is from .* expected flat spatial"),
            ):
                dispatch(find(op), bound, static, (), dx, None, algorithm)
        np.testing.assert_array_equal(dx, 7)
    for algorithm in candidates(op, (grad, x), options | {"indices": right}):
        with dnn.options(threads=count):
            got = call_by(algorithm, op, (grad, x), options | {"indices": right})
        assert (got[..., 0, 0] == 12).all()
        assert got.sum() == grad.size


def test_ranked_names_check_the_rank():
    np.testing.assert_array_equal(dnn.max_pool2d(_X, 2), dnn.max_pool(_X, 2))
    np.testing.assert_array_equal(dnn.max_unpool1d(_X[0, :, :1], np.array([[[3, 2, 1, 0]]] * 2), 4), _X[0, :, :1, ::-1])
    with pytest.raises(dnn.ShapeError, match=r"^max_pool1d: x is 4-dimensional .*; expected 3 dimensions"):
        dnn.max_pool1d(_X, 2)
    with pytest.raises(dnn.ShapeError, match=r"^adaptive_avg_pool3d: x is 4-dimensional .*; expected 5 dimensions"):
        dnn.adaptive_avg_pool3d(_X, 2)


# --- special numbers --------------------------------------------------------------------------------------------------


def test_ties_go_to_the_first():
    x = np.array([[[[2.0, 3.0, 3.0], [3.0, 1.0, 3.0]]]])
    y, indices = dnn.max_pool_with_indices(x, (2, 3))
    assert (y.item(), indices.item()) == (3.0, 1)
    np.testing.assert_array_equal(
        dnn.max_pool_backward(np.full((1, 1, 1, 1), 5.0), x, (2, 3)), [[[[0, 5, 0], [0, 0, 0]]]]
    )
    assert dnn.adaptive_max_pool_with_indices(x, 1).indices.item() == 1
    assert dnn.max_pool_with_indices(x[:, :, ::-1], (1, 3)).indices.ravel().tolist() == [0, 4]


@pytest.mark.parametrize("window", [(2, 2), (2, 5), (2, 9), (2, 12)])  # by taps, and by windows
def test_nan_wins_and_the_last_one_is_named(window):
    x = np.array([[[[1.0, NAN, 2.0, NAN, 0.0] + [3.0] * 7, [NAN, 0.0, 5.0, 1.0, 9.0] + [2.0] * 7]]])
    y, indices = dnn.max_pool_with_indices(x, window, stride=1)
    expected = ORACLES["max_pool_with_indices"](x, kernel_size=window, stride=1)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_array_equal(dnn.max_pool(x, window, stride=1), y)
    assert np.isnan(dnn.adaptive_max_pool(x, 1)).all()
    assert dnn.adaptive_max_pool_with_indices(x, 1).indices.item() == 12


@pytest.mark.parametrize("op", ["avg_pool", "lp_pool", "max_pool"])
def test_nan_and_infinity_stay_in_their_windows(op):
    x = np.ones((1, 1, 8))
    x[..., 1], x[..., 5], x[..., 7] = INF, NAN, -INF
    y = _call(op, x, kernel_size=2).ravel()
    assert y[0] == INF
    assert y[1] == _call(op, np.ones((1, 1, 2)), kernel_size=2).item()
    assert np.isnan(y[2])
    assert y[3] == {"avg_pool": -INF, "lp_pool": INF, "max_pool": 1.0}[op]


def test_infinity_stays_local_in_adaptive_means():
    x = np.ones((1, 2, 5, 7))
    x[0, 0, 0, 0] = INF
    for size in (1, (2, 3), (5, 7), (9, 8)):
        y = dnn.adaptive_avg_pool(x, size)
        expected = ORACLES["adaptive_avg_pool"](x, output_size=size)
        np.testing.assert_array_equal(y, expected)
    gradient = dnn.adaptive_avg_pool_backward(np.full((1, 1, 2), INF), np.ones((1, 1, 4)), 2)
    np.testing.assert_array_equal(gradient, np.full((1, 1, 4), INF))


def test_maximum_of_minus_infinity_is_found():
    y, indices = dnn.max_pool_with_indices(np.full((1, 1, 3, 3), -INF), 3, padding=1)
    assert (y == -INF).all()
    np.testing.assert_array_equal(indices, [[[[0]]]])


def test_a_window_without_elements():
    x = np.array([[[3.0]]])
    options = {"kernel_size": 2, "stride": 1, "dilation": 3, "padding": 2}
    y, indices = dnn.max_pool_with_indices(x, **options)
    np.testing.assert_array_equal(y, [[[-INF, -INF]]])
    np.testing.assert_array_equal(indices, [[[-1, -1]]])
    for kept in (None, indices):
        np.testing.assert_array_equal(dnn.max_pool_backward(np.ones((1, 1, 2)), x, indices=kept, **options), [[[0.0]]])
    least = dnn.max_pool(np.array([[[3]]], np.int16), **options)
    np.testing.assert_array_equal(least, [[[-(2**15), -(2**15)]]])
    np.testing.assert_array_equal(dnn.avg_pool(x, count_include_pad=False, **options), [[[0.0, 0.0]]])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_integers(dtype):
    x = np.random.default_rng(0).integers(0, 100, (2, 3, 6, 7)).astype(dtype)
    y, indices = dnn.max_pool_with_indices(x, 3, stride=2, padding=1)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, ORACLES["max_pool"](x.astype(np.float64), kernel_size=3, stride=2, padding=1))
    np.testing.assert_array_equal(
        np.take_along_axis(x.reshape(2, 3, -1), indices.reshape(2, 3, -1), -1), y.reshape(2, 3, -1)
    )


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("p", [1.5, 2, 5, 30.0])
def test_norms_neither_overflow_nor_vanish(dtype, p):
    info = np.finfo(dtype)
    for size in (float(info.max) / 8, float(info.tiny) * 8):
        x = np.full((1, 1, 4), size, dtype)
        np.testing.assert_allclose(dnn.lp_pool(x, 4, p=p), [[[size * 4 ** (1 / p)]]], rtol=1e-5)
        gradient = dnn.lp_pool_backward(np.ones((1, 1, 1), dtype), x, 4, p=p)
        np.testing.assert_allclose(gradient, np.full((1, 1, 4), 4 ** (1 / p - 1)), rtol=1e-5)


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, INF])
def test_norm_of_zeros(p):
    x = np.zeros((1, 1, 4))
    np.testing.assert_array_equal(dnn.lp_pool(x, 2, p=p), [[[0.0, 0.0]]])
    np.testing.assert_array_equal(dnn.lp_pool_backward(np.ones((1, 1, 2)), x, 2, p=p), x)


def _norm_gradient(grad, x, kernel_size, stride, p):
    """The sum of grad sign(x) (|x| / y)^(p - 1) over the windows of each element, in IEEE arithmetic; 0 where x is and
    p is below 1."""
    dx = np.zeros_like(x)
    for place in np.ndindex(grad.shape):
        window = place[:2] + tuple(
            slice(i * s, i * s + k) for i, s, k in zip(place[2:], stride, kernel_size, strict=True)
        )
        part = x[window]
        with np.errstate(all="ignore"):
            norm = (np.abs(part) ** p).sum() ** (1 / p)
            slope = (np.abs(part) / (norm if norm else 1)) ** (p - 1)
            dx[window] += np.where((part == 0) & (p < 1), 0, grad[place] * np.sign(part) * slope)
    return dx


def no_numbers(shape, seed=4):
    """Few elements that are infinite, NaN or 0 among many that are not."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)
    x[rng.random(shape) < 0.2] = 0
    for value in (INF, -INF, NAN):
        x[rng.random(shape) < 0.02] = value
    return x


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3])
@pytest.mark.parametrize(
    ("kernel_size", "stride"),
    [((3, 3), (2, 2)), ((2, 3), (1, 1)), ((2, 2), (2, 2)), ((1, 4), (1, 2)), ((9, 8), (1, 1))],
)
def test_gradient_of_norms_that_are_no_numbers(kernel_size, stride, p):
    covered = tuple((n - k) // s * s + k for n, k, s in zip((9, 8), kernel_size, stride, strict=True))
    x = no_numbers((2, 3, *covered))
    options = {"kernel_size": kernel_size, "stride": stride, "p": p}
    grad = np.random.default_rng(1).standard_normal(dnn.lp_pool(x, **options).shape)
    expected = _norm_gradient(grad, x, kernel_size, stride, p)
    assert 0 < np.isnan(expected).sum() < expected.size
    for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 1e-5)):
        dx = dnn.lp_pool_backward(grad.astype(dtype), x.astype(dtype), **options)
        np.testing.assert_allclose(dx, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_a_norm_beyond_the_range_of_numbers_is_infinite_to_its_gradient(p):
    x = np.full((1, 1, 3, 3), np.finfo(np.float32).max, np.float32)
    assert np.isinf(dnn.lp_pool(x, 3, p=p)).all()
    np.testing.assert_array_equal(dnn.lp_pool_backward(np.ones((1, 1, 1, 1), np.float32), x, 3, p=p), 0 * x)


# --- memory, saved indices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", _WINDOWED)
def test_channels_last_memory_keeps_its_order(op):
    last = np.random.default_rng(0).standard_normal((2, 9, 8, 5))
    x = np.moveaxis(last, -1, 1)
    results = _call(op, x, kernel_size=3, stride=2, padding=1)
    expected = _call(op, last, kernel_size=3, stride=2, padding=1, layout="channels_last")
    for result, other in zip(
        results if isinstance(results, tuple) else [results],
        expected if isinstance(expected, tuple) else [expected],
        strict=True,
    ):
        assert np.moveaxis(result, 1, -1).flags.c_contiguous
        np.testing.assert_array_equal(np.moveaxis(result, 1, -1), other)
    head = results[0] if isinstance(results, tuple) else results
    gradient = _call(f"{op}_backward", head, x, kernel_size=3, stride=2, padding=1)
    assert np.moveaxis(gradient, 1, -1).flags.c_contiguous


@pytest.mark.parametrize("shape", [(3, 40, 60, 70), (40, 5, 64, 64), (1, 300, 50, 40)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_blocks_give_what_the_whole_gives(shape, channels_last):
    """Arrays larger than a block, against a plain sliding window view."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if channels_last:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2]
    np.testing.assert_array_equal(dnn.max_pool(x, 3, stride=2), windows.max((-2, -1)))
    np.testing.assert_allclose(dnn.avg_pool(x, 3, stride=2), windows.mean((-2, -1)), rtol=0, atol=1e-6)
    y, indices = dnn.max_pool_with_indices(x, 3, stride=2)
    flat = x.reshape(*shape[:2], -1)
    np.testing.assert_array_equal(np.take_along_axis(flat, indices.reshape(*shape[:2], -1), -1).reshape(y.shape), y)
    gradient = dnn.max_pool_backward(np.ones_like(y), x, 3, stride=2, indices=indices)
    np.testing.assert_array_equal(gradient, dnn.max_pool_backward(np.ones_like(y), x, 3, stride=2))
    assert gradient.sum() == y.size


def test_vjp_saves_the_indices(monkeypatch):
    from dnnarray._cpu import pool

    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6))
    for op, options in (("max_pool2d", {"kernel_size": 2}), ("adaptive_max_pool", {"output_size": 3})):
        output, pullback = dnn.vjp(op, x, **options)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "argmax_windows", None)  # a second search would fail
            (gradient,) = pullback(np.ones_like(output))
        np.testing.assert_array_equal(gradient != 0, np.isin(x, output))
    (y, _), pullback = dnn.vjp("max_pool_with_indices", x, kernel_size=2)
    np.testing.assert_array_equal(pullback((y, None))[0], np.where(np.isin(x, y), x, 0))
    with pytest.raises(dnn.UnsupportedError, match="only the first result has a gradient"):
        pullback((y, y))


def test_unpool_undoes_a_pool():
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 6)).astype(ml_dtypes.bfloat16)
    y, indices = dnn.max_pool_with_indices(x, 2)
    back = dnn.max_unpool(y, indices, (7, 6))
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(np.where(back != 0, x, 0), back)
    np.testing.assert_array_equal(dnn.max_pool(np.where(back != 0, back, -np.inf).astype(x.dtype), 2), y)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64])
def test_indices_of_any_integer_dtype(dtype):
    x = np.random.default_rng(0).standard_normal((2, 3, 6, 6))
    y, indices = dnn.max_pool_with_indices(x, 2)
    np.testing.assert_array_equal(dnn.max_unpool(y, indices.astype(dtype), 6), dnn.max_unpool(y, indices, 6))
    gradient = dnn.max_pool_backward(y, x, 2, indices=indices.astype(dtype))
    np.testing.assert_array_equal(gradient, dnn.max_pool_backward(y, x, 2))


def test_a_position_named_twice_holds_the_last():
    np.testing.assert_array_equal(
        dnn.max_unpool(np.array([[[1.0, 2.0]]]), np.array([[[1, 1]]]), 3), [[[0.0, 2.0, 0.0]]]
    )


# --- drawn shapes and options -----------------------------------------------------------------------------------------


@st.composite
def _drawn_windows(draw):
    """An input and options that fit it."""
    rank = draw(st.integers(1, 3))
    space = tuple(draw(st.integers(1, 7)) for _ in range(rank))
    layout = draw(st.sampled_from(["channels_first", "channels_last"]))
    shape = (draw(st.integers(0, 2)), *space, draw(st.integers(1, 2)))
    shape = shape if layout == "channels_last" else (shape[0], shape[-1], *space)
    window = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    covered = [(w - 1) * d + 1 for w, d in zip(window, dilation, strict=True)]
    pair = lambda c: draw(st.tuples(st.integers(0, c - 1), st.integers(0, c - 1)))  # noqa: E731
    padding = draw(st.sampled_from(["valid", "same", "same_lower", "pairs"]))
    padding = tuple(pair(c) for c in covered) if padding == "pairs" else padding
    stride = draw(st.one_of(st.none(), st.tuples(*(st.integers(1, 4) for _ in range(rank)))))
    options = {"kernel_size": window, "stride": stride, "padding": padding, "dilation": dilation, "layout": layout}
    options["ceil_mode"] = draw(st.booleans())
    x = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(-3, 4, shape).astype(np.float64)
    return x, options


@settings(max_examples=150, deadline=None)
@given(_drawn_windows(), st.sampled_from(["max_pool_with_indices", "avg_pool", "avg_pool_unpadded", "lp_pool"]))
def test_drawn_windows_agree_with_the_oracle(drawn, op):
    x, options = drawn
    if op == "avg_pool_unpadded":
        op, options = "avg_pool", options | {"count_include_pad": False}
    try:
        results = _call(op, x, **options)
    except dnn.ShapeError:
        reject()
    expected = ORACLES[op](x, **options)
    for got, want in zip(results, expected, strict=True) if isinstance(results, tuple) else [(results, expected)]:
        assert_close(got, want, 64, note=f"{op} {options}")


def _planes(array, layout):
    """All channels of all images as rows of their spatial positions."""
    array = array if layout == "channels_first" else np.moveaxis(array, -1, 1)
    return array.reshape(math.prod(array.shape[:2]), math.prod(array.shape[2:]))


@settings(max_examples=100, deadline=None)
@given(_drawn_windows(), st.sampled_from(["max_pool", "avg_pool"]))
def test_drawn_gradients_are_the_transpose(drawn, op):
    """Where the forward is linear (a mean, or a maximum with its choice kept), <grad, J dx> = <J' grad, dx>."""
    x, options = drawn
    try:
        y = _call(op, x, **options)
    except dnn.ShapeError:
        reject()
    rng = np.random.default_rng(0)
    grad, direction = rng.standard_normal(y.shape), rng.standard_normal(x.shape)
    gradient = _call(f"{op}_backward", grad, x, **options)
    if op == "avg_pool":
        moved = dnn.avg_pool(direction, **options)
    else:
        places = _planes(dnn.max_pool_with_indices(x, **options).indices, options["layout"])
        chosen = np.take_along_axis(_planes(direction, options["layout"]), np.maximum(places, 0), 1)
        moved, grad = np.where(places < 0, 0, chosen), _planes(grad, options["layout"])
    np.testing.assert_allclose((gradient * direction).sum(), (grad * moved).sum(), rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 14), st.integers(1, 14), st.booleans())
def test_drawn_adaptive_windows_agree_with_the_oracle(height, width, out_height, out_width, last):
    layout = "channels_last" if last else "channels_first"
    shape = (1, height, width, 2) if last else (1, 2, height, width)
    x = np.random.default_rng(height * 13 + width).integers(-3, 4, shape).astype(np.float64)
    options = {"output_size": (out_height, out_width), "layout": layout}
    assert_close(dnn.adaptive_avg_pool(x, **options), ORACLES["adaptive_avg_pool"](x, **options), 144)
    for got, want in zip(
        dnn.adaptive_max_pool_with_indices(x, **options),
        ORACLES["adaptive_max_pool_with_indices"](x, **options),
        strict=True,
    ):
        np.testing.assert_array_equal(got, want)
    grad = np.random.default_rng(0).standard_normal(dnn.adaptive_avg_pool(x, **options).shape)
    gradient = dnn.adaptive_avg_pool_backward(grad, x, **options)
    direction = np.random.default_rng(1).standard_normal(shape)
    np.testing.assert_allclose(
        (gradient * direction).sum(), (grad * dnn.adaptive_avg_pool(direction, **options)).sum(), atol=1e-10
    )
    np.testing.assert_allclose(dnn.adaptive_max_pool_backward(grad, x, **options).sum(), grad.sum(), atol=1e-10)


# --- PyTorch ----------------------------------------------------------------------------------------------------------

_TORCH_WINDOWS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1, "padding": 1},
    {"kernel_size": 2, "stride": 3, "padding": 1, "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
    {"kernel_size": 4, "stride": 5, "padding": 2, "ceil_mode": True},
]


def _same_with_gradient(ours, torch_function, x, **options):
    """Value and gradient of one input agree with PyTorch's; integer results exactly."""
    torch = pytest.importorskip("torch")
    name = ours.__name__
    tensor = torch.tensor(x, requires_grad=True)
    expected = torch_function(tensor)
    expected = expected if isinstance(expected, tuple) else (expected,)
    result, pullback = dnn.vjp(ours, x, **options)
    result = result if isinstance(result, tuple) else (result,)
    for got, want in zip(result, expected, strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12, atol=1e-14, err_msg=name)
    grad = np.random.default_rng(5).standard_normal(result[0].shape)
    expected[0].backward(torch.from_numpy(grad))
    np.testing.assert_allclose(pullback(grad)[0], tensor.grad.numpy(), rtol=1e-12, atol=1e-14, err_msg=name)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", _TORCH_WINDOWS, ids=str)
@pytest.mark.parametrize("extent", [6, 7, 8, 9])
def test_windows_agree_with_pytorch(rank, options, extent):
    functional = pytest.importorskip("torch.nn.functional")
    x = np.random.default_rng(rank).integers(-4, 5, (2, 3, *(extent, 7, 6)[:rank])).astype(np.float64)
    maximum, mean = getattr(functional, f"max_pool{rank}d"), getattr(functional, f"avg_pool{rank}d")
    _same_with_gradient(dnn.max_pool_with_indices, lambda t: maximum(t, **options, return_indices=True), x, **options)
    for padded in (True, False):
        more = options | {"count_include_pad": padded}
        _same_with_gradient(dnn.avg_pool, lambda t, more=more: mean(t, **more), x, **more)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_dilation_agrees_with_pytorch(rank):
    functional = pytest.importorskip("torch.nn.functional")
    x = np.random.default_rng(rank).standard_normal((2, 3, *(11, 9, 8)[:rank]))
    maximum = getattr(functional, f"max_pool{rank}d")
    for ceil_mode in (False, True):
        options = {"kernel_size": 3, "stride": 2, "dilation": 2, "padding": 1, "ceil_mode": ceil_mode}
        _same_with_gradient(
            dnn.max_pool_with_indices, lambda t, o=options: maximum(t, **o, return_indices=True), x, **options
        )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_norms_agree_with_pytorch(rank, p):
    functional = pytest.importorskip("torch.nn.functional")
    x = np.random.default_rng(rank).uniform(
        0.1, 2, (2, 3, *(7, 6, 5)[:rank])
    )  # PyTorch has no magnitude: positive numbers only
    norm = getattr(functional, f"lp_pool{rank}d")
    options = {"kernel_size": 3, "stride": 2}
    _same_with_gradient(dnn.lp_pool, lambda t: norm(t, p, **options), x, p=p, **options)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 9])
def test_adaptive_windows_agree_with_pytorch(rank, size):
    functional = pytest.importorskip("torch.nn.functional")
    x = np.random.default_rng(rank).integers(-4, 5, (2, 3, *(7, 6, 4)[:rank])).astype(np.float64)
    mean, maximum = getattr(functional, f"adaptive_avg_pool{rank}d"), getattr(functional, f"adaptive_max_pool{rank}d")
    _same_with_gradient(dnn.adaptive_avg_pool, lambda t: mean(t, size), x, output_size=size)
    _same_with_gradient(
        dnn.adaptive_max_pool_with_indices, lambda t: maximum(t, size, return_indices=True), x, output_size=size
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_unpool_agrees_with_pytorch(rank):
    torch = pytest.importorskip("torch")
    space = (6, 5, 4)[:rank]
    x, indices = dnn.max_pool_with_indices(np.random.default_rng(rank).standard_normal((2, 3, *space)), 2)
    unpool = getattr(torch.nn.functional, f"max_unpool{rank}d")
    tensor = torch.tensor(x, requires_grad=True)
    expected = unpool(tensor, torch.from_numpy(indices), 2, output_size=space)
    result, pullback = dnn.vjp("max_unpool", x, indices, output_size=space)
    np.testing.assert_array_equal(result, expected.detach().numpy())
    grad = np.random.default_rng(5).standard_normal(result.shape)
    expected.backward(torch.from_numpy(grad))
    gradient, nothing = pullback(grad)
    assert nothing is None
    np.testing.assert_array_equal(gradient, tensor.grad.numpy())


def test_nan_agrees_with_pytorch():
    functional = pytest.importorskip("torch.nn.functional")
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (2, 3, 9, 8)).astype(np.float64)
    x[rng.random(x.shape) < 0.2] = NAN
    x[rng.random(x.shape) < 0.2] = -INF
    x[rng.random(x.shape) < 0.1] = INF
    options = {"kernel_size": 3, "stride": 2, "padding": 1}
    _same_with_gradient(
        dnn.max_pool_with_indices, lambda t: functional.max_pool2d(t, **options, return_indices=True), x, **options
    )
    _same_with_gradient(dnn.avg_pool, lambda t: functional.avg_pool2d(t, **options), x, **options)
    _same_with_gradient(
        dnn.adaptive_max_pool, lambda t: functional.adaptive_max_pool2d(t, (4, 3)), x, output_size=(4, 3)
    )
    _same_with_gradient(
        dnn.adaptive_avg_pool, lambda t: functional.adaptive_avg_pool2d(t, (4, 3)), x, output_size=(4, 3)
    )


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "lp_pool"])
def test_a_window_far_longer_than_the_input_costs_no_more_than_one_that_covers_it(name):
    x = np.abs(np.random.default_rng(0).standard_normal((1, 2, 6, 5)))
    pool, options = getattr(dnn, name), {"count_include_pad": False} if name == "avg_pool" else {}
    far = pool(x, 2**31 - 1, stride=(2, 3), padding="same", **options)
    np.testing.assert_allclose(far, np.broadcast_to(pool(x, (6, 5), **options), (1, 2, 3, 2)), rtol=1e-12)


def test_an_average_over_far_more_padding_than_input():
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 5))
    mean = dnn.avg_pool(x, 2**31 - 1, stride=2, padding="same")
    np.testing.assert_allclose(mean[..., 0, 0], x.sum((2, 3)) / (2**31 - 1) ** 2, rtol=1e-12)


def test_indices_and_gradient_of_a_window_far_longer_than_the_input():
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 5))
    found = dnn.max_pool_with_indices(x, 2**31 - 1, stride=1, padding="same")
    assert (found.indices.reshape(2, -1) == x.reshape(2, -1).argmax(1)[:, None]).all()
    gradient = dnn.max_pool_backward(np.ones_like(x), x, 2**31 - 1, stride=1, padding="same").reshape(2, -1)
    np.testing.assert_array_equal(gradient.max(1), [30.0, 30.0])
    with pytest.raises(
        dnn.OptionError, match="max_pool: kernel_size is 2147483648; expected an integer of 2147483647 or less"
    ):
        dnn.max_pool(x, 2**31)


def test_the_longest_adaptive_window_without_listing_them():
    from dnnarray._problems.pool import AdaptiveAxis

    for extent in range(30):
        for outputs in range(30):
            axis = AdaptiveAxis(extent, outputs)
            assert axis.window == max((end - start for start, end in axis.bounds()), default=0)
    assert dnn.infer("adaptive_avg_pool", dnn.Spec((1, 1, 5), "float32"), output_size=10**9).output.shape == (
        1,
        1,
        10**9,
    )


@pytest.mark.parametrize(
    ("window", "stride", "padding"), [(3, 2, 1), (5, 2, 2), (4, 3, 1), (5, 4, 0), (7, 3, 3), (3, 2, 0)]
)
@pytest.mark.parametrize("extent", [11, 30])
def test_taps_from_copied_phases(window, stride, padding, extent):
    x = np.random.default_rng(0).standard_normal((2, 3, 7, extent))
    x[0, 0, 3, 2:5] = np.nan, np.inf, -np.inf
    x[0, 1, 2, -1], x[0, 2, 4, 0] = np.inf, np.nan  # nothing of it reaches the rows beside
    padded = np.pad(x, [(0, 0)] * 3 + [(padding, padding)], constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1)[..., ::stride, :]
    options = {"kernel_size": (1, window), "stride": (1, stride), "padding": (0, padding)}
    np.testing.assert_array_equal(dnn.max_pool(x, **options), windows.max(axis=-1))


def test_compiled_windows_have_a_largest_table():
    def reason(window):
        op = find("max_pool")
        arrays, chosen = op.bind((dnn.Spec((1, 2, 6, 5), "float32"),), {"kernel_size": window, "padding": "same"})
        return pool_forms.no_form(op.problem(arrays, {n: v for n, v in chosen.items() if n in op.static}), None)

    assert reason(1 << 10) is None
    assert reason((1 << 10) + 1) == "a window of more than 1048576 elements; it keeps a table of them"


@pytest.mark.parametrize("p", [0.5, 2, 4, 300])
def test_norm_of_one_element_is_its_magnitude(p):
    x = np.array([-INF, -1e-300, -0.0, 3.0, 1e300, np.nan]).reshape(1, 1, 6)
    np.testing.assert_array_equal(dnn.lp_pool(x, 1, p=p), np.abs(x))
    np.testing.assert_array_equal(dnn.lp_pool_backward(np.full_like(x, 2.0), x, 1, p=p), 2 * np.sign(x))
