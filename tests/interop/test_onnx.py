"""`dnnarray.interop.onnx`: ONNX's own tests of backends, by the runner that ONNX has for them."""

import importlib.util
import unittest
import warnings

import pytest

pytest.importorskip("onnx")
from onnx.backend.test import BackendTest

from dnnarray.interop import onnx as door
from dnnarray.interop.onnx.registry import OPERATORS

# Patterns of the tests that are left out, each with its reason.
_LEFT_OUT = {
    r"^test_(adagrad|adam|momentum|nesterov_momentum)": "the preview of training operators; dnnarray.adamw and its like are functions",
    r"^test_ai_onnx_ml_(label_encoder|tree_ensemble)": "tables of texts and trees are no neural networks",
    r"^test_flexattention(?!.*_expanded)": "a preview operator whose score functions are graphs; its expansion into other operators runs",
    r"^test_image_decoder_": "decoding image files needs an image library",
    r"^test_melweightmatrix_": "a table for sound that models hold as a constant",
    r"^test_(regex_full_match|string_concat|string_split|strnormalizer|strnorm_model|tfidfvectorizer)": "texts",
    r"^test_bernoulli_": "random numbers of NumPy's old generator; test_onnx_models.py has tests of the distribution",
    r"^test_training_dropout_(default_)?(mask_)?cpu$": "the same",
    r"^test_attention_4d_causal_fp16_expanded_cpu$": "the expected numbers are rounded to float16 after each step, ours less often",
    r"^test_loop16_seq_none_cpu$": "the runner takes len() of an array without axes; test_onnx_models.py has the same test",
    r"^test_gradient_of_add": "the preview of training operators",
    r"^test_squeezenet_cpu$": "its logits are 1000 equal numbers near 9.5e9: a single rounding decides the softmax",
}
_FEWEST = {
    "NodeModel": 1811,
    "RealModel": 8,
    "SimpleModel": 15,
    "PyTorchConvertedModel": 82,
    "PyTorchOperatorModel": 35,
}


@pytest.fixture
def official(tmp_path, monkeypatch):
    """The test cases of ONNX by category. Making them runs the reference implementation, and takes ten seconds."""
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    tests = BackendTest(door.DnnarrayBackend, __name__)
    for pattern in _LEFT_OUT:
        tests.exclude(pattern)
    return {name.removeprefix("OnnxBackend").removesuffix("Test"): case for name, case in tests.test_cases.items()}


@pytest.mark.filterwarnings("ignore")
def test_the_official_tests_of_backends_pass(request):
    """On the processor; tests/gpu has the same for a card."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = request.getfixturevalue("official")
    wrong, passed = [], {}
    for category, case in cases.items():
        result = unittest.TestResult()
        names = [n for n in unittest.defaultTestLoader.getTestCaseNames(case) if n.endswith("_cpu")]
        unittest.TestSuite(map(case, names)).run(result)
        wrong += [f"{test.id()}: {text.strip().splitlines()[-1]}" for test, text in result.failures + result.errors]
        passed[category] = result.testsRun - len(result.skipped)
    assert not wrong
    assert {n: passed[n] for n in _FEWEST if passed[n] < _FEWEST[n]} == {}, passed


def test_every_operator_of_the_field_is_implemented_here():
    """Not by the function that ONNX may have for it."""
    field = (
        "AffineGrid Attention AveragePool BatchNormalization CausalConvWithState Celu Col2Im Conv ConvTranspose DeformConv DepthToSpace Dropout Elu GRU Gelu "
        "GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Hardmax InstanceNormalization LRN LSTM "
        "LayerNormalization LeakyRelu LinearAttention LogSoftmax LpPool MaxPool MaxUnpool Mish NegativeLogLikelihoodLoss PRelu RMSNormalization RNN Relu "
        "Resize RoiAlign RotaryEmbedding Selu Sigmoid Softmax SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth SwiGLU Swish Tanh ThresholdedRelu"
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
