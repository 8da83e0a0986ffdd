"""Recurrent networks under `accelerate` and as operators of PyTorch, held to `torch.nn`."""

import pytest

import dnnarray as dnn

torch = pytest.importorskip("torch")
door = pytest.importorskip("dnnarray.interop.torch")
nn = torch.nn

ON_CPU = {"devices": ("cpu",)}
_KINDS = [
    (nn.LSTM, {}),
    (nn.LSTM, {"proj_size": 3}),
    (nn.GRU, {}),
    (nn.RNN, {}),
    (nn.RNN, {"nonlinearity": "relu"}),
]


@pytest.fixture(autouse=True)
def _fresh_report():
    door.report(reset=True)


def _run(net, x, states=None):
    """Output, last states and all gradients, with those of the last states among them."""
    y, last = net(x, states)
    data = y if isinstance(y, torch.Tensor) else y.data
    last = last if isinstance(last, tuple) else (last,)
    leaves = [*net.parameters(), *([x] if isinstance(x, torch.Tensor) else [x.data])]
    leaves += [] if states is None else list(states) if isinstance(states, tuple) else [states]
    loss = data.square().sum() + sum(s.sin().sum() for s in last)
    return data, last, torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("kind", "options"), _KINDS)
def test_layers_give_what_pytorch_gives(kind, options, batch_first, bias):
    torch.manual_seed(0)
    net = kind(5, 6, num_layers=2, bidirectional=True, batch_first=batch_first, bias=bias, **options).double()
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    wanted = _run(net, x)
    with door.accelerate(**ON_CPU):
        found = _run(net, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert found[0].stride() == wanted[0].stride()
    report = door.report()
    assert [(n, report[n].taken, report[n].declined.total()) for n in report if ".input" in n] == [
        (f"aten::{net.mode.lower()}.input", 1, 0)
    ]


@pytest.mark.parametrize(("kind", "options"), _KINDS)
def test_packed_sequences(kind, options):
    torch.manual_seed(0)
    net = kind(5, 6, bidirectional=True, **options).double()
    padded = torch.randn(4, 3, 5, dtype=torch.float64)
    x = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([2, 4, 1]), enforce_sorted=False)
    x.data.requires_grad_()
    wanted = _run(net, x)
    with door.accelerate(**ON_CPU):
        found = _run(net, x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    assert door.report()[f"aten::{net.mode.lower()}.data"].taken == 1


def test_the_first_states_have_gradients():
    torch.manual_seed(0)
    net, x = nn.LSTM(5, 6).double(), torch.randn(4, 3, 5, dtype=torch.float64, requires_grad=True)
    states = tuple(torch.randn(1, 3, 6, dtype=torch.float64, requires_grad=True) for _ in range(2))
    wanted = _run(net, x, states)
    with door.accelerate(**ON_CPU):
        torch.testing.assert_close(_run(net, x, states), wanted, rtol=1e-10, atol=1e-12)


def test_frozen_weights_have_no_gradients():
    net, x = nn.GRU(5, 6), torch.randn(4, 3, 5, requires_grad=True)
    net.requires_grad_(False)
    with door.accelerate(**ON_CPU):
        net(x)[0].sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("reason", ["dropout", "autocast"])
def test_what_is_left_to_pytorch(reason):
    net, x = nn.GRU(5, 6, num_layers=2, dropout=0.5 if reason == "dropout" else 0.0), torch.randn(4, 3, 5)
    with door.accelerate(**ON_CPU), torch.autocast("cpu", torch.bfloat16, enabled=reason == "autocast"):
        net(x)
    assert next(iter(door.report()["aten::gru.input"].declined)).startswith(f"recurrent: {reason}")
    assert door.report()["aten::gru.input"].taken == 0


def _weights(kind, hidden=3, features=2, dtype=torch.float64):
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind] * hidden
    shapes = ((gates, features), (gates, hidden), (gates,), (gates,))
    return dnn.RNNWeights(*[torch.randn(s, dtype=dtype, requires_grad=True) for s in shapes])


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_gradients_of_all_results_by_finite_differences(kind):
    torch.manual_seed(0)
    cell, x = _weights(kind), torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    h0 = torch.randn(1, 2, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([3, 2])

    def f(x, h0, *weights):
        return tuple(getattr(door, kind)(x, [dnn.RNNWeights(*weights)], h0, lengths=lengths))

    assert torch.autograd.gradcheck(f, (x, h0, *cell[:4]))


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_a_compiled_network_is_one_graph(kind):
    torch.manual_seed(0)
    cell, x = _weights(kind), torch.randn(3, 2, 2, dtype=torch.float64)

    def f(x, *weights):
        return getattr(door, kind)(x, [dnn.RNNWeights(*weights)])[0].square().sum()

    torch._dynamo.reset()
    wanted = torch.autograd.grad(f(x, *cell[:4]), cell[:4])
    found = torch.autograd.grad(torch.compile(f, fullgraph=True, backend="aot_eager")(x, *cell[:4]), cell[:4])
    torch.testing.assert_close(found, wanted)


def test_vmap_takes_one_network_after_the_other():
    cell, x = _weights("gru"), torch.randn(4, 3, 2, 2, dtype=torch.float64)

    def f(x, *weights):
        return door.gru(x, [dnn.RNNWeights(*weights)]).y

    many = [torch.stack([w, 2 * w]).detach() for w in cell[:4]]
    found = torch.vmap(f)(x[:2], *many)
    torch.testing.assert_close(found, torch.stack([f(x[i], *[w[i] for w in many]) for i in range(2)]))
    assert torch.vmap(lambda x: f(x, *cell[:4]))(x).shape == (4, 3, 2, 3)


def test_wrong_weights_are_the_named_error():
    with pytest.raises(dnn.ShapeError, match=r"lstm: .*w_ih"):
        door.lstm(torch.randn(3, 2, 5), [_weights("lstm", dtype=torch.float32)])
