"""`cross_entropy` and `nll_loss`: the scores are an array; they are passed over in blocks that stay in cache."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu import compiled
from dnnarray._cpu.loss.rows import (
    Labels,
    Statistics,
    deliver,
    flattened,
    labels,
    losses,
    reduce,
    row_factors,
    unreduce,
)
from dnnarray._cpu.sums import total
from dnnarray._problems.loss import ScoresProblem
from dnnarray._select import Method
from dnnarray._spec import FLOAT64

_BLOCK = 1 << 17  # scores at a time: half a megabyte of float32, which the second-level cache of a core holds


@lru_cache(maxsize=256)
def _blocks(shape: tuple[int, ...], limit: int) -> tuple[tuple[tuple[slice, ...], tuple[slice, ...]], ...]:
    """Blocks of about `limit` scores of this shape: the index of the scores, and that of their rows."""
    outer, classes, inner = shape[0], shape[1], shape[2] if len(shape) == 3 else 1
    across = max(limit // classes, 1)  # along the axes behind the classes
    down = max(across // max(inner, 1), 1)
    found: list[tuple[tuple[slice, ...], tuple[slice, ...]]] = []
    for o in range(0, outer, down):
        rows = slice(o, o + down)
        if len(shape) == 2:
            found.append(((rows,), (rows,)))
            continue
        columns = [slice(i, i + across) for i in range(0, inner, across)]
        found += [((rows, slice(None), c), (rows, c)) for c in columns]
    return tuple(found)


def _at(index: np.ndarray) -> tuple[np.ndarray, ...]:
    """Where the labelled scores stand in a block whose rows have these labels."""
    if index.ndim == 1:
        return np.arange(len(index)), index
    return np.arange(index.shape[0])[:, None], index, np.arange(index.shape[1])


def _along_classes(weight: np.ndarray | None, ndim: int) -> Any:
    """The class weights against a block of scores; 1 where there are none."""
    return 1 if weight is None else weight.reshape((-1,) + (1,) * (ndim - 2))


def _over_classes(array: np.ndarray) -> np.ndarray:
    """The sums of a block of scores over the classes."""
    return total(array, (1,))


def _statistics(problem: ScoresProblem, z: np.ndarray, chosen: Labels, weight: np.ndarray | None) -> Statistics:
    parts = (
        (rows, _block_statistics(problem, z[block], chosen.index[rows], weight))
        for block, rows in _blocks(problem.shape, _BLOCK)
    )
    return Statistics.assembled(problem.row_shape, problem.label_smoothing > 0, parts)


def _block_statistics(
    problem: ScoresProblem, z: np.ndarray, index: np.ndarray, weight: np.ndarray | None
) -> Statistics:
    top = z.max(1, keepdims=True)
    shifted, peak, smooth = z - top, top[:, 0].astype(FLOAT64), None
    picked = z[_at(index)] - peak
    if problem.label_smoothing:
        smooth = _over_classes(shifted if weight is None else shifted * _along_classes(weight, z.ndim))[:, 0]
    return Statistics(peak, np.log(_over_classes(np.exp(shifted, out=shifted))[:, 0], dtype=FLOAT64), picked, smooth)


def _cross_entropy(
    problem: ScoresProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: Any,
    logits: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
) -> None:
    z = logits.reshape(problem.shape)
    if problem.probabilities:
        rows, lse = _expected(problem, z, target.reshape(problem.shape), weight)
        total = rows.size
    else:
        chosen = labels(problem, target, weight, problem.row_shape)
        found = _statistics(problem, z, chosen, weight)
        rows, total = losses(problem, found, chosen, weight), chosen.total
        lse = found.lse() if problem.return_lse else rows
    reduce(problem, rows, total, outputs[0])
    if problem.return_lse:
        outputs[1][...] = lse.reshape(problem.rows)


def _smoothed(problem: ScoresProblem, target: np.ndarray, scale: Any) -> np.ndarray:
    """The distribution that the loss sees, times the class weights."""
    share = problem.label_smoothing
    return (target * (1 - share) + share / problem.classes if share else target) * scale


def _expected(
    problem: ScoresProblem, z: np.ndarray, target: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and log-sum-exp of each row against a distribution."""
    scale = _along_classes(weight, z.ndim)
    parts = (
        (rows, _block_expected(problem, z[block], target[block], scale))
        for block, rows in _blocks(problem.shape, _BLOCK)
    )
    found = Statistics.assembled(problem.row_shape, False, parts)
    return found.picked, found.lse()


def _block_expected(problem: ScoresProblem, z: np.ndarray, target: np.ndarray, scale: Any) -> Statistics:
    """The loss itself in the place of the label's score, since there is no label."""
    peak = z.max(1, keepdims=True)
    shifted = z - peak
    log_sum = np.log(_over_classes(np.exp(shifted)), dtype=FLOAT64)
    shifted -= log_sum.astype(z.dtype)
    shifted *= _smoothed(problem, target, scale)
    return Statistics(peak[:, 0].astype(FLOAT64), log_sum[:, 0], np.negative(_over_classes(shifted)[:, 0]), None)


