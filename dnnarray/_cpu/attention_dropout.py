"""Which weights of an attention dropout leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dnnarray._cpu.philox import philox
from dnnarray._errors import OptionError, fail
from dnnarray._problems.attention import AttentionProblem

_WORD, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


@dataclass(frozen=True)
class Dropout:
    """Which weights are dropped: element index = flat position in (B, H, queries, keys), `sequence` the first b."""

    p: float
    seed: int
    offset: int
    heads: int
    queries: int
    keys: int
    sequence: int = 0

    @classmethod
    def of(cls, problem: AttentionProblem, seed: int | None, offset: int) -> Dropout | None:
        """What a problem drops; nothing at probability 0, and then no seed is needed."""
        p, sizes = problem.rule.dropout, problem.sizes
        if not p:
            return None
        if seed is None:
            fail(OptionError, problem.op, "seed", "None", "an integer where dropout is above 0", "The same seed drops the same elements.")
        return cls(p, seed, offset, sizes.heads, sizes.queries, sizes.keys)

    def of_sequence(self, sequence: int) -> Dropout:
        """The same for the call of one sequence alone."""
        return replace(self, sequence=sequence)

    @property
    def factor(self) -> float:
        """What makes up for the dropped weights."""
        return 1 / (1 - self.p) if self.p < 1 else 0.0

    def keep(self, sequences: np.ndarray, heads: np.ndarray, i: slice, j: slice) -> np.ndarray:
        """True for the weights that stay: a row of keys for each sequence, head and query, in the shape of the first two broadcast."""
        if self.p == 1:
            return np.zeros((1, 1, 1, 1, 1), np.bool_)
        row = ((self.sequence + sequences) * self.heads + heads)[..., None] * self.queries + np.arange(i.start, i.stop)
        start = row.astype(np.uint64) * np.uint64(self.keys) + np.uint64(j.start) + np.uint64(self.offset)
        return _kept_rows(self.seed, start, j.stop - j.start, self.p)


def _kept_rows(seed: int, start: np.ndarray, count: int, p: float) -> np.ndarray:
    """`bernoulli_keep` for many rows: the elements from ``start`` to ``start + count - 1`` along a new last axis.

    Every block of four numbers is computed once a row, where `keep_mask` computes it for each of its numbers.
    """
    skip = (start & np.uint64(3)).astype(np.intp)
    blocks = -(-(int(skip.max(initial=0)) + count) // 4)
    counters: np.ndarray = (start >> np.uint64(2))[..., None] + np.arange(blocks, dtype=np.uint64)
    zero = np.zeros_like(counters)
    words = philox((counters & _WORD, counters >> _HALF, zero, zero), (seed & 0xFFFFFFFF, seed >> 32))
    kept = np.empty((*counters.shape, 4), np.bool_)
    for n, word in enumerate(words):
        np.greater_equal(word, np.uint64(math.floor(p * 2**32)), out=kept[..., n])
    kept = kept.reshape(*start.shape, blocks * 4)
    first = int(skip.max(initial=0))
    if (skip == first).all():
        return kept[..., first : first + count]
    return np.take_along_axis(kept, skip[..., None] + np.arange(count), axis=-1)
