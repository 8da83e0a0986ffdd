"""Attention in all its forms, and rotary embedding."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.drawer import Drawer, Drawn, Leaf

_SCORES = 1500  # the oracle makes each


def _heads(d: Drawer) -> tuple[int, int]:
    """Query heads and key heads."""
    kv = d.choice((1, 1, 2, 3))
    return kv * d.choice((1, 1, 2, 3)), kv


def _width(d: Drawer) -> int:
    return int(d.choice((1, 2, 3, 4, 5, 7, 8, 16)) if d.maybe(0.9) else d.choice((24, 32, 40, 64, 72)))


def _lengths(d: Drawer, heads: int) -> tuple[int, int]:
    """Queries and keys."""
    queries, keys = (d.integer(1, 9) if d.maybe(0.85) else d.choice((0, 1, 17, 33, 65)) for _ in range(2))
    if d.maybe(0.05):
        queries, keys = d.choice((1, 2)), d.choice((97, 130, 257))
    while heads * queries * keys > _SCORES:
        queries, keys = max(queries // 2, 1), max(keys // 2, 1) if queries < 2 else keys
    return queries, keys


def _options(d: Drawer, causal: tuple[Any, ...] = (False, True, "lower_right", "upper_left")) -> dict[str, Any]:
    def side() -> int | None:
        return None if d.maybe(0.3) else d.integer(0, 5)

    return d.some(
        causal=lambda: d.choice(causal),
        window=lambda: d.choice((None, (side(), side()))),
        scale=lambda: d.choice((0.3, 1.0, -0.5)),
        softcap=lambda: d.choice((0.0, 1.5, 20.0)),
    )


def _dropped(d: Drawer) -> dict[str, Any]:
    if d.maybe(0.85):
        return {}
    return {"dropout": d.choice((0.0, 0.1, 0.4, 1.0)), "seed": d.seed(), **d.some(offset=d.offset)}


def _bias(d: Drawer, shape: tuple[int, ...]) -> Leaf:
    """Of fewer axes or extents of 1 at times, with -infinity in places."""
    shape = tuple(n if d.maybe(0.7) else 1 for n in shape)[d.choice((0, 0, 1, 2, 3)) :]
    values = d.rng.standard_normal(shape)
    return d.array(np.where(d.rng.random(shape) < d.choice((0.0, 0.2)), -np.inf, values))


def _per_sequence(
    d: Drawer, batch: int, heads: int, queries: int, keys: int, options: dict[str, Any]
) -> tuple[Any, ...]:
    """Bias, mask, causal_offset, alibi_slopes, sink, q_lengths, kv_lengths."""
    full = (batch, heads, queries, keys)
    bias = _bias(d, full) if d.maybe(0.2) else None
    mask = d.mask(*tuple(n if d.maybe(0.7) else 1 for n in full)[d.choice((0, 0, 1, 2)) :]) if d.maybe(0.2) else None
    slopes = (
        d.tame(*((batch, heads) if d.maybe(0.3) else (heads,)), scale=0.3, role="beside") if d.maybe(0.15) else None
    )
    offset = None
    banded = options.get("causal") or any(side is not None for side in options.get("window") or ())
    if (banded or slopes is not None) and d.maybe(0.25):
        offset = d.choice((d.integer(-3, 5), d.whole(d.integer(-3, 5)), d.whole(d.rng.integers(-3, 6, batch))))
    sink = d.tame(heads, role="beside") if d.maybe(0.15) else None
    lengths = [d.whole(d.rng.integers(0, most + 1, batch)) if d.maybe(0.15) else None for most in (queries, keys)]
    return bias, mask, offset, slopes, sink, *lengths


def _attention(d: Drawer) -> Drawn:
    (heads, kv_heads), batch = _heads(d), d.choice((0, 1, 1, 2, 2, 3)) if d.maybe(0.2) else d.choice((1, 2))
    (queries, keys), width = _lengths(d, heads * max(batch, 1)), _width(d)
    value_width = width if d.maybe(0.7) else _width(d)
    options = (
        _options(d) | _dropped(d) | d.some(layout=lambda: d.choice(("BHSD", "BSHD")), return_lse=lambda: d.maybe())
    )

    def rows(h: int, s: int, w: int) -> Leaf:
        return d.floats(*((batch, s, h, w) if options.get("layout") == "BSHD" else (batch, h, s, w)))

    q, k, v = rows(heads, queries, width), rows(kv_heads, keys, width), rows(kv_heads, keys, value_width)
    arrays = (q, k, v, *_per_sequence(d, batch, heads, queries, keys, options))
    return Drawn("attention", arrays, options, reduction=width + keys + 1)


def _attention_varlen(d: Drawer) -> Drawn:
    (heads, kv_heads), width, sequences = _heads(d), _width(d), d.integer(0, 4) if d.maybe(0.9) else 0
    value_width = width if d.maybe(0.7) else _width(d)
    q_lengths, k_lengths = d.rng.integers(0, 8, sequences), d.rng.integers(0, 8, sequences)
    bounds = [np.concatenate([[0], np.cumsum(lengths)]) for lengths in (q_lengths, k_lengths)]
    longest = [int(lengths.max(initial=0)) + d.choice((0, 0, 3)) for lengths in (q_lengths, k_lengths)]
    options = _options(d) | _dropped(d) | d.some(return_lse=lambda: d.maybe())
    options |= {"max_seqlen_q": longest[0], "max_seqlen_k": longest[1]}
    slopes = (
        d.tame(*((sequences, heads) if d.maybe(0.3) else (heads,)), scale=0.3, role="beside") if d.maybe(0.15) else None
    )
    sink = d.tame(heads, role="beside") if d.maybe(0.15) else None
    total_q, total_k = int(bounds[0][-1]), int(bounds[1][-1])
    q, k, v = (
        d.floats(total_q, heads, width),
        d.floats(total_k, kv_heads, width),
        d.floats(total_k, kv_heads, value_width),
    )
    return Drawn(
        "attention_varlen", (q, k, v, *map(d.whole, bounds), slopes, sink), options, reduction=width + longest[1] + 1
    )


def _paged_attention(d: Drawer) -> Drawn:
    (heads, kv_heads), width, batch = _heads(d), _width(d), d.integer(0, 3) if d.maybe(0.9) else 0
    value_width = width if d.maybe(0.7) else _width(d)
    pages, page, columns, queries = (
        d.integer(1, 8),
        d.choice((1, 2, 3, 4, 16)),
        d.integer(1, 4),
        d.choice((None, None, 1, 2, 5)),
    )
    lengths = d.rng.integers(0, columns * page + 1, batch)
    table = d.rng.integers(0, pages, (batch, columns))
    unused = np.arange(columns) * page >= lengths[:, None]
    table = np.where(unused & (d.rng.random(table.shape) < 0.5), d.integer(-2, 99), table)
    options = _options(d) | d.some(return_lse=lambda: d.maybe())
    slopes = (
        d.tame(*((batch, heads) if d.maybe(0.3) else (heads,)), scale=0.3, role="beside") if d.maybe(0.15) else None
    )
    sink = d.tame(heads, role="beside") if d.maybe(0.15) else None
    q = d.floats(batch, *(() if queries is None else (queries,)), heads, width)
    k, v = d.floats(pages, page, kv_heads, width), d.floats(pages, page, kv_heads, value_width)
    arrays = (q, k, v, d.whole(table), d.whole(lengths), slopes, sink)
    return Drawn("paged_attention", arrays, options, reduction=width + columns * page + 1, gradient=False)


def _multi_head_attention(d: Drawer) -> Drawn:
    (heads, kv_heads), batch = _heads(d), d.integer(1, 2) if d.maybe(0.95) else 0
    queries, keys = _lengths(d, heads * max(batch, 1))
    width, value_width = d.choice((1, 2, 3, 4, 8)), d.choice((1, 2, 3, 4, 8))
    features = [d.integer(1, 9) for _ in range(3)]
    rows = [heads * width, kv_heads * width, kv_heads * value_width, d.integer(1, 9)]
    columns = [*features, heads * value_width]
    options = {"num_heads": heads, **_options(d), **_dropped(d)}
    if kv_heads != heads or d.maybe(0.2):
        options["num_kv_heads"] = kv_heads
    inputs = [d.floats(batch, s, e) for s, e in zip((queries, keys, keys), features, strict=True)]
    weights = [d.floats(r, c, scale=0.5) for r, c in zip(rows, columns, strict=True)]
    biases = [d.floats(r) if d.maybe() else None for r in rows]
    others = _per_sequence(d, batch, heads, queries, keys, options)
    return Drawn(
        "multi_head_attention", (*inputs, *weights, *biases, *others), options, reduction=8 * (max(columns) + keys)
    )


def _rotary_embedding(d: Drawer) -> Drawn:
    batch, heads, length, width = d.shape(4)
    turned = width // 2 if d.maybe(0.7) else d.integer(0, width // 2)
    options = d.some(interleaved=lambda: d.maybe(), layout=lambda: d.choice(("BHSD", "BSHD")))
    x = d.floats(*((batch, length, heads, width) if options.get("layout") == "BSHD" else (batch, heads, length, width)))
    shape = (*((batch,) if d.maybe(0.3) else ()), length, turned)
    return Drawn(
        "rotary_embedding", (x, d.tame(*shape, role="beside"), d.tame(*shape, role="beside")), options, reduction=2
    )


DRAWERS = {
    "attention": _attention,
    "attention_varlen": _attention_varlen,
    "paged_attention": _paged_attention,
    "multi_head_attention": _multi_head_attention,
    "rotary_embedding": _rotary_embedding,
}