def _cross_entropy_backward(
    problem: ScoresProblem,
    outputs: tuple[np.ndarray | None, ...],
    scratch: Any,
    grad: np.ndarray,
    logits: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    lse: np.ndarray | None,
) -> None:
    z, flat = logits.reshape(problem.shape), [None if out is None else flattened(out, problem.shape) for out in outputs]
    shift = None if lse is None else lse.reshape(problem.row_shape)
    if problem.probabilities:
        _expected_gradients(problem, grad, z, target.reshape(problem.shape), weight, shift, *flat)
    elif flat[0] is not None:
        _label_gradient(problem, grad, z, target, weight, shift, flat[0])
    for array, out in zip(flat, outputs, strict=True):
        if array is not None and out is not None:
            deliver(array, out)


def _exponentials(z: np.ndarray, shift: np.ndarray | None, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """out = exp(z - shift); returns the shift and the sums over the classes.

    The shift is the saved log-sum-exp, or the largest score. The sums, 1 up to rounding in the first case, are divided
    by in either: a log-sum-exp of 1e4 in float32 is only exact to 1e-3."""
    used = z.max(1, keepdims=True) if shift is None else shift[:, None]
    np.subtract(z, used, out=out)
    np.exp(out, out=out)
    return used, _over_classes(out)


def _label_gradient(
    problem: ScoresProblem,
    grad: np.ndarray,
    z: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    shift: np.ndarray | None,
    dz: np.ndarray,
) -> None:
    chosen = labels(problem, target, weight, problem.row_shape)
    both, smooth, hard = row_factors(problem, grad, chosen, weight)
    scale = _along_classes(weight, z.ndim)
    for block, rows in _blocks(problem.shape, _BLOCK):
        part = dz[block]
        _, sums = _exponentials(z[block], None if shift is None else shift[rows], part)
        part *= both[rows][:, None] / sums
        if problem.label_smoothing:
            part -= smooth[rows][:, None] * scale
        part[_at(chosen.index[rows])] -= hard[rows]


def _expected_gradients(
    problem: ScoresProblem,
    grad: np.ndarray,
    z: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    shift: np.ndarray | None,
    dz: np.ndarray | None,
    dt: np.ndarray | None,
) -> None:
    shape = problem.row_shape
    own = np.broadcast_to(unreduce(problem, grad, math.prod(shape), shape), shape)
    scale = _along_classes(weight, z.ndim)
    for block, rows in _blocks(problem.shape, _BLOCK):
        g, part = own[rows][:, None], np.empty_like(z[block]) if dz is None else dz[block]
        used, sums = _exponentials(z[block], None if shift is None else shift[rows], part)
        if dz is not None:
            distribution = _smoothed(problem, target[block], scale)
            part *= _over_classes(distribution) / sums
            part -= distribution
            part *= g
        if dt is not None:
            log_probs = z[block] - used
            log_probs -= np.log(sums)
            np.multiply(log_probs, -(1 - problem.label_smoothing) * g * scale, out=dt[block])


def _nll_loss(
    problem: ScoresProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: Any,
    log_probs: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
) -> None:
    z = log_probs.reshape(problem.shape)
    chosen = labels(problem, target, weight, problem.row_shape)
    rows = chosen.only_kept(chosen.weighted(-z[_at(chosen.index)]))
    reduce(problem, rows, chosen.total, outputs[0])


def _nll_loss_backward(
    problem: ScoresProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: Any,
    grad: np.ndarray,
    log_probs: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
) -> None:
    dz = flattened(outputs[0], problem.shape)
    chosen = labels(problem, target, weight, problem.row_shape)
    own = np.broadcast_to(unreduce(problem, grad, chosen.total, problem.row_shape), problem.row_shape)
    dz[...] = 0
    dz[_at(chosen.index)] = chosen.only_kept(chosen.weighted(-own))
    deliver(dz, outputs[0])


def _no_labels(problem: ScoresProblem, device: Any) -> str | None:
    """Why the compiled kernels cannot do it, or None."""
    if problem.probabilities or problem.label_smoothing:
        return "it takes labels without smoothing"
    if len(problem.shape) != 2 or math.prod(problem.shape) == 0:
        return "it takes scores whose last axis is that of the classes"
    return None


_CALLS = 12  # of NumPy in one block
_ROWS = "compiled: a row of scores at a time, over all threads"


def _entries(driver: str, run: Any, summary: str) -> tuple[Method, ...]:
    """NumPy's entry and the compiled one."""
    numpy_entry = Method("blocks", run, summary, cost=compiled.numpy_cost(_CALLS))
    return numpy_entry, compiled.method("rows", "loss", driver, _ROWS, accepts=_no_labels)


ALGORITHMS = {
    "cross_entropy": _entries(
        "cross_entropy", _cross_entropy, "maximum, exponential and sum over blocks of rows that stay in cache"
    ),
    "cross_entropy_backward": _entries(
        "cross_entropy_backward", _cross_entropy_backward, "softmax less target over blocks of rows that stay in cache"
    ),
    "nll_loss": (Method("gather", _nll_loss, "the scores at the labels"),),
    "nll_loss_backward": (Method("scatter", _nll_loss_backward, "zero but at the labels"),),
}
