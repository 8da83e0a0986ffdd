"""What all losses of rows share: labels with their weights, the loss of a row from its statistics, the reduction.

What there is one number of for each row is float64, so that a loss is rounded once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dnnarray._problems.loss import RowsProblem
from dnnarray._spec import FLOAT64


@dataclass
class Labels:
    """The targets of all rows: `index` is safe to gather with, `total` sums the weights.

    `kept` is None where no row is ignored; `weight` is None where it is 1 for every row, and 0 for the rows to ignore.
    """

    index: np.ndarray
    kept: np.ndarray | None
    weight: np.ndarray | None
    total: Any

    def only_kept(self, rows: np.ndarray) -> np.ndarray:
        """`rows` with 0, whatever stands there, for those to ignore."""
        return rows if self.kept is None else np.where(self.kept, rows, rows.dtype.type(0))

    def weighted(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.weight is None else rows * self.weight


def labels(problem: RowsProblem, target: np.ndarray, weight: np.ndarray | None, shape: tuple[int, ...]) -> Labels:
    target = target.reshape(shape)
    kept = target != problem.ignore_index
    index = target.astype(np.intp, copy=False)  # positions are computed from them, which would wrap around in 8 bits
    count = np.count_nonzero(kept)
    found = Labels(index, None, None, count)
    if count < index.size:
        found.kept, found.index = kept, np.where(kept, index, 0)
    if weight is not None:
        found.weight = found.only_kept(weight[found.index])
        found.total = found.weight.sum(dtype=FLOAT64)
    return found


@dataclass
class Statistics:
    """Of each row: the largest score, the logarithm of the sum of exp(score - peak), the label's score - peak and, for
    label smoothing, the weighted sum of (score - peak) over the classes, all in float64.

    The peak is kept apart because a difference of scores is exact where a sum with a large peak would not be.
    """

    peak: np.ndarray
    log_sum: np.ndarray
    picked: np.ndarray
    smooth: np.ndarray | None

    @classmethod
    def assembled(cls, shape: tuple[int, ...], smoothed: bool, parts: Iterable[tuple[Any, Statistics]]) -> Statistics:
        """All rows out of blocks of them, each with its index."""
        whole: Statistics | None = None
        for rows, part in parts:
            if part.peak.shape == shape:
                return part
            whole = whole or cls._empty(shape, smoothed)
            for name, value in vars(part).items():
                if value is not None:
                    getattr(whole, name)[rows] = value
        return whole or cls._empty(shape, smoothed)

    @classmethod
    def _empty(cls, shape: tuple[int, ...], smoothed: bool) -> Statistics:
        peak, log_sum, picked = (np.empty(shape) for _ in range(3))
        return cls(peak, log_sum, picked, np.empty(shape) if smoothed else None)

    def lse(self) -> np.ndarray:
        """The log-sum-exp; where the peak is infinite, so is it."""
        return np.where(np.isinf(self.peak), self.peak, self.peak + self.log_sum)


def losses(problem: RowsProblem, found: Statistics, chosen: Labels, weight: np.ndarray | None) -> np.ndarray:
    """The loss of each row, 0 where the label is to be ignored."""
    share = problem.label_smoothing
    result = chosen.weighted(found.log_sum - found.picked)
    if found.smooth is not None:
        result *= 1 - share
        result += (found.log_sum * weight_sum(problem, weight) - found.smooth) * (share / problem.classes)
    return chosen.only_kept(result)


def weight_sum(problem: RowsProblem, weight: np.ndarray | None) -> Any:
    return problem.classes if weight is None else float(weight.sum(dtype=FLOAT64))


def reduce(problem: RowsProblem, rows: np.ndarray, total: Any, out: np.ndarray) -> None:
    """`out` = the losses themselves, their sum, or their sum over `total`."""
    if problem.reduction == "none":
        out[...] = rows.reshape(problem.rows)
    elif problem.reduction == "sum":
        out[...] = rows.sum(dtype=FLOAT64)
    else:
        out[...] = np.divide(rows.sum(dtype=FLOAT64), total)


def unreduce(problem: RowsProblem, grad: np.ndarray, total: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of each row's own loss (of shape `shape`, or 0-d) from that of the reduced loss."""
    if problem.reduction == "none":
        return grad.reshape(shape)
    return grad if problem.reduction == "sum" else np.divide(grad, total, dtype=grad.dtype)


def row_factors(
    problem: RowsProblem, grad: np.ndarray, chosen: Labels, weight: np.ndarray | None
) -> tuple[np.ndarray, ...]:
    """The three factors of a row's gradient: dz = both * softmax(z) - smooth * weight, less `hard` at the label.

    `both` is the sum of what the other two take away, so that a row's gradient sums to zero.
    """
    share = problem.label_smoothing
    own = unreduce(problem, grad, chosen.total, chosen.index.shape)
    own = chosen.only_kept(np.broadcast_to(own, chosen.index.shape))
    hard = chosen.weighted(own)
    if not share:
        return hard, own, hard
    hard = hard * (1 - share)
    smooth = own * (share / problem.classes)
    return hard + smooth * weight_sum(problem, weight), smooth, hard


def flattened(out: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`out` in the problem's shape: a view, or memory of its own where the strides allow none (see `deliver`)."""
    try:
        return np.reshape(out, shape, copy=False)
    except ValueError:
        return np.empty(shape, out.dtype)


def deliver(flat: np.ndarray, out: np.ndarray) -> None:
    """Copy into `out` what `flattened` could give no view for."""
    if not np.may_share_memory(flat, out):
        out[...] = flat.reshape(out.shape)
