"""Float32 convolution of few channels and walks of depthwise ones without a GPU: what they take, that they are chosen,
how work is divided."""

import pytest

import dnnarray as dnn
from dnnarray._call.operation import find
from dnnarray._options import Options
from dnnarray._select import Device, choose
from dnnarray._spec import FLOAT16, FLOAT32, Spec

pytest.importorskip("cupy", reason="CuPy is not installed")
from dnnarray._cuda.conv import ALGORITHMS, depthwise_weight_walk, small_channels

_PEAK = {"float32": 50e12, "float16_mma": 788e12, "bfloat16_mma": 788e12, "tf32_mma": 393e12}
_DEVICE = Device("made-up H200", "cuda", 132, _PEAK, 4.2e12, 4e-6, (9, 0), 232_448)
_LAST = {"layout": "channels_last"}


def _problem(op, *specs, **options):
    operation = find(op)
    bound, chosen = operation.bind(specs, options)
    return operation.problem(bound, {n: v for n, v in chosen.items() if n in operation.static})


def _first_layer(batch=64, extent=224, channels=3, outs=64, window=7, **options):
    """The problems of the convolution and of both gradients."""
    options = {"stride": 2, "padding": window // 2} | _LAST | options
    x, w = (Spec(s, FLOAT32) for s in ((batch, extent, extent, channels), (outs, window, window, channels)))
    y = Spec(dnn.infer("conv", x, w, **options).output.shape, FLOAT32)
    return {
        "conv": _problem("conv", x, w, **options),
        "conv_backward_input": _problem("conv_backward_input", y, w, input_shape=x.shape, **options),
        "conv_backward_weight": _problem("conv_backward_weight", y, x, weight_shape=w.shape, **options),
    }


def _method(op, name):
    return next(m for m in ALGORITHMS[op] if m.name == name)


@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(
    "shape", [{}, {"window": 5, "channels": 1, "outs": 32}, {"window": 3, "channels": 4}, {"batch": 8}], ids=str
)
def test_a_first_layer_is_given_to_it(shape, precision):
    for op, problem in _first_layer(**shape).items():
        assert (
            choose(problem, _DEVICE, Options(float32_precision=precision), ALGORITHMS[op]).name
            == small_channels.NAMES[precision]
        )


@pytest.mark.parametrize(
    "shape", [{"channels": 5}, {"outs": 60}, {"dilation": 2}, {"batch": 0}, {"layout": "channels_first"}], ids=str
)
def test_what_it_leaves_to_others(shape):
    if shape.get("layout") == "channels_first":
        x, w = Spec((2, 3, 32, 32), FLOAT32), Spec((64, 3, 7, 7), FLOAT32)
        problem = _problem("conv", x, w, stride=2, padding=3)
    else:
        problem = _first_layer(**shape)["conv"]
    assert _method("conv", "few_channels").rejects(problem, _DEVICE)


def test_nothing_stands_behind_a_transposed_convolution():
    x, w, bias = Spec((2, 16, 16, 64), FLOAT32), Spec((64, 7, 7, 3), FLOAT32), Spec((3,), FLOAT32)
    options = {"stride": 2, "padding": 3, "output_padding": 1} | _LAST
    method = _method("conv_transpose", "few_channels")
    assert method.rejects(_problem("conv_transpose", x, w, **options), _DEVICE) is None
    assert "bias" in method.rejects(_problem("conv_transpose", x, w, bias, **options), _DEVICE)


@pytest.mark.parametrize("rows", [1, 7, 8, 14, 112, 513])
@pytest.mark.parametrize("groups", [1, 3, 128, 4000])
def test_walks_are_divided_into_whole_rounds(rows, groups):
    parts = depthwise_weight_walk._segments(rows, groups, 88)
    assert 1 <= parts <= max(rows // 8, 1)
    assert -(-groups * parts // 88) * -(-rows // parts) <= -(-groups // 88) * rows + rows


@pytest.mark.parametrize(
    ("dtype", "channels", "walked"), [(FLOAT32, 5, True), (FLOAT16, 96, True), (FLOAT16, 5, False)], ids=str
)
def test_words_of_channels_are_walked(dtype, channels, walked):
    image, options = Spec((2, 20, 23, channels), dtype), {"groups": channels, "padding": 1} | _LAST
    problem = _problem("conv_backward_weight", image, image, weight_shape=(channels, 3, 3, 1), **options)
    kernels = _method("conv_backward_weight", "depthwise").run(problem, _DEVICE, True).kernels
    assert (kernels[0].source == "conv/depthwise_weight_walk.cu") == walked
