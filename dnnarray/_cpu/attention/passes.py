"""The two passes of attention over its blocks: forward by the online softmax, backward from the log-sum-exp of each
row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.attention.blocks import BLOCK_QUERIES, Call, Part, grouped, pick
from dnnarray._cpu.blocks import long_rows
from dnnarray._cpu.sums import total as sum_of
from dnnarray._spec import FLOAT64

_SCORE_WORK = 32  # passes over memory that the two products and the exponential of a score are worth
_BACKWARD = 2  # as much as forward
_MANY = 64  # blocks, the sums over more of which are float64
_LONG = 4096  # keys of a product


def forward(call: Call, y: np.ndarray, lse: np.ndarray | None) -> None:
    """Write y (B, H, S_q, D_v) and, where given, lse (B, H, S_q)."""
    y = grouped(y, call.kv_heads)
    lse = None if lse is None else grouped(lse, call.kv_heads)

    def attend(part: Part) -> None:
        for i in part.query_blocks():
            rows, log_total = _attend(part, i)
            part.take(y)[:, :, :, i] = rows
            if lse is not None:
                part.take(lse)[:, :, :, i] = log_total
        part.forget()

    threads.each(attend, ((part,) for part in call.parts()), work=_work(call))


def _work(call: Call) -> int:
    """Scores, each as many elements of a light operation."""
    return _SCORE_WORK * math.prod(call.q.shape[:4]) * call.reach.keys


def _attend(part: Part, i: slice) -> tuple[np.ndarray, np.ndarray]:
    """y and lse of one block of queries.

    `top` is the largest score so far, `total` the sum of exp(score - top), and `rows` that of the weighted values, both
    in float64; all shrink when a larger score appears (Milakov and Gimelshein 2018). A row that has seen nothing keeps
    top = -infinity, total = 0."""
    call, q = part.call, part.scaled(i)
    top, total = _start(part, i, q)
    rows = np.zeros((*q.shape[:4], part.v.shape[-1]))
    for j in part.key_blocks(i):
        s, _ = part.scores(q, part.k[:, :, :, j], i, j)
        higher = np.maximum(top, s.max(axis=-1, keepdims=True))
        ground = np.where(np.isneginf(higher), 0, higher)
        with long_rows(s.shape[-1]):
            s -= ground
        np.exp(s, out=s)
        shrink = np.exp(top - ground)
        total = total * shrink + sum_of(s, (s.ndim - 1,))
        if call.dropout is not None:
            s *= part.keep(call.dropout, i, j)
        rows *= shrink
        rows += _product(s, part.live_keys(part.v, j))
        top = higher
    rows /= np.where(total == 0, 1, total)
    if call.dropout is not None:
        rows *= call.dtype.type(call.dropout.factor)
    return rows, (top + np.log(total, dtype=FLOAT64))[
        ..., 0
    ]  # rounded once: all weights of a row are off by what it is off by


def _product(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """weights @ rows; of very many keys, which few queries go through at once, in parts that are added up in
    float64."""
    keys = weights.shape[-1]
    if keys <= _LONG:
        return weights @ rows
    total = np.zeros((*weights.shape[:-1], rows.shape[-1]))
    for j in range(0, keys, _LONG):
        total += weights[..., j : j + _LONG] @ rows[..., j : j + _LONG, :]
    return total


def _start(part: Part, i: slice, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(top, total) before the first key: nothing, or the sink, which is a score without a value."""
    call, shape = part.call, (*q.shape[:4], 1)
    if call.sink is None:
        return np.full(shape, -np.inf, call.dtype), np.zeros(shape)
    top = np.broadcast_to(pick(call.sink, part.batch, part.heads, part.group), shape)
    ends = call.reach.q_lengths
    if ends is not None:
        live = np.arange(i.start, i.stop) < ends[part.batch, None]
        top = np.where(live[:, None, None, :, None], top, call.dtype.type(-np.inf))
    return top, np.asarray(~np.isneginf(top), FLOAT64)


# --- backward ---------------------------------------------------------------------------------------------------------


