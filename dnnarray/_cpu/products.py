"""Matrix products in float32 whose long sums are added up in parts: rounding grows with the terms that are added one after the other."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from dnnarray._cpu import blas

_CHAIN = 200  # terms in a row, at most
_PANEL = 320  # terms that OpenBLAS adds up in a row where there are twice as many; fewer it halves
_WORTH = 1 << 20  # multiply-adds, below which a second call costs more


@lru_cache(maxsize=256)
def parts_of(terms: int) -> int:
    """The fewest parts whose chains are short enough."""
    parts = 1
    while _chain(-(-terms // parts)) > _CHAIN:
        parts += 1
    return parts


def _chain(terms: int) -> int:
    return terms if terms <= _PANEL else -(-terms // 2) if terms < 2 * _PANEL else _PANEL


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    """``np.matmul(a, b, out=out)``, rounded less; of matrices of other types or memory as NumPy does it."""
    terms = a.shape[-1]
    parts = parts_of(terms) if out.size * terms >= _WORTH and blas.can_add(a, b, out) else 1
    edges = [terms * i // parts for i in range(parts + 1)]
    np.matmul(a[..., : edges[1]], b[..., : edges[1], :], out=out)
    for start, stop in pairwise(edges[1:]):
        blas.add_product(a[:, start:stop], b[start:stop], out)
    return out
