"""`cross_entropy` and `nll_loss`: the scores are an array; they are passed over in blocks that stay in cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dnnarray._cpu.loss_rows import Labels, Statistics, deliver, flattened, labels, losses, reduce, row_factors, unreduce
from dnnarray._problems.loss import ScoresProblem
from dnnarray._select import Method

_BLOCK = 1 << 17  # scores at a time: half a megabyte of float32, which the second-level cache of a core holds


def _row_shape(problem: ScoresProblem) -> tuple[int, ...]:
    return problem.shape[:1] + problem.shape[2:]


def _blocks(shape: tuple[int, ...]) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Blocks of scores of this shape: the index of the scores, and that of their rows."""
    outer, classes, inner = shape[0], shape[1], shape[2] if len(shape) == 3 else 1
    across = max(_BLOCK // classes, 1)  # along the axes behind the classes
    down = max(across // max(inner, 1), 1)
    for o in range(0, outer, down):
        rows = slice(o, o + down)
        if len(shape) == 2:
            yield (rows,), (rows,)
            continue
        for i in range(0, inner, across):
            columns = slice(i, i + across)
            yield (rows, slice(None), columns), (rows, columns)


def _at(index: np.ndarray) -> tuple[np.ndarray, ...]:
    """Where the labelled scores stand in a block whose rows have these labels."""
    if index.ndim == 1:
        return np.arange(len(index)), index
    return np.arange(index.shape[0])[:, None], index, np.arange(index.shape[1])


def _along_classes(weight: np.ndarray | None, ndim: int) -> Any:
    """The class weights against a block of scores; 1 where there are none."""
    return 1 if weight is None else weight.reshape((-1,) + (1,) * (ndim - 2))


def _statistics(problem: ScoresProblem, z: np.ndarray, chosen: Labels, weight: np.ndarray | None) -> Statistics:
    found = Statistics.empty(_row_shape(problem), z.dtype, problem.label_smoothing > 0)
    scale = _along_classes(weight, z.ndim)
    for block, rows in _blocks(problem.shape):
        peak = z[block].max(1, keepdims=True)
        shifted = z[block] - peak
        found.peak[rows] = peak[:, 0]
        found.picked[rows] = shifted[_at(chosen.index[rows])]
        if found.smooth is not None:
            found.smooth[rows] = (shifted if weight is None else shifted * scale).sum(1)
        found.log_sum[rows] = np.log(np.exp(shifted, out=shifted).sum(1))
    return found


def _cross_entropy(
    problem: ScoresProblem, outputs: tuple[np.ndarray, ...], scratch: Any, logits: np.ndarray, target: np.ndarray, weight: np.ndarray | None
) -> None:
    z = logits.reshape(problem.shape)
    if problem.probabilities:
        rows, lse = _expected(problem, z, target.reshape(problem.shape), weight)
        total = rows.size
    else:
        chosen = labels(problem, target, weight, z.dtype, _row_shape(problem))
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


def _expected(problem: ScoresProblem, z: np.ndarray, target: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Loss and log-sum-exp of each row against a distribution."""
    found = Statistics.empty(_row_shape(problem), z.dtype, False)
    scale = _along_classes(weight, z.ndim)
    for block, rows in _blocks(problem.shape):
        peak = z[block].max(1, keepdims=True)
        shifted = z[block] - peak
        log_sum = np.log(np.exp(shifted).sum(1, keepdims=True))
        found.peak[rows], found.log_sum[rows] = peak[:, 0], log_sum[:, 0]
        shifted -= log_sum
        shifted *= _smoothed(problem, target[block], scale)
        np.negative(shifted.sum(1), out=found.picked[rows])
    return found.picked, found.lse()


def _cross_entropy_backward(
    problem: ScoresProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: Any,
    grad: np.ndarray,
    logits: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    lse: np.ndarray | None,
) -> None:
    z, dz = logits.reshape(problem.shape), flattened(outputs[0], problem.shape)
    shift = None if lse is None else lse.reshape(_row_shape(problem))
    if problem.probabilities:
        dt = flattened(outputs[1], problem.shape)
        _expected_gradients(problem, grad, z, target.reshape(problem.shape), weight, shift, dz, dt)
        deliver(dt, outputs[1])
    else:
        _label_gradient(problem, grad, z, target, weight, shift, dz)
    deliver(dz, outputs[0])


def _exponentials(z: np.ndarray, shift: np.ndarray | None, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """out = exp(z - shift); returns the shift and the sums over the classes.

    The shift is the saved log-sum-exp, or the largest score. The sums, 1 up to rounding in the first case, are divided by in
    either: a log-sum-exp of 1e4 in float32 is only exact to 1e-3.
    """
    used = z.max(1, keepdims=True) if shift is None else shift[:, None]
    np.subtract(z, used, out=out)
    np.exp(out, out=out)
    return used, out.sum(1, keepdims=True)


def _label_gradient(
    problem: ScoresProblem,
    grad: np.ndarray,
    z: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None,
    shift: np.ndarray | None,
    dz: np.ndarray,
) -> None:
    chosen = labels(problem, target, weight, z.dtype, _row_shape(problem))
    both, smooth, hard = row_factors(problem, grad, chosen, weight)
    scale = _along_classes(weight, z.ndim)
    for block, rows in _blocks(problem.shape):
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
    dz: np.ndarray,
    dt: np.ndarray,
) -> None:
    shape = _row_shape(problem)
    own = np.broadcast_to(unreduce(problem, grad, float(np.prod(shape)), shape), shape)
    scale = _along_classes(weight, z.ndim)
    for block, rows in _blocks(problem.shape):
        part, g = dz[block], own[rows][:, None]
        used, sums = _exponentials(z[block], None if shift is None else shift[rows], part)
        distribution = _smoothed(problem, target[block], scale)
        part *= distribution.sum(1, keepdims=True) / sums
        part -= distribution
        part *= g
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
    chosen = labels(problem, target, weight, z.dtype, _row_shape(problem))
    rows = np.where(chosen.kept, -z[_at(chosen.index)] * chosen.weight, z.dtype.type(0))
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
    chosen = labels(problem, target, weight, dz.dtype, _row_shape(problem))
    own = unreduce(problem, grad, chosen.total, chosen.index.shape)
    dz[...] = 0
    dz[_at(chosen.index)] = np.where(chosen.kept, -own * chosen.weight, dz.dtype.type(0))
    deliver(dz, outputs[0])


ALGORITHMS = {
    "cross_entropy": (Method("blocks", _cross_entropy, "maximum, exponential and sum over blocks of rows that stay in cache"),),
    "cross_entropy_backward": (Method("blocks", _cross_entropy_backward, "softmax less target over blocks of rows that stay in cache"),),
    "nll_loss": (Method("gather", _nll_loss, "the scores at the labels"),),
    "nll_loss_backward": (Method("scatter", _nll_loss_backward, "zero but at the labels"),),
}
