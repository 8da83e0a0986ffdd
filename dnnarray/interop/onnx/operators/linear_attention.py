"""Linear attention: a state for each head that every step updates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._errors import OptionError
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace

_RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}


def _heads(x: Any, count: int) -> Any:
    """(B, T, H * D) as (T, B, H, D), in float32."""
    xp = namespace(x)
    return xp.permute_dims(x.reshape(*x.shape[:2], count, -1), (1, 0, 2, 3)).astype(np.float32)


@operator("LinearAttention")
def linear_attention(node: Node, q: Any, k: Any, v: Any, past: Any = None, decay: Any = None, beta: Any = None) -> Any:
    """S = exp(g) S + beta k (v - exp(g) S' k)' and y = scale S' q for each step; the update rule may omit g or beta."""
    xp, rule = namespace(q, k), node.get("update_rule", "gated_delta")
    if rule not in _RULES:
        raise OptionError(f"onnx: {node}: update_rule is {rule!r}; expected one of {', '.join(map(repr, _RULES))}.")
    gated, corrected = _RULES[rule]
    if gated != (decay is not None) or corrected != (beta is not None):
        raise OptionError(
            f"onnx: {node}: the update rule {rule!r} takes {_wanted(gated, corrected)}; got other inputs."
        )
    heads, kept = node.get("q_num_heads"), node.get("kv_num_heads")
    queries, keys, values = _heads(q, heads), _heads(k, kept), _heads(v, kept)
    steps, batch, _, width = queries.shape
    state = (
        xp.zeros((batch, kept, width, values.shape[-1]), dtype=np.float32) if past is None else past.astype(np.float32)
    )
    decays = None if decay is None else xp.exp(_heads(decay, kept))
    rates = None if beta is None else _heads(beta, beta.shape[-1])
    scale = node.get("scale", 0.0) or 1 / math.sqrt(width)
    rows = []
    for t in range(steps):
        state = state if decays is None else state * decays[t][..., None]
        update = values[t]
        if rates is not None:
            update = rates[t] * (update - xp.matmul(keys[t][:, :, None, :], state)[:, :, 0, :])
        state = state + keys[t][..., None] * update[:, :, None, :]
        shared = queries[t].reshape(batch, kept, heads // kept, width)
        rows.append(xp.matmul(shared * scale, state).reshape(batch, -1))
    y = xp.stack(rows, axis=1) if rows else xp.zeros((batch, 0, heads * values.shape[-1]), dtype=np.float32)
    return y.astype(q.dtype), state.astype(q.dtype if past is None else past.dtype)


def _wanted(gated: bool, corrected: bool) -> str:
    return {(True, True): "decay and beta", (True, False): "decay alone", (False, True): "beta alone"}.get(
        (gated, corrected), "neither decay nor beta"
    )
