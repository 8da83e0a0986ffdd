"""The fuzzer: what it covers, that it finds each kind of fault, and a short run of each engine of this machine."""

import ctypes
import itertools
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call.operation import find, lookup, operations
from dnnarray._cpu.compiled import compiler
from dnnarray._problems.base import leaves
from tests.fuzz import oracle, workers
from tests.fuzz.calls import Call, draw
from tests.fuzz.draw import DRAWERS
from tests.fuzz.drawer import Drawer, Drawn, Leaf
from tests.fuzz.judge import Trial, judge
from tests.fuzz.memory import Host, Layout, Placed, dense
from tests.fuzz.mutate import SPOILT
from tests.fuzz.snippet import simplified, text
from tests.registry import ORACLES
from tests.support import FLOAT32

# --- what is covered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in operations().values() if op.name == op.base], ids=lambda op: op.name)
def test_every_operation_is_drawn_and_has_an_oracle(op):
    forward = op.name if op.name in DRAWERS else op.name.removesuffix("_backward")
    assert forward in DRAWERS
    assert forward in ORACLES


@pytest.mark.parametrize("name", DRAWERS)
def test_every_array_and_option_is_given_and_every_gradient_asked_for(name):
    op, rng = find(name), np.random.default_rng(3)
    drawn = [DRAWERS[name](Drawer(rng, FLOAT32, "numpy")) for _ in range(150)]
    given = {a for one in drawn for a, array in zip(op.arrays, one.arrays, strict=False) if array is not None}
    assert given == set(op.arrays)
    assert set(op.defaults) - {option for one in drawn for option in one.options} <= {"group", "return_tape"}
    assert any(one.gradient for one in drawn) or lookup(f"{name}_backward") is None


def test_dtypes_modes_and_ways_to_lie_in_memory_are_drawn():
    calls = [draw(f"5:{i}", "numpy") for i in range(500)]
    assert {call.mode for call in calls} == {"forward", "vjp", "backward"}
    assert {call.dtype.name for call in calls} == {"float64", "float32", "float16", "bfloat16"}
    layouts = [leaf.layout for call in calls for leaf in leaves(call.drawn.arrays) if isinstance(leaf, Leaf)]
    assert any(layout.readonly for layout in layouts)
    assert any(layout.swapped for layout in layouts)
    assert any(layout.offset % 2 for layout in layouts)
    for kind in (lambda s: s < 0, lambda s: s == 0, lambda s: s > 1):
        assert any(kind(s) for layout in layouts for s in layout.strides)


def test_an_id_draws_the_same_call_again():
    first, second = draw("3:17", "numpy"), draw("3:17", "numpy")
    assert text(first, None) == text(second, None)
    values = [
        [leaf.values.tobytes() for leaf in leaves(call.drawn.arrays) if isinstance(leaf, Leaf)]
        for call in (first, second)
    ]
    assert values[0] == values[1]


# --- what is found ----------------------------------------------------------------------------------------------------

_VALUES = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)


def _call(mode="forward", **fields):
    leaf = Leaf(_VALUES, Layout((8, 2), 12))
    return Call("1:1", "numpy", Drawn("silu", (leaf,), {"beta": 2.0}), FLOAT32, "normal", mode, **fields)


@pytest.mark.parametrize("mode", ["forward", "vjp", "backward"])
def test_a_call_that_is_right_is_ok(mode):
    assert judge(_call(mode, out=True, workspace=True, repeat=True), Host()).kind == "ok"


def _with_fault(monkeypatch, fault):
    """Calls whose results go through `fault(there, outputs, results)`."""
    called = Trial._called

    def faulty(trial, there, out, workspace):
        return fault(there, out, called(trial, there, out, workspace))

    monkeypatch.setattr(Trial, "_called", faulty)


def _raise(error, *_):
    raise error


def _scribble(on, there, outputs, results):
    on(there, outputs)
    return results


def _behind(there, out):
    ctypes.memset(np.lib.array_utils.byte_bounds(out[0])[1] + 3, 1, 1)


def _first(there, outputs):
    there[0][1, 1] = 7


def _between(there, outputs):
    np.lib.stride_tricks.as_strided(there[0], (2,), (4,))[1] = 7


