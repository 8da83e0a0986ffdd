"""The tape of a recurrent network: what the forward keeps for the gradient."""

from dataclasses import replace

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu import rnn as cpu
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler
from tests.cases.rnn import CASES
from tests.support import call, call_by, candidates, flat

KINDS = ("rnn", "gru", "lstm")
SEQUENCES = [case for case in CASES if case.op in KINDS]


def as_gradients(case, arrays, result):
    """The arguments of the backward, with a gradient of every result."""
    rng = np.random.default_rng(8)
    return (tuple(rng.standard_normal(a.shape).astype(a.dtype) for a in flat(result)), *arrays)


def with_tape(case, arrays, algorithm):
    """(results, tape) of the forward."""
    *results, tape = call_by(algorithm, case.op, arrays, case.options | {"return_tape": True})
    return results, tape


@pytest.mark.parametrize("case", SEQUENCES, ids=str)
def test_every_algorithm_takes_the_tape_of_every_other(case, monkeypatch):
    monkeypatch.setattr(threads, "GRAIN", 1)
    arrays, backward = case.draw(), f"{case.op}_backward"
    plain = call(case.op, arrays, case.options)
    given = as_gradients(case, arrays, plain)
    expected = flat(call_by("steps", backward, given, case.options))
    for forward in candidates(case.op, arrays, case.options | {"return_tape": True}):
        results, tape = with_tape(case, arrays, forward)
        for a, e in zip(results, flat(plain), strict=True):
            np.testing.assert_allclose(a, e, rtol=0, atol=1e-12)
        tape.flags.writeable = False
        for algorithm in candidates(backward, given, case.options | {"tape": tape}):
            for count in (1, 2, 8):
                with dnn.options(threads=count):
                    got = flat(call_by(algorithm, backward, given, case.options | {"tape": tape}))
                for a, e in zip(got, expected, strict=True):
                    np.testing.assert_allclose(a, e, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_vjp_runs_the_forward_once(kind, monkeypatch):
    rng = np.random.default_rng(1)
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[kind]
    x, weights = (
        rng.standard_normal((4, 2, 3)),
        [dnn.RNNWeights(rng.standard_normal((5 * gates, 3)), rng.standard_normal((5 * gates, 5)))],
    )
    expected = flat(call(f"{kind}_backward", (np.ones((4, 2, 5)), x, weights), {}))
    result, pullback = dnn.vjp(kind, x, weights)
    assert type(result).__name__ in ("HiddenOutput", "RNNOutput")
    taped, other = dnn.vjp(kind, x, weights, return_tape=True)
    assert taped.tape.shape == (dnn.infer(kind, x, weights, return_tape=True).output.tape.shape)
    seen = []
    monkeypatch.setattr(
        cpu, "unrolled", lambda tape, problem, real=cpu.unrolled: (seen.append(tape), real(tape, problem))[1]
    )
    for pull in (pullback, pullback, other):  # a tape can be used any number of times
        for a, e in zip(flat(pull(np.ones((4, 2, 5)))), expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=0, atol=1e-12)
    assert len(seen) == 3


def test_vjp_goes_without_where_the_engine_has_none(monkeypatch):
    for kind in KINDS:
        steps = next(m for m in cpu.ALGORITHMS[kind] if m.name == "steps")
        refusing = (replace(steps, rejects=lambda problem, device: "no tape" if problem.taped else None),)
        monkeypatch.setitem(cpu.ALGORITHMS, kind, refusing)
    w, x = dnn.RNNWeights(np.ones((8, 3)), np.ones((8, 2))), np.full((5, 1, 3), 0.3)
    result, pullback = dnn.vjp("lstm", x, [w], reverse=True)
    for a, e in zip(flat(pullback(result.y)), flat(dnn.lstm_backward(result.y, x, [w], reverse=True)), strict=True):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_a_tape_has_the_dtype_of_the_arithmetic_and_any_strides(dtype):
    rng = np.random.default_rng(2)
    x, w = (
        rng.standard_normal((3, 2, 4)).astype(dtype),
        dnn.RNNWeights(*(rng.standard_normal(s).astype(dtype) for s in ((20, 4), (20, 5)))),
    )
    y, h, c, tape = dnn.lstm(x, [w], return_tape=True)
    assert tape.dtype == np.float32
    expected = dnn.lstm_backward(np.ones_like(y), x, [w])
    wide = np.full(2 * tape.size, np.nan, np.float32)
    again = dnn.lstm(x, [w], return_tape=True, out=(np.empty_like(y), np.empty_like(h), np.empty_like(c), wide[::2]))
    np.testing.assert_array_equal(again.tape, tape)
    got = dnn.lstm_backward(np.ones_like(y), x, [w], tape=wide[::2])
    for a, e in zip(flat(got), flat(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=2e-3 if dtype == "float16" else 1e-5, atol=1e-6)


def test_what_no_step_wrote_is_zero():
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((5, 3, 2)), dnn.RNNWeights(rng.standard_normal((8, 2)), rng.standard_normal((8, 2)))
    out = tuple(
        np.full(s.shape, np.nan)
        for s in dnn.infer("lstm", x, [w], lengths=np.array([1, 5, 0]), return_tape=True).outputs
    )
    assert np.isfinite(dnn.lstm(x, [w], lengths=np.array([1, 5, 0]), return_tape=True, out=out).tape).all()


def test_wrong_tapes_are_named():
    x, w = np.ones((2, 1, 3)), dnn.RNNWeights(np.ones((8, 3)), np.ones((8, 2)))
    grad, tape = np.ones((2, 1, 2)), dnn.lstm(x, [w], return_tape=True).tape
    with pytest.raises(
        dnn.ShapeError, match=r"lstm_backward: tape is of shape \(27,\); expected \(28,\), as the forward"
    ):
        dnn.lstm_backward(grad, x, [w], tape=tape[1:])
    with pytest.raises(dnn.DTypeError, match="lstm_backward: tape is float32; expected float64"):
        dnn.lstm_backward(grad, x, [w], tape=tape.astype(np.float32))
    with pytest.raises(dnn.OptionError, match="lstm: return_tape is 1; expected True or False"):
        dnn.lstm(x, [w], return_tape=1)
    with pytest.raises(dnn.OptionError, match="gru_backward: return_tape"):
        dnn.gru_backward(grad, x, [dnn.RNNWeights(np.ones((6, 3)), np.ones((6, 2)))], return_tape="no")


@pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
def test_the_compiled_layers_take_a_tape():
    x, w = np.ones((2, 1, 3)), dnn.RNNWeights(np.ones((8, 3)), np.ones((8, 2)))
    tape = dnn.lstm(x, [w], return_tape=True).tape
    assert "fused_steps" in candidates("lstm", (x, [w]), {"return_tape": True})
    assert "fused_steps" in candidates("lstm_backward", (np.ones((2, 1, 2)), x, [w]), {"tape": tape})
