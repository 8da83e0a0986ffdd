"""Attention and what belongs to it, by definition, in float64: every score exists, one softmax a row."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def philox(seed, number):
    """One number of the stream of `seed`, after Salmon et al. 2011, in Python integers."""
    block, word = divmod(number, 4)
    a, b, c, d = block & 0xFFFFFFFF, block >> 32, 0, 0
    k, m = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (second >> 32) ^ b ^ k, second & 0xFFFFFFFF, (first >> 32) ^ d ^ m, first & 0xFFFFFFFF
        k, m = (k + 0x9E3779B9) & 0xFFFFFFFF, (m + 0xBB67AE85) & 0xFFFFFFFF
    return (a, b, c, d)[word]


def kept(shape, dropout=0.0, seed=None, offset=0):
    """True for the weights that dropout leaves: number offset + flat position is at least dropout * 2^32."""
    if not dropout:
        return np.ones(shape, bool)
    flat = [philox(seed, offset + e) >= math.floor(dropout * 2**32) for e in range(math.prod(shape))]
    return np.array(flat, bool).reshape(shape)


def random_options(options):
    return {n: options[n] for n in ("dropout", "seed", "offset") if n in options}


def visible(queries, keys, *, causal=False, diagonal=None, window=None, q_length=None, kv_length=None):
    """True where query i may see key j, one pair at a time."""
    q_length = queries if q_length is None else q_length
    kv_length = keys if kv_length is None else kv_length
    if diagonal is None:
        diagonal = 0 if causal == "upper_left" else kv_length - q_length
    left, right = (None, None) if window is None else window
    seen = np.zeros((queries, keys), bool)
    for i in range(q_length):
        for j in range(kv_length):
            late = j - (i + diagonal)
            seen[i, j] = not (
                (causal and late > 0) or (right is not None and late > right) or (left is not None and late < -left)
            )  # fmt: skip
    return seen, diagonal


def one_head(
    q, k, v, seen, *, scale=None, softcap=None, slope=None, diagonal=0, bias=None, sink=None, keep=None, p=0, live=None
):
    """One head of one sequence: (S_q, D), (S_k, D), (S_k, D_v) to (S_q, D_v) and the log-sum-exp (S_q,)."""
    s = np.einsum("id,jd->ij", q, k) * (1 / math.sqrt(q.shape[1]) if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if slope is not None:
        s = s - slope * np.abs(np.arange(len(q))[:, None] + diagonal - np.arange(len(k)))
    if bias is not None:
        s = s + bias
    s = np.where(seen, s, -np.inf)
    y, lse = np.zeros((len(q), v.shape[1])), np.full(len(q), -np.inf)
    for i in range(len(q)):
        with_sink = s[i] if sink is None or (live is not None and not live[i]) else np.append(s[i], sink)
        top = with_sink.max(initial=-np.inf)
        if np.isneginf(top):
            continue
        e = np.exp(with_sink - top)
        lse[i] = top + math.log(e.sum())
        weights = (e / e.sum())[: len(k)]
        if p:
            weights = np.where(keep[i], weights / (1 - p), 0) if p < 1 else 0 * weights
        used = weights > 0
        y[i] = np.einsum("j,jd->d", weights[used], v[used])
    return y, lse


def attention(
    q,
    k,
    v,
    bias=None,
    mask=None,
    causal_offset=None,
    alibi_slopes=None,
    sink=None,
    q_lengths=None,
    kv_lengths=None,
    **options,
):
    """Dense attention, one head after another."""
    causal, window = options.get("causal"), options.get("window")
    bsd = options.get("layout", "BHSD") == "BSHD"
    q, k, v = (a.swapaxes(1, 2) if bsd else a for a in (q, k, v))
    (B, H, S, _), group = q.shape, q.shape[1] // max(k.shape[1], 1)
    full = (B, H, S, k.shape[2])
    keep, p = kept(full, **random_options(options)), options.get("dropout", 0)
    bias = None if bias is None else np.broadcast_to(bias, full)
    mask = np.ones(full, bool) if mask is None else np.broadcast_to(mask, full)
    slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (B, H))
    offsets = None if causal_offset is None else np.broadcast_to(causal_offset, (B,))
    y, lse = np.zeros((*q.shape[:3], v.shape[3])), np.zeros(q.shape[:3])
    for b in range(B):
        live = None if q_lengths is None else np.arange(S) < q_lengths[b]
        seen, diagonal = visible(
            S,
            k.shape[2],
            causal=causal,
            window=window,
            diagonal=None if offsets is None else int(offsets[b]),
            q_length=None if q_lengths is None else int(q_lengths[b]),
            kv_length=None if kv_lengths is None else int(kv_lengths[b]),
        )
        for h in range(H):
            y[b, h], lse[b, h] = one_head(
                q[b, h],
                k[b, h // group],
                v[b, h // group],
                seen & mask[b, h],
                scale=options.get("scale"),
                softcap=options.get("softcap"),
                slope=None if slopes is None else slopes[b, h],
                diagonal=diagonal,
                bias=None if bias is None else bias[b, h],
                sink=None if sink is None else sink[h],
                keep=keep[b, h],
                p=p,
                live=live,
            )
    y = y.swapaxes(1, 2) if bsd else y
    return (y, lse) if options.get("return_lse") else y


def attention_varlen(
    q, k, v, cu_q, cu_k, alibi_slopes=None, sink=None, *, max_seqlen_q, max_seqlen_k, return_lse=False, **options
):
    """Each sequence by itself; dropout counts as if all were padded to the longest."""
    keep = kept((len(cu_q) - 1, q.shape[1], max_seqlen_q, max_seqlen_k), **random_options(options))
    p = options.get("dropout", 0)
    y, lse = np.zeros((*q.shape[:2], v.shape[2])), np.zeros((q.shape[1], q.shape[0]))
    group = q.shape[1] // k.shape[1]
    for n in range(len(cu_q) - 1):
        rows, columns = slice(cu_q[n], cu_q[n + 1]), slice(cu_k[n], cu_k[n + 1])
        queries, keys = int(cu_q[n + 1] - cu_q[n]), int(cu_k[n + 1] - cu_k[n])
        seen, diagonal = visible(queries, keys, causal=options.get("causal", False), window=options.get("window"))
        slopes = None if alibi_slopes is None else np.broadcast_to(alibi_slopes, (len(cu_q) - 1, q.shape[1]))[n]
        for h in range(q.shape[1]):
            y[rows, h], lse[h, rows] = one_head(
                q[rows, h], k[columns, h // group], v[columns, h // group], seen, scale=options.get("scale"),
                softcap=options.get("softcap"), slope=None if slopes is None else slopes[h], diagonal=diagonal,
                sink=None if sink is None else sink[h], keep=keep[n, h, :queries, :keys], p=p,
            )  # fmt: skip
    return (y, lse) if return_lse else y


def paged_attention(
    q, k_cache, v_cache, block_table, kv_lengths, alibi_slopes=None, sink=None, *, causal=True, **options
):
    """The keys of each sequence gathered position by position, then dense attention of one sequence."""
    single, page = q.ndim == 3, k_cache.shape[1]
    q4 = q[:, None] if single else q
    y, lse = np.zeros((*q4.shape[:3], v_cache.shape[3])), np.zeros((q4.shape[0], q4.shape[2], q4.shape[1]))
    for n, length in enumerate(kv_lengths):
        places = [(block_table[n, j // page], j % page) for j in range(length)]
        k, v = (
            np.array([cache[place] for place in places]).reshape(length, *cache.shape[2:])
            for cache in (k_cache, v_cache)
        )
        slopes = alibi_slopes if alibi_slopes is None or alibi_slopes.ndim == 1 else alibi_slopes[n]
        y[n : n + 1], lse[n : n + 1] = attention(
            q4[n : n + 1], k[None], v[None], None, None, None, slopes, sink, causal=causal, layout="BSHD",
            **options | {"return_lse": True},
        )  # fmt: skip
    if single:
        y, lse = y[:, 0], lse[..., 0]
    return (y, lse) if options.get("return_lse") else y


def multi_head_attention(
    x_q, x_k, x_v, w_q, w_k, w_v, w_o, b_q=None, b_k=None, b_v=None, b_o=None, *others, num_heads, **options
):
    """Projections by einsum, heads cut out, attention, the last projection."""
    kv_heads = options.pop("num_kv_heads", None) or num_heads

    def project(x, w, b):
        return np.einsum("bse,oe->bso", x, w) + (0 if b is None else b)

    cut = [(x_q, w_q, b_q, num_heads), (x_k, w_k, b_k, kv_heads), (x_v, w_v, b_v, kv_heads)]
    q, k, v = (project(x, w, b).reshape(*x.shape[:2], heads, len(w) // heads) for x, w, b, heads in cut)
    y = attention(q, k, v, *others, layout="BSHD", **options)
    return project(y.reshape(*y.shape[:2], y.shape[2] * y.shape[3]), w_o, b_o)


def rotary_embedding(x, cos, sin, *, interleaved=False, layout="BHSD"):
    """Each pair as a complex number times exp(i angle)."""
    y = np.array(x)
    half = cos.shape[-1]
    cos, sin = (np.broadcast_to(t, (x.shape[0], *t.shape[-2:])) for t in (cos, sin))
    for b, s, i in np.ndindex(x.shape[0], cos.shape[-2], half):
        at = (b, slice(None), s) if layout == "BHSD" else (b, s, slice(None))
        one, two = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turned = (x[(*at, one)] + 1j * x[(*at, two)]) * (cos[b, s, i] + 1j * sin[b, s, i])
        y[(*at, one)], y[(*at, two)] = turned.real, turned.imag
    return y


ORACLES: dict[str, Callable] = {
    "attention": attention,
    "attention_varlen": attention_varlen,
    "multi_head_attention": multi_head_attention,
    "paged_attention": paged_attention,
    "rotary_embedding": rotary_embedding,
}
