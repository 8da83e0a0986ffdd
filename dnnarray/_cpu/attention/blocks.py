"""What forward and backward attention share: heads in groups, which keys a query sees, and the scores of one block.

All arrays stand in the grouped form (B, H_kv, R, S, D), where R query heads share one key head (R = 1 for keys and
values). Work goes by chunks of batch items and heads, inside by blocks of queries and of keys, so that never more than
one block of scores exists. Small sequences put many heads into one chunk, and few NumPy calls do them all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu.attention.dropout import Dropout
from dnnarray._problems.attention import Rule
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, HALF

BLOCK_QUERIES = 256
BLOCK_KEYS = 512
_FAR = 2**40  # beyond any sequence, and no sum of two of them overflows
_ALL = slice(None)
_NEGATIVE_INFINITY = -np.inf


def compute_dtype(array: np.ndarray) -> np.dtype:
    """Half types are computed in float32."""
    return FLOAT32 if array.dtype in HALF else array.dtype


def operand(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in `dtype` with rows that BLAS can take, copied only where it is not so already."""
    row_stride = array.strides[-2] if array.ndim > 1 else 0
    rows_fit = (
        array.strides[-1] == array.itemsize and row_stride >= array.shape[-1] * array.itemsize and array.flags.aligned
    )
    return array if rows_fit and array.dtype == dtype else np.ascontiguousarray(array, dtype)


