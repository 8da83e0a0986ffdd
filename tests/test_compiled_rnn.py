"""The compiled recurrent layers: shares of the batch, directions side by side, the last units of a panel, and their exactness in float32."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import _operation
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler
from tests.oracles.rnn import ORACLES
from tests.support import call_by, flat

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
GATES = {"gru": 3, "lstm": 4}
# (T, N, I, H): batches that threads do not divide, units that panels do not and some that they do, more sequences than products held at a time, several terms of a sum at a time.
EXTENTS = ((7, 13, 6, 33), (3, 50, 32, 64), (1, 5, 4, 16), (0, 3, 4, 5), (3, 131, 3, 7), (2, 9, 5, 260), (4, 1, 3, 1))


def network(rng, kind, inputs, hidden, layers, directions, dtype):
    rows = GATES[kind] * hidden
    extents = [inputs if k < directions else directions * hidden for k in range(layers * directions)]
    return [dnn.RNNWeights(*(drawn(rng, s, dtype) * hidden**-0.5 for s in ((rows, n), (rows, hidden), (rows,), (rows,)))) for n in extents]


def drawn(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


@pytest.fixture
def in_shares(monkeypatch):
    """Every call is spread over as many threads as the option says."""
    monkeypatch.setattr(threads, "GRAIN", 1)


@pytest.mark.parametrize("ragged", (False, True))
@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("kind", GATES)
def test_every_number_of_threads_gives_the_definition(in_shares, kind, extents, ragged):
    rng, (T, N, inputs, hidden) = np.random.default_rng(3), extents
    x, lengths = drawn(rng, (T, N, inputs), float), rng.integers(0, T + 1, N) if ragged else None
    weights = network(rng, kind, inputs, hidden, 2, 2, float)
    arrays = (x, weights, *(None,) * (2 if kind == "lstm" else 1), lengths)
    expected = flat(ORACLES[kind](*arrays, bidirectional=True))
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            got = flat(call_by("fused_steps", kind, arrays, {"bidirectional": True}))
        for a, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=0, atol=1e-12)


@pytest.mark.parametrize("directions", (1, 2))
@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("kind", GATES)
def test_every_number_of_threads_gives_the_gradient_of_the_steps(in_shares, kind, extents, directions):
    rng, (T, N, inputs, hidden) = np.random.default_rng(4), extents
    weights = network(rng, kind, inputs, hidden, 2, directions, float)
    states = [drawn(rng, (2 * directions, N, hidden), float) for _ in range(2 if kind == "lstm" else 1)]
    grad = (drawn(rng, (T, N, directions * hidden), float), *(drawn(rng, s.shape, float) for s in states))
    arrays = (grad, drawn(rng, (T, N, inputs), float), weights, *states, rng.integers(0, T + 1, N))
    options = {"bidirectional": directions == 2}
    expected = flat(call_by("steps", f"{kind}_backward", arrays, options))
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            got = flat(call_by("fused_steps", f"{kind}_backward", arrays, options))
        for a, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, e, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", GATES)
def test_nan_and_infinity_stay_with_their_sequence(kind):
    rng = np.random.default_rng(5)
    x, weights = drawn(rng, (4, 12, 3), np.float32), network(rng, kind, 3, 20, 1, 1, np.float32)
    clean = call_by("fused_steps", kind, (x, weights), {}).y
    x[1, 4, 0], x[2, 7, 1] = np.nan, np.inf
    y = call_by("fused_steps", kind, (x, weights), {}).y
    others = [n for n in range(12) if n not in (4, 7)]
    np.testing.assert_array_equal(y[:, others], clean[:, others])
    assert np.isnan(y[1:, 4]).all()
    assert np.isfinite(y[:, others]).all()
    np.testing.assert_array_equal(np.isnan(y), np.isnan(call_by("steps", kind, (x, weights), {}).y))


@pytest.mark.parametrize("kind", GATES)
def test_float32_is_as_exact_as_in_torch(kind):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(6)
    x, weights = drawn(rng, (20, 8, 40), np.float32), network(rng, kind, 40, 72, 1, 1, np.float32)
    exact = call_by("steps", kind, (x.astype(float), [dnn.RNNWeights(*(None if a is None else a.astype(float) for a in w)) for w in weights]), {}).y  # fmt: skip
    zero = torch.zeros(1, 8, 72)
    tensors = [torch.from_numpy(np.array(a)) for a in weights[0][:4]]
    theirs = getattr(torch, kind)(
        torch.from_numpy(x), (zero, zero) if kind == "lstm" else zero, tensors, True, 1, 0.0, False, False, False
    )[0]
    error, reference = (np.abs(y - exact) for y in (call_by("fused_steps", kind, (x, weights), {}).y, theirs.numpy()))
    assert np.sqrt((error**2).mean()) <= 1.25 * np.sqrt((reference**2).mean())
    assert error.max() <= 2 * reference.max()


def test_the_workspace_that_infer_told_before_anything_was_compiled_is_enough(monkeypatch):
    rng = np.random.default_rng(9)
    x, weights = drawn(rng, (16, 8, 64), np.float32), network(rng, "lstm", 64, 64, 1, 1, np.float32)
    with monkeypatch.context() as before:
        before.setattr(compiler, "missing", lambda: "not compiled yet")
        told = dnn.infer("lstm", x, weights).workspace
        expected = dnn.lstm(x, weights).y
    _operation.forget()
    dnn.warmup("lstm")
    needed = {a.name: a.workspace for a in dnn.algorithms("lstm", x, weights)}
    assert told < needed["fused_steps"]
    for nbytes in (told, needed["fused_steps"]):
        y = dnn.lstm(x, weights, workspace=np.empty(nbytes, np.uint8)).y
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(dnn.WorkspaceError):
        dnn.lstm(x, weights, workspace=np.empty(told - 1, np.uint8))
