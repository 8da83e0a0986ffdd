"""Losses by definition in float64: a loop over the rows, and for CTC a sum over all alignments."""

import itertools
import math

import numpy as np


def _log_softmax(z):
    peak = max(z)
    log_sum = math.log(math.fsum(math.exp(v - peak) for v in z))
    return [v - peak - log_sum for v in z], peak + log_sum


def _reduce(losses, total, reduction):
    if reduction == "none":
        return losses
    return np.array(losses.sum() if reduction == "sum" else (losses.sum() / total if total else np.nan))


def _rows(scores, axis):
    """The shape without the class axis, and an iterator of (index, row of scores)."""
    moved = np.moveaxis(scores, 0 if scores.ndim == 1 else axis, -1)
    return moved.shape[:-1], [(i, moved[i]) for i in np.ndindex(moved.shape[:-1])]


def _row_loss(log_p, distribution, weight):
    return -math.fsum(q * w * lp for q, w, lp in zip(distribution, weight, log_p, strict=True))


def _smoothed_label(label, classes, weight, share):
    """As a distribution times weights: the label's own part carries the label's weight, the rest that of each class."""
    return [(1 - share) * (c == label) + share / classes for c in range(classes)]


def cross_entropy(
    logits, target, weight=None, ignore_index=-100, label_smoothing=0.0, reduction="mean", axis=1, return_lse=False
):
    shape, rows = _rows(logits, axis)
    probabilities = target.dtype.kind == "f"
    targets = _rows(target, axis)[1] if probabilities else [(i, target[i]) for i in np.ndindex(shape)]
    losses, lse, total = np.zeros(shape), np.zeros(shape), 0.0
    for (i, z), (_, t) in zip(rows, targets, strict=True):
        classes = len(z)
        weights = [1.0] * classes if weight is None else [float(w) for w in weight]
        log_p, lse[i] = _log_softmax([float(v) for v in z])
        if probabilities:
            losses[i] = _row_loss(
                log_p, [(1 - label_smoothing) * float(q) + label_smoothing / classes for q in t], weights
            )
            total += 1
        elif t != ignore_index:
            losses[i] = _row_loss(log_p, _smoothed_label(t, classes, weights, label_smoothing), weights)
            total += weights[t]
    loss = _reduce(losses, total, reduction)
    return (loss, lse) if return_lse else loss


def nll_loss(log_probs, target, weight=None, ignore_index=-100, reduction="mean", axis=1):
    shape, rows = _rows(log_probs, axis)
    losses, total = np.zeros(shape), 0.0
    for i, row in rows:
        label = target[i]
        if label != ignore_index:
            w = 1.0 if weight is None else float(weight[label])
            losses[i] = -w * row[label]
            total += w
    return _reduce(losses, total, reduction)


def linear_cross_entropy(x, w, target, bias=None, weight=None, **options):
    logits = np.einsum("...d,vd->...v", x, w)
    if bias is not None:
        logits = logits + bias
    return cross_entropy(logits, target, weight, axis=-1, **options)


def _merged(alignment, blank):
    return tuple(k for k, _ in itertools.groupby(alignment) if k != blank)


def _by_enumeration(log_p, target, blank):
    """-log of the sum of the probabilities of all alignments that read as the target."""
    steps, classes = log_p.shape
    found = [
        math.exp(math.fsum(log_p[t, c] for t, c in enumerate(alignment)))
        for alignment in itertools.product(range(classes), repeat=steps)
        if _merged(alignment, blank) == target
    ]
    return -math.log(math.fsum(found)) if found else math.inf


def _by_prefixes(log_p, target, blank):
    """The same for more steps: the probability of having read each prefix of the target, by the last class seen."""
    chances = {(0, blank): 1.0}
    for row in log_p:
        following = {}
        for (read, last), chance in chances.items():
            for c, lp in enumerate(row):
                now = read if c in (blank, last) else read + 1
                if now == read or (now <= len(target) and target[now - 1] == c):
                    following[now, c] = following.get((now, c), 0.0) + chance * math.exp(lp)
        chances = following
    chance = math.fsum(v for (read, _), v in chances.items() if read == len(target))
    return -math.log(chance) if chance else math.inf


_ENUMERABLE = 5000  # alignments


def _ctc_single(log_p, target, blank):
    steps, classes = log_p.shape
    return (_by_enumeration if classes**steps <= _ENUMERABLE else _by_prefixes)(log_p, target, blank)


def ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    batched = log_probs.ndim == 3
    log_probs = log_probs if batched else log_probs[:, None]
    steps, counts = np.ravel(input_lengths), np.ravel(target_lengths)
    starts = np.cumsum(counts) - counts
    losses = np.empty(len(counts))
    for n, (t, s) in enumerate(zip(steps, counts, strict=True)):
        labels = targets[n, :s] if targets.ndim == 2 else targets[starts[n] : starts[n] + s]
        losses[n] = _ctc_single(log_probs[:t, n], tuple(int(v) for v in labels), blank)
    if zero_infinity:
        losses[np.isinf(losses)] = 0
    if reduction == "mean":
        return np.array(np.mean(losses / np.maximum(counts, 1)) if len(losses) else np.nan)
    if reduction == "sum":
        return np.array(losses.sum())
    return losses if batched else losses.reshape(())


ORACLES = {
    "cross_entropy": cross_entropy,
    "nll_loss": nll_loss,
    "linear_cross_entropy": linear_cross_entropy,
    "ctc_loss": ctc_loss,
}
