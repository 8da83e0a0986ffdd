"""Which weights of an attention dropout leaves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dnnarray._cpu.philox import keep_rows
from dnnarray._problems.attention import AttentionProblem
from dnnarray._records import frozen


@frozen
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
        """What a problem drops; nothing at probability 0, and only then may the seed be None."""
        p, sizes = problem.rule.dropout, problem.sizes
        return None if seed is None or not p else cls(p, seed, offset, sizes.heads, sizes.queries, sizes.keys)

    def of_sequence(self, sequence: int) -> Dropout:
        """The same for the call of one sequence alone."""
        return replace(self, sequence=sequence)

    @property
    def factor(self) -> float:
        """What makes up for the dropped weights."""
        return 1 / (1 - self.p) if self.p < 1 else 0.0

    def keep(self, sequences: np.ndarray, heads: np.ndarray, i: slice, j: slice) -> np.ndarray:
        """True for the weights that stay: a row of keys for each sequence, head and query, in the shape of the first
        two broadcast."""
        if self.p == 1:
            return np.zeros((1, 1, 1, 1, 1), np.bool_)
        row = ((self.sequence + sequences) * self.heads + heads)[..., None] * self.queries + np.arange(i.start, i.stop)
        start = row.astype(np.uint64) * np.uint64(self.keys) + np.uint64(j.start) + np.uint64(self.offset)
        return keep_rows(self.seed, start, j.stop - j.start, self.p)