@dataclass
class Saved:
    """What backward starts from: y and lse of the forward and their gradients, None for one that is absent; y where
    only the gradient of v is wanted, too."""

    y: np.ndarray | None
    lse: np.ndarray
    grad_y: np.ndarray | None
    grad_lse: np.ndarray | None

    @staticmethod
    def pair(grad: Any) -> tuple[Any, Any]:
        """The gradients of y and lse, from one array or a pair."""
        if not isinstance(grad, (tuple, list)):
            return grad, None
        return grad[0], grad[1] if len(grad) > 1 else None

    @classmethod
    def of(cls, call: Call, grad_y: Any, grad_lse: Any, y: Any, lse: Any, deltas: bool) -> Saved:
        """`y` and `lse` computed again, in the dtype of the arithmetic, unless both are given; `deltas` says whether y
        is needed."""
        if lse is None or (deltas and y is None):
            batch, kv_heads, group, queries = call.q.shape[:4]
            y = np.empty((batch, kv_heads * group, queries, call.v.shape[-1]), call.dtype)
            lse = np.empty((batch, kv_heads * group, queries), call.dtype)
            forward(call, y, lse)
        return cls(y if deltas else None, lse, grad_y, grad_lse)

    def grouped(self, kv_heads: int) -> Saved:
        arrays = (self.y, self.lse, self.grad_y, self.grad_lse)
        return Saved(*(None if a is None else grouped(a, kv_heads) for a in arrays))  # type: ignore[arg-type]


