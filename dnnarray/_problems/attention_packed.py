"""Attention over sequences that are packed one behind another, or whose keys lie in the blocks of a cache: the
problems."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.attention import (
    AttentionOutput,
    AttentionProblem,
    Sizes,
    backward_of,
    head_arrays,
    heads_of,
    inside,
    rule,
)
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT


class AttentionVarlenGradients(NamedTuple, Generic[ArrayT]):
    """Gradients of `attention_varlen`; None for a sink that was not given."""

    q: ArrayT
    k: ArrayT
    v: ArrayT
    sink: ArrayT


# --- packed sequences -------------------------------------------------------------------------------------------------

_LONGEST = 2**31 - 1
_PACKED = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "alibi_slopes", "sink")


def attention_varlen(
    op: str,
    q: Spec,
    k: Spec,
    v: Spec,
    cu_seqlens_q: Spec,
    cu_seqlens_k: Spec,
    alibi_slopes: Spec | None,
    sink: Spec | None,
    *,
    max_seqlen_q: Any,
    max_seqlen_k: Any,
    return_lse: Any,
    **options: Any,
) -> AttentionProblem:
    """The builder of `attention_varlen`; its sizes hold the number of sequences and the longest ones."""
    checks.same_dtype(op, q=q, k=k, v=v)
    for name, spec in (("q", q), ("k", k), ("v", v)):
        checks.rank(op, name, spec, 3, "total H D")
    (_, heads, width), (total_k, kv_heads, _), value_width = q.shape, k.shape, v.shape[2]
    checks.shape(op, "k", k, (total_k, kv_heads, width), "total H D, D as in q")
    checks.shape(op, "v", v, (total_k, kv_heads, value_width), "total H D, total and H as in k")
    heads_of(op, heads, kv_heads)
    sequences = _bounds(op, cu_seqlens_q, cu_seqlens_k)
    head_arrays(op, q, sequences, heads, alibi_slopes, sink)
    queries = checks.integer(op, "max_seqlen_q", max_seqlen_q, 0, _LONGEST)
    keys = checks.integer(op, "max_seqlen_k", max_seqlen_k, 0, _LONGEST)
    for side, total, longest in (("q", q.shape[0], queries), ("k", total_k, keys)):
        _long_enough(op, side, sequences, total, longest)
    with_lse = checks.boolean(op, "return_lse", return_lse)
    lse = Spec((heads, q.shape[0]), checks.statistics_dtype(q))
    return AttentionProblem(
        op=op,
        inputs=(q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, sink),
        outputs=(q.like((*q.shape[:2], value_width)), lse if with_lse else None),
        returns=AttentionOutput if with_lse else None,
        rule=rule(op, width, **options),
        sizes=Sizes(sequences, heads, kv_heads, queries, keys, width, value_width),
        layout="SHD",
        arrays=_PACKED,
    )


def _long_enough(op: str, side: str, sequences: int, total: int, longest: int) -> None:
    """That so many sequences can hold all rows, whatever their bounds are."""
    if not sequences and total:
        fail(
            ShapeError,
            op,
            f"cu_seqlens_{side}",
            "of no sequence",
            f"the bounds of {total} rows",
            f"It ends with {total}.",
        )
    if total > sequences * longest:
        expected = f"{-(-total // sequences)} or more, since {sequences} sequences have {total} rows"
        fail(OptionError, op, f"max_seqlen_{side}", longest, expected)


def _bounds(op: str, cu_seqlens_q: Spec, cu_seqlens_k: Spec) -> int:
    """The number of sequences that both arrays of bounds speak of."""
    for name, spec in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        checks.integers(op, name, spec)
        checks.rank(op, name, spec, 1, "sequences + 1")
    if not cu_seqlens_q.size:
        fail(ShapeError, op, "cu_seqlens_q", "empty", "one entry more than there are sequences", "It starts with 0.")
    checks.shape(op, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_q.shape, "as many entries as cu_seqlens_q")
    return cu_seqlens_q.size - 1


def attention_varlen_backward(op: str, grad: Any, *specs: Any, **options: Any) -> AttentionProblem:
    """The builder of `attention_varlen_backward`: the specs of the forward, then output and lse."""
    *arrays, output, lse = specs
    checks.boolean(op, "return_lse", options["return_lse"])
    forward = attention_varlen(op, *arrays, **options | {"return_lse": True})
    return backward_of(forward, grad, arrays, output, lse, (*arrays[:3], arrays[6]), AttentionVarlenGradients)


def packed_bounds(problem: AttentionProblem, *arrays: Any) -> None:
    """The bounds start with 0, never fall, end with the total, and no sequence is longer than said."""
    given = dict(zip(problem.arrays, arrays, strict=True))
    for side, packed, longest in (("q", "q", problem.sizes.queries), ("k", "k", problem.sizes.keys)):
        name, bounds, total = f"cu_seqlens_{side}", given[f"cu_seqlens_{side}"], given[packed].shape[0]
        if int(bounds[0]) != 0 or int(bounds[-1]) != total:
            fail(
                OptionError,
                problem.op,
                name,
                f"from {bounds[0]} to {bounds[-1]}",
                f"bounds from 0 to {total}, the extent of {packed}",
            )
        if bounds.size > 1:
            rises = bounds[1:].astype("int64") - bounds[:-1].astype("int64")
            if int(rises.min()) < 0:
                fail(OptionError, problem.op, name, "falling somewhere", "bounds that never fall")
            if int(rises.max()) > longest:
                fail(
                    OptionError,
                    problem.op,
                    f"max_seqlen_{side}",
                    longest,
                    f"{int(rises.max())}, the longest sequence, or more",
                )


# --- a paged cache ----------------------------------------------------------------------------------------------------


def paged_attention(
    op: str,
    q: Spec,
    k_cache: Spec,
    v_cache: Spec,
    block_table: Spec,
    kv_lengths: Spec,
    alibi_slopes: Spec | None,
    sink: Spec | None,
    *,
    return_lse: Any,
    **options: Any,
) -> AttentionProblem:
    """The builder of `paged_attention`; the keys of its sizes are as many as a row of the block table can name."""
    checks.same_dtype(op, q=q, k_cache=k_cache, v_cache=v_cache)
    checks.rank(op, "q", q, (3, 4), "B H D, or B S H D")
    for name, spec in (("k_cache", k_cache), ("v_cache", v_cache)):
        checks.rank(op, name, spec, 4, "blocks block_size H D")
    batch, heads, width = q.shape[0], q.shape[-2], q.shape[-1]
    pages, page, kv_heads, _ = k_cache.shape
    checks.shape(op, "k_cache", k_cache, (pages, page, kv_heads, width), "blocks block_size H D, D as in q")
    checks.shape(op, "v_cache", v_cache, (pages, page, kv_heads, None), "blocks block_size H D as in k_cache")
    if not page:
        fail(ShapeError, op, "k_cache", "of block_size 0", "a block_size of 1 or more")
    heads_of(op, heads, kv_heads)
    for name, spec, axes in (("block_table", block_table, (batch, None)), ("kv_lengths", kv_lengths, (batch,))):
        checks.integers(op, name, spec)
        checks.shape(op, name, spec, axes, "B" if len(axes) == 1 else "B, blocks of one sequence")
    head_arrays(op, q, batch, heads, alibi_slopes, sink)
    sizes = Sizes(
        batch, heads, kv_heads, 1 if q.ndim == 3 else q.shape[1], block_table.shape[1] * page, width, v_cache.shape[3]
    )
    with_lse = checks.boolean(op, "return_lse", return_lse)
    lse = Spec((batch, heads) if q.ndim == 3 else (batch, heads, sizes.queries), checks.statistics_dtype(q))
    return AttentionProblem(
        op=op,
        inputs=(q, k_cache, v_cache, block_table, kv_lengths, alibi_slopes, sink),
        outputs=(q.like((*q.shape[:-1], sizes.value_width)), lse if with_lse else None),
        returns=AttentionOutput if with_lse else None,
        rule=rule(op, width, **options),
        sizes=sizes,
        layout="SHD",
    )


def pages(
    problem: AttentionProblem, q: Any, k_cache: Any, v_cache: Any, block_table: Any, kv_lengths: Any, *others: Any
) -> None:
    """The lengths fit into the block table, and every block that a length uses exists."""
    inside(problem.op, "kv_lengths", kv_lengths, 0, problem.sizes.keys)
    count, page = k_cache.shape[:2]
    for position in range(block_table.shape[1]):
        used = block_table[:, position][kv_lengths > position * page]
        inside(problem.op, "block_table", used, 0, count - 1)
