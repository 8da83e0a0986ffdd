"""The compiled recurrent layers: shares of the batch, directions side by side, the last units of a panel, and their
exactness in float32."""

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._call import dispatch as _dispatch
from dnnarray._call.introspect import question
from dnnarray._cpu import matrix_unit, rnn, threads
from dnnarray._cpu.compiled import compiler
from tests.oracles.rnn import ORACLES
from tests.support import assert_close, call_by, flat

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
GATES = {"gru": 3, "lstm": 4}
# (T, N, I, H): batches that threads do not divide, units that panels do not and some that they do, more sequences than
# products held at a time, several terms of a sum at a time.
EXTENTS = ((7, 13, 6, 33), (3, 50, 32, 64), (1, 5, 4, 16), (0, 3, 4, 5), (3, 131, 3, 7), (2, 9, 5, 260), (4, 1, 3, 1))


def network(rng, kind, inputs, hidden, layers, directions, dtype):
    rows = GATES[kind] * hidden
    extents = [inputs if k < directions else directions * hidden for k in range(layers * directions)]
    return [
        dnn.RNNWeights(*(drawn(rng, s, dtype) * hidden**-0.5 for s in ((rows, n), (rows, hidden), (rows,), (rows,))))
        for n in extents
    ]


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
    exact = call_by(
        "steps",
        kind,
        (x.astype(float), [dnn.RNNWeights(*(None if a is None else a.astype(float) for a in w)) for w in weights]),
        {},
    ).y
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
    _dispatch.forget()
    dnn.warmup("lstm")
    needed = {a.name: a.workspace for a in dnn.algorithms("lstm", x, weights)}
    assert told < needed["fused_steps"]
    for nbytes in (told, needed["fused_steps"]):
        y = dnn.lstm(x, weights, workspace=np.empty(nbytes, np.uint8)).y
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(dnn.WorkspaceError):
        dnn.lstm(x, weights, workspace=np.empty(told - 1, np.uint8))


# --- the input's share on the matrix unit -----------------------------------------------------------------------------


@pytest.fixture
def in_pieces(in_shares, monkeypatch):
    """The products of all inputs go by the matrix unit, however small; gives what its kernels said of each
    direction."""
    if matrix_unit.missing() is not None:
        pytest.skip(matrix_unit.missing())
    from dnnarray._cpu.compiled.rnn import split as rnn_split

    held, usual = [], rnn_split.Split.multiply
    monkeypatch.setattr(rnn_split.Split, "multiply", lambda *given: held.append(usual(*given)) or held[-1])
    monkeypatch.setattr(matrix_unit, "product_flops", lambda *sizes: 0.0)
    _dispatch.forget()  # whose algorithms know how much scratch memory they need
    yield held
    _dispatch.forget()


def doubled(weights):
    return [dnn.RNNWeights(*(None if a is None else a.astype(float) for a in w)) for w in weights]


@pytest.mark.parametrize("ragged", (False, True))
@pytest.mark.parametrize("extents", [*EXTENTS, (40, 33, 65, 100), (3, 17, 300, 16)])
@pytest.mark.parametrize("kind", GATES)
def test_inputs_in_pieces_give_the_definition(in_pieces, kind, extents, ragged):
    rng, (T, N, inputs, hidden) = np.random.default_rng(3), extents
    x, lengths = drawn(rng, (T, N, inputs), np.float32), rng.integers(0, T + 1, N) if ragged else None
    weights, states = network(rng, kind, inputs, hidden, 2, 2, np.float32), (None,) * (2 if kind == "lstm" else 1)
    expected = flat(
        call_by("steps", kind, (x.astype(float), doubled(weights), *states, lengths), {"bidirectional": True})
    )
    found = []
    for count in (1, 2, 8):
        with dnn.options(threads=count):
            found.append(flat(call_by("fused_steps", kind, (x, weights, *states, lengths), {"bidirectional": True})))
    for a, b, c, e in zip(*found, expected, strict=True):
        assert_close(a, e, inputs + hidden, condition=2)
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
    assert bool(in_pieces) == bool(T)
    assert all(map(all, in_pieces))


@pytest.mark.parametrize("kind", GATES)
def test_the_forward_of_a_gradient_takes_inputs_in_pieces(in_pieces, kind):
    rng = np.random.default_rng(4)
    x, weights, grad = (
        drawn(rng, (9, 20, 33), np.float32),
        network(rng, kind, 33, 48, 2, 2, np.float32),
        drawn(rng, (9, 20, 96), np.float32),
    )
    states, options = (None,) * (2 if kind == "lstm" else 1), {"bidirectional": True}
    expected = flat(
        call_by(
            "steps", f"{kind}_backward", (grad.astype(float), x.astype(float), doubled(weights), *states, None), options
        )
    )
    got = flat(call_by("fused_steps", f"{kind}_backward", (grad, x, weights, *states, None), options))
    *_, tape = call_by("fused_steps", kind, (x, weights, *states, None), options | {"return_tape": True})
    taped = flat(
        call_by("fused_steps", f"{kind}_backward", (grad, x, weights, *states, None), options | {"tape": tape})
    )
    for a, b, e in zip(got, taped, expected, strict=True):
        assert_close(a, e, 9 * 20 * 3, condition=2)
        np.testing.assert_array_equal(a, b)
    assert len(in_pieces) == 4
    assert all(map(all, in_pieces))


