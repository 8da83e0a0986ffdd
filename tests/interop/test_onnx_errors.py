"""`dnnarray.interop.onnx`: what is wrong with a model or its inputs is a named error, before any work."""

import numpy as np
import pytest

import dnnarray as dnn

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

from dnnarray._cuda.core.requirements import problem  # noqa: E402
from dnnarray.interop import onnx as door  # noqa: E402


def _model(op, *inputs, opset=20, domain="", shape=("N", 3), outputs=("y",), **attributes):
    node = helper.make_node(op, inputs or ["x"], outputs, name="here", domain=domain, **attributes)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in dict.fromkeys(node.input) if n]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ()) for n in outputs if n]
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    return helper.make_model(helper.make_graph([node], "graph", infos, results), opset_imports=opsets, ir_version=10)


def test_an_operator_that_nothing_computes_names_itself_and_a_way_around():
    model = _model("Secret", domain="com.example")
    with pytest.raises(
        dnn.UnsupportedError,
        match=r"Secret of the domain 'com.example', opset 1 \(the node 'here'\).*function of the model",
    ):
        door.prepare(model)
    assert not door.is_compatible(model)
    assert door.is_compatible(_model("Relu"))


def test_an_operator_within_a_branch_is_found_too():
    inner = helper.make_graph(
        [helper.make_node("Secret", ["x"], ["z"], domain="com.example")],
        "then",
        [],
        [helper.make_tensor_value_info("z", 1, [3])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])], "else", [], [helper.make_tensor_value_info("z", 1, [3])]
    )
    node = helper.make_node("If", ["go"], ["y"], then_branch=inner, else_branch=other)
    infos = [helper.make_tensor_value_info("go", TensorProto.BOOL, []), helper.make_tensor_value_info("x", 1, [3])]
    graph = helper.make_graph([node], "graph", infos, [helper.make_tensor_value_info("y", 1, [3])])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.example", 1)]
    with pytest.raises(dnn.UnsupportedError, match="Secret"):
        door.prepare(helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"activations": ["Sigmoid", "Affine", "Tanh"]}, "activations"),
        ({"clip": 1.0}, "clip"),
        ({"input_forget": 1}, "coupled gates"),
        ({"activations": ["Sigmoid", "Tanh", "Tanh"], "activation_alpha": [1.0]}, "activations"),
    ],
)
def test_forms_of_recurrent_layers_that_are_not_there(attributes, said):
    with pytest.raises(dnn.UnsupportedError, match=f"LSTM .*{said}"):
        door.prepare(_model("LSTM", "x", "w", "r", shape=(1, 12, 3), hidden_size=3, **attributes))


def test_old_forms_of_batch_normalization_that_are_not_there():
    with pytest.raises(dnn.UnsupportedError, match=r"training form of BatchNormalization-9.*version_converter"):
        door.prepare(
            _model(
                "BatchNormalization",
                "x",
                "s",
                "b",
                "m",
                "v",
                shape=(3,),
                opset=9,
                outputs=("y", "m2", "v2", "m3", "v3"),
            )
        )


def test_a_model_that_is_not_valid():
    with pytest.raises(dnn.OptionError, match="the model is not valid"):
        door.prepare(_model("Relu", "x", "x"))
    with pytest.raises(dnn.OptionError, match="the model is not valid"):
        door.run_node(helper.make_node("Relu", ["x"], ["y"], slope=1), [np.ones(3)])
    with pytest.raises(dnn.OptionError, match="model is a int"):
        door.prepare(3)
    with pytest.raises(dnn.OptionError, match=r"there is no file 'nowhere.onnx'"):
        door.prepare("nowhere.onnx")


def test_devices():
    assert door.supports_device("CPU")
    assert not door.supports_device("TPU")
    with pytest.raises(dnn.OptionError, match="device is 'cuda'; expected 'CPU', 'CUDA'"):
        door.prepare(_model("Relu"), "cuda")
    if problem():
        assert not door.supports_device("CUDA")
        with pytest.raises(dnn.DeviceError, match="device 'CUDA' is not there"):
            door.prepare(_model("Relu"), "CUDA")


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [({}, dnn.OptionError, "the input 'x' is missing"),
     ([], dnn.OptionError, "the input 'x' is missing"),
     ({"z": np.ones((1, 3), np.float32)}, dnn.OptionError, "no input 'z'; it takes 'x'"),
     ([np.ones((1, 3), np.float32)] * 2, dnn.OptionError, "got 2 inputs"),
     ([np.ones((1, 3))], dnn.DTypeError, "'x' is of float64; expected float32"),
     ([np.ones((1, 4), np.float32)], dnn.ShapeError, r"shape \(1, 4\); expected \(N, 3\)"),
     ([np.ones(3, np.float32)], dnn.ShapeError, r"expected \(N, 3\)"),
     ([3.0], dnn.ArrayTypeError, "the input 'x' is a float; expected an array")],
)  # fmt: skip
def test_inputs_that_are_not_as_the_model_declares_them(inputs, error, said):
    with pytest.raises(error, match=said):
        door.prepare(_model("Relu")).run(inputs)


def test_options_that_are_not_there():
    prepared = door.prepare(_model("Relu"))
    with pytest.raises(dnn.OptionError, match="run takes no options; got fast"):
        prepared.run([np.ones((1, 3), np.float32)], fast=True)
    with pytest.raises(dnn.OptionError, match="prepare takes no options; got fast"):
        door.DnnarrayBackend.prepare(_model("Relu"), fast=True)


def test_an_error_of_a_step_says_which_node_it_was():
    with pytest.raises(dnn.ShapeError) as caught:
        door.run(
            _model("Conv", "x", "w", shape=("N", "C", "L")),
            [np.ones((1, 3, 5), np.float32), np.ones((1, 2, 3), np.float32)],
        )
    assert "while computing Conv" in caught.value.__notes__[0]
    assert "'here'" in caught.value.__notes__[0]


def test_indices_out_of_range():
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    with pytest.raises(dnn.OptionError, match="indices reach from 0 to 3; expected -3 to 2"):
        door.run_node(node, [np.ones((3, 2)), np.array([0, 3])])