def grouped(array: np.ndarray, kv_heads: int) -> np.ndarray:
    """(B, H, ...) as the view (B, H_kv, R, ...); one head for all stays one."""
    batch, heads = array.shape[:2]
    if heads == 1:
        return array[:, :, None]
    return array.reshape(batch, kv_heads, heads // kv_heads if kv_heads else 1, *array.shape[2:])


def pick(array: np.ndarray, *slices: slice) -> np.ndarray:
    """The part of an array that broadcasts along its axes of extent 1."""
    return array[tuple(s if n != 1 else _ALL for s, n in zip(slices, array.shape, strict=False))]


def blocks(start: int, stop: int, size: int) -> Iterator[slice]:
    """The range cut into slices of at most `size`."""
    return (slice(i, min(i + size, stop)) for i in range(start, stop, size))


# --- which keys a query sees ------------------------------------------------------------------------------------------


def _as_int64(values: Any) -> np.ndarray:
    """Lengths or offsets in int64, held within `_FAR` so that sums cannot overflow."""
    array = np.atleast_1d(values)
    if array.dtype.kind == "u":
        return np.minimum(array.astype(np.uint64), np.uint64(_FAR)).astype(np.int64)
    return np.clip(array.astype(np.int64), -_FAR, _FAR)


@frozen
class Reach:
    """Query i of sequence b sees the keys from ``first[b, i]`` to ``last[b, i]``; one row of each where all sequences
    agree.

    `first` and `last` are None where every query sees every key. `diagonal` is j - i on the diagonal.
    """

    first: np.ndarray | None
    last: np.ndarray | None
    diagonal: np.ndarray
    keys: int
    q_lengths: np.ndarray | None
    kv_lengths: np.ndarray | None

    @classmethod
    def of(
        cls, rule: Rule, queries: int, keys: int, offset: Any = None, q_lengths: Any = None, kv_lengths: Any = None
    ) -> Reach:
        q_ends = None if q_lengths is None else _as_int64(q_lengths)
        k_ends = None if kv_lengths is None else _as_int64(kv_lengths)
        k_end: Any = keys if k_ends is None else k_ends
        if offset is not None:
            diagonal = _as_int64(offset)
        elif rule.upper_left:
            diagonal = np.zeros(1, np.int64)
        else:
            diagonal = np.atleast_1d(np.asarray(k_end - (queries if q_ends is None else q_ends), np.int64))
        if not rule.banded and q_ends is None and k_ends is None:
            return cls(None, None, diagonal, keys, None, None)
        i = np.arange(queries)
        centre = i + diagonal[:, None]
        first = np.maximum(centre - min(rule.left, _FAR), 0) if rule.left is not None else np.zeros_like(centre)
        last = centre + min(rule.right, _FAR) if rule.right is not None else np.full_like(centre, keys)
        last = np.minimum(last, np.reshape(k_end, (-1, 1)) - 1)
        if q_ends is not None:
            last = np.where(i < q_ends[:, None], last, -1)
        first, last = np.broadcast_arrays(first, last)
        return cls(first, last, diagonal, keys, q_ends, k_ends)

    def key_blocks(self, batch: slice, i: slice, size: int) -> Iterator[slice]:
        """The blocks of keys, of this size, that any query of the block sees."""
        if self.first is None or self.last is None:
            return blocks(0, self.keys, size)
        first, last = pick(self.first, batch, i), pick(self.last, batch, i)
        return blocks(int(first.min(initial=self.keys)), int(last.max(initial=-1)) + 1, size)

    def hidden(self, batch: slice, i: slice, j: slice) -> np.ndarray | None:
        """True where the query does not see the key, (B, 1, 1, queries, keys); None where all are seen."""
        if self.first is None or self.last is None:
            return None
        first, last = pick(self.first, batch, i), pick(self.last, batch, i)
        if int(last.min()) >= j.stop - 1 and int(first.max()) <= j.start:
            return None
        keys = j.stop - j.start
        low, high = np.clip(first - j.start, 0, keys), np.clip(last - j.start, -1, keys)
        return _outside(low.tobytes(), high.tobytes(), low.shape, keys)[:, None, None]

    def distance(self, batch: slice, i: slice, j: slice) -> np.ndarray:
        """How far each key is from the diagonal, (B, 1, 1, queries, keys)."""
        row = np.arange(i.start, i.stop) + pick(self.diagonal, batch)[:, None]
        return np.abs(row[..., None] - np.arange(j.start, j.stop))[:, None, None]


@lru_cache(maxsize=4)
def _outside(first: bytes, last: bytes, shape: tuple[int, ...], keys: int) -> np.ndarray:
    """True where key j is not in [first, last] of a row, (B, queries, keys). All heads have the same, and most blocks
    of a diagonal."""
    low, high = (np.frombuffer(bound, np.int64).reshape(*shape, 1) for bound in (first, last))
    position = np.arange(keys)
    result = (position < low) | (position > high)
    result.flags.writeable = False
    return result


def _cleared(part: np.ndarray, lengths: np.ndarray | None, batch: slice, rows: slice) -> np.ndarray:
    """Rows past the end of their sequence as zeros: what padding holds, even NaN, must not reach a sum."""
    if lengths is None:
        return part
    ends = lengths[batch]
    if int(ends.min()) >= rows.stop:
        return part
    inside = np.arange(rows.start, rows.stop) < ends[:, None]
    return np.where(inside[:, None, None, :, None], part, part.dtype.type(0))


# --- one call, in parts -----------------------------------------------------------------------------------------------


class Call:
    """The arrays of one attention in grouped form, with everything that changes the scores."""

    def __init__(
        self,
        rule: Rule,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        reach: Reach,
        *,
        bias: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        alibi_slopes: np.ndarray | None = None,
        sink: np.ndarray | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        self.kv_heads = kv_heads = k.shape[1]
        self.dtype = compute_dtype(q)
        self.q, self.k, self.v = grouped(q, kv_heads), k[:, :, None], v[:, :, None]
        self.bias, self.mask = _score_array(bias, kv_heads), _score_array(mask, kv_heads)
        slopes = None if alibi_slopes is None else np.atleast_2d(alibi_slopes).astype(self.dtype)[:, :, None, None]
        self.slopes = None if slopes is None else grouped(slopes, kv_heads)
        self.sink = None if sink is None else grouped(sink.astype(self.dtype)[None, :, None, None], kv_heads)
        self.reach, self.dropout, self.softcap = reach, dropout, rule.softcap
        self.factor = rule.scale / rule.softcap if rule.softcap else rule.scale

    def parts(self) -> Iterator[Part]:
        """Chunks of batch items and heads whose blocks of scores are of a bounded size."""
        batch, heads, group, queries = self.q.shape[:4]
        if not batch * heads * group:
            return
        one = max(min(queries, BLOCK_QUERIES) * min(self.reach.keys, self.key_block), 1)
        count = max(BLOCK_QUERIES * BLOCK_KEYS // one, 1)
        groups = min(group, count)
        some_heads = min(heads, max(count // group, 1))
        items = max(count // (group * heads), 1)
        size = one * groups * some_heads * min(items, batch)
        for b in blocks(0, batch, items):
            for h in blocks(0, heads, some_heads):
                for r in blocks(0, group, groups):
                    yield Part(self, b, h, r, size)

    @property
    def key_block(self) -> int:
        """Keys at a time: more for few queries, as in decoding, so that a block of scores is worth its NumPy calls."""
        return max(BLOCK_KEYS, BLOCK_QUERIES * BLOCK_KEYS // max(self.q.shape[3], 1))


def _score_array(array: np.ndarray | None, kv_heads: int) -> np.ndarray | None:
    if array is None:
        return None
    return grouped(array[(None,) * (4 - array.ndim)], kv_heads)


class Part:
    """Some batch items and heads of a call. What it holds beside views is made when it is first wanted and gone after
    `forget`."""

    def __init__(self, call: Call, batch: slice, heads: slice, group: slice, size: int) -> None:
        self.call, self.batch, self.heads, self.group, self._size = call, batch, heads, group, size
        self._buffers: dict[int, np.ndarray] = {}

    @cached_property
    def q(self) -> np.ndarray:
        return operand(self.take(self.call.q), self.call.dtype)

    @cached_property
    def k(self) -> np.ndarray:
        return operand(self.call.k[self.batch, self.heads], self.call.dtype)

    @cached_property
    def v(self) -> np.ndarray:
        return operand(self.call.v[self.batch, self.heads], self.call.dtype)

    def forget(self) -> None:
        """Let the memory of the scores and of copied operands go."""
        self._buffers.clear()
        for name in ("q", "k", "v"):
            self.__dict__.pop(name, None)

    def take(self, array: np.ndarray) -> np.ndarray:
        """This part of an array (B, H_kv, R, ...)."""
        return array[self.batch, self.heads, self.group]

    def query_blocks(self) -> Iterator[slice]:
        return blocks(0, self.q.shape[3], BLOCK_QUERIES)

    def key_blocks(self, i: slice) -> Iterator[slice]:
        return self.call.reach.key_blocks(self.batch, i, self.call.key_block)

    def keep(self, dropout: Dropout, i: slice, j: slice) -> np.ndarray:
        """True for the weights of a block that dropout leaves."""
        b, h, r = np.ogrid[self.batch, self.heads, self.group]
        return dropout.keep(b, h * self.call.q.shape[2] + r, i, j)

    def scaled(self, i: slice) -> np.ndarray:
        """The queries of a block times the scale."""
        return self.q[:, :, :, i] * self.call.dtype.type(self.call.factor)

    def live_queries(self, array: np.ndarray, i: slice) -> np.ndarray:
        """A block of rows of q, y or their gradients, zeros past the end of each sequence."""
        return _cleared(array[:, :, :, i], self.call.reach.q_lengths, self.batch, i)

    def live_keys(self, array: np.ndarray, j: slice) -> np.ndarray:
        """A block of keys or values, zeros past the end of each sequence."""
        return _cleared(array[:, :, :, j], self.call.reach.kv_lengths, self.batch, j)

    def product(self, a: np.ndarray, b: np.ndarray, buffer: int) -> np.ndarray:
        """a @ b.T, (B, H_kv, R, queries, keys), in a buffer of this part."""
        shape = (*a.shape[:4], b.shape[3])
        if buffer not in self._buffers:
            self._buffers[buffer] = np.empty(self._size, self.call.dtype)
        out = self._buffers[buffer][: math.prod(shape)].reshape(shape)
        return np.matmul(a, b.swapaxes(-1, -2), out=out)

    def scores(
        self, q: np.ndarray, k: np.ndarray, i: slice, j: slice, slope: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The scores of a block from scaled queries, -infinity where masked; with `slope` also the derivative of the
        cap."""
        call, where, derivative = self.call, (self.batch, self.heads, self.group, i, j), None
        s = self.product(q, k, 0)
        if call.softcap is not None:
            np.tanh(s, out=s)
            derivative = call.softcap * (1 - s * s) if slope else None
            s *= s.dtype.type(call.softcap)
        if call.slopes is not None:
            s -= pick(call.slopes, *where[:3]) * call.reach.distance(self.batch, i, j).astype(s.dtype)
        if call.bias is not None:
            s += pick(call.bias, *where).astype(s.dtype, copy=False)
        if call.mask is not None:
            np.copyto(s, _NEGATIVE_INFINITY, where=~pick(call.mask, *where))
        hidden = call.reach.hidden(self.batch, i, j)
        if hidden is not None:
            np.copyto(s, _NEGATIVE_INFINITY, where=hidden)
        return s, derivative