def lying(array, how):
    """The same numbers in other memory."""
    if how == "turned":
        return np.ascontiguousarray(array.T).T
    if how == "strided":
        wide = np.zeros([2 * n for n in array.shape], array.dtype)[(slice(None, None, 2),) * array.ndim]
    else:
        wide = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    wide[...] = array
    return wide


@pytest.mark.parametrize("how", ("turned", "strided", "unaligned"))
@pytest.mark.parametrize("kind", GATES)
def test_inputs_in_pieces_of_arrays_that_lie_otherwise(in_pieces, kind, how):
    rng = np.random.default_rng(5)
    x, weights = drawn(rng, (7, 19, 33), np.float32), network(rng, kind, 33, 47, 2, 1, np.float32)
    expected = flat(call_by("fused_steps", kind, (x, weights), {}))
    others = [dnn.RNNWeights(*(a if a is None or a.ndim < 2 else lying(a, how) for a in w)) for w in weights]
    for given in ((lying(x, how), weights), (x, others), (lying(x, how), others)):
        for a, e in zip(flat(call_by("fused_steps", kind, given, {})), expected, strict=True):
            assert_close(a, e, 80)


@pytest.mark.parametrize("place", ("x", "w_ih"))
@pytest.mark.parametrize("value", (np.nan, np.inf, 1e-40, 3.4e38))
@pytest.mark.parametrize("kind", GATES)
def test_numbers_that_pieces_cannot_hold_go_by_the_blas(in_pieces, kind, value, place):
    rng = np.random.default_rng(6)
    x, weights = drawn(rng, (6, 17, 33), np.float32), network(rng, kind, 33, 20, 1, 2, np.float32)
    (x[2, 4] if place == "x" else weights[1].w_ih[7])[5] = value
    got, exact = (
        call_by(name, kind, given, {"bidirectional": True}).y
        for name, given in (("fused_steps", (x, weights)), ("steps", (x.astype(float), doubled(weights))))
    )
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    assert_close(got, exact, 53)
    assert in_pieces == [[False, False] if place == "x" else [True, False]]


@pytest.mark.parametrize("kind", GATES)
def test_small_inputs_are_not_lost(in_pieces, kind):
    """Rows of 1e-25 with weights of 1e-20 beside ordinary ones: their share is a float32 that the unit takes for 0."""
    x, weights = (
        np.full((1, 20, 32), 1e-20, np.float32),
        network(np.random.default_rng(7), kind, 32, 16, 1, 1, np.float32),
    )
    weights = [
        dnn.RNNWeights(np.full_like(w.w_ih, 1e-20), w.w_hh, *(np.zeros_like(b) for b in w[2:4])) for w in weights
    ]
    got, expected = (call_by(name, kind, (x, weights), {}).y for name in ("fused_steps", "steps"))
    assert (expected != 0).all()
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_the_matrix_unit_is_asked_for_where_it_is_faster(monkeypatch):
    plan, problem = rnn.fused_forward_plan, lambda *given, **options: question("lstm", given, options).problem
    monkeypatch.setattr(matrix_unit, "missing", lambda: None)
    large, weights = (
        dnn.Spec((100, 32, 512), "float32"),
        [dnn.RNNWeights(dnn.Spec((2048, 512), "float32"), dnn.Spec((2048, 512), "float32"))],
    )
    small = dnn.Spec((2, 3, 512), "float32")
    assert "pieces" in plan(problem(large, weights))
    assert "pieces" not in plan(problem(small, weights))
    in_double = [dnn.RNNWeights(*(dnn.Spec((2048, 512), "float64"),) * 2)]
    assert "pieces" not in plan(problem(dnn.Spec((100, 32, 512), "float64"), in_double))
    monkeypatch.setattr(matrix_unit, "missing", lambda: "no unit here")
    assert "pieces" not in plan(problem(large, weights))
    assert not rnn.by_pieces(problem(large, weights), 512)


@pytest.mark.parametrize("kind", GATES)
def test_inputs_in_pieces_round_no_more_than_the_blas(in_pieces, kind):
    rng = np.random.default_rng(8)
    x, weights = drawn(rng, (12, 16, 300), np.float32), network(rng, kind, 300, 64, 1, 1, np.float32)
    exact = call_by("steps", kind, (x.astype(float), doubled(weights)), {}).y
    own, numpys = (
        np.sqrt(((call_by(name, kind, (x, weights), {}).y - exact) ** 2).mean()) for name in ("fused_steps", "steps")
    )
    assert own <= numpys
