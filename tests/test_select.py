"""Selection is pure: tested with made-up algorithms and made-up devices."""

import copy
import math
import pickle
import re
from dataclasses import replace

import pytest

import dnnarray as dnn
from asv_bench import selection
from dnnarray._call.introspect import Explanation
from dnnarray._cuda import attention
from dnnarray._options import Options
from dnnarray._problems.base import Problem, remembered
from dnnarray._select import Cost, Device, Method, choose, rank
from dnnarray._spec import Spec

CPU = Device("made-up CPU", "cpu", 4, {"float32": 400e9, "float64": 200e9}, 40e9, 1e-6)
H200 = Device("made-up H200", "cuda", 132, {"float32": 50e12, "bfloat16_mma": 788e12}, 4.2e12, 4e-6, (9, 0))
SPEC = Spec((1000, 1000), "float32")
PROBLEM = Problem(op="op", inputs=(SPEC,), outputs=(SPEC,))


def _method(name, **changes):
    return replace(Method(name, run=lambda *a: None), **changes)


def _names(judged):
    return [j.method.name for j in judged]


def test_the_roofline_takes_the_slower_of_arithmetic_and_memory():
    busy = _method("busy", cost=lambda p, d: Cost(4e9, 8e6))
    assert rank(PROBLEM, CPU, Options(), [busy])[0].algorithm.predicted_ms == pytest.approx(10 + 1e-3)
    idle = _method("idle", cost=lambda p, d: Cost(1, 8e6, launches=2))
    assert rank(PROBLEM, CPU, Options(), [idle])[0].algorithm.predicted_ms == pytest.approx(0.2 + 2e-3)


def test_efficiency_and_unit_scale_the_peak():
    cost = Cost(788e9, 0, efficiency=0.5, launches=0, unit="bfloat16_mma")
    assert rank(PROBLEM, H200, Options(), [_method("mma", cost=lambda p, d: cost)])[
        0
    ].algorithm.predicted_ms == pytest.approx(2.0)


def test_the_order_may_change_with_the_device():
    launches = _method("launches", cost=lambda p, d: Cost(0, 8e3, launches=20))
    moves = _method("moves", cost=lambda p, d: Cost(0, 8e6, launches=1))
    assert _names(rank(PROBLEM, CPU, Options(), [launches, moves]))[0] == "launches"
    assert _names(rank(PROBLEM, H200, Options(), [launches, moves]))[0] == "moves"


def test_rejected_candidates_come_last_with_their_reason():
    never = _method("never", rejects=lambda p, d: "it needs stride 1")
    judged = rank(PROBLEM, CPU, Options(), [never, _method("always")])
    assert _names(judged) == ["always", "never"]
    assert judged[1].reason == "it needs stride 1"


@pytest.mark.parametrize("op", ["conv", "batch_norm_train", "softmax"])
def test_reports_can_be_copied_and_sent_to_other_processes(op):
    arrays = [Spec((2, 3, 9), "float32")] + [Spec((4, 3, 2), "float32")] * (op == "conv")
    report = dnn.explain(op, *arrays)
    for again in (
        pickle.loads(pickle.dumps(report)),
        copy.deepcopy(report),
        pickle.loads(pickle.dumps(copy.copy(report))),
    ):
        assert str(again) == str(report)
        assert again.problem == report.problem
        assert [j.algorithm for j in again.candidates] == [j.algorithm for j in report.candidates]
    for described in (dnn.infer(op, *arrays), dnn.algorithms(op, *arrays), dnn.check()):
        assert pickle.loads(pickle.dumps(described)) == described


def test_what_rounds_in_between_says_so():
    judged = rank(PROBLEM, CPU, Options(), [_method("half_weights", rounds=True), _method("exact")])
    assert {j.algorithm.name: j.algorithm.rounds for j in judged} == {"half_weights": True, "exact": False}
    assert re.search(r"half_weights .* highest, rounds ", str(Explanation(PROBLEM, CPU, judged)))
    entries = [*attention.ALGORITHMS["attention"], *attention.ALGORITHMS["attention_backward"]]
    assert {m.name for m in entries if not m.rounds} == {"tiled", "tiled_backward"}


def test_deterministic_leaves_out_what_may_differ():
    atomic = _method("atomic", deterministic=False, cost=lambda p, d: Cost(0, 0))
    assert choose(PROBLEM, CPU, Options(), [atomic, _method("ordered")]).name == "atomic"
    assert choose(PROBLEM, CPU, Options(deterministic=True), [atomic, _method("ordered")]).name == "ordered"


def test_precision_classes_are_kept_for_float32_only():
    rough = _method("rough", precision="high", cost=lambda p, d: Cost(0, 0))
    table = [rough, _method("exact")]
    assert choose(PROBLEM, CPU, Options(), table).name == "exact"
    assert choose(PROBLEM, CPU, Options(float32_precision="high"), table).name == "rough"
    half = Spec((10,), "bfloat16")
    assert choose(Problem(op="op", inputs=(half,), outputs=(half,)), CPU, Options(), table).name == "rough"


def test_workspace_limit_takes_the_next():
    big = _method("big", workspace=lambda p: 1000, cost=lambda p, d: Cost(0, 0))
    assert choose(PROBLEM, CPU, Options(workspace_limit=999), [big, _method("small")]).name == "small"
    assert choose(PROBLEM, CPU, Options(workspace_limit=1000), [big, _method("small")]).name == "big"