def _moved(there, outputs, results):
    results[1, 2] *= 1.0001
    return results


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("WRONG", _moved),
        (
            "WRONG",
            lambda there, outputs, results: results[:2] if not outputs else results.__setitem__(0, np.nan) or results,
        ),
        ("UNNAMED", partial(_raise, KeyError("inside"))),
        ("WARNING", lambda *_: warnings.warn("odd", RuntimeWarning, stacklevel=1)),
        ("CHANGED", partial(_scribble, _first)),
        ("CHANGED", partial(_scribble, _between)),
        ("GUARD", partial(_scribble, _behind)),
        ("OUT", lambda there, outputs, results: results.copy()),
    ],
)
def test_faults_are_found(monkeypatch, kind, fault):
    _with_fault(monkeypatch, fault)
    assert judge(_call(out=True), Host()).kind == kind


def test_a_card_may_refuse_scratch_memory_at_odd_addresses():
    """And neither aligned memory, nor may the CPU engine refuse any."""
    error = dnn.OptionError("relu: workspace is at an odd address; expected memory aligned to 16 bytes.")
    for name, odd, kind in (("cuda", True, "refused"), ("cuda", False, "REFUSED"), ("cpu", True, "REFUSED")):
        host = Host()
        host.name = name
        trial = Trial(_call(workspace=True), host)
        trial.odd_workspace = odd
        assert trial._refused(error).kind == kind


@pytest.mark.parametrize("how", SPOILT)
def test_memory_that_must_be_refused_is_given(monkeypatch, how):
    call = _call(out="out" in how, workspace="workspace" in how, spoilt=how, change=how)
    assert judge(call, Host()).kind == ("ok" if how == "workspace too small" else "refused")  # nothing is needed here
    monkeypatch.setattr(Trial, "_called", lambda *_: None)
    assert judge(call, Host()).kind != "refused"


@pytest.mark.parametrize("id_", ["2101:16029", "2101:139789", "2101:148506"])
def test_a_workspace_that_is_too_small_is_so_for_every_algorithm_that_may_take_over(id_):
    assert judge(draw(id_, "numpy"), Host()).kind == "refused"


def test_a_refusal_of_a_call_that_is_right_is_a_fault(monkeypatch):
    _with_fault(monkeypatch, partial(_raise, dnn.OptionError("silu: x is odd; expected something else.")))
    assert judge(_call(), Host()).kind == "REFUSED"


def test_results_that_are_wrong_where_they_are_written_over_an_input_are_found(monkeypatch):
    _with_fault(
        monkeypatch, lambda there, out, results: results.__iadd__(1) if any(a is there[0] for a in out) else results
    )
    assert judge(_call(out=True), Host()).kind == "WRONG"


_DETERMINISTIC = {"deterministic": True}


@pytest.mark.parametrize(("place", "context", "modulo", "kind"), [
    ("cpu", _DETERMINISTIC, 64, "ok"),
    ("cpu", _DETERMINISTIC, 256, "BITS"),
    ("cpu", {}, 256, "ok"),
    ("cuda", _DETERMINISTIC, 64, "BITS"),
    ("cuda", {}, 64, "ok"),
])  # fmt: skip
def test_bits_may_depend_on_what_the_documentation_says_of_addresses(monkeypatch, place, context, modulo, kind):
    host = Host()
    host.name = place
    _with_fault(monkeypatch, lambda there, outputs, results: results + np.float32(there[0].ctypes.data % modulo * 1e-9))
    verdicts = {judge(replace(_call(repeat=True, context=context), id=f"1:{i}"), host).kind for i in range(8)}
    assert verdicts - {"ok"} == {kind} - {"ok"}


def test_a_kernel_that_gives_other_bits_when_it_runs_again_is_found(monkeypatch):
    from dnnarray._cpu.activation import formulas as activation_formulas

    divide, again = activation_formulas._over_one_plus_exp, itertools.count()

    def unsteady(x, e, out):
        divide(x, e, out)
        out *= np.float32(1 + next(again) * 2.0**-23)

    monkeypatch.setattr(activation_formulas, "_over_one_plus_exp", unsteady)
    monkeypatch.setattr(
        "tests.fuzz.judge.candidates", lambda *_: ["elementwise"]
    )  # NumPy's, also where a kernel is compiled
    for context, kind in ((_DETERMINISTIC, "BITS"), ({}, "ok")):
        assert judge(_call(repeat=True, pick=0.0, context=context), Host()).kind == kind


