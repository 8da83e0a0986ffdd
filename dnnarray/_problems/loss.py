"""Losses: rows of scores against labels or probabilities, and sequences against shorter sequences of labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import DTypeError, OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.base import Problem
from dnnarray._records import frozen
from dnnarray._spec import FLOATING, Spec
from dnnarray._typing import ArrayT

REDUCTIONS = ("mean", "sum", "none")


class CrossEntropyOutput(NamedTuple, Generic[ArrayT]):
    """What `cross_entropy` and `linear_cross_entropy` give with ``return_lse=True``: the loss, and the log-sum-exp of
    each row."""

    loss: ArrayT
    lse: ArrayT


class CrossEntropyGradients(NamedTuple, Generic[ArrayT]):
    """What `cross_entropy_backward` gives where the target holds probabilities: two arrays in the shape of the
    logits."""

    logits: ArrayT
    target: ArrayT


@frozen(kw_only=True)
class RowsProblem(Problem):
    """One loss per row of class scores.

    Attributes
    ----------
    rows : shape of the losses before the reduction
    classes : extent of the class axis
    reduction : "mean", "sum" or "none"
    ignore_index : the label whose rows count for nothing
    label_smoothing : share of the target that is spread over all classes
    return_lse : whether the log-sum-exp of each row is the second result
    """

    rows: tuple[int, ...]
    classes: int
    reduction: str
    ignore_index: int
    label_smoothing: float = 0.0
    return_lse: bool = False


@frozen(kw_only=True)
class ScoresProblem(RowsProblem):
    """Scores that are there as an array: `cross_entropy` and `nll_loss`.

    `shape` is that of the scores with the axes before and after the class axis joined: ``(outer, C)``, or
    ``(outer, C, inner)`` where there are axes after it; `row_shape` is the same without C. `probabilities`: the target
    is a distribution, not a label."""

    shape: tuple[int, ...]
    row_shape: tuple[int, ...]
    probabilities: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Labels have no gradient."""
        return super().fields or ("logits",)

    @property
    def flops(self) -> int:
        return 5 * math.prod(self.shape)


def _class_axis(op: str, name: str, scores: Spec, axis: Any) -> int:
    """The class axis; 1 means the only axis there is for a single example."""
    if scores.ndim == 0:
        fail(ShapeError, op, name, "0-dimensional", "1 dimension (C) or more")
    index = checks.integer(op, "axis", axis)
    index = 0 if scores.ndim == 1 and index == 1 else checks.axis(op, "axis", index, scores.ndim)
    if scores.shape[index] == 0:
        fail(ShapeError, op, name, f"of shape {scores.shape}", f"one class or more on axis {index}")
    return index


def class_weight(op: str, weight: Spec | None, classes: int) -> None:
    if weight is not None:
        checks.shape(op, "weight", weight, (classes,), "C, one per class")


def _scores(op: str, name: str, scores: Spec, axis: Any) -> dict[str, Any]:
    """The fields of a `ScoresProblem` that come from the scores alone."""
    index = _class_axis(op, name, scores, axis)
    before, classes, after = scores.shape[:index], scores.shape[index], scores.shape[index + 1 :]
    shape = (math.prod(before), classes, *((math.prod(after),) if after else ()))
    return {"rows": before + after, "classes": classes, "shape": shape, "row_shape": shape[:1] + shape[2:]}


def _labels(op: str, target: Spec, rows: tuple[int, ...], scores: str) -> None:
    checks.integers(op, "target", target)
    checks.shape(op, "target", target, rows, f"the shape of {scores} without its class axis")


_LABELS = -(2**63), 2**63 - 1  # the range of labels: kernels compare them as 64-bit signed integers


def loss_fields(scores: Spec, reduction: str, rows: tuple[int, ...], return_lse: bool) -> dict[str, Any]:
    """Outputs of a forward: the loss, and the log-sum-exp where asked for."""
    loss = Spec(rows if reduction == "none" else (), scores.dtype)
    if not return_lse:
        return {"outputs": (loss,)}
    return {"outputs": (loss, Spec(rows, checks.statistics_dtype(scores))), "returns": CrossEntropyOutput}