def test_nothing_left_says_why_for_each():
    table = [_method("a", rejects=lambda p, d: "reason one"), _method("b", deterministic=False)]
    with pytest.raises(
        dnn.UnsupportedError, match=r"op: no algorithm does .*a: reason one; b: its result may differ from run to run"
    ):
        choose(PROBLEM, CPU, Options(deterministic=True), table)


def test_a_workspace_limit_that_nothing_keeps_to_says_what_would_do():
    table = [
        _method("a", workspace=lambda p: 2000),
        _method("b", workspace=lambda p: 1000),
        _method("c", rejects=lambda p, d: "never"),
    ]
    with pytest.raises(
        dnn.WorkspaceError,
        match=r"op: workspace_limit is 999 bytes; expected 1,000 or more, what the algorithm 'b' needs",
    ):
        choose(PROBLEM, CPU, Options(workspace_limit=999), table)


def test_a_named_algorithm_is_taken_or_refused_with_the_reason():
    table = [_method("a"), _method("b", rejects=lambda p, d: "it needs stride 1"), _method("c", precision="high")]
    assert choose(PROBLEM, CPU, Options(), table, "c").name == "c"
    with pytest.raises(dnn.UnsupportedError, match=r"'b' does not do .*: it needs stride 1. Those that would do: a"):
        choose(PROBLEM, CPU, Options(), table, "b")
    with pytest.raises(dnn.OptionError, match="algorithm is 'z'; expected one of 'a', 'b', 'c'"):
        choose(PROBLEM, CPU, Options(), table, "z")


def test_measured_times_overrule_predictions_and_near_ties_keep_the_table_order():
    table = [_method("first"), _method("second", cost=lambda p, d: Cost(0, 0))]
    assert choose(PROBLEM, CPU, Options(), table).name == "second"
    assert choose(PROBLEM, CPU, Options(), table, measured={"first": 1.0, "second": 2.0}).name == "first"
    assert choose(PROBLEM, CPU, Options(), table, measured={"first": 1.0001, "second": 1.0}).name == "first"


def test_what_a_problem_remembers_is_no_part_of_it():
    asked = []

    @remembered
    def question(problem, name):
        asked.append(name)
        return name.upper()

    problem, same = (Problem(op="op", inputs=(SPEC,), outputs=(SPEC,)) for _ in range(2))
    assert [question(problem, name) for name in ("a", "b", "a")] == ["A", "B", "A"]
    assert asked == ["a", "b"]
    assert (problem, hash(problem), repr(problem)) == (same, hash(same), repr(same))
    assert question(replace(problem, op="other"), "a") == "A"
    assert asked == ["a", "b", "a"]


@pytest.mark.parametrize("limit", [None, 500])
def test_the_choice_is_the_first_of_the_ranking(limit):
    table = [
        _method("a", cost=lambda p, d: Cost(3e6, 0), workspace=lambda p: 100),
        _method("b", rejects=lambda p, d: "never"),
        _method("c", cost=lambda p, d: Cost(1e6, 0), workspace=lambda p: 1000),
        _method("d", cost=lambda p, d: Cost(1e6, 0)),
    ]
    for measured in (None, {"a": 1.0}, {"a": 1.0, "d": 0.5, "b": 0.1}):
        options = Options(workspace_limit=limit)
        assert (
            choose(PROBLEM, CPU, options, table, measured=measured)
            is rank(PROBLEM, CPU, options, table, measured)[0].method
        )


def test_what_takes_no_such_dtype_on_a_device_is_asked_once():
    asked = []

    def unfit(dtype, device):
        asked.append((dtype, device))
        return "float32 arrays" if dtype == SPEC.dtype else None

    def never(*_):
        raise AssertionError("it was asked")

    table, options = (_method("other", unfit=unfit, floor=never, rejects=never), _method("first")), Options()
    assert [choose(PROBLEM, CPU, options, table).name for _ in range(3)] == ["first"] * 3
    assert asked == [(SPEC.dtype, CPU)]


def test_a_candidate_whose_floor_is_too_high_is_not_asked():
    def never(*_):
        raise AssertionError("it was asked")

    quick = _method("quick", cost=lambda p, d: Cost(1e6, 0))
    slow = _method("slow", rejects=never, cost=never, floor=lambda p, d: 1.0)
    assert choose(PROBLEM, CPU, Options(), [slow, quick]) is quick
    low = replace(slow, rejects=lambda p, d: None, cost=lambda p, d: Cost(0, 0), floor=lambda p, d: 0.0)
    assert choose(PROBLEM, CPU, Options(), [low, quick]) is low
    same = replace(low, cost=quick.cost)
    assert choose(PROBLEM, CPU, Options(), [same, quick]) is same, "of equal predictions the first in the table"
    assert choose(PROBLEM, CPU, Options(), [replace(slow, name="unmeasured"), quick], measured={"quick": 1e9}) is quick
    assert (
        choose(
            PROBLEM,
            CPU,
            Options(),
            [replace(slow, rejects=lambda p, d: None, cost=quick.cost), quick],
            measured={"slow": 1.0},
        ).name
        == "slow"
    )


def test_choices_hold_against_the_times_of_a_card():
    """The record of measured convolutions (`asv_bench/gpu_selection.py`): what the model says today is held against
    it."""
    with selection.RECORD.open() as file:
        ratios = [selection.judge(problem, times).ratio for problem, times in selection.read(file)]
    assert len(ratios) >= 100
    assert math.exp(sum(map(math.log, ratios)) / len(ratios)) <= 1.1, selection.summary(ratios)
    assert max(ratios) <= 2, selection.summary(ratios)
