"""Times that are shipped for a card: they correct predictions, and a file that is not right is reported once and
ignored."""

import json
import re
import warnings
from dataclasses import replace

import pytest

import dnnarray as dnn
from dnnarray import __main__ as command_line
from dnnarray._call.introspect import Explanation
from dnnarray._options import Options
from dnnarray._problems.base import Problem
from dnnarray._select import Cost, Device, Method, choose, rank, shipped
from dnnarray._spec import Spec
from dnnarray._version import __version__

CARD = Device("made-up card 1", "cuda", 132, {"float32": 50e12}, 4.2e12, 4e-6, (9, 0))
SPEC = Spec((1000, 1000), "float32")
PROBLEM = Problem(op="op2d", inputs=(SPEC,), outputs=(SPEC,))
TABLE = [
    Method(name, run=lambda *a: None, cost=lambda p, d, ms=ms: Cost(0, ms * 4.2e9, launches=0))
    for name, ms in (("a", 1.0), ("b", 1.5))
]


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    shipped.factors.cache_clear()
    yield tmp_path / "made_up_card_1.json"
    shipped.factors.cache_clear()


def _content(**changes):
    return {
        "schema": shipped.SCHEMA,
        "card": CARD.name,
        "version": __version__,
        "factors": {"op a float32": 2.0},
    } | changes


def test_a_card_without_a_file_is_predicted_by_the_model_alone(path):
    judged = rank(PROBLEM, CARD, Options(), TABLE)
    assert [(j.method.name, j.algorithm.predicted_ms, j.corrected) for j in judged] == [
        ("a", pytest.approx(1), False),
        ("b", pytest.approx(1.5), False),
    ]


def test_shipped_times_correct_predictions_and_the_report_says_so(path):
    path.write_text(json.dumps(_content()))
    judged = rank(PROBLEM, CARD, Options(), TABLE)
    assert [(j.method.name, j.algorithm.predicted_ms, j.corrected) for j in judged] == [
        ("b", pytest.approx(1.5), False),
        ("a", pytest.approx(2), True),
    ]
    assert choose(PROBLEM, CARD, Options(), TABLE).name == "b"
    assert choose(PROBLEM, CARD, Options(), TABLE, measured={"a": 0.1}).name == "a"
    report = str(Explanation(PROBLEM, CARD, judged))
    assert re.search(r"^\*\s+b\s.*taken: the shortest time, predicted$", report, re.M)
    assert "1.33 times the best, predicted and corrected by this card's measured times" in report
    assert choose(replace(PROBLEM, inputs=(Spec((8,), "float64"),)), CARD, Options(), TABLE).name == "a"
    assert choose(PROBLEM, shipped.bare(CARD), Options(), TABLE).name == "a"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{half", "cannot be read"),
        ("[]", "schema"),
        (_content(schema=0), "of schema 0"),
        (_content(card="another"), "of card 'another'"),
        (_content(version="0.0.1"), "of version '0.0.1'"),
        (_content(factors={"op a float32": "2"}), "no numbers"),
        (_content(factors={"op a float32": 1e9}), "no numbers"),
        (_content(factors=[]), "no numbers"),
    ],
)
def test_a_file_that_is_not_right_is_reported_once_and_ignored(path, content, said):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.warns(UserWarning, match=said):
        assert choose(PROBLEM, CARD, Options(), TABLE).name == "a"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(PROBLEM, CARD, Options(), TABLE).name == "a"


def test_factors_are_medians_of_enough_samples(path):
    samples = [shipped.Sample("op a float32", 1.0, ms) for ms in (1.5, 1.8, 30.0)]
    samples += [shipped.Sample("op b float32", 1.0, 0.01)] * 3 + [shipped.Sample("op c float32", 1.0, 2.0)] * 2
    assert shipped.write(path, CARD, samples) == {"op a float32": 1.8, "op b float32": 0.25}
    assert shipped.factors(CARD.name) == {"op a float32": 1.8, "op b float32": 0.25}


def test_what_is_in_the_package_is_of_this_version():
    for file in shipped.FOLDER.glob("*.json"):
        content = json.loads(file.read_text())
        assert shipped.wrong(content, content["card"]) is None
        assert file.stem == shipped.slug(content["card"])


def test_tune_writes_a_file_to_ship(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path / "cache"))
    calls, target = tmp_path / "calls.txt", tmp_path / "card.json"
    calls.write_text("".join(f"conv 1,2,{n},9 2,2,3,3\n" for n in (8, 9, 10)))
    assert command_line.main(["tune", "--ship", str(target), str(calls)]) == 0
    content = json.loads(target.read_text())
    assert {name.split()[0] for name in content["factors"]} == {"conv"}
    assert len(content["factors"]) == len(
        dnn.algorithms("conv", Spec((1, 2, 8, 9), "float32"), Spec((2, 2, 3, 3), "float32"))
    )
    assert f"{len(content['factors'])} classes of calls" in capsys.readouterr().out
