"""Recurrent networks: ONNX's order of gates, weights and states, and dnnarray's."""

from __future__ import annotations

from typing import Any

import dnnarray as dnn
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace

_GATES = {"LSTM": ("sigmoid", "tanh", "tanh"), "GRU": ("sigmoid", "tanh")}
# Where the gates of dnnarray (i f g o, r z n) stand among those of ONNX (i o f c, z r h).
_ORDER = {"RNN": (0,), "LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
_WAY = "Export the network step by step with Scan or Loop, or without this attribute."


def _refuses(node: Node) -> None:
    names = [str(n).lower() for n in node.get("activations") or ()]
    one = len(names) // (2 if node.get("direction", "forward") == "bidirectional" else 1)
    usual = _GATES.get(node.op)
    fits = (
        all(n in ("tanh", "relu") for n in names) and len(set(names)) < 2
        if usual is None
        else not names or tuple(names[:one]) == usual == tuple(names[-one:])
    )
    if not fits or node.get("activation_alpha") or node.get("activation_beta"):
        raise node.unsupported(f"the activations {node.get('activations')} are not supported", _WAY)
    if node.get("clip") is not None:
        raise node.unsupported("clip, which bounds the arguments of the activations, is not supported", _WAY)
    if node.get("input_forget", 0):
        raise node.unsupported("input_forget=1, coupled gates, is not supported", _WAY)


def _reordered(node: Node, array: Any) -> Any:
    """The rows of all gates in dnnarray's order."""
    xp, order = namespace(array), _ORDER[node.op]
    size = array.shape[0] // len(order)
    return xp.concat([array[g * size : (g + 1) * size] for g in order], axis=0)


def _weights(node: Node, w: Any, r: Any, b: Any, peephole: Any) -> list[dnn.RNNWeights]:
    """One for each direction."""
    found = []
    for d in range(w.shape[0]):
        b_ih, b_hh = None, None
        if b is not None:
            half = b.shape[1] // 2
            b_ih, b_hh = _reordered(node, b[d, :half]), _reordered(node, b[d, half:])
        p = None
        if peephole is not None:
            xp, rows = namespace(peephole), peephole[d].reshape(3, -1)
            p = xp.stack([rows[0], rows[2], rows[1]])
        found.append(dnn.RNNWeights(_reordered(node, w[d]), _reordered(node, r[d]), b_ih, b_hh, peephole=p))
    return found


def _run(node: Node, x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any = None, peephole: Any = None) -> Any:
    xp, batch_first = namespace(x, w), bool(node.get("layout", 0))
    direction = node.get("direction", "forward")
    state = [xp.permute_dims(s, (1, 0, 2)) if batch_first and s is not None else s for s in (h, c)]
    options: dict[str, Any] = {
        "bidirectional": direction == "bidirectional",
        "reverse": direction == "reverse",
        "lengths": lengths,
    }
    options["layout"] = "NTC" if batch_first else "TNC"
    weights = _weights(node, w, r, b, peephole)
    if node.op == "LSTM":
        result = dnn.lstm(x, weights, *state, **options)
    elif node.op == "GRU":
        result = dnn.gru(x, weights, state[0], linear_before_reset=bool(node.get("linear_before_reset", 0)), **options)
    else:
        activation = (node.get("activations") or ["tanh"])[0].lower()
        result = dnn.rnn(x, weights, state[0], activation=activation, **options)
    split = result.y.reshape(*result.y.shape[:2], len(weights), -1)
    y = split if batch_first else xp.permute_dims(split, (0, 2, 1, 3))
    last = [xp.permute_dims(s, (1, 0, 2)) if batch_first else s for s in result[1:] if s is not None]
    return (y, *last)


@operator("RNN", "GRU", refuses=_refuses)
def rnn(node: Node, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None) -> Any:
    return _run(node, x, w, r, b, lengths, h)


@operator("LSTM", refuses=_refuses)
def lstm(
    node: Node,
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    peephole: Any = None,
) -> Any:
    return _run(node, x, w, r, b, lengths, h, c, peephole)
