"""More gradients of the parameters of norms, and operations that share their sums with others under names of their
own."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray import RNNWeights
from tests.long_sums import IMAGES, N, Rows, by_double, channel_sums, near, ones, wide
from tests.long_sums.rows import normalised, pulls, signed, softmax

ROWS = Rows()
row = ROWS.add

# --- norms ------------------------------------------------------------------------------------------------------------


def _batch_norm_slopes(g: Any, x: Any, mean: Any, variance: Any, weight: Any, bias: Any) -> list[Any]:
    rstd = (1 / np.sqrt(wide(variance) + 1e-5))[:, None, None]
    u = (wide(x) - wide(mean)[:, None, None]) * rstd
    return [None, None, None, channel_sums(wide(g) * u), channel_sums(g)]


row(
    "batch_norm-backward",
    "batch_norm_backward",
    lambda: (near(1, 2, 2, 512, 1024), near(2, 2, 2, 512, 1024), np.zeros(2, np.float32), ones(2), ones(2), ones(2)),
    _batch_norm_slopes,
    orders=IMAGES,
)


def _rms(x: np.ndarray, axis: int) -> np.ndarray:
    return wide(x) / np.sqrt((wide(x) ** 2).mean(axis, keepdims=True) + 1e-6)


for _name, _shape in (("rows", (N >> 3, 8)), ("wide", (N >> 7, 128))):
    row(
        f"rms_norm-backward-{_name}",
        "rms_norm_backward",
        lambda s=_shape: (pulls(1, *s), signed(1, *s), ones(s[1])),
        lambda g, x, w: [None, (wide(g) * _rms(x, 1)).sum(0)],
        terms=_shape[0],
        condition=2.0,
    )
    row(
        f"add_rms_norm-backward-{_name}",
        "add_rms_norm_backward",
        lambda s=_shape: ((pulls(1, *s), None), signed(1, *s), np.zeros(s, np.float32), ones(s[1])),
        lambda g, x, r, w: [None, None, (wide(g[0]) * _rms(x, 1)).sum(0)],
        terms=_shape[0],
        condition=2.0,
    )
    row(
        f"add_layer_norm-backward-{_name}",
        "add_layer_norm_backward",
        lambda s=_shape: ((pulls(1, *s), None), signed(1, *s), np.zeros(s, np.float32), ones(s[1]), ones(s[1])),
        lambda g, x, r, w, b: [None, None, (wide(g[0]) * normalised(x, (1,))).sum(0), wide(g[0]).sum(0)],
        terms=_shape[0],
        condition=2.0,
    )
row(
    "layer_norm-backward-first",
    "layer_norm_backward",
    lambda: (pulls(1, 8, N >> 3), signed(1, 8, N >> 3), ones(8), ones(8)),
    lambda g, x, w, b: [None, (wide(g) * normalised(x, (0,))).sum(1), wide(g).sum(1)],
    terms=N >> 3,
    axis=0,
    condition=2.0,
)
row(
    "layer_norm-backward-middle",
    "layer_norm_backward",
    lambda: (pulls(1, 512, 8, 256), signed(1, 512, 8, 256), ones(8), ones(8)),
    lambda g, x, w, b: [None, (wide(g) * normalised(x, (1,))).sum((0, 2)), wide(g).sum((0, 2))],
    terms=N >> 3,
    axis=1,
    condition=2.0,
)
for _name, _shape in (("samples", (N >> 5, 8, 4)), ("images", (1, 8, 512, 256))):
    row(
        f"group_norm-backward-{_name}",
        "group_norm_backward",
        lambda s=_shape: (pulls(1, *s), signed(1, *s), ones(8), ones(8)),
        lambda g, x, w, b: [None, channel_sums(wide(g) * _grouped(x)), channel_sums(g)],
        terms=math.prod(_shape) // 8,
        orders=IMAGES,
        num_groups=2,
        condition=2.0,
    )


def _grouped(x: np.ndarray) -> np.ndarray:
    return normalised(x.reshape(len(x), 2, -1), (2,)).reshape(x.shape)


row(
    "instance_norm",
    "instance_norm",
    lambda: (near(1, 1, 8, 256, 1024),),
    lambda x: [normalised(x, (2, 3))],
    terms=N >> 2,
    orders=IMAGES,
    condition=2.0,
)
row(
    "add_layer_norm",
    "add_layer_norm",
    lambda: (near(1, 2, N), np.zeros((2, N), np.float32)),
    lambda x, r: [normalised(x, (1,)), wide(x)],
    condition=2.0,
)
row(
    "add_rms_norm",
    "add_rms_norm",
    lambda: (near(1, 2, N), np.zeros((2, N), np.float32)),
    lambda x, r: [_rms(x, 1), wide(x)],
)


def _response_slopes(g: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
    """All channels in one window: y = x / (1 + average of x**2)."""
    g, x, size = wide(g), wide(x), 8191
    d = 1 + (x**2).sum(1, keepdims=True) / size
    return [g / d - 2 / size * x * (g * x / d**2).sum(1, keepdims=True)]


row(
    "local_response_norm-backward",
    "local_response_norm_backward",
    lambda: (near(2, 1, 4096, 4), 10 * near(1, 1, 4096, 4)),
    _response_slopes,
    terms=4096,
    orders=IMAGES,
    size=8191,
    alpha=1.0,
    beta=1.0,
    condition=2.0,
)

# --- losses, recurrent cells, attention -------------------------------------------------------------------------------

for _axis in (0, 1):
    row(
        f"cross_entropy-backward-{_axis}",
        "cross_entropy_backward",
        lambda a=_axis: (ones(2), near(1, *((N, 2) if a == 0 else (2, N))), np.zeros(2, int)),
        lambda g, z, t, a=_axis: [softmax(z, a) - np.moveaxis(np.eye(1, N).repeat(2, 0), 1, a)],
        axis=_axis,
        reduction="none",
    )
row(
    "linear_cross_entropy-wide",
    "linear_cross_entropy",
    lambda: (near(1, 2, N >> 2) / (N >> 2), near(2, 4, N >> 2), np.zeros(2, int)),
    lambda x, w, t: [np.log(np.exp(wide(x) @ wide(w).T).sum(1)) - (wide(x) @ wide(w).T)[:, 0]],
    terms=N >> 2,
    reduction="none",
)


def _cell(gates: int) -> RNNWeights:
    rows = 2 * gates
    return RNNWeights(np.zeros((rows, 2), np.float32), np.zeros((rows, 2), np.float32), near(3, rows), near(4, rows))


for _op, _gates in (("rnn", 1), ("gru", 3), ("lstm", 4)):
    _states = 2 if _op == "lstm" else 1
    row(
        f"{_op}_cell",
        f"{_op}_cell_backward",
        lambda gates=_gates, s=_states: (
            (near(9, 1 << 16, 2), None) if s == 2 else near(9, 1 << 16, 2),
            near(8, 1 << 16, 2),
            _cell(gates),
            *(near(5 + i, 1 << 16, 2) for i in range(s)),
        ),
        by_double(f"{_op}_cell_backward"),
        terms=1 << 16,
    )
    row(
        f"{_op}_cell-wide",
        f"{_op}_cell",
        lambda gates=_gates, s=_states: (
            near(8, 4, N >> 2) / (N >> 6),
            RNNWeights(near(1, gates * 2, N >> 2), near(2, gates * 2, 2), near(3, gates * 2), near(4, gates * 2)),
            *(near(5 + i, 4, 2) for i in range(s)),
        ),
        by_double(f"{_op}_cell"),
        terms=N >> 2,
    )


def _tokens(count: int) -> tuple[Any, ...]:
    return (
        near(1, 1, count, 4),
        near(2, 1, 3, 4),
        near(3, 1, 3, 4),
        *(near(4 + i, 4, 4) for i in range(4)),
        *(near(8 + i, 4) for i in range(4)),
    )


row(
    "multi_head_attention-backward",
    "multi_head_attention_backward",
    lambda: (near(0, 1, 1 << 16, 4), *_tokens(1 << 16)),
    lambda *arrays: (
        [None] * 6 + [(wide(arrays[0])[0].T @ _heads(*arrays[1:])), None, None, None, wide(arrays[0])[0].sum(0)]
    ),
    terms=1 << 16,
    num_heads=1,
)


def _heads(
    x: Any, y: Any, z: Any, wq: Any, wk: Any, wv: Any, wo: Any, bq: Any, bk: Any, bv: Any, bo: Any
) -> np.ndarray:
    q, k, v = (wide(a)[0] @ wide(w).T + wide(b) for a, w, b in ((x, wq, bq), (y, wk, bk), (z, wv, bv)))
    return softmax(q @ k.T / 2, 1) @ v


_ENDS = (np.array([0, N >> 2], np.int32), np.array([0, 3], np.int32))
row(
    "attention_varlen-backward",
    "attention_varlen_backward",
    lambda: (near(7, N >> 2, 1, 8), near(1, N >> 2, 1, 8), near(2, 3, 1, 8), near(3, 3, 1, 8), *_ENDS),
    lambda g, q, k, v, *_: [
        None,
        None,
        (softmax(wide(q)[:, 0] @ wide(k)[:, 0].T / math.sqrt(8), 1).T @ wide(g)[:, 0])[:, None],
    ],
    terms=N >> 2,
    max_seqlen_q=N >> 2,
    max_seqlen_k=3,
)
row(
    "attention_varlen-keys",
    "attention_varlen",
    lambda: (near(1, 3, 1, 8), near(2, N >> 2, 1, 8), near(3, N >> 2, 1, 8), *_ENDS[::-1]),
    lambda q, k, v, *_: [(softmax(wide(q)[:, 0] @ wide(k)[:, 0].T / math.sqrt(8), 1) @ wide(v)[:, 0])[:, None]],
    terms=N >> 2,
    max_seqlen_q=3,
    max_seqlen_k=N >> 2,
)
row(
    "paged_attention",
    "paged_attention",
    lambda: (
        near(1, 1, 1, 2, 8),
        near(2, 4, N >> 4, 2, 8),
        near(3, 4, N >> 4, 2, 8),
        np.arange(4)[None],
        np.array([N >> 2]),
    ),
    lambda q, k, v, *_: [_paged(q, k, v)],
    terms=N >> 2,
)


def _paged(q: Any, k: Any, v: Any) -> np.ndarray:
    k, v = (wide(a).reshape(-1, 2, 8) for a in (k, v))
    weights = softmax(np.einsum("hd,shd->hs", wide(q)[0, 0], k) / math.sqrt(8), 1)
    return np.einsum("hs,shd->hd", weights, v)[None, None]


row(
    "attention-wide-heads",
    "attention",
    lambda: (near(1, 1, 1, 3, 1 << 16), near(2, 1, 1, 4, 1 << 16), near(3, 1, 1, 4, 1 << 16)),
    lambda q, k, v: [None, np.log(np.exp(wide(q) @ wide(k).swapaxes(2, 3) / 256).sum(-1))],
    terms=1 << 16,
    return_lse=True,
)
