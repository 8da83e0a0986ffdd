"""Cases of the rnn family."""

from dnnarray import RNNWeights
from tests.support import Case, fixed, normal

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def entry(op, inputs, hidden, *, bias=(True, True), projection=None, peephole=False):
    """Weights of one layer and direction, small enough that the gates do not saturate."""
    rows, state = GATES[op.partition("_")[0]] * hidden, projection or hidden
    return RNNWeights(
        normal(rows, inputs, scale=0.5),
        normal(rows, state, scale=0.5),
        normal(rows, scale=0.5) if bias[0] else None,
        normal(rows, scale=0.5) if bias[1] else None,
        normal(projection, hidden, scale=0.5) if projection else None,
        normal(3, hidden, scale=0.5) if peephole else None,
    )


def network(op, inputs, hidden, layers=1, directions=1, **options):
    """The weights of a whole network."""
    width = directions * (options.get("projection") or hidden)
    return tuple(entry(op, inputs if k < directions else width, hidden, **options) for k in range(layers * directions))


def states(op, entries, n, hidden, projection=None):
    """h0, and c0 for an LSTM."""
    h0, c0 = normal(entries, n, projection or hidden), normal(entries, n, hidden)
    return (h0, c0) if op == "lstm" else (h0,)


def absent(op):
    return (None, None) if op == "lstm" else (None,)


def sequence(
    op, name, weights, *, t=5, n=3, inputs=4, initial=None, lengths=None, layout="TNC", reason, gradient=True, **options
):
    """A case of `rnn`, `gru` or `lstm`. The longest sums run over the inputs and the state, once for each step."""
    x = normal(*((n, t) if layout == "NTC" else (t, n)), inputs)
    arrays = (x, weights, *(initial or absent(op)), lengths)
    options |= {"layout": layout} if layout != "TNC" else {}
    return Case(op, name, arrays, options, reason, reduction=(inputs + 8) * max(t, 1), gradient=gradient)


def step(op, name, weights, *, n=3, inputs=4, hidden=5, projection=None, reason, gradient=True, **options):
    """A case of `rnn_cell`, `gru_cell` or `lstm_cell`."""
    h, c = normal(n, projection or hidden), normal(n, hidden)
    arrays = (normal(n, inputs), weights, h, c) if op == "lstm_cell" else (normal(n, inputs), weights, h)
    return Case(op, name, arrays, options, reason, reduction=inputs + 8, gradient=gradient)


def of_every_kind(op):
    """What holds for each of the three networks alike."""
    ragged = fixed([2, 5, 0, 4])
    return [
        sequence(op, "plain", network(op, 4, 5), reason="one layer, no states, odd H"),
        sequence(op, "states", network(op, 4, 5), initial=states(op, 1, 3, 5), reason="initial states"),
        sequence(
            op,
            "layers",
            network(op, 4, 3, layers=3),
            initial=states(op, 3, 3, 3),
            reason="three layers use both buffers",
        ),
        sequence(
            op, "two_layers_ntc", network(op, 4, 3, layers=2), layout="NTC", reason="batch first, the last layer copied"
        ),
        sequence(
            op,
            "bidirectional",
            network(op, 4, 3, 2, 2),
            initial=states(op, 4, 3, 3),
            bidirectional=True,
            reason="two layers, both directions",
        ),
        sequence(
            op,
            "reverse",
            network(op, 4, 3),
            initial=states(op, 1, 3, 3),
            reverse=True,
            reason="the last time step comes first",
        ),
        sequence(op, "no_bias", network(op, 4, 3, bias=(False, False)), reason="no biases"),
        sequence(op, "b_ih", network(op, 4, 3, bias=(True, False)), reason="only the input's bias"),
        sequence(op, "b_hh", network(op, 4, 3, bias=(False, True)), reason="only the state's bias"),
        sequence(
            op,
            "lengths",
            network(op, 4, 3),
            n=4,
            initial=states(op, 1, 4, 3),
            lengths=ragged,
            reason="unsorted, one empty",
        ),
        sequence(
            op,
            "lengths_bidirectional",
            network(op, 4, 3, 2, 2),
            n=4,
            initial=states(op, 4, 4, 3),
            lengths=ragged,
            bidirectional=True,
            layout="NTC",
            reason="a reversed direction begins at each end",
        ),
        sequence(op, "lengths_zero", network(op, 4, 3), n=2, lengths=fixed([0, 0]), reason="nothing runs: zeros"),
        sequence(
            op,
            "lengths_unsigned",
            network(op, 4, 3),
            n=2,
            lengths=fixed([1, 3], "uint8"),
            reverse=True,
            reason="no sign to flip",
        ),
        sequence(
            op,
            "dropout",
            network(op, 4, 3, layers=3),
            dropout=0.4,
            seed=7,
            offset=5,
            reason="between layers, offset within a block",
        ),
        sequence(
            op,
            "dropout_lengths",
            network(op, 4, 3, 2, 2),
            n=4,
            lengths=ragged,
            dropout=0.4,
            seed=7,
            bidirectional=True,
            layout="NTC",
            reason="the mask does not depend on lengths or layout",
        ),
        sequence(
            op, "sixteen", network(op, 1, 16), t=2, n=2, inputs=1, reason="a hidden extent that tiles of 16 divide"
        ),
        sequence(op, "one_of_each", network(op, 1, 1), t=1, n=1, inputs=1, reason="all extents 1"),
        sequence(
            op,
            "no_steps",
            network(op, 4, 3),
            t=0,
            initial=states(op, 1, 3, 3),
            reason="T = 0: the state stays",
            gradient=False,
        ),
        sequence(op, "no_batch", network(op, 4, 3), n=0, initial=states(op, 1, 0, 3), reason="N = 0", gradient=False),
        sequence(op, "no_features", network(op, 0, 3), inputs=0, reason="I = 0: the biases alone", gradient=False),
        step(f"{op}_cell", "plain", entry(op, 4, 5), reason="one step, odd H"),
        step(f"{op}_cell", "no_bias", entry(op, 4, 5, bias=(False, False)), reason="no biases"),
        step(f"{op}_cell", "b_hh", entry(op, 4, 5, bias=(False, True)), reason="only the state's bias"),
        step(f"{op}_cell", "no_batch", entry(op, 4, 5), n=0, reason="N = 0", gradient=False),
    ]


