"""Cross entropy against labels: the statistics of each row of scores, and its gradient, a row at a time while it is in
the cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dnnarray._cpu.compiled.dense import Written, taken
from dnnarray._cpu.compiled.kernel import In1, In2, Integers1, Out2, OutDoubles1, driver, kernel, wide
from dnnarray._cpu.compiled.memory import row_after
from dnnarray._cpu.compiled.rows import exponential_sum, exponentials, row_max, scale
from dnnarray._cpu.loss.rows import Statistics, labels, losses, reduce, row_factors
from dnnarray._problems.loss import ScoresProblem

Array = np.ndarray
_WORK = 6


@kernel(counted=False, streams=True)
def _statistics(
    start: int, stop: int, z: In2, label: Integers1, peak: OutDoubles1, log_sum: OutDoubles1, picked: OutDoubles1
) -> None:
    wide()
    for r in range(start, stop):
        high = row_max(z[r])
        peak[r] = high
        log_sum[r] = math.log(exponential_sum(z[r], high, row_after(z, r, stop)))
        picked[r] = np.float64(z[r, label[r]]) - np.float64(high)


@kernel(counted=False, streams=True)
def _gradient(start: int, stop: int, z: In2, label: Integers1, lse: In1, both: In1, hard: In1, dz: Out2) -> None:
    wide()
    for r in range(start, stop):
        shift = lse[r] if lse.size else row_max(z[r])
        # The sum is 1 up to rounding where the log-sum-exp is given, and divided by all the same: 1e4 in float32 is
        # only exact to 1e-3.
        total = exponentials(z[r], shift, dz[r], row_after(z, r, stop))
        scale(dz[r], both[r] / total)
        dz[r, label[r]] -= hard[r]


@driver(_statistics)
def cross_entropy(
    problem: ScoresProblem, outputs: tuple[Array, ...], scratch: Any, logits: Array, target: Array, weight: Array | None
) -> None:
    z = taken(logits, problem.shape)
    chosen = labels(problem, target, weight, problem.row_shape)
    peak, log_sum, picked = np.empty((3, *problem.row_shape))
    _statistics(len(z), z, taken(chosen.index.astype(np.int64, copy=False)), peak, log_sum, picked, work=_WORK * z.size)
    found = Statistics(peak, log_sum, picked, None)
    reduce(problem, losses(problem, found, chosen, weight), chosen.total, outputs[0])
    if problem.return_lse:
        outputs[1][...] = found.lse().reshape(problem.rows)


@driver(_gradient)
def cross_entropy_backward(
    problem: ScoresProblem,
    outputs: tuple[Array, ...],
    scratch: Any,
    grad: Array,
    logits: Array,
    target: Array,
    weight: Any,
    lse: Any,
) -> None:
    z = taken(logits, problem.shape)
    chosen = labels(problem, target, weight, problem.row_shape)
    both, _, hard = (np.ascontiguousarray(f, z.dtype) for f in row_factors(problem, grad, chosen, weight))
    shift = np.empty(0, z.dtype) if lse is None else taken(lse, problem.row_shape)
    index = taken(chosen.index.astype(np.int64, copy=False))
    with Written(outputs[:1]) as (dz,):
        _gradient(len(z), z, index, shift, both, hard, dz.reshape(problem.shape), work=_WORK * z.size)
