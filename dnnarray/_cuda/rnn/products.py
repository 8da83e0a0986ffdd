"""Matrix products of a network by cuBLAS."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.plan import MatMul, Matrix
from dnnarray._cuda.rnn.cast import cast
from dnnarray._cuda.rnn.network import Block, Launches


def product(
    a: Matrix,
    b: Matrix,
    c: Block,
    extents: tuple[int, int, int],
    row: int,
    *,
    batch: int = 1,
    step: int = 0,
    add: bool = False,
    precision: str,
    dtype: np.dtype | None = None,
) -> Launches:
    """c (m, n) = a (m, k) b (k, n), or added to c; `step` lies between the results of a batch, `row` between the rows
    of one.

    `dtype` is of a and b, that of c where it is None.
    """
    m, n, k = extents
    if not m * n * batch:
        return []
    if k == 0:
        return [] if add else cast(None, c, (batch, m, n), (0, 0, 0), (step, row, 1))
    beta = 1.0 if add else 0.0
    matrix = c.matrix(row, step)
    return [MatMul(a, b, matrix, m, n, k, dtype or c.dtype, c.dtype, batch, 1.0, beta, precision)]
