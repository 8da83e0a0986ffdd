"""Pullbacks: numbers for scalars, the options of the forward in any thread, pickling."""

import copy
import pickle
import threading

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import telemetry
from dnnarray._call.operation import operations
from dnnarray._options import current
from tests.registry import FIRST
from tests.support import flat

_X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
_TARGET = np.array([0, 3, 1])


def _in_thread(function, *arguments):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)))
    thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("namespace", ["numpy", "torch", "jax.numpy", "array_api_strict"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_gradient_of_a_scalar_may_be_a_number_or_left_out(namespace, dtype):
    make = pytest.importorskip(namespace, reason=f"{namespace} is not installed").asarray
    loss, pullback = dnn.vjp("cross_entropy", make(_X.astype(dtype)), make(_TARGET))
    expected, nothing = pullback(make(np.asarray(1, dtype)))
    assert nothing is None
    for gradient in (pullback()[0], pullback(1)[0], pullback(1.0)[0], pullback(np.float64(1.0))[0]):
        assert type(gradient) is type(expected)
        assert gradient.dtype == expected.dtype
        assert np.array_equal(np.asarray(gradient), np.asarray(expected))
    assert np.array_equal(np.asarray(pullback(-2.0)[0]), -2 * np.asarray(expected))
    assert loss.shape == ()


def test_a_loss_that_is_nan_still_has_a_gradient_of_one():
    loss, pullback = dnn.vjp("cross_entropy", np.full_like(_X, np.nan), _TARGET, weight=np.zeros(4, np.float32))
    assert np.isnan(loss)
    assert np.isnan(pullback()[0]).all() == np.isnan(pullback(np.ones((), np.float32))[0]).all()


def test_a_number_is_refused_where_the_output_has_axes():
    _, pullback = dnn.vjp("relu", _X)
    for grad in ((), (1.0,), (2,), ((1.0, None),)):
        with pytest.raises(
            dnn.ArrayTypeError,
            match=r"relu_backward: grad is the number .*; expected an array of the shape of the result",
        ):
            pullback(*grad)
    with pytest.raises(dnn.ArrayTypeError, match="grad is None"):
        pullback(None)


def test_the_first_of_several_results_may_be_the_scalar():
    x, w = _X, np.linspace(0, 1, 20, dtype=np.float32).reshape(5, 4)
    loss, pullback = dnn.vjp("linear_cross_entropy", x, w, _TARGET)
    for got, expected in zip(flat(pullback()), flat(pullback(np.ones_like(loss))), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_options_of_the_forward_are_in_force_in_any_thread():
    x, w = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    with dnn.options(telemetry=True, workspace_limit=11_000, deterministic=True) as inside:
        y, pullback = dnn.vjp("conv", x, w)
    assert pullback.settings is inside
    telemetry.reset()
    _in_thread(pullback, y)
    with dnn.options(workspace_limit="1GB"):
        pullback(y)
    (record,) = telemetry.snapshot().values()
    telemetry.reset()
    assert record["calls"] == 2
    assert record["workspace_bytes"] <= 11_000 < dnn.infer("conv_backward", y, x, w).workspace


def test_the_options_at_the_pullback_do_not_count_and_stay():
    _, pullback = dnn.vjp("relu", _X)
    with dnn.options(check_finite=True) as inside:
        assert np.isnan(pullback(np.full_like(_X, np.nan))[0]).any()
        assert current() is inside
        _, strict = dnn.vjp("relu", _X)
    with pytest.raises(FloatingPointError):
        strict(np.full_like(_X, np.nan))
    with pytest.raises(FloatingPointError):
        strict(np.full_like(_X, np.nan))
    assert not current().check_finite


def test_numerics_of_the_forward_hold_in_another_thread():
    """Whichever algorithm a precision chooses here, the thread chooses the same."""
    x, w = (np.random.default_rng(i).standard_normal((96, 96)).astype(np.float32) for i in range(2))
    with dnn.options(float32_precision="medium", deterministic=True):
        y, pullback = dnn.vjp("linear", x, w)
        expected = dnn.linear_backward(y, x, w)
    for got, one in zip(_in_thread(pullback, y), expected[:2], strict=True):
        np.testing.assert_array_equal(got, one)


@pytest.mark.parametrize("case", [c for c in FIRST if c.gradient and "_backward" not in c.op], ids=str)
def test_pullbacks_pickle_with_their_arrays(case):
    arrays = case.draw()
    y, pullback = dnn.vjp(case.op, *arrays, **case.options)
    grads = (
        tuple(np.ones_like(r) if i == 0 else None for i, r in enumerate(y)) if isinstance(y, tuple) else np.ones_like(y)
    )
    expected = flat(pullback(grads))
    for copied in (pickle.loads(pickle.dumps(pullback)), copy.copy(pullback), copy.deepcopy(pullback)):
        for got, one in zip(flat(copied(grads)), expected, strict=True):
            np.testing.assert_array_equal(got, one)
    assert repr(pullback) == f"<pullback of {case.op}>"


def test_a_pickled_pullback_brings_its_options():
    with dnn.options(deterministic=True, threads=1) as inside:
        _, pullback = dnn.vjp("relu", _X)
    assert pickle.loads(pickle.dumps(pullback)).settings is inside


def test_a_gradient_takes_the_arrays_of_the_forward_in_their_order_and_then_what_was_saved():
    known = operations()
    for name, operation in known.items():
        backward = known.get(f"{operation.base}_backward")
        if backward is not None:
            count = len(operation.arrays)
            assert backward.arrays[: 1 + count] == ("grad", *operation.arrays), name
            assert operation.save or len(backward.arrays) == 1 + count, name


def test_arguments_of_one_form_may_differ_from_call_to_call():
    x = np.ones((2, 4, 3), np.float32)
    for groups in (1, 2, 4, 2):
        y, pullback = dnn.vjp("group_norm", x, groups)
        np.testing.assert_array_equal(y, dnn.group_norm(x, groups))
        assert len(pullback(y)) == 1
    for name in ("eps", "epsilon"):
        for _ in range(2):
            if name == "eps":
                dnn.vjp("group_norm", x, 2, eps=1e-3)
            else:
                with pytest.raises(TypeError, match="unknown or repeated argument 'epsilon'"):
                    dnn.vjp("group_norm", x, 2, epsilon=1e-3)
    for _ in range(2):
        with pytest.raises(TypeError, match="missing num_groups"):
            dnn.vjp("group_norm", x)
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'seed'"):
            dnn.vjp("dropout", x)


def test_the_algorithm_that_is_named_is_that_of_the_forward_and_of_the_gradient_where_it_has_one():
    x, w = np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
    with dnn.options(telemetry=True):
        telemetry.reset()
        for _ in range(2):
            y, pullback = dnn.vjp("conv", x, w, algorithm="direct")
            pullback(y)
            dnn.grad(lambda w: dnn.conv(x, w, algorithm="direct").sum())(w)
        records = telemetry.snapshot()
    telemetry.reset()
    assert {name: list(r["algorithms"]) for name, r in records.items()} == {
        "conv": ["direct"],
        "conv_backward": ["direct"],
    }
    with pytest.raises(dnn.OptionError, match="algorithm"):
        dnn.vjp("conv", x, w, algorithm="nothing of this name")
    for _ in range(2):
        with pytest.raises(TypeError, match="algorithm"):
            dnn.vjp("relu6", x, algorithm="direct")
