"""Recurrent networks: errors, NaN, drawn shapes, and PyTorch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dnnarray as dnn
from dnnarray import RNNWeights
from tests.oracles.rnn import ORACLES
from tests.support import assert_close, flat

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
KINDS = tuple(GATES)


def drawn(rng, *shape):
    return rng.standard_normal(shape) * 0.5


def entry(rng, kind, inputs, hidden, projection=None, peephole=False):
    rows, state = GATES[kind] * hidden, projection or hidden
    return RNNWeights(
        drawn(rng, rows, inputs),
        drawn(rng, rows, state),
        drawn(rng, rows),
        drawn(rng, rows),
        drawn(rng, projection, hidden) if projection else None,
        drawn(rng, 3, hidden) if peephole else None,
    )


def network(rng, kind, inputs, hidden, layers=1, directions=1, projection=None):
    width = directions * (projection or hidden)
    return [
        entry(rng, kind, inputs if k < directions else width, hidden, projection) for k in range(layers * directions)
    ]


def run(kind, *arrays, **options):
    return getattr(dnn, kind)(*arrays, **options)


def run_backward(kind, *arrays, **options):
    return getattr(dnn, f"{kind}_backward")(*arrays, **options)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


# --- results ----------------------------------------------------------------------------------------------------------


def test_results_are_named_tuples_and_only_lstm_has_a_cell_state(rng):
    x = drawn(rng, 4, 2, 3)
    for kind in ("rnn", "gru"):
        y, h = result = run(kind, x, network(rng, kind, 3, 5))
        assert result.y is y
        assert result.h is h
        assert result.c is None
        np.testing.assert_array_equal(y[-1], h[0])
    y, h, c = result = dnn.lstm(x, network(rng, "lstm", 3, 5, projection=2))
    assert isinstance(result, dnn.RNNOutput)
    assert (y.shape, h.shape, c.shape) == ((4, 2, 2), (1, 2, 2), (1, 2, 5))


def test_the_gradients_of_the_weights_have_the_form_of_the_weights(rng):
    weights = [entry(rng, "lstm", 3, 4, peephole=True), entry(rng, "lstm", 4, 4)._replace(b_ih=None)]
    gradients = dnn.lstm_backward(np.ones((5, 2, 4)), drawn(rng, 5, 2, 3), weights)
    assert isinstance(gradients.weights, tuple)
    assert gradients.h0 is None
    assert gradients.c0 is None
    for given_, got in zip(weights, gradients.weights, strict=True):
        assert isinstance(got, RNNWeights)
        assert [None if a is None else a.shape for a in got] == [None if a is None else a.shape for a in given_]


def test_plain_tuples_and_lists_do_for_weights(rng):
    x, weights = drawn(rng, 4, 2, 3), network(rng, "gru", 3, 5, layers=2)
    expected = dnn.gru(x, weights)
    got = dnn.gru(x, tuple(tuple(w[:4]) for w in weights))
    np.testing.assert_array_equal(got.y, expected.y)
    grad = np.ones_like(expected.y)
    for a, e in zip(
        flat(dnn.gru_backward(grad, x, [w[:4] for w in weights])), flat(dnn.gru_backward(grad, x, weights)), strict=True
    ):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_its_steps(rng, kind):
    x, (w,) = drawn(rng, 4, 2, 3), network(rng, kind, 3, 5)
    states = [np.zeros((2, 5))] * (2 if kind == "lstm" else 1)
    for x_t, y_t in zip(x, run(kind, x, [w]).y, strict=True):
        stepped = getattr(dnn, f"{kind}_cell")(x_t, w, *states)
        states = list(stepped) if kind == "lstm" else [stepped]
        np.testing.assert_allclose(states[0], y_t, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_cut_in_two_gives_the_same(rng, kind):
    x, weights = drawn(rng, 6, 2, 3), network(rng, kind, 3, 5, layers=2)
    whole, head = run(kind, x, weights), run(kind, x[:4], weights)
    tail = run(kind, x[4:], weights, *head[1:])
    np.testing.assert_allclose(np.concatenate([head.y, tail.y]), whole.y, rtol=0, atol=1e-15)
    np.testing.assert_allclose(tail.h, whole.h, rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_reverse_is_the_reversed_half_of_both_directions(rng, kind):
    x, weights = drawn(rng, 5, 3, 3), network(rng, kind, 3, 4, directions=2)
    lengths = np.array([5, 2, 4])
    both = run(kind, x, weights, bidirectional=True, lengths=lengths)
    one = run(kind, x, weights[1:], reverse=True, lengths=lengths)
    np.testing.assert_array_equal(both.y[..., 4:], one.y)
    np.testing.assert_array_equal(both.h[1:], one.h)


@pytest.mark.parametrize("kind", KINDS)
def test_many_blocks_of_steps_give_what_one_gives(rng, kind, monkeypatch):
    x, weights = drawn(rng, 7, 3, 3), network(rng, kind, 3, 4, layers=3, directions=2)
    options = {"bidirectional": True, "dropout": 0.3, "seed": 3, "lengths": np.array([7, 3, 6])}
    y = run(kind, x, weights, **options).y
    expected = flat((y, run_backward(kind, y, x, weights, **options)))
    monkeypatch.setattr("dnnarray._cpu.rnn.sequence._BLOCK", 3 * GATES[kind] * 4 * 2)
    y = run(kind, x, weights, **options).y
    for a, e in zip(flat((y, run_backward(kind, y, x, weights, **options))), expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_memory_does_not_grow_with_the_sequence(rng, kind):
    specs = [dnn.Spec(w.shape, "float32") for w in network(rng, kind, 8, 512)[0][:4]]
    short, long = (
        dnn.infer(kind, dnn.Spec((t, 32, 8), "float32"), [RNNWeights(*specs)]).workspace for t in (100, 1000)
    )
    assert short == long


@pytest.mark.parametrize("kind", KINDS)
def test_out_in_any_memory_order_and_an_odd_workspace_do(rng, kind):
    x, weights = drawn(rng, 5, 3, 3), network(rng, kind, 3, 4, layers=2)
    expected = run(kind, x, weights)
    scratch = np.empty(dnn.infer(kind, x, weights).workspace + 1, np.uint8)[1:]
    out = tuple(np.full(e.shape[::-1], np.nan).T for e in expected)
    for a, e in zip(run(kind, x, weights, out=out, workspace=scratch), expected, strict=True):
        np.testing.assert_array_equal(a, e)
    gradients = flat(run_backward(kind, expected.y, x, weights))
    out = tuple(np.full(g.shape[::-1], np.nan).T for g in gradients)
    scratch = np.empty(dnn.infer(f"{kind}_backward", expected.y, x, weights).workspace + 1, np.uint8)[1:]
    run_backward(kind, expected.y, x, weights, out=out, workspace=scratch)
    for a, e in zip(out, gradients, strict=True):
        np.testing.assert_allclose(a, e, rtol=0, atol=1e-14)


def test_vjp_takes_lengths_by_name_and_gives_them_no_gradient(rng):
    x, weights, lengths = drawn(rng, 5, 2, 3), network(rng, "gru", 3, 4), np.array([5, 2])
    output, pullback = dnn.vjp("gru", x, weights, lengths=lengths)
    gradients = pullback((output.y, None))
    expected = dnn.gru_backward(output.y, x, weights, lengths=lengths)
    assert gradients[2] is None
    for a, e in zip(flat(gradients), flat(expected), strict=True):
        np.testing.assert_array_equal(a, e)


# --- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_past_the_end_is_never_seen(rng, kind, bidirectional):
    x, weights = drawn(rng, 5, 3, 3), network(rng, kind, 3, 4, layers=2, directions=1 + bidirectional)
    lengths = np.array([3, 5, 0])
    options = {"bidirectional": bidirectional, "lengths": lengths}
    past = np.arange(5)[:, None] >= lengths
    poisoned = np.where(past[..., None], np.nan, x)
    expected, got = run(kind, x, weights, **options), run(kind, poisoned, weights, **options)
    for a, e in zip(flat(got), flat(expected), strict=True):
        np.testing.assert_array_equal(a, e)
    assert (got.y[past] == 0).all()
    grad = np.where(past[..., None], np.nan, np.ones_like(got.y))
    gradients = run_backward(kind, grad, poisoned, weights, **options)
    for a, e in zip(flat(gradients), flat(run_backward(kind, np.ones_like(got.y), x, weights, **options)), strict=True):
        np.testing.assert_array_equal(a, e)
    assert (gradients.x[past] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_sequence_keeps_its_state_and_passes_its_gradient_on(rng, kind):
    x, weights = drawn(rng, 5, 2, 3), network(rng, kind, 3, 4)
    h0, lengths = drawn(rng, 1, 2, 4), np.array([0, 5])
    np.testing.assert_array_equal(run(kind, x, weights, h0, lengths=lengths).h[0, 0], h0[0, 0])
    gh = drawn(rng, 1, 2, 4)
    gradients = run_backward(kind, (None, gh), x, weights, h0, lengths=lengths)
    np.testing.assert_array_equal(gradients.h0[0, 0], gh[0, 0])
    assert (gradients.x[:, 0] == 0).all()


# --- NaN, infinity, dropout -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_sequence_and_goes_on_in_time(rng, kind):
    x = drawn(rng, 4, 3, 3)
    x[2, 1, 0] = np.nan
    y = run(kind, x, network(rng, kind, 3, 4)).y
    assert np.isnan(y[2:, 1]).all()
    assert np.isfinite(y[:2]).all()
    assert np.isfinite(y[:, [0, 2]]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_infinity_saturates_the_gates(rng, kind):
    x, (w,) = np.full((2, 1, 1), np.inf), network(rng, kind, 1, 3)
    w.w_ih[...] = np.where(w.w_ih < 0, -1, 1)
    y = run(kind, x, [w]).y
    expected = ORACLES[kind](x, [w], None, *((None,) if kind == "lstm" else ()), None)[0]
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-15)


def test_dropout_acts_on_every_layer_but_the_last(rng):
    x, weights = drawn(rng, 5, 2, 3), network(rng, "rnn", 3, 4, layers=2)
    dropped = dnn.rnn(x, weights, dropout=1.0, seed=1)
    alone = dnn.rnn(np.zeros((5, 2, 4)), weights[1:])
    np.testing.assert_array_equal(dropped.y, alone.y)
    np.testing.assert_array_equal(dnn.rnn(x, weights[:1], dropout=1.0, seed=1).y, dnn.rnn(x, weights[:1]).y)
    gradients = dnn.rnn_backward(np.ones((5, 2, 4)), x, weights, dropout=1.0, seed=1)
    assert (gradients.x == 0).all()


def test_dropout_follows_seed_and_offset(rng):
    x, weights = drawn(rng, 5, 2, 3), network(rng, "gru", 3, 4, layers=2)
    first = dnn.gru(x, weights, dropout=0.5, seed=1, offset=8).y
    np.testing.assert_array_equal(first, dnn.gru(x, weights, dropout=0.5, seed=1, offset=8).y)
    assert not np.array_equal(first, dnn.gru(x, weights, dropout=0.5, seed=2, offset=8).y)
    assert not np.array_equal(first, dnn.gru(x, weights, dropout=0.5, seed=1, offset=9).y)


# --- drawn shapes -----------------------------------------------------------------------------------------------------

_SHAPES = {
    "kind": st.sampled_from(KINDS),
    "t": st.integers(0, 6),
    "n": st.integers(0, 4),
    "inputs": st.integers(1, 5),
    "hidden": st.integers(1, 7),
    "layers": st.integers(1, 3),
    "form": st.sampled_from(["forward", "reverse", "bidirectional"]),
    "layout": st.sampled_from(["TNC", "NTC"]),
    "ragged": st.booleans(),
    "seed": st.integers(0, 2**64 - 1),
}


@settings(max_examples=60, deadline=None)
@given(**_SHAPES)
def test_drawn_networks_agree_with_the_oracle(kind, t, n, inputs, hidden, layers, form, layout, ragged, seed):
    rng = np.random.default_rng(seed)
    directions = 2 if form == "bidirectional" else 1
    weights = network(rng, kind, inputs, hidden, layers, directions)
    x = drawn(rng, *((t, n) if layout == "TNC" else (n, t)), inputs)
    h0 = drawn(rng, layers * directions, n, hidden)
    lengths = rng.integers(0, t + 1, n) if ragged else None
    options = {"layout": layout, "dropout": 0.3, "seed": seed} | ({form: True} if form != "forward" else {})
    actual = run(kind, x, weights, h0, lengths=lengths, **options)
    states = (h0, None) if kind == "lstm" else (h0,)
    expected = ORACLES[kind](x, weights, *states, lengths, **options)
    for a, e in zip(flat(actual), expected, strict=True):
        assert_close(a, e, (inputs + 2 * hidden) * max(t, 1))


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _torch_network(rng, kind, inputs, hidden, layers, bidirectional, projection):
    torch = pytest.importorskip("torch")
    extra = {"proj_size": projection} if projection else {}
    module = getattr(torch.nn, kind.upper())(
        inputs, hidden, layers, bidirectional=bidirectional, dtype=torch.float64, **extra
    )
    weights = network(rng, kind, inputs, hidden, layers, 1 + bidirectional, projection)
    with torch.no_grad():
        given_ = [a for w in weights for a in w if a is not None]
        for parameter, array in zip(module.parameters(), given_, strict=True):
            parameter.copy_(torch.from_numpy(array))
    return torch, module, weights


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(
    ("kind", "layers", "bidirectional", "projection"),
    [(kind, layers, both, None) for kind in KINDS for layers in (1, 2) for both in (False, True)]
    + [("lstm", 1, False, 3), ("lstm", 2, True, 3)],
)
def test_pytorch_agrees_forward_and_backward(rng, kind, layers, bidirectional, projection, ragged):
    torch, module, weights = _torch_network(rng, kind, 4, 5, layers, bidirectional, projection)
    T, N, entries = 6, 4, len(weights)
    x = torch.from_numpy(drawn(rng, T, N, 4)).requires_grad_()
    states = [torch.from_numpy(drawn(rng, entries, N, extent)).requires_grad_() for extent in (projection or 5, 5)]
    states = states if kind == "lstm" else states[:1]
    lengths = np.array([3, 6, 1, 5]) if ragged else None
    rnn = torch.nn.utils.rnn
    fed = rnn.pack_padded_sequence(x, torch.from_numpy(lengths), enforce_sorted=False) if ragged else x
    y, finals = module(fed, tuple(states) if kind == "lstm" else states[0])
    y = rnn.pad_packed_sequence(y, total_length=T)[0] if ragged else y
    expected = [y, *(finals if kind == "lstm" else [finals])]
    arrays = [a.detach().numpy() for a in (x, *states)]
    actual = run(kind, arrays[0], weights, *arrays[1:], lengths=lengths, bidirectional=bidirectional)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e.detach().numpy(), rtol=0, atol=1e-14)
    grads = [drawn(rng, *e.shape) for e in expected]
    torch.autograd.backward(expected, [torch.from_numpy(g) for g in grads])
    got = run_backward(
        kind, tuple(grads), arrays[0], weights, *arrays[1:], lengths=lengths, bidirectional=bidirectional
    )
    wanted = [x.grad, *(p.grad for p in module.parameters()), *(s.grad for s in states)]
    for a, e in zip(flat(got), wanted, strict=True):
        np.testing.assert_allclose(a, e.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_pytorch_cells_agree(rng, kind):
    torch = pytest.importorskip("torch")
    module = getattr(torch.nn, f"{kind.upper()}Cell")(4, 5, dtype=torch.float64)
    weights = RNNWeights(*(p.detach().numpy() for p in module.parameters()))
    x, h, c = drawn(rng, 3, 4), drawn(rng, 3, 5), drawn(rng, 3, 5)
    with torch.no_grad():
        states = tuple(map(torch.from_numpy, (h, c)))
        expected = module(torch.from_numpy(x), states if kind == "lstm" else states[0])
    actual = getattr(dnn, f"{kind}_cell")(x, weights, *((h, c) if kind == "lstm" else (h,)))
    for a, e in zip(flat(actual), expected if kind == "lstm" else [expected], strict=True):
        np.testing.assert_allclose(a, e.numpy(), rtol=0, atol=1e-14)


# --- errors -----------------------------------------------------------------------------------------------------------


def _lstm(**change):
    """A good call of `lstm` with two layers, both directions, changed."""
    rng = np.random.default_rng(0)
    arguments = {"x": drawn(rng, 5, 2, 3), "weights": network(rng, "lstm", 3, 4, 2, 2), "bidirectional": True} | change
    return dnn.lstm(arguments.pop("x"), arguments.pop("weights"), **arguments)


def _weights(k, **change):
    weights = network(np.random.default_rng(0), "lstm", 3, 4, 2, 2)
    weights[k] = weights[k]._replace(**change)
    return weights


_ZERO = np.zeros
_FLOAT32 = np.float32


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (dnn.ShapeError, r"lstm: x is 2-dimensional .*expected 3 dimensions \(T N I\)", {"x": _ZERO((5, 3))}),
        (
            dnn.ShapeError,
            r"lstm: x is 2-dimensional .*expected 3 dimensions \(N T I\)",
            {"x": _ZERO((5, 3)), "layout": "NTC"},
        ),
        (dnn.DTypeError, "lstm: x is int64", {"x": _ZERO((5, 2, 3), np.int64)}),
        (
            dnn.DTypeError,
            r"lstm: weights\[2\].w_hh is float32; expected float64",
            {"weights": _weights(2, w_hh=_ZERO((16, 4), _FLOAT32))},
        ),
        (dnn.DTypeError, "lstm: h0 is float32", {"h0": _ZERO((4, 2, 4), _FLOAT32)}),
        (dnn.ShapeError, r"lstm: weights is of length 3; .*an even number", {"weights": _weights(0)[:3]}),
        (dnn.ShapeError, r"lstm: weights is of length 0; ", {"weights": []}),
        (
            dnn.ArrayTypeError,
            r"lstm: weights is the arrays of one RNNWeights.*Write \[RNNWeights",
            {"weights": _weights(0)[0]},
        ),
        (dnn.ArrayTypeError, r"lstm: weights is an array; expected a list", {"weights": _ZERO((16, 3))}),
        (dnn.ArrayTypeError, r"lstm: weights is None", {"weights": None}),
        (dnn.ArrayTypeError, r"lstm: weights\[1\] is None", {"weights": [*_weights(0)[:1], None]}),
        (
            dnn.ArrayTypeError,
            r"lstm: weights\[0\] is .*RNNWeights with w_ih, w_hh",
            {"weights": _weights(0, w_ih=None)},
        ),
        (
            dnn.ShapeError,
            r"lstm: weights\[1\].w_ih \(layer 0, reversed\) is of shape \(16, 2\); expected \(16, 3\) \(4\*H I\)",
            {"weights": _weights(1, w_ih=_ZERO((16, 2)))},
        ),
        (
            dnn.ShapeError,
            r"lstm: weights\[2\].w_ih \(layer 1, forward\) is of shape \(16, 4\); expected \(16, 8\)",
            {"weights": _weights(2, w_ih=_ZERO((16, 4)))},
        ),
        (
            dnn.ShapeError,
            r"lstm: weights\[0\].w_hh is of shape \(15, 4\); expected a multiple of 4",
            {"weights": _weights(0, w_hh=_ZERO((15, 4)))},
        ),
        (dnn.ShapeError, r"lstm: weights\[0\].w_hh is 1-dimensional", {"weights": _weights(0, w_hh=_ZERO(16))}),
        (
            dnn.ShapeError,
            r"lstm: weights\[3\].b_hh \(layer 1, reversed\) is of shape \(4,\)",
            {"weights": _weights(3, b_hh=_ZERO(4))},
        ),
        (
            dnn.ShapeError,
            r"lstm: weights\[3\].w_hr \(layer 1, reversed\) is an array; expected None",
            {"weights": _weights(3, w_hr=_ZERO((2, 4)))},
        ),
        (
            dnn.ShapeError,
            r"lstm: weights\[1\].w_hr \(layer 0, reversed\) is None; expected an array",
            {"weights": _weights(0, w_hr=_ZERO((4, 4)))},
        ),
        (
            dnn.ShapeError,
            r"lstm: weights\[1\].peephole .* is of shape \(4, 4\); expected \(3, 4\)",
            {"weights": _weights(1, peephole=_ZERO((4, 4)))},
        ),
        (dnn.ShapeError, r"lstm: h0 is of shape \(1, 2, 4\); expected \(4, 2, 4\)", {"h0": _ZERO((1, 2, 4))}),
        (dnn.ShapeError, r"lstm: c0 is of shape \(4, 2, 5\); expected \(4, 2, 4\)", {"c0": _ZERO((4, 2, 5))}),
        (dnn.ShapeError, r"lstm: lengths is of shape \(3,\); expected \(2,\)", {"lengths": _ZERO(3, np.int64)}),
        (dnn.DTypeError, "lstm: lengths is float64; expected an integer", {"lengths": _ZERO(2)}),
        (dnn.OptionError, "lstm: lengths is from 0 to 6; expected from 0 to 5", {"lengths": np.array([0, 6])}),
        (dnn.OptionError, "lstm: lengths is from -1 to 2; expected from 0 to 5", {"lengths": np.array([2, -1])}),
        (dnn.ArrayTypeError, "lstm: lengths", {"lengths": [5, 5]}),
        (dnn.OptionError, "lstm: reverse is True; expected False with bidirectional", {"reverse": True}),
        (dnn.OptionError, "lstm: bidirectional is 1; expected True or False", {"bidirectional": 1}),
        (dnn.OptionError, "lstm: reverse is 'yes'", {"reverse": "yes"}),
        (dnn.OptionError, "lstm: dropout is 1.5; expected a finite number from 0 to 1", {"dropout": 1.5}),
        (dnn.OptionError, "lstm: seed is None; expected an integer where dropout is above 0", {"dropout": 0.5}),
        (dnn.OptionError, "lstm: seed is -1", {"dropout": 0.5, "seed": -1}),
        (dnn.OptionError, "lstm: offset is -1", {"dropout": 0.5, "seed": 1, "offset": -1}),
        (dnn.OptionError, "lstm: layout is 'NCT'; expected one of 'TNC', 'NTC'", {"layout": "NCT"}),
        (dnn.OptionError, "lstm: cell_clip is 0.0; expected a finite number above 0", {"cell_clip": 0}),
        (dnn.OptionError, "lstm: cell_clip is 'a'", {"cell_clip": "a"}),
    ],
)
def test_wrong_arguments_are_named(error, message, change):
    with pytest.raises(error, match=message):
        _lstm(**change)


def test_options_of_the_other_kinds_are_checked(rng):
    x = drawn(rng, 2, 2, 3)
    with pytest.raises(dnn.OptionError, match="rnn: activation is 'gelu'; expected one of 'tanh', 'relu'"):
        dnn.rnn(x, network(rng, "rnn", 3, 4), activation="gelu")
    with pytest.raises(dnn.OptionError, match="gru: linear_before_reset is None; expected True or False"):
        dnn.gru(x, network(rng, "gru", 3, 4), linear_before_reset=None)
    with pytest.raises(dnn.ShapeError, match=r"gru: weights\[0\].w_hh .*a multiple of 3 rows"):
        dnn.gru(x, network(rng, "rnn", 3, 4))


@pytest.mark.parametrize("kind", ["rnn", "gru"])
@pytest.mark.parametrize("field", ["w_hr", "peephole"])
def test_only_lstm_has_projections_and_peepholes(rng, kind, field):
    w = entry(rng, kind, 3, 4)._replace(**{field: np.zeros((4, 4))})
    with pytest.raises(
        dnn.OptionError, match=rf"{kind}: weights\[0\].{field} \(layer 0\) is an array; expected None. Only lstm"
    ):
        run(kind, drawn(rng, 2, 2, 3), [w])
    with pytest.raises(dnn.OptionError, match=rf"{kind}_cell: weights.{field} is an array; expected None. Only lstm"):
        getattr(dnn, f"{kind}_cell")(np.zeros((2, 3)), w, np.zeros((2, 4)))


def test_wrong_gradients_are_named(rng):
    x, weights = drawn(rng, 5, 2, 3), network(rng, "lstm", 3, 4)
    with pytest.raises(dnn.ShapeError, match=r"lstm_backward: grad is of shape \(5, 2, 3\); expected \(5, 2, 4\)"):
        dnn.lstm_backward(np.ones((5, 2, 3)), x, weights)
    with pytest.raises(dnn.ShapeError, match=r"lstm_backward: grad.h is of shape \(2, 4\); expected \(1, 2, 4\)"):
        dnn.lstm_backward((None, np.ones((2, 4))), x, weights)
    with pytest.raises(dnn.DTypeError, match=r"lstm_backward: grad.c is float32"):
        dnn.lstm_backward((None, None, np.ones((1, 2, 4), np.float32)), x, weights)
    with pytest.raises(dnn.ArrayTypeError, match=r"lstm_backward: grad is a tuple of None; expected .*\(y, h, c\)"):
        dnn.lstm_backward((None, None, None), x, weights)
    with pytest.raises(dnn.ArrayTypeError, match=r"gru_backward: grad is a tuple of 3; expected .*\(y, h\)"):
        dnn.gru_backward((np.ones((5, 2, 4)),) * 3, x, network(rng, "gru", 3, 4))
    with pytest.raises(dnn.ArrayTypeError, match="lstm_backward: grad is None"):
        dnn.lstm_backward(None, x, weights)
    with pytest.raises(dnn.OptionError, match="lstm_backward: seed is None"):
        dnn.lstm_backward(np.ones((5, 2, 4)), x, network(rng, "lstm", 3, 4, layers=2), dropout=0.5)
    with pytest.raises(dnn.OptionError, match="lstm_backward: lengths is from 6 to 6"):
        dnn.lstm_backward(np.ones((5, 2, 4)), x, weights, lengths=np.array([6, 6]))


def test_wrong_arguments_of_cells_are_named(rng):
    x, w, h, c = drawn(rng, 2, 3), entry(rng, "lstm", 3, 4), drawn(rng, 2, 4), drawn(rng, 2, 4)
    with pytest.raises(dnn.ShapeError, match=r"lstm_cell: x is 3-dimensional .* \(N I\)"):
        dnn.lstm_cell(x[None], w, h, c)
    with pytest.raises(dnn.ShapeError, match=r"lstm_cell: weights.w_ih is of shape \(16, 3\); expected \(16, 2\)"):
        dnn.lstm_cell(x[:, :2], w, h, c)
    with pytest.raises(dnn.ShapeError, match=r"lstm_cell: h is of shape \(2, 3\); expected \(2, 4\) \(N H\)"):
        dnn.lstm_cell(x, w, h[:, :3], c)
    with pytest.raises(dnn.ShapeError, match=r"lstm_cell: c is of shape \(1, 4\); expected \(2, 4\)"):
        dnn.lstm_cell(x, w, h, c[:1])
    with pytest.raises(dnn.DTypeError, match="lstm_cell: c is float32"):
        dnn.lstm_cell(x, w, h, c.astype(np.float32))
    with pytest.raises(dnn.ArrayTypeError, match="lstm_cell: h is None"):
        dnn.lstm_cell(x, w, None, c)
    with pytest.raises(dnn.ArrayTypeError, match=r"lstm_cell: weights is .*nested; expected an RNNWeights"):
        dnn.lstm_cell(x, [w], h, c)
    with pytest.raises(dnn.ShapeError, match=r"lstm_cell_backward: grad.c is of shape"):
        dnn.lstm_cell_backward((h, c[:1]), x, w, h, c)
    with pytest.raises(dnn.ShapeError, match=r"gru_cell_backward: grad is of shape \(2, 3\); expected \(2, 4\)"):
        dnn.gru_cell_backward(h[:, :3], x, entry(rng, "gru", 3, 4), h)


@pytest.mark.parametrize("kind", GATES)
def test_no_hidden_units_give_empty_results(kind):
    weights = [dnn.RNNWeights(np.ones((0, 3)), np.ones((0, 0)), np.ones(0), np.ones(0))] * 2
    result, pullback = dnn.vjp(kind, np.ones((2, 1, 3)), weights, bidirectional=True, lengths=np.array([1]))
    assert [a.shape for a in result] == [(2, 1, 0), *[(2, 1, 0)] * (len(result) - 1)]
    x, entries = pullback(result.y)[:2]
    np.testing.assert_array_equal(x, np.zeros((2, 1, 3)))
    assert [a.shape for a in entries[1][:4]] == [(0, 3), (0, 0), (0,), (0,)]