def row_options(
    op: str, ignore_index: Any, reduction: Any, label_smoothing: Any = 0.0, return_lse: Any = False
) -> dict[str, Any]:
    return {
        "ignore_index": checks.integer(op, "ignore_index", ignore_index, *_LABELS),
        "reduction": checks.choice(op, "reduction", reduction, REDUCTIONS),
        "label_smoothing": checks.number(op, "label_smoothing", label_smoothing, 0, 1),
        "return_lse": checks.boolean(op, "return_lse", return_lse),
    }


def cross_entropy(
    op: str, logits: Spec, target: Spec, weight: Spec | None, *, axis: Any, **options: Any
) -> ScoresProblem:
    """The problem of `cross_entropy`: a floating target is a distribution, an integer one holds labels."""
    checks.same_dtype(op, logits=logits, weight=weight)
    chosen = row_options(op, **options)
    fields = _scores(op, "logits", logits, axis)
    class_weight(op, weight, fields["classes"])
    probabilities = target.dtype in FLOATING
    if probabilities:
        checks.same_dtype(op, logits=logits, target=target)
        checks.shape(op, "target", target, logits.shape, "the shape of logits, for probabilities")
        if chosen["ignore_index"] >= 0:
            fix = "Multiply the target of rows to leave out by 0."
            fail(
                OptionError,
                op,
                "ignore_index",
                chosen["ignore_index"],
                "a negative number where target holds probabilities",
                fix,
            )
    else:
        _labels(op, target, fields["rows"], "logits")
    results = loss_fields(logits, chosen["reduction"], fields["rows"], chosen["return_lse"])
    return ScoresProblem(
        op=op, inputs=(logits, target, weight), probabilities=probabilities, **results, **chosen, **fields
    )


def check_lse(op: str, lse: Spec | None, scores: Spec, rows: tuple[int, ...]) -> None:
    if lse is None:
        return
    checks.shape(op, "lse", lse, rows, "one log-sum-exp per row")
    expected = checks.statistics_dtype(scores)
    if lse.dtype != expected:
        fail(DTypeError, op, "lse", lse.dtype.name, expected.name, "Pass what the forward returned.")


def cross_entropy_backward(
    op: str, grad: Spec, logits: Spec, target: Spec, weight: Spec | None, lse: Spec | None, **options: Any
) -> ScoresProblem:
    forward = cross_entropy(op, logits, target, weight, **options)
    checks.gradient(op, grad, forward.result)
    check_lse(op, lse, logits, forward.rows)
    inputs = (grad, logits, target, weight, lse)
    if forward.probabilities:
        return replace(forward, inputs=inputs, outputs=(logits.like(), target.like()), returns=CrossEntropyGradients)
    return replace(forward, inputs=inputs, outputs=(logits.like(),), returns=None)


def nll_loss(
    op: str, log_probs: Spec, target: Spec, weight: Spec | None, *, axis: Any, **options: Any
) -> ScoresProblem:
    checks.same_dtype(op, log_probs=log_probs, weight=weight)
    chosen = row_options(op, **options)
    fields = _scores(op, "log_probs", log_probs, axis)
    class_weight(op, weight, fields["classes"])
    _labels(op, target, fields["rows"], "log_probs")
    results = loss_fields(log_probs, chosen["reduction"], fields["rows"], False)
    return ScoresProblem(op=op, inputs=(log_probs, target, weight), **results, **chosen, **fields)


def nll_loss_backward(
    op: str, grad: Spec, log_probs: Spec, target: Spec, weight: Spec | None, **options: Any
) -> ScoresProblem:
    forward = nll_loss(op, log_probs, target, weight, **options)
    checks.gradient(op, grad, forward.result)
    return replace(
        forward, inputs=(grad, log_probs, target, weight), outputs=(log_probs.like(),), shapes=frozenset((1,))
    )


def labels_checked(position: int) -> Callable[..., None]:
    """The ``values=`` check of an operation whose target is its array number `position`."""

    def check(problem: RowsProblem, *arrays: Any) -> None:
        if not getattr(problem, "probabilities", False):
            checks.indices_inside(problem.op, "target", arrays[position], problem.classes, problem.ignore_index)

    return check


# --- connectionist temporal classification
# --------------------------------------------------------------------------------


