"""`dnnarray.interop.onnx`: ONNX's own tests of backends, by the runner that ONNX has for them."""

import importlib.util

import pytest

pytest.importorskip("onnx")

from dnnarray.interop import onnx as door
from dnnarray.interop.onnx.registry import OPERATORS
from tests.interop.onnx_official import run_official

_FEWEST = {
    "NodeModel": 1811,
    "RealModel": 8,
    "SimpleModel": 15,
    "PyTorchConvertedModel": 82,
    "PyTorchOperatorModel": 35,
}


@pytest.mark.filterwarnings("ignore")
def test_the_official_tests_of_backends_pass(tmp_path, monkeypatch):
    """On the processor; tests/gpu has the same for a card."""
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    passed, wrong = run_official("CPU")
    assert not wrong
    assert {n: passed[n] for n in _FEWEST if passed[n] < _FEWEST[n]} == {}, passed


def test_every_operator_of_the_field_is_implemented_here():
    """Not by the function that ONNX may have for it."""
    field = (
        "AffineGrid Attention AveragePool BatchNormalization CausalConvWithState Celu Col2Im Conv ConvTranspose "
        "DeformConv DepthToSpace Dropout Elu GRU Gelu "
        "GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Hardmax "
        "InstanceNormalization LRN LSTM "
        "LayerNormalization LeakyRelu LinearAttention LogSoftmax LpPool MaxPool MaxUnpool Mish "
        "NegativeLogLikelihoodLoss PRelu RMSNormalization RNN Relu "
        "Resize RoiAlign RotaryEmbedding Selu Sigmoid Softmax SoftmaxCrossEntropyLoss Softplus Softsign "
        "SpaceToDepth SwiGLU Swish Tanh ThresholdedRelu"
    )
    assert not {("", name) for name in field.split()} - set(OPERATORS)


@pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy, but no card")
def test_what_operators_take_from_the_namespace_cupy_has_too():
    import ast
    from pathlib import Path

    from array_api_compat import cupy as xp

    found = set()
    for path in (Path(door.__file__).parent / "operators").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "xp":
                found.add(node.attr)
    assert len(found) > 50
    assert not {name for name in found if not hasattr(xp, name)}
