"""Recurrent networks and attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray import RNNWeights
from tests.long_sums import N, Rows, by_double, near, wide

ROWS = Rows()
row = ROWS.add

# --- recurrent: weights of zero pass nothing on, so that each step's gradient is known
# ---------------------------------


def _cells(gates: int) -> tuple[RNNWeights, ...]:
    rows = 2 * gates
    return (RNNWeights(np.zeros((rows, 2), np.float32), np.zeros((rows, 2), np.float32), near(3, rows), near(4, rows)),)


def _rnn_slopes(g: np.ndarray, x: np.ndarray, weights: Any) -> list[Any]:
    """A step is tanh of the biases: its gradient is that of the output times a slope."""
    slopes = wide(g[0]) * (1 - np.tanh(wide(weights[0].b_ih) + weights[0].b_hh) ** 2)
    return [None, np.einsum("tnh,tni->hi", slopes, wide(x)), None, slopes.sum((0, 1)), slopes.sum((0, 1))]


for _t, _n in ((1 << 12, 16), (2, 1 << 15)):
    row(
        f"rnn-{_t}",
        "rnn_backward",
        lambda t=_t, n=_n: ((near(9, t, n, 2), None), near(8, t, n, 2), _cells(1)),
        _rnn_slopes,
        terms=_t * _n,
    )


def _forget(op: str, gates: int, t: int, n: int) -> None:
    """The biases' gradients."""
    states = (None,) * (2 if op == "lstm" else 1)
    row(
        f"{op}-{t}",
        f"{op}_backward",
        lambda: ((near(9, t, n, 2), *states), near(8, t, n, 2), _cells(gates)),
        by_double(f"{op}_backward"),
        terms=t * n,
    )


for _op, _gates in (("gru", 3), ("lstm", 4)):
    _forget(_op, _gates, 2, 1 << 15)

# --- attention
# ---------------------------------------------------------------------------------------------------------


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[np.ndarray]:
    scores = wide(q) @ wide(k).swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    weights = np.exp(scores)
    total = weights.sum(-1, keepdims=True)
    return [weights @ wide(v) / total, np.log(total)[..., 0]]


def _value_slopes(g: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> list[Any]:
    weights = np.exp(wide(q) @ wide(k).swapaxes(-1, -2) / math.sqrt(q.shape[-1]))
    weights /= weights.sum(-1, keepdims=True)
    return [None, None, (weights.swapaxes(-1, -2) @ wide(g)).sum(1, keepdims=True)]


for _queries in (1, 5):
    row(
        f"attention-keys-{_queries}",
        "attention",
        lambda q=_queries: (near(1, 1, 1, q, 8), near(2, 1, 1, N >> 2, 8), near(3, 1, 1, N >> 2, 8)),
        _attended,
        terms=N >> 2,
        return_lse=True,
    )
row(
    "attention-queries",
    "attention_backward",
    lambda: (near(7, 1, 1, N >> 2, 8), near(1, 1, 1, N >> 2, 8), near(2, 1, 1, 3, 8), near(3, 1, 1, 3, 8)),
    _value_slopes,
    terms=N >> 2,
)
row(
    "attention-heads",
    "attention_backward",
    lambda: (near(7, 1, 1 << 12, 4, 8), near(1, 1, 1 << 12, 4, 8), near(2, 1, 1, 3, 8), near(3, 1, 1, 3, 8)),
    _value_slopes,
    terms=1 << 14,
)
row(
    "rotary_embedding",
    "rotary_embedding_backward",
    lambda: (near(1, 1024, 1024, 1, 2), near(2, 1024, 1024, 1, 2), near(3, 1, 1), near(4, 1, 1)),
    lambda g, x, *_: [None, (wide(g) * x).sum((0, 1)).sum(-1, keepdims=True), None],
)