@frozen(kw_only=True)
class CTCProblem(Problem):
    """T steps of N sequences over C classes, against targets of at most S labels.

    `padded`: targets is (N, S); otherwise all targets stand one behind the other. `batched` is False for a single
    sequence without the axis N."""

    steps: int
    batch: int
    classes: int
    padded: bool
    batched: bool
    blank: int
    reduction: str
    zero_infinity: bool

    @property
    def flops(self) -> int:
        states = 2 * self.inputs[-3].size + self.batch
        return 10 * self.steps * states


def ctc_loss(
    op: str,
    log_probs: Spec,
    targets: Spec,
    input_lengths: Spec,
    target_lengths: Spec,
    *,
    blank: Any,
    reduction: Any,
    zero_infinity: Any,
) -> CTCProblem:
    checks.floating(op, "log_probs", log_probs)
    for name, spec in (("targets", targets), ("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        checks.integers(op, name, spec)
    checks.rank(op, "log_probs", log_probs, (2, 3), "T C of one sequence, or T N C")
    batched = log_probs.ndim == 3
    steps, classes = log_probs.shape[0], log_probs.shape[-1]
    batch = log_probs.shape[1] if batched else 1
    if classes == 0:
        fail(ShapeError, op, "log_probs", f"of shape {log_probs.shape}", "one class or more on its last axis")
    _ctc_targets(op, targets, batch, batched)
    for name, spec in (("input_lengths", input_lengths), ("target_lengths", target_lengths)):
        if batched or spec.ndim:
            checks.shape(op, name, spec, (batch,), "N, one per sequence")
    reduction = checks.choice(op, "reduction", reduction, REDUCTIONS)
    return CTCProblem(
        op=op,
        inputs=(log_probs, targets, input_lengths, target_lengths),
        outputs=(Spec((batch,) if reduction == "none" and batched else (), log_probs.dtype),),
        steps=steps,
        batch=batch,
        classes=classes,
        padded=targets.ndim == 2,
        batched=batched,
        blank=checks.integer(op, "blank", blank, 0, classes - 1),
        reduction=reduction,
        zero_infinity=checks.boolean(op, "zero_infinity", zero_infinity),
    )


def _ctc_targets(op: str, targets: Spec, batch: int, batched: bool) -> None:
    if not batched:
        checks.rank(op, "targets", targets, 1, "S, for one sequence")
        return
    checks.rank(op, "targets", targets, (1, 2), "all targets one behind the other, or N S")
    if targets.ndim == 2:
        checks.shape(op, "targets", targets, (batch, None), "N S")


def ctc_loss_backward(
    op: str, grad: Spec, log_probs: Spec, targets: Spec, input_lengths: Spec, target_lengths: Spec, **options: Any
) -> CTCProblem:
    forward = ctc_loss(op, log_probs, targets, input_lengths, target_lengths, **options)
    checks.gradient(op, grad, forward.result)
    return replace(forward, inputs=(grad, *forward.inputs), outputs=(log_probs.like(),))


def ctc_values(problem: CTCProblem, *arrays: Any) -> None:
    """The ``values=`` check of both CTC operations: lengths inside the arrays, labels that are classes and not the
    blank."""
    targets, input_lengths, target_lengths = arrays[-3:]
    op = problem.op
    _lengths(op, "input_lengths", input_lengths, problem.steps, "T")
    if problem.padded:
        extent = targets.shape[1]
        _lengths(op, "target_lengths", target_lengths, extent, "S")
        used = target_lengths.reshape(-1, 1)
        labels = targets[targets.__array_namespace__().arange(extent) < used]
    else:
        _lengths(op, "target_lengths", target_lengths, targets.shape[0], "the length of targets")
        total = int(target_lengths.sum())
        if total != targets.shape[0] and (problem.batched or total > targets.shape[0]):
            fail(OptionError, op, "target_lengths", f"{total} in sum", f"{targets.shape[0]}, the length of targets")
        labels = targets[:total]
    checks.indices_inside(op, "targets", labels, problem.classes)
    if (labels == problem.blank).any():
        fail(
            OptionError,
            op,
            "targets",
            f"{problem.blank} in one place",
            "labels other than the blank",
            "Name another class by blank=.",
        )


def _lengths(op: str, name: str, lengths: Any, limit: int, axis: str) -> None:
    wrong = (lengths < 0) | (lengths > limit)
    if wrong.any():
        fail(
            OptionError,
            op,
            name,
            f"{int(lengths[wrong].reshape(-1)[0])} in one place",
            f"lengths from 0 to {limit} ({axis})",
        )
