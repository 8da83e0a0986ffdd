"""Norms: every wrong argument and the words of its error."""

import numpy as np
import pytest

import dnnarray as dnn
from tests.support import FLOAT16, FLOAT32

_X = np.random.default_rng(5).standard_normal((2, 6, 3, 2))
_ROWS = np.random.default_rng(6).standard_normal((4, 6))
_C = np.ones(6)

_CHANNEL_NORMS = {
    "batch_norm": lambda x, **o: dnn.batch_norm(x, _C, _C, **o),
    "batch_norm_train": dnn.batch_norm_train,
    "group_norm": lambda x, **o: dnn.group_norm(x, 2, **o),
    "instance_norm": dnn.instance_norm,
}
_LOCAL = {"local_response_norm": lambda x, **o: dnn.local_response_norm(x, 3, **o)}
_AXIS_NORMS = {
    "layer_norm": dnn.layer_norm,
    "rms_norm": dnn.rms_norm,
    "add_layer_norm": lambda x, **o: dnn.add_layer_norm(x, x, **o),
    "add_rms_norm": lambda x, **o: dnn.add_rms_norm(x, x, **o),
}
_ALL = _CHANNEL_NORMS | _LOCAL | _AXIS_NORMS


@pytest.mark.parametrize("name", _ALL)
def test_integers_are_refused(name):
    with pytest.raises(dnn.DTypeError, match=f"{name}: x is int64; expected float64"):
        _ALL[name](np.ones((2, 6, 3), np.int64))


@pytest.mark.parametrize("name", _CHANNEL_NORMS | _LOCAL)
def test_rank_and_layout_are_checked(name):
    norm = _ALL[name]
    with pytest.raises(dnn.ShapeError, match=f"{name}: x is 1-dimensional"):
        norm(np.ones(6))
    with pytest.raises(dnn.ShapeError, match=f"{name}: x is 6-dimensional"):
        norm(np.ones((1, 6, 1, 1, 1, 2)))
    with pytest.raises(
        dnn.OptionError, match=f"{name}: layout is 'NCHW'; expected one of 'channels_first', 'channels_last'"
    ):
        norm(_X, layout="NCHW")


@pytest.mark.parametrize("name", _CHANNEL_NORMS | _AXIS_NORMS)
@pytest.mark.parametrize("eps", [-1e-5, np.nan, np.inf, "small", True])
def test_eps_is_checked(name, eps):
    with pytest.raises(dnn.OptionError, match=f"{name}: eps is .*; expected a finite number of 0 or more"):
        _ALL[name](_X, eps=eps)


@pytest.mark.parametrize("name", _CHANNEL_NORMS)
def test_channel_parameters_are_checked(name):
    norm = _ALL[name]
    with pytest.raises(
        dnn.ShapeError, match=rf"{name}: weight is of shape \(5,\); expected \(6,\) \(one value per channel\)"
    ):
        norm(_X, weight=np.ones(5))
    with pytest.raises(dnn.ShapeError, match=rf"{name}: bias is of shape \(6, 1, 1\)"):
        norm(_X, bias=np.ones((6, 1, 1)))
    with pytest.raises(dnn.DTypeError, match=f"{name}: weight is float32; expected float64, the dtype of x"):
        norm(_X, weight=np.ones(6, np.float32))


@pytest.mark.parametrize("name", _AXIS_NORMS)
def test_axes_and_their_parameters_are_checked(name):
    norm = _ALL[name]
    for axis in (2, -3, (0, 0), (), 0.5, True):
        with pytest.raises(dnn.OptionError, match=f"{name}: axis is"):
            norm(_ROWS, axis=axis)
    with pytest.raises(
        dnn.ShapeError, match=rf"{name}: weight is of shape \(6,\); expected \(4,\) \(the extents of the normalised"
    ):
        norm(_ROWS, axis=0, weight=_C)
    with pytest.raises(dnn.DTypeError, match=f"{name}: weight is float16; expected float64"):
        norm(_ROWS, weight=_C.astype(np.float16))
    with pytest.raises(dnn.OptionError, match=f"{name}: axis"):
        norm(np.float64(1.0))


