"""Annotations of the public functions: complete, in agreement with the docstrings, and useful to a type checker."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dnnarray
from dnnarray._call.operation import operations

_OPERATIONS = {name: op for name, op in operations().items() if op.ndim is None}


def _documented(function):
    """Parameter name to the type that the docstring states, for the parameters that have an entry."""
    section = re.search(r"Parameters\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", inspect.getdoc(function), re.DOTALL)
    entries = re.findall(r"^(\w[\w, ]*) : (.*)$", section.group(1), re.MULTILINE) if section else []
    return {name.strip(): text for names, text in entries for name in names.split(",")}


@pytest.mark.parametrize("name", _OPERATIONS)
def test_every_parameter_and_result_is_annotated(name):
    signature = inspect.signature(_OPERATIONS[name].function)
    assert signature.return_annotation is not signature.empty
    assert [p.name for p in signature.parameters.values() if p.annotation is p.empty] == []


# What a docstring's type begins with, and what the annotation must then hold.
_AGREE = [
    (r"bool\b(?! array)", "bool"),
    (r"float or tuple", "float | Sequence[float]"),
    (r"float\b", "float"),
    (r"int or tuple of int", "Ints|Axes|int | Sequence"),
    (r"int, tuple,? or str", "Padding"),
    (r"int\b(?! or integer array)", "int|Ints|Padding"),
    (r"(uint8 |integer |bool )?array|array,", "Array"),
    (r"tuple of str", "Sequence[str]"),
    (r"str\b", "str|Layout|Reduction|Literal|Padding"),
    (r'\{"channels_first"', "Layout"),
    (r'\{"mean"', "Reduction"),
]


@pytest.mark.parametrize("name", _OPERATIONS)
def test_annotations_agree_with_the_docstring(name):
    function = _OPERATIONS[name].function
    parameters, compared = inspect.signature(function).parameters, 0
    for parameter, text in _documented(function).items():
        words = next((words for begin, words in _AGREE if re.match(begin, text)), None)
        if words is None:
            continue
        annotation = parameters[parameter].annotation
        assert any(word in annotation for word in words.split("|")), f"{parameter}: {annotation}, documented as {text}"
        compared += 1
    assert compared or not _documented(function)


@pytest.mark.parametrize("name", _OPERATIONS)
def test_a_default_of_none_is_annotated(name):
    parameters = inspect.signature(_OPERATIONS[name].function).parameters.values()
    assert [p.name for p in parameters if p.default is None and "None" not in p.annotation] == []


_SCRIPT = """
from typing import assert_type
import numpy as np
import numpy.typing as npt
import dnnarray as dnn

Float = npt.NDArray[np.float32]

def network(x: Float, weight: Float, scale: Float, labels: npt.NDArray[np.int64], block: dnn.RNNWeights) -> None:
    y = dnn.conv(x, weight, padding="same", activation="relu")
    assert_type(y, Float)
    assert_type(dnn.conv2d(x, weight, stride=(2, 1)), Float)
    assert_type(dnn.max_pool_with_indices(y, 2).y, Float)
    assert_type(dnn.layer_norm(y, scale), Float)
    assert_type(dnn.layer_norm(y, scale, return_stats=True), dnn.LayerNormOutput[Float])
    assert_type(dnn.attention(y, y, y, causal=True), Float)
    assert_type(dnn.attention(y, y, y, return_lse=True).lse, Float)
    assert_type(dnn.cross_entropy(y, labels), Float)
    assert_type(dnn.lstm(x, [block]).c, Float)
    assert_type(dnn.conv_backward(y, x, weight).weight, Float)
"""
_MISTAKES = {
    "dnn.conv(x, x, paddin=1)": "paddin",
    "dnn.conv(x, x, layout='channels_lats')": "channels_lats",
    "dnn.convv(x, x)": "convv",
    "dnn.max_pool(x, 2, ceil_mode='yes').shape": "ceil_mode",
}


def _mypy(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        str(folder / "cache"),
        str(path),
    ]
    return subprocess.run(command, capture_output=True, text=True, cwd=Path(dnnarray.__file__).parents[1]).stdout


def test_a_type_checker_knows_arrays_and_named_tuples_and_finds_mistakes(tmp_path):
    pytest.importorskip("mypy")
    lines = "".join(f"    {line}\n" for line in _MISTAKES)
    found = [
        line
        for line in _mypy(tmp_path, f"{_SCRIPT}\ndef mistakes(x: Float) -> None:\n{lines}").splitlines()
        if "script.py" in line
    ]
    errors = [line for line in found if ": error:" in line]
    assert len(errors) == len(_MISTAKES), "\n".join(found)
    for error, word in zip(errors, _MISTAKES.values(), strict=True):
        assert word in error