def test_a_gradient_from_the_result_is_as_exact_as_the_result():
    """1 - tanh(x)^2 is 0 where tanh(x) rounds to 1; the gradient by x itself is not."""
    x = Leaf(np.full(7, -9.37, np.float32), dense((7,)))
    assert judge(Call("1:1", "numpy", Drawn("tanh", (x,)), FLOAT32, "normal", "vjp"), Host()).kind == "ok"
    assert oracle.cancelling("tanh", [_VALUES], {"x": _VALUES}, {}) == 0


def test_a_gradient_that_is_wrong_in_every_dtype_is_found_by_differences_of_the_oracle(monkeypatch):
    from dnnarray._cpu.activation import formulas as activation_formulas

    monkeypatch.setattr(activation_formulas, "_logistic_slope", lambda x: np.full_like(x, 0.2))
    monkeypatch.setattr(
        "tests.fuzz.judge.candidates", lambda *_: ["elementwise"]
    )  # NumPy's, also where a kernel is compiled
    sigmoid = Drawn("sigmoid", (Leaf(_VALUES, dense((3, 4))),))
    found = judge(Call("1:1", "numpy", sigmoid, FLOAT32, "normal", "backward", pick=0.0), Host())
    assert found.kind == "WRONG"
    assert "derivative" in found.text


def test_results_beside_infinite_ones_are_held_to_a_finite_tolerance():
    """An infinite weight leaves infinite and undefined results beside the others."""
    assert judge(draw("2101:28761", "numpy"), Host()).good


@pytest.mark.parametrize("padding_index", [None, 0, -1])
def test_rows_of_an_embedding_without_a_gradient_do_not_move(padding_index):
    indices = Leaf(np.array([0, 2, 2, 1]), dense((4,)), "fixed")
    weight = Leaf(_VALUES, dense(_VALUES.shape))
    call = Call(
        "1:1",
        "numpy",
        Drawn("embedding", (indices, weight), {"padding_index": padding_index}),
        FLOAT32,
        "normal",
        "backward",
    )
    assert judge(call, Host()).kind == "ok"


def test_values_that_an_engine_cannot_look_at_are_not_compared(monkeypatch):
    """An engine that does not read the labels gives some number where the host refuses the label."""
    call = draw("2102:4960", "cuda")
    assert judge(call, Host()).kind == "refused"
    monkeypatch.setattr(Trial, "_called", lambda trial, *_: [np.zeros((4, 2), np.float32)])
    assert judge(replace(call, out=False), Host()) == ("unverified", "values: OptionError", None)


def test_a_failing_call_is_made_simpler(monkeypatch):
    _with_fault(monkeypatch, lambda there, outputs, results: results.__iadd__(1))
    call = _call(out=True, repeat=True, pick=0.1, context={"deterministic": True})
    simple = simplified(call, judge(call, Host()), Host())
    assert (simple.out, simple.repeat, simple.pick, simple.context, simple.drawn.options) == (
        False,
        False,
        None,
        {},
        {},
    )
    assert simple.drawn.arrays[0].layout == dense((3, 4))


@pytest.mark.parametrize(
    ("error", "other"),
    [
        (dnn.OptionError("silu: workspace is at an odd address."), dnn.ShapeError("silu: x is of shape (3, 4).")),
        (dnn.ShapeError("silu: x is 3 long."), dnn.ShapeError("silu: beta is 3 long.")),
        (KeyError("inside"), ZeroDivisionError("division by zero")),
    ],
)
def test_a_simpler_call_fails_as_the_call_did(monkeypatch, error, other):
    """The option `beta` stays since the call fails in another way without it."""
    _with_fault(monkeypatch, lambda there, outputs, results: _raise(error if results[0, 0] > -0.1 else other))
    call = _call(out=True)
    simple = simplified(call, judge(call, Host()), Host())
    assert (simple.out, simple.drawn.options) == (False, {"beta": 2.0})