@dataclass
class Gradients:
    """Where the gradients go, None for those that are not wanted."""

    q: np.ndarray | None = None
    k: np.ndarray | None = None
    v: np.ndarray | None = None
    bias: np.ndarray | None = None
    sink: np.ndarray | None = None

    def accumulators(self, call: Call) -> Gradients:
        """Zeros to add to, in the dtype of the arithmetic, or float64 for many terms: the results themselves where they
        are of it."""
        batch, _, group, queries = call.q.shape[:4]
        blocks = group * -(-queries // BLOCK_QUERIES)

        def zeros(array: Any, terms: int) -> Any:
            dtype = FLOAT64 if terms > _MANY else call.dtype
            if array is None or array.dtype != dtype:
                return None if array is None else np.zeros(array.shape, dtype)
            array[...] = 0
            return array

        return Gradients(
            self.q,
            zeros(self.k, blocks),
            zeros(self.v, blocks),
            zeros(self.bias, batch),
            zeros(self.sink, batch * blocks),
        )

    @property
    def scores(self) -> bool:
        """Whether any of them is a sum over the scores: that of the sink is not."""
        return self.slopes or self.v is not None

    @property
    def slopes(self) -> bool:
        """Whether any of them takes the gradient of each score."""
        return not (self.q is None and self.k is None and self.bias is None)

    def store(self, sums: Gradients) -> None:
        for name in ("k", "v", "bias", "sink"):
            result, total = getattr(self, name), getattr(sums, name)
            if result is not total:
                result[...] = total


def backward(call: Call, saved: Saved, gradients: Gradients) -> None:
    """Write the gradients of q (B, H, S_q, D), k, v, bias and sink, of those that are wanted."""
    sums, known = gradients.accumulators(call), saved.grouped(call.kv_heads)
    heads = Gradients(
        None if sums.q is None else grouped(sums.q, call.kv_heads),
        None if sums.k is None else sums.k[:, :, None],
        None if sums.v is None else sums.v[:, :, None],
        None if sums.bias is None else grouped(sums.bias[(None,) * (4 - sums.bias.ndim)], call.kv_heads),
        None if sums.sink is None else grouped(sums.sink[None, :, None, None], call.kv_heads),
    )

    def rows(*parts: Part) -> None:
        for part in parts:
            for i in part.query_blocks():
                _Rows(part, i, known).backward(heads)
            part.forget()

    # The parts of one group of heads add to the same keys and values, all parts to one bias and one sink.
    apart = sums.bias is None and sums.sink is None
    together = [
        tuple(parts)
        for _, parts in groupby(call.parts(), key=lambda p: (p.batch.start, p.heads.start) if apart else None)
    ]
    threads.each(rows, together, work=_BACKWARD * _work(call))
    gradients.store(sums)


def share_of(keys: int) -> float:
    """About one over the number of keys, a power of two.

    Where many keys weigh about the same, exp(score - lse) is better found as this share of exp(score - lse -
    log(share)), whose argument is small: the differences of scores from a log-sum-exp that is far above all of them
    round."""
    return 2.0 ** -round(math.log2(max(keys, 1)))


class _Rows:
    """One block of queries on the way back: for a score s with weight p = exp(s - lse), ds = p * (dp - delta)."""

    def __init__(self, part: Part, i: slice, saved: Saved) -> None:
        call = part.call
        self.part, self.call, self.i = part, call, i
        self.q = part.live_queries(part.q, i) * call.dtype.type(call.factor)
        shape = (*self.q.shape[:4], part.v.shape[-1])
        grad_y = np.zeros(shape, call.dtype)
        if saved.grad_y is not None:
            grad_y = part.live_queries(part.take(saved.grad_y), i).astype(call.dtype, copy=False)
        self.delta: Any = None
        if saved.y is not None:
            y = part.live_queries(part.take(saved.y), i).astype(call.dtype, copy=False)
            self.delta = sum_of(grad_y * y, (y.ndim - 1,))
            if saved.grad_lse is not None:
                self.delta -= part.live_queries(part.take(saved.grad_lse)[..., None], i)
        self.grad_y = grad_y if call.dropout is None else grad_y * call.dtype.type(call.dropout.factor)
        lse = part.take(saved.lse)[:, :, :, i, None].astype(FLOAT64)
        share = share_of(call.reach.keys)
        nearer = np.abs(lse + math.log(share)) < np.abs(lse) / 2
        self.share = np.where(nearer, share, 1).astype(call.dtype)
        lse = np.where(nearer, lse + math.log(share), lse)
        # A row that sees nothing has lse = -infinity; +infinity in its place makes all its weights 0.
        self.lse = np.where(np.isneginf(lse), np.inf, np.where(np.isposinf(lse), np.nan, lse)).astype(
            call.dtype, copy=False
        )

    def backward(self, gradients: Gradients) -> None:
        """Add the part of these queries to the gradients that are wanted."""
        part, i = self.part, self.i
        grad_q = None if gradients.q is None else np.zeros(self.q.shape)
        for j in part.key_blocks(i) if gradients.scores else ():
            self._block(j, gradients, grad_q)
        if gradients.q is not None and grad_q is not None:
            grad_q *= self.call.factor
            part.take(gradients.q)[:, :, :, i] = grad_q
        if gradients.sink is not None and self.call.sink is not None:
            weight = np.exp(pick(self.call.sink, part.batch, part.heads, part.group) - self.lse) * self.share
            target = pick(gradients.sink, part.batch, part.heads, part.group)
            target -= sum_of(weight * self.delta, (0, 3))

    def _block(self, j: slice, gradients: Gradients, grad_q: np.ndarray | None) -> None:
        """Add the part of one block to the gradients of k, v and bias, and to `grad_q`, that of the scaled q."""
        part, i, dropout = self.part, self.i, self.call.dropout
        k = part.live_keys(part.k, j)
        p, slope = part.scores(self.q, k, i, j, slope=gradients.slopes)
        p -= self.lse
        np.exp(p, out=p)
        p *= self.share
        keep = None if dropout is None else part.keep(dropout, i, j)
        if gradients.v is not None:
            self._add(gradients.v, j, p if keep is None else p * keep, self.grad_y)
        if gradients.slopes:
            self._add_slopes(j, gradients, grad_q, k, p, slope, keep)

    def _add_slopes(
        self,
        j: slice,
        gradients: Gradients,
        grad_q: np.ndarray | None,
        k: np.ndarray,
        p: np.ndarray,
        slope: Any,
        keep: Any,
    ) -> None:
        """What takes the gradient of the scores, of which `p` are the weights, `slope` says how a softcap bends them
        and `keep` what dropout leaves."""
        ds = self.part.product(self.grad_y, self.part.live_keys(self.part.v, j), 1)
        if keep is not None:
            ds *= keep
        ds -= self.delta
        ds *= p
        if gradients.bias is not None:
            self._add_bias(gradients.bias, j, ds)
        if slope is not None:
            ds *= slope
        if gradients.k is not None:
            self._add(gradients.k, j, ds, self.q)
        if grad_q is not None:
            grad_q += _product(ds, k)

    def _add(self, target: np.ndarray, j: slice, weights: np.ndarray, rows: np.ndarray) -> None:
        """target += weights.T @ rows, over the heads of a group."""
        product = weights.swapaxes(-1, -2) @ rows
        target = target[self.part.batch, self.part.heads, :, j]
        target += sum_of(product, (2,))

    def _add_bias(self, bias: np.ndarray, j: slice, ds: np.ndarray) -> None:
        """The gradient of the scores, summed over the axes along which the bias is repeated."""
        part = self.part
        repeated = tuple(axis for axis, n in enumerate(bias.shape) if n == 1)
        target = pick(bias, part.batch, part.heads, part.group, self.i, j)
        target += sum_of(ds, repeated)
