"""Attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import dnnarray as dnn
from dnnarray._errors import OptionError
from dnnarray.interop.onnx.registry import Node, operator
from dnnarray.interop.onnx.values import namespace, widened

_RAW, _CAPPED, _BIASED, _SHARES = range(4)  # what the fourth output holds


def _split_heads(x: Any, heads: int | None) -> Any:
    """(B, S, H * D) as (B, H, S, D); four axes stay."""
    if x.ndim == 4:
        return x
    return namespace(x).permute_dims(x.reshape(*x.shape[:2], heads, -1), (0, 2, 1, 3))


def _window(node: Node) -> tuple[int | None, int | None] | None:
    """Keys before and after the diagonal that are seen; None where all are."""
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if left < 0 and right < 0:
        return None
    return (None if left < 0 else left, None if right < 0 else right)


@operator("Attention")
def attention(
    node: Node, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, lengths: Any = None
) -> Any:
    xp = namespace(q, k)
    if (past_k is None) != (past_v is None):
        raise OptionError(f"onnx: {node}: one of past_key and past_value is missing; expected both or neither.")
    packed = q.ndim == 3
    q = _split_heads(q, node.get("q_num_heads"))
    k, v = (_split_heads(x, node.get("kv_num_heads")) for x in (k, v))
    if past_k is not None:
        k, v = xp.concat([past_k, k], axis=2), xp.concat([past_v, v], axis=2)
    options: dict[str, Any] = {
        "scale": node.get("scale"),
        "softcap": node.get("softcap", 0.0) or None,
        "window": _window(node),
    }
    kept = lengths if lengths is None else lengths.astype(np.int64)
    offset: Any = (0 if past_k is None else past_k.shape[2]) if kept is None else kept - q.shape[2]
    if node.get("is_causal", 0) or options["window"] is not None:
        options["causal_offset"] = offset
    options["causal"] = bool(node.get("is_causal", 0))
    masks = _masks(mask, k.shape[2], q)
    y = dnn.attention(q, k, v, kv_lengths=kept, **masks, **options)
    if packed:
        y = xp.permute_dims(y, (0, 2, 1, 3)).reshape(y.shape[0], y.shape[2], -1)
    scores = _scores(node, q, k, masks, kept, offset, options) if node.wants(3) else None
    return y, k, v, scores


def _masks(mask: Any, keys: int, q: Any) -> dict[str, Any]:
    """A mask is boolean or is added; keys that it has no column for are not seen."""
    if mask is None:
        return {}
    xp, missing = namespace(mask), keys - mask.shape[-1]
    boolean = str(mask.dtype) == "bool"
    if missing:
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        mask = xp.pad(mask, widths, constant_values=False if boolean else -math.inf)
    return {"mask": mask} if boolean else {"bias": mask.astype(q.dtype)}


def _scores(
    node: Node, q: Any, k: Any, masks: dict[str, Any], lengths: Any, offset: Any, options: dict[str, Any]
) -> Any:
    """The matrix of scores, which `attention` never holds: raw, capped, with the bias, or as probabilities."""
    xp, mode = namespace(q), node.get("qk_matmul_output_mode", 0)
    scale = 1 / math.sqrt(q.shape[-1]) if options["scale"] is None else options["scale"]
    keys = xp.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = xp.matmul(widened(q) * scale, xp.matrix_transpose(widened(keys)))
    if mode >= _CAPPED and options["softcap"]:
        scores = options["softcap"] * xp.tanh(scores / options["softcap"])
    if mode >= _BIASED:
        bias = _bias(xp, q, k, masks, lengths, offset, options)
        scores = scores + bias
    if mode == _SHARES:
        blind = xp.max(bias, axis=-1, keepdims=True) == -math.inf  # a row that sees no key has no shares
        scores = xp.where(blind, 0.0, dnn.softmax(xp.where(blind, 0.0, scores)))
    return scores.astype(q.dtype)


def _bias(xp: Any, q: Any, k: Any, masks: dict[str, Any], lengths: Any, offset: Any, options: dict[str, Any]) -> Any:
    """What is added to the scores: the bias, and minus infinity for keys that are not seen."""
    columns = xp.arange(k.shape[2])
    shift = xp.asarray(offset).reshape(-1, 1, 1, 1)
    diagonal = xp.arange(q.shape[2]).reshape(-1, 1) + shift
    seen = columns <= diagonal if options["causal"] else xp.ones(diagonal.shape[:-1] + columns.shape, dtype=bool)
    left, right = options["window"] or (None, None)
    seen = seen if left is None else seen & (columns >= diagonal - left)
    seen = seen if right is None else seen & (columns <= diagonal + right)
    seen = seen if lengths is None else seen & (columns < lengths.reshape(-1, 1, 1, 1))
    seen = seen if "mask" not in masks else seen & masks["mask"]
    added = xp.where(seen, 0.0, -math.inf)
    return added if "bias" not in masks else added + widened(masks["bias"])


@operator("RotaryEmbedding")
def rotary_embedding(node: Node, x: Any, cos: Any, sin: Any, positions: Any = None) -> Any:
    """Of the first `rotary_embedding_dim` elements of each head, or of all."""
    xp, packed, shape = namespace(x), x.ndim == 3, x.shape
    heads = x.reshape(*shape[:2], node.get("num_heads"), -1) if packed else x
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    turned = node.get("rotary_embedding_dim", 0) or heads.shape[-1]
    interleaved = bool(node.get("interleaved", 0))
    y = dnn.rotary_embedding(
        heads[..., :turned], cos, sin, interleaved=interleaved, layout="BSHD" if packed else "BHSD"
    )
    if turned < heads.shape[-1]:
        y = xp.concat([y, heads[..., turned:]], axis=-1)
    return y.reshape(shape)
