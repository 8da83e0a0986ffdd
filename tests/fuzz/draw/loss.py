"""Losses."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.drawer import Drawer, Drawn, Leaf


def _row_options(d: Drawer) -> dict[str, Any]:
    return d.some(reduction=lambda: d.choice(("mean", "sum", "none")))


def _labels(d: Drawer, classes: int, shape: tuple[int, ...], options: dict[str, Any]) -> Leaf:
    """Labels, some of them to be ignored."""
    labels = d.rng.integers(0, classes, shape)
    if d.maybe(0.4):
        ignored = int(d.choice((-100, -1, 255, d.integer(0, classes - 1))))
        options["ignore_index"] = ignored
        labels = np.where(d.rng.random(shape) < 0.3, ignored, labels)
    return d.whole(labels, repeats=True)


def _class_weight(d: Drawer, classes: int) -> Leaf | None:
    return d.positive(classes) if d.maybe(0.4) else None


def _scores(d: Drawer) -> tuple[tuple[int, ...], int, dict[str, Any]]:
    """The shape of scores, their class axis, and the option that names it."""
    shape = list(d.shape(d.integer(1, 4)))
    axis = d.integer(0, len(shape) - 1)
    if d.maybe():
        axis = min(1, len(shape) - 1)
    shape[axis] = max(shape[axis], 1)
    named = {"axis": axis - len(shape) if d.maybe() and axis != 1 else axis}
    if axis == 1 or len(shape) == 1:
        named = named if d.maybe(0.3) else {}
    return tuple(shape), axis, named


def _cross_entropy(d: Drawer) -> Drawn:
    shape, axis, options = _scores(d)
    classes = shape[axis]
    options |= _row_options(d) | d.some(
        label_smoothing=lambda: d.choice((0.0, 0.1, 0.5, 1.0)), return_lse=lambda: d.maybe()
    )
    logits = d.floats(*shape, scale=d.choice((1.0, 1.0, 6.0)))
    if d.maybe(0.3):
        target = d.positive(*shape, low=0.0, high=1.0)
    else:
        target = _labels(d, classes, (*shape[:axis], *shape[axis + 1 :]), options)
    return Drawn(
        "cross_entropy", (logits, target, _class_weight(d, classes)), options, reduction=max(int(np.prod(shape)), 1)
    )


def _nll_loss(d: Drawer) -> Drawn:
    shape, axis, options = _scores(d)
    options |= _row_options(d)
    target = _labels(d, shape[axis], (*shape[:axis], *shape[axis + 1 :]), options)
    arrays = (d.floats(*shape), target, _class_weight(d, shape[axis]))
    return Drawn("nll_loss", arrays, options, reduction=max(int(np.prod(shape)), 1))


def _linear_cross_entropy(d: Drawer) -> Drawn:
    rows, (classes, features) = d.shape(d.integer(0, 2)), d.shape(2)
    classes = max(classes, 1)
    options = _row_options(d) | d.some(label_smoothing=lambda: d.choice((0.0, 0.1, 1.0)), return_lse=lambda: d.maybe())
    target = _labels(d, classes, rows, options)
    bias = d.floats(classes) if d.maybe() else None
    arrays = (d.floats(*rows, features), d.floats(classes, features), target, bias, _class_weight(d, classes))
    return Drawn("linear_cross_entropy", arrays, options, reduction=max(int(np.prod(rows)), 1) * classes + features)


def _ctc_loss(d: Drawer) -> Drawn:
    steps, n, classes = d.integer(0, 7) if d.maybe(0.1) else d.integer(2, 7), d.integer(1, 3), d.integer(2, 5)
    blank = 0 if d.maybe(0.7) else d.integer(0, classes - 1)
    counts = d.rng.integers(0, 4, n)
    lengths = np.maximum(d.rng.integers(0, steps + 1, n), np.minimum(2 * counts, steps) if d.maybe(0.8) else 0)
    longest = int(counts.max(initial=0)) + d.choice((0, 0, 2))
    alphabet = [c for c in range(classes) if c != blank]
    labels = d.rng.choice(alphabet, (n, longest)) if longest else np.zeros((n, 0), np.int64)
    options = _row_options(d) | d.some(blank=lambda: blank, zero_infinity=lambda: d.maybe())
    options |= {"blank": blank} if blank else {}
    padded = d.maybe(0.7)
    scores = d.rng.standard_normal((steps, n, classes))
    log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    if n == 1 and d.maybe():
        targets = labels[0] if padded else labels[0, : counts[0]]
        numbers: list[Any] = [int(v[0]) if d.maybe() else d.whole(v[0]) for v in (lengths, counts)]
        return Drawn(
            "ctc_loss", (d.array(log_probs[:, 0]), d.whole(targets), *numbers), options, reduction=steps**2 + 1
        )
    targets = labels if padded else np.concatenate([labels[i, :c] for i, c in enumerate(counts)])
    arrays = (d.array(log_probs, repeats=False), d.whole(targets), d.whole(lengths), d.whole(counts))
    return Drawn("ctc_loss", arrays, options, reduction=steps**2 + 1)


DRAWERS = {
    "cross_entropy": _cross_entropy,
    "nll_loss": _nll_loss,
    "linear_cross_entropy": _linear_cross_entropy,
    "ctc_loss": _ctc_loss,
}
