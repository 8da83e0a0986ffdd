"""The scripts of the gallery: how long the short ones are beside PyTorch, and what they and the tutorials reach."""

import ast
import runpy
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parent.parent
_GALLERY = _ROOT / "docs" / "gallery_src"
_LONGEST, _RATIO, _COLUMNS = 25, 1.2, 120


_NEEDS = {
    **dict.fromkeys(("short/cnn", "plot_cnn", "plot_ctc"), ("sklearn",)),
    "plot_pytorch": ("sklearn", "torch"),
    "plot_jax": ("sklearn", "jax"),
}


@cache
def _values(script):
    """What a script leaves in its variables."""
    return runpy.run_path(str(_GALLERY / f"{script}.py"))


def _lines_of_code(path):
    """Lines that are neither blank nor a comment, without the docstring of the module."""
    text = path.read_text()
    docstring = range(1, ast.parse(text).body[0].end_lineno + 1)
    lines = enumerate(text.splitlines(), 1)
    return [
        line for number, line in lines if number not in docstring and line.strip() and not line.strip().startswith("#")
    ]


@pytest.mark.parametrize("name", ["cnn", "lstm", "transformer"])
def test_short_scripts_are_short(name):
    ours = _lines_of_code(_GALLERY / "short" / f"{name}.py")
    theirs = _lines_of_code(_ROOT / "tests" / "short_scripts" / f"{name}.py")
    assert len(ours) <= _LONGEST
    assert len(ours) <= _RATIO * len(theirs)
    assert max(map(len, ours)) <= _COLUMNS
    assert not any(";" in line for line in ours)


@pytest.mark.parametrize(
    ("script", "result", "low", "high"),
    [
        ("short/cnn", "accuracy", 0.96, 1.0),
        ("short/lstm", "error", 0.0, 0.06),
        ("short/transformer", "loss", 0.0, 2.4),
        ("plot_cnn", "accuracy", 0.96, 1.0),
        ("plot_lstm", "error", 0.0, 0.02),
        ("plot_transformer", "final_loss", 0.0, 2.3),
        ("plot_ctc", "accuracy", 0.7, 1.0),
        ("plot_pytorch", "accuracy", 0.9, 1.0),
        ("plot_pytorch", "taken", 80, 200),
        ("plot_jax", "accuracy", 0.95, 1.0),
        ("plot_jax", "difference", 0.0, 1e-5),
    ],
)
def test_scripts_reach_what_they_state(script, result, low, high):
    for library in _NEEDS.get(script, ()):
        pytest.importorskip(library)
    if "plot" in script:
        pytest.importorskip("matplotlib").use("Agg")
    assert low <= _values(script)[result] <= high
