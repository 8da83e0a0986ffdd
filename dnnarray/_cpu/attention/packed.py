"""Attention over packed sequences and over a paged cache: one dense attention for each sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnnarray._cpu.attention.blocks import Call, Reach, compute_dtype
from dnnarray._cpu.attention.dropout import Dropout
from dnnarray._cpu.attention.passes import Gradients, Saved, backward, forward
from dnnarray._cpu.sums import of_rows
from dnnarray._problems.attention import AttentionProblem

Outputs = tuple[Any, ...]


def heads_first(packed: np.ndarray) -> np.ndarray:
    """One sequence (S, H, D) as a batch of one, (1, H, S, D)."""
    return packed.swapaxes(0, 1)[None]


def _row(slopes: Any, sequence: int) -> Any:
    """The slopes of one sequence."""
    return slopes if slopes is None or slopes.ndim == 1 else slopes[sequence]


# --- packed sequences -------------------------------------------------------------------------------------------------


def _sequences(
    problem: AttentionProblem,
    dropout: Dropout | None,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bounds_q: np.ndarray,
    bounds_k: np.ndarray,
    slopes: Any,
    sink: Any,
) -> Iterator[tuple[Call, slice, slice]]:
    """Each sequence as a call, with its rows of q and of k."""
    rows = [int(n) for n in bounds_q], [int(n) for n in bounds_k]
    for n in range(problem.sizes.batch):
        of_q, of_k = (slice(bounds[n], bounds[n + 1]) for bounds in rows)
        reach = Reach.of(problem.rule, of_q.stop - of_q.start, of_k.stop - of_k.start)
        arrays = heads_first(q[of_q]), heads_first(k[of_k]), heads_first(v[of_k])
        drop = None if dropout is None else dropout.of_sequence(n)
        yield Call(problem.rule, *arrays, reach, alibi_slopes=_row(slopes, n), sink=sink, dropout=drop), of_q, of_k


def varlen(
    problem: AttentionProblem, outputs: Outputs, scratch: Any, *arrays: Any, seed: int | None, offset: int
) -> None:
    y, lse = outputs
    for call, of_q, _ in _sequences(problem, Dropout.of(problem, seed, offset), *arrays):
        forward(call, heads_first(y[of_q]), None if lse is None else lse[None, :, of_q])


def varlen_backward(
    problem: AttentionProblem, outputs: Outputs, scratch: Any, grad: Any, *arrays: Any, seed: int | None, offset: int
) -> None:
    *inputs, y, lse = arrays
    grad_q, grad_k, grad_v, grad_sink = outputs
    grad_y, grad_lse = Saved.pair(grad)
    sinks = None if grad_sink is None else np.zeros((problem.sizes.batch, len(grad_sink)), compute_dtype(inputs[0]))
    for n, (call, of_q, of_k) in enumerate(_sequences(problem, Dropout.of(problem, seed, offset), *inputs)):
        saved = Saved.of(
            call,
            None if grad_y is None else heads_first(grad_y[of_q]),
            None if grad_lse is None else grad_lse[None, :, of_q],
            None if y is None else heads_first(y[of_q]),
            None if lse is None else lse[None, :, of_q],
            problem.wanted.deltas,
        )
        rows = ((grad_q, of_q), (grad_k, of_k), (grad_v, of_k))
        q, k, v = (None if whole is None else heads_first(whole[of]) for whole, of in rows)
        backward(call, saved, Gradients(q, k, v, sink=None if sinks is None else sinks[n]))
    if grad_sink is not None and sinks is not None:
        of_rows(sinks, grad_sink)


# --- a paged cache ----------------------------------------------------------------------------------------------------


def paged(
    problem: AttentionProblem,
    outputs: Outputs,
    scratch: Any,
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    block_table: np.ndarray,
    kv_lengths: np.ndarray,
    slopes: Any,
    sink: Any,
) -> None:
    y, lse = outputs
    if q.ndim == 3:
        q, y, lse = q[:, None], y[:, None], None if lse is None else lse[..., None]
    for n, length in enumerate(int(count) for count in kv_lengths):
        skipped, used = _pages(problem, length, k_cache.shape[1], q.shape[1])
        table, keys = block_table[n, skipped:used], length - skipped * k_cache.shape[1]
        k, v = (_gathered(cache, table, keys) for cache in (k_cache, v_cache))
        reach = Reach.of(problem.rule, q.shape[1], keys)
        call = Call(problem.rule, heads_first(q[n]), k, v, reach, alibi_slopes=_row(slopes, n), sink=sink)
        forward(call, heads_first(y[n]), None if lse is None else lse[n : n + 1])


def _pages(problem: AttentionProblem, length: int, page: int, queries: int) -> tuple[int, int]:
    """The blocks of a sequence to read: from the first that a window reaches; the diagonal stays where it is, at the
    last key."""
    rule = problem.rule
    first = 0 if rule.left is None or rule.upper_left else max(length - queries - rule.left, 0)
    return first // page, -(-length // page)


def _gathered(cache: np.ndarray, table: np.ndarray, keys: int) -> np.ndarray:
    """The first `keys` positions of the blocks in a table, (1, H_kv, keys, D)."""
    rows = cache[table].reshape(len(table) * cache.shape[1], *cache.shape[2:])
    return heads_first(rows[:keys])
