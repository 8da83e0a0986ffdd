"""What errors say of misspelt names: functions, options, their values, algorithms, settings; and of calls that do not
fit the signature."""

import subprocess
import sys

import numpy as np
import pytest

import dnnarray as dnn

_X = np.ones((1, 2, 4, 4), np.float32)
_W = np.ones((2, 2, 3, 3), np.float32)


def test_a_misspelt_function_gets_names_like_it():
    with pytest.raises(AttributeError, match=r"no attribute 'relu7'\. Did you mean 'relu', 'relu6'"):
        _ = dnn.relu7
    with pytest.raises(AttributeError, match=r"no attribute 'Max_Pool2D'\. Did you mean 'max_pool2d'"):
        _ = dnn.Max_Pool2D
    with pytest.raises(AttributeError, match=r"no attribute 'optoins'\. Did you mean '\w*options'"):
        _ = dnn.optoins
    with pytest.raises(AttributeError) as caught:
        _ = dnn.zzzzzz
    assert str(caught.value) == "module 'dnnarray' has no attribute 'zzzzzz'"
    assert not hasattr(dnn, "_relu")


@pytest.mark.parametrize("warm", [False, True], ids=["first", "warm"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dnn.conv(_X, _W, paddin=1),
            r"conv\(\) got an unexpected keyword argument 'paddin'\. Did you mean 'padding'\?",
        ),
        (
            lambda: dnn.conv2d(_X, _W, Stride=1),
            r"conv2d\(\) got an unexpected keyword argument 'Stride'\. Did you mean 'stride'\?",
        ),
        (
            lambda: dnn.dropout(_X, sed=1),
            r"dropout\(\) got an unexpected keyword argument 'sed'\. Did you mean 'seed'\?",
        ),
        (lambda: dnn.relu(_X, zzz=1), r"relu\(\) got an unexpected keyword argument 'zzz'$"),
        (lambda: dnn.conv(_X, weight=_W), r"positional-only arguments passed as keyword arguments: 'weight'"),
        (lambda: dnn.relu(x=_X), r"positional-only arguments passed as keyword arguments: 'x'"),
        (lambda: dnn.relu(), r"relu\(\) missing 1 required positional argument: 'x'"),
        (lambda: dnn.conv(_X), r"conv\(\) missing 1 required positional argument: 'weight'"),
        (lambda: dnn.max_pool(), r"max_pool\(\) missing 2 required positional arguments: 'x', 'kernel_size'"),
        (lambda: dnn.max_pool(_X), r"max_pool\(\) missing 1 required positional argument: 'kernel_size'"),
        (lambda: dnn.dropout(_X), r"dropout\(\) missing 1 required keyword-only argument: 'seed'"),
        (lambda: dnn.relu(_X, _X), r"relu\(\) takes .*positional argument"),
        (lambda: dnn.max_pool(_X, 2, kernel_size=2), r"multiple values for argument 'kernel_size'"),
        (
            lambda: dnn.vjp("conv", _X, _W, paddin=1),
            r"conv: unknown or repeated argument 'paddin'.*Did you mean 'padding'\?",
        ),
        (
            lambda: dnn.infer("softmax", _X, axes=1),
            r"softmax: unknown or repeated argument 'axes'.*Did you mean 'axis'\?",
        ),
    ],
)
def test_calls_that_do_not_fit_the_signature(call, message, warm):
    if warm:
        dnn.conv(_X, _W), dnn.conv2d(_X, _W), dnn.dropout(_X, seed=1), dnn.relu(_X), dnn.max_pool(_X, 2)
    with pytest.raises(TypeError, match=message):
        call()


def test_misspelt_dtypes():
    with pytest.raises(dnn.DTypeError, match=r"'flot32'; expected .* Did you mean 'float32'"):
        dnn.Spec((2,), "flot32")
    with pytest.raises(dnn.DTypeError, match=r"warmup: dtypes is 'flaot64'; expected .* Did you mean 'float64'"):
        dnn.warmup("relu", dtypes="flaot64")


def test_a_call_that_does_not_fit_may_be_the_first_of_the_process():
    code = (
        "import numpy as np, dnnarray as dnn\ntry: dnn.relu(np.ones(2), spede=1, out=None)\nexcept TypeError as "
        "e: print(e)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "relu() got an unexpected keyword argument 'spede'\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: dnn.interpolate(_X, size=(8, 8), mode="bilinar"),
            r"interpolate: mode is 'bilinar'.*Did you mean 'linear'\?",
        ),
        (
            lambda: dnn.grid_sample(_X, np.zeros((1, 3, 3, 2), np.float32), mode="bilinar"),
            r"grid_sample: mode .*Did you mean 'bilinear'\?",
        ),
        (
            lambda: dnn.max_pool(_X, 2, layout="channel_last"),
            r"layout is 'channel_last'.*Did you mean 'channels_last'\?",
        ),
        (lambda: dnn.max_pool(_X, 2, layout="CHANNELS_LAST"), r"Did you mean 'channels_last'\?"),
        (lambda: dnn.attention(_X, _X, _X, layout="bshd"), r"layout is 'bshd'.*Did you mean 'BSHD'\?"),
        (
            lambda: dnn.cross_entropy(_X[0, 0], np.zeros(4, int), reduction="men"),
            r"reduction is 'men'.*Did you mean 'mean'\?",
        ),
        (lambda: dnn.conv(_X, _W, activation="rleu"), r"activation is 'rleu'.*Did you mean 'relu'\?"),
        (lambda: dnn.gelu(_X, approximate="tan"), r"approximate is 'tan'.*Did you mean 'tanh'\?"),
        (lambda: dnn.conv(_X, _W, algorithm="winogard"), r"conv: algorithm is 'winogard'.*Did you mean 'winograd'\?"),
        (
            lambda: dnn.infer("conv", _X, _W, algorithm="winogard"),
            r"conv: algorithm is 'winogard'.*Did you mean 'winograd'\?",
        ),
        (lambda: dnn.options(determinstic=True), r"the option name is 'determinstic'.*Did you mean 'deterministic'\?"),
        (
            lambda: dnn.set_options(float32_precision="hihgest"),
            r"float32_precision is 'hihgest'.*Did you mean 'highest'\?",
        ),
        (lambda: dnn.vjp("max_pol", _X), r"op is 'max_pol'.*Did you mean 'max_pool'"),
    ],
)
def test_misspelt_values_get_the_likeliest(call, message):
    with pytest.raises(dnn.OptionError, match=message):
        call()


def test_values_unlike_any_get_the_list_alone():
    for wrong in ("zzz", 1, None, ("linear",)):
        with pytest.raises(dnn.OptionError) as caught:
            dnn.interpolate(_X, size=(8, 8), mode=wrong)
        assert "expected one of 'nearest'" in str(caught.value)
        assert "Did you mean" not in str(caught.value)