def test_parameters_of_a_half_array_are_half_or_float32():
    x = _X.astype(FLOAT16)
    for dtype in (FLOAT16, FLOAT32):
        assert dnn.group_norm(x, 2, _C.astype(dtype)).dtype == FLOAT16
    with pytest.raises(
        dnn.DTypeError, match="group_norm: weight is float64; expected float16, the dtype of x, or float32"
    ):
        dnn.group_norm(x, 2, _C)


def test_batch_norm_statistics_and_residual_are_checked():
    with pytest.raises(dnn.ShapeError, match=r"batch_norm: mean is of shape \(3,\); expected \(6,\)"):
        dnn.batch_norm(_X, np.ones(3), _C)
    with pytest.raises(dnn.ShapeError, match=r"batch_norm: variance is of shape \(2, 6\)"):
        dnn.batch_norm(_X, _C, np.ones((2, 6)))
    with pytest.raises(dnn.ShapeError, match=r"batch_norm: residual is of shape \(6, 3, 2\).*the shape of x"):
        dnn.batch_norm(_X, _C, _C, residual=_X[0])
    with pytest.raises(dnn.DTypeError, match="batch_norm_train: residual is float32; expected float64"):
        dnn.batch_norm_train(_X, residual=_X.astype(np.float32))
    with pytest.raises(dnn.OptionError, match="batch_norm: activation is 'nothing'"):
        dnn.batch_norm(_X, _C, _C, activation="nothing")
    with pytest.raises(dnn.ArrayTypeError, match="batch_norm: mean is None"):
        dnn.batch_norm(_X, None, _C)


def test_batch_norm_train_options_are_checked():
    with pytest.raises(dnn.ShapeError, match=r"batch_norm_train: running_var is of shape \(1,\)"):
        dnn.batch_norm_train(_X, running_var=np.ones(1))
    for momentum in (-0.1, 1.1, None):
        with pytest.raises(dnn.OptionError, match=r"batch_norm_train: momentum is .* from 0 to 1"):
            dnn.batch_norm_train(_X, momentum=momentum)
    with pytest.raises(dnn.UnsupportedError, match="batch_norm_train: group is 'world'; expected None"):
        dnn.batch_norm_train(_X, group="world")


@pytest.mark.parametrize("shape", [(1, 6), (1, 6, 1, 1)])
def test_one_value_per_channel_has_no_variance(shape):
    with pytest.raises(dnn.ShapeError, match=r"batch_norm_train: x is .*more than one value per channel"):
        dnn.batch_norm_train(np.ones(shape))
    with pytest.raises(dnn.ShapeError, match="batch_norm_train_backward: x"):
        dnn.batch_norm_train_backward(np.ones(shape), np.ones(shape))
    with pytest.raises(dnn.ShapeError, match=r"instance_norm: x is .*more than one value in space"):
        dnn.instance_norm(np.ones(shape))


def test_num_groups_is_checked():
    with pytest.raises(dnn.OptionError, match=r"group_norm: num_groups is 4; expected a divisor of the 6 channels"):
        dnn.group_norm(_X, 4)
    for groups in (0, -1, 2.0, True):
        with pytest.raises(dnn.OptionError, match=r"group_norm: num_groups is .*; expected an integer of 1 or more"):
            dnn.group_norm(_X, groups)


def test_local_response_options_are_checked():
    for size in (0, 2.5, None):
        with pytest.raises(dnn.OptionError, match="local_response_norm: size is"):
            dnn.local_response_norm(_X, size)
    for name in ("alpha", "beta", "k"):
        with pytest.raises(dnn.OptionError, match=f"local_response_norm: {name} is nan"):
            dnn.local_response_norm(_X, 3, **{name: np.nan})


