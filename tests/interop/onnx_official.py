"""ONNX's own tests of backends, run by ONNX's runner: what is left out and why."""

import unittest
import warnings

from onnx.backend.test import BackendTest

from dnnarray.interop.onnx import DnnarrayBackend

# Patterns of the tests that are left out, each with its reason.
LEFT_OUT = {
    r"^test_(adagrad|adam|momentum|nesterov_momentum)": "preview operators for training; dnnarray.adamw and its "
    "like are functions",
    r"^test_ai_onnx_ml_(label_encoder|tree_ensemble)": "tables of texts and trees are no neural networks",
    r"^test_flexattention(?!.*_expanded)": "a preview operator whose score functions are graphs; its expansion runs",
    r"^test_image_decoder_": "decoding image files needs an image library",
    r"^test_melweightmatrix_": "a table for sound that models hold as a constant",
    r"^test_(regex_full_match|string_concat|string_split|strnormalizer|strnorm_model|tfidfvectorizer)": "texts",
    r"^test_bernoulli_": "random numbers of NumPy's old generator; test_onnx_models.py has tests of the distribution",
    r"^test_training_dropout_(default_)?(mask_)?(cpu|cuda)$": "the same",
    r"^test_attention_4d_causal_fp16_expanded_(cpu|cuda)$": "the expected numbers are rounded after each step, ours "
    "less often",
    r"^test_loop16_seq_none_(cpu|cuda)$": "the runner takes len() of a 0-d array; test_onnx_models.py has this",
    r"^test_gradient_of_add": "the preview of training operators",
    r"^test_squeezenet_(cpu|cuda)$": "1000 equal logits near 9.5e9: a single rounding decides the softmax",
}

# What is left out on a CUDA device too: CuPy has no arrays of these dtypes.
LEFT_OUT_ON_CUDA = {
    r"(?i)(float8|float4|e4m3|e5m2|e8m0|fp8|[^a-z]u?int[24]([^0-9]|$))": "numbers of 8, 4 and 2 bits",
    r"(?i)string": "texts",
    r"test_scatter_?(elements|nd)_.*(mul|multiply)": "scattered products",
}


def run_official(device):
    """Run the tests for a device; return how many passed by category, and a line for each that failed.

    Making the tests runs ONNX's reference implementation, and takes ten seconds. The runner writes files to the
    folder $ONNX_HOME.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = BackendTest(DnnarrayBackend, __name__)
        for pattern in (*LEFT_OUT, *(LEFT_OUT_ON_CUDA if device == "CUDA" else ())):
            tests.exclude(pattern)
        passed, wrong = {}, []
        for name, case in tests.test_cases.items():
            result = unittest.TestResult()
            names = [n for n in unittest.defaultTestLoader.getTestCaseNames(case) if n.endswith(f"_{device.lower()}")]
            unittest.TestSuite(map(case, names)).run(result)
            wrong += [f"{test.id()}: {text.strip().splitlines()[-1]}" for test, text in result.failures + result.errors]
            passed[name.removeprefix("OnnxBackend").removesuffix("Test")] = result.testsRun - len(result.skipped)
    return passed, wrong