CASES = [case for kind in GATES for case in of_every_kind(kind)] + [
    sequence("rnn", "relu", network("rnn", 4, 3, layers=2), activation="relu", reason="the other nonlinearity"),
    step("rnn_cell", "relu", entry("rnn", 4, 5), activation="relu", reason="the other nonlinearity"),
    sequence(
        "gru",
        "reset_first",
        network("gru", 4, 3, 2, 2),
        bidirectional=True,
        linear_before_reset=False,
        reason="the paper's form",
    ),
    sequence(
        "gru",
        "reset_first_lengths",
        network("gru", 4, 3, bias=(False, True)),
        n=4,
        lengths=fixed([2, 5, 0, 4]),
        linear_before_reset=False,
        reason="the paper's form with rows missing",
    ),
    step("gru_cell", "reset_first", entry("gru", 4, 5), linear_before_reset=False, reason="the paper's form"),
    sequence(
        "lstm",
        "projection",
        network("lstm", 4, 5, 2, 2, projection=2),
        initial=states("lstm", 4, 3, 5, 2),
        bidirectional=True,
        reason="h has 2 elements, c has 5",
    ),
    sequence(
        "lstm",
        "projection_lengths",
        network("lstm", 4, 3, projection=5),
        n=4,
        initial=states("lstm", 1, 4, 3, 5),
        lengths=fixed([2, 5, 0, 4]),
        reason="h longer than c",
    ),
    sequence(
        "lstm",
        "peephole",
        network("lstm", 4, 3, 2, peephole=True),
        initial=states("lstm", 2, 3, 3),
        reason="gates see the cell state",
    ),
    sequence(
        "lstm",
        "clip",
        network("lstm", 4, 3, 2),
        initial=states("lstm", 2, 3, 3),
        cell_clip=0.25,
        reason="the cell state clipped",
    ),
    sequence(
        "lstm",
        "everything",
        network("lstm", 4, 3, 2, 2, projection=2, peephole=True),
        n=4,
        initial=states("lstm", 4, 4, 3, 2),
        lengths=fixed([2, 5, 0, 4], "int32"),
        cell_clip=0.4,
        bidirectional=True,
        dropout=0.3,
        seed=2**40,
        layout="NTC",
        reason="all options",
    ),
    step(
        "lstm_cell", "projection", entry("lstm", 4, 5, projection=2), projection=2, reason="h has 2 elements, c has 5"
    ),
    step("lstm_cell", "peephole", entry("lstm", 4, 5, peephole=True), cell_clip=0.3, reason="peephole and clip"),
]