def test_the_text_of_a_call_runs():
    printed = subprocess.run(
        [sys.executable, "-c", text(_call(), None)], capture_output=True, text=True, check=True
    ).stdout
    numbers = [float(number) for number in printed.replace("[", " ").replace("]", " ").split()]
    np.testing.assert_allclose(numbers, (_VALUES / (1 + np.exp(-2 * _VALUES))).ravel(), rtol=1e-4)


@pytest.mark.parametrize("layout", [Layout((4, 1)), Layout((-8, 2), 8), Layout((1, 3), 5), Layout((0, 1), 4)], ids=str)
def test_placed_arrays_hold_their_values(layout):
    values = np.broadcast_to(_VALUES[:1], (3, 4)) if 0 in layout.strides else _VALUES
    placed = Placed(Host(), (3, 4), FLOAT32, layout).holding(values)
    np.testing.assert_array_equal(placed.array, values)
    assert placed.array.strides == tuple(4 * s for s in layout.strides)
    assert placed.unchanged()
    placed.array[1, 1] = 9
    assert placed.guarded()
    assert not placed.unchanged()


_DYING = """
import json, os, sys
first = int(sys.argv[1])
for index in range(first, 6, 2):
    print(json.dumps({"at": index}), flush=True)
    if index == 2:
        os.abort()
print(json.dumps({"kinds": {"ok": 1}, "ops": {}, "reasons": {}, "algorithms": {}, "done": True}), flush=True)
"""


def test_a_crash_is_reported_with_its_call_and_the_others_are_made(monkeypatch):
    monkeypatch.setattr(workers, "command", lambda asked, first: [sys.executable, "-c", _DYING, str(first)])
    told = []
    report = workers.run(workers.Asked("numpy", 9, calls=6, jobs=2), lambda so_far: None, told.append)
    assert told == report.failures
    assert [(f["id"], f["kind"]) for f in report.failures] == [("9:2", "CRASH")]
    assert report.kinds == {"ok": 2, "CRASH": 1}


# --- a short run ------------------------------------------------------------------------------------------------------

_ENGINES = ["numpy", *(["compiled"] if compiler.missing() is None else [])]


@pytest.mark.parametrize("engine", _ENGINES)
def test_a_short_run_finds_nothing(engine):
    command = [sys.executable, "-m", "tests.fuzz", "--engine", engine, "--seed", "2", "--calls", "300", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert "300 calls" in done.stdout


def test_samples_at_the_edge_of_an_image_are_told_apart():
    """Of a box of height 6.5 that begins at -4.25, the fifth of nine samples stands at -1, where samples begin to
    count."""
    x, box = np.ones((1, 1, 1, 2)), np.array([[0.0, -2.75, -3.75, 7.625, 2.75]])
    options = {"output_size": 3, "aligned": True}
    with pytest.raises(oracle.Unverified, match="edge"):
        oracle.look_for_edges("roi_align", (x, box), options)
    oracle.look_for_edges("roi_align", (x, box + np.array([0, 0.0, 0.01, 0.02, 0.03])), options)


def test_terms_of_norms_that_cancel():
    x = np.full((2, 3, 1), 5.0)
    assert oracle.folded("instance_norm", {"x": x}, {}) == pytest.approx(5 / np.sqrt(1e-5))
    assert oracle.folded("batch_norm", {"x": x, "variance": np.array([4.0, 1.0, 9.0])}, {"eps": 0.0}) == 5
    assert oracle.folded("softmax", {"x": x}, {}) == 0


def test_terms_of_attention_between_projections():
    """Biases of the projections may be much larger than what is projected; the gradient of the bias of the keys is 0
    whatever its terms are."""
    arrays = {f"{kind}_{n}": np.full((2, 3), 0.5) for n in "qkv" for kind in "xw"} | {
        "w_o": np.ones((4, 2)),
        "b_q": np.full(2, 50.0),
    }
    assert oracle.cancelling("multi_head_attention", [np.ones((2, 4))], arrays, {}) == 4 * 50.75
    unprojected = {n: arrays[f"x_{n}"] for n in "qkv"}
    assert oracle.cancelling("attention", [np.ones((2, 3))], unprojected, {}) == 1