def test_statistics_of_samples_are_checked():
    with pytest.raises(dnn.OptionError, match="group_norm: return_stats is 1; expected True or False"):
        dnn.group_norm(_X, 2, return_stats=1)
    mean = np.ones((2, 3))
    with pytest.raises(
        dnn.ShapeError,
        match=r"group_norm_backward: mean is of shape \(2, 3\); expected \(2, 2\) \(one value per sample and group",
    ):
        dnn.group_norm_backward(_X, _X, num_groups=2, mean=mean)
    with pytest.raises(
        dnn.ShapeError,
        match=r"instance_norm_backward: rstd is of shape \(2, 3\); expected \(2, 6\) \(one value per sample and "
        r"channel",
    ):
        dnn.instance_norm_backward(_X, _X, rstd=mean)
    with pytest.raises(dnn.DTypeError, match="instance_norm_backward: mean is float32"):
        dnn.instance_norm_backward(_X, _X, mean=np.ones((2, 6), np.float32))


def test_layer_norm_options_are_checked():
    with pytest.raises(dnn.OptionError, match="layer_norm: return_stats is 1; expected True or False"):
        dnn.layer_norm(_ROWS, return_stats=1)
    with pytest.raises(dnn.OptionError, match="rms_norm_backward: return_stats"):
        dnn.rms_norm_backward(_ROWS, _ROWS, return_stats="no")
    with pytest.raises(dnn.ShapeError, match="add_layer_norm: residual is of shape"):
        dnn.add_layer_norm(_ROWS, _ROWS[:1])
    with pytest.raises(dnn.DTypeError, match="add_rms_norm: residual is float32"):
        dnn.add_rms_norm(_ROWS, _ROWS.astype(np.float32))


_BACKWARD = {
    "batch_norm_backward": lambda g, x: dnn.batch_norm_backward(g, x, _C, _C),
    "batch_norm_train_backward": dnn.batch_norm_train_backward,
    "layer_norm_backward": dnn.layer_norm_backward,
    "rms_norm_backward": dnn.rms_norm_backward,
    "add_layer_norm_backward": lambda g, x: dnn.add_layer_norm_backward(g, x, x),
    "add_rms_norm_backward": lambda g, x: dnn.add_rms_norm_backward(g, x, x),
    "group_norm_backward": lambda g, x: dnn.group_norm_backward(g, x, num_groups=2),
    "instance_norm_backward": dnn.instance_norm_backward,
    "local_response_norm_backward": lambda g, x: dnn.local_response_norm_backward(g, x, 3),
}


@pytest.mark.parametrize("name", _BACKWARD)
def test_the_incoming_gradient_is_checked(name):
    with pytest.raises(dnn.ShapeError, match=rf"{name}: grad is of shape \(6, 3, 2\)"):
        _BACKWARD[name](_X[0], _X)
    with pytest.raises(dnn.DTypeError, match=f"{name}: grad is float32; expected float64"):
        _BACKWARD[name](_X.astype(np.float32), _X)


def test_saved_statistics_are_checked():
    with pytest.raises(dnn.ShapeError, match=r"layer_norm_backward: mean is of shape \(4,\); expected \(4, 1\)"):
        dnn.layer_norm_backward(_ROWS, _ROWS, mean=np.ones(4))
    with pytest.raises(dnn.DTypeError, match="rms_norm_backward: rstd is float32"):
        dnn.rms_norm_backward(_ROWS, _ROWS, rstd=np.ones((4, 1), np.float32))
    with pytest.raises(dnn.ShapeError, match="batch_norm_train_backward: rstd is of shape"):
        dnn.batch_norm_train_backward(_X, _X, rstd=np.ones(2))


def test_the_gradient_of_both_results_is_checked():
    for bad in ((None, None), None, (_ROWS,), (_ROWS, None, None)):
        with pytest.raises(dnn.ArrayTypeError, match="add_rms_norm_backward: grad"):
            dnn.add_rms_norm_backward(bad, _ROWS, _ROWS)
    with pytest.raises(dnn.ShapeError, match=r"add_layer_norm_backward: grad\[1\] is of shape"):
        dnn.add_layer_norm_backward((None, _ROWS[0]), _ROWS, _ROWS)


def test_an_array_without_axes_has_none_to_normalise():
    with pytest.raises(
        dnn.OptionError,
        match="layer_norm: axis is -1; expected an array with one dimension or more; this one is 0-dimensional",
    ):
        dnn.layer_norm(np.array(1.0))
