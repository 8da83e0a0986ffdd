"""Linear cross entropy: scores that are never there as a whole, and the tape with the gradients that its forward may
take."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Generic, NamedTuple

from dnnarray._errors import OptionError, ShapeError, fail
from dnnarray._problems import checks
from dnnarray._problems.loss import CrossEntropyOutput, RowsProblem, check_lse, class_weight, loss_fields, row_options
from dnnarray._records import frozen
from dnnarray._spec import Spec
from dnnarray._typing import ArrayT


class TapedLoss(NamedTuple, Generic[ArrayT]):
    """What `linear_cross_entropy` gives with ``return_tape=True``.

    Attributes
    ----------
    loss : array ()
        In the dtype of ``x``.
    tape : array ((N + V) D, or (N + V) D + V with a bias)
        For `linear_cross_entropy_backward`, of N rows, V classes and D features; in the dtype of ``x``, float32 beside
        half types.

    Examples
    --------
    >>> import numpy as np, dnnarray as dnn
    >>> dnn.linear_cross_entropy(np.eye(2), np.ones((3, 2)), np.array([0, 2]), return_tape=True).tape.shape
    (10,)
    """

    loss: ArrayT
    tape: ArrayT

    @property
    def output(self) -> Any:
        """The result without the tape."""
        return self.loss


class TapedCrossEntropyOutput(NamedTuple, Generic[ArrayT]):
    """What `linear_cross_entropy` gives with both ``return_lse=True`` and ``return_tape=True``.

    Attributes
    ----------
    loss, tape
        As of `TapedLoss`.
    lse : array (...)
        The log-sum-exp of each row, of the shape of ``target``; float32 for half types.

    Examples
    --------
    >>> import numpy as np, dnnarray as dnn
    >>> x, weight, labels = np.eye(2), np.ones((3, 2)), np.array([0, 2])
    >>> dnn.linear_cross_entropy(x, weight, labels, return_lse=True, return_tape=True).lse.round(4)
    array([2.0986, 2.0986])
    """

    loss: ArrayT
    lse: ArrayT
    tape: ArrayT

    @property
    def output(self) -> CrossEntropyOutput:
        """The results without the tape."""
        return CrossEntropyOutput(self.loss, self.lse)


class LinearCrossEntropyGradients(NamedTuple, Generic[ArrayT]):
    """What `linear_cross_entropy_backward` gives: a gradient in the shape of each array; `bias` is None where the
    forward had none."""

    x: ArrayT
    w: ArrayT
    bias: ArrayT


@frozen(kw_only=True)
class LinearProblem(RowsProblem):
    """Scores that are never there as a whole: ``x @ w.T + bias``, N rows of D features against V classes.

    `gradient` says that it is the backward. `taped`: the forward gives, or the backward takes, the gradients for a loss
    whose own gradient is 1."""

    features: int
    gradient: bool = False
    taped: bool = False

    @property
    def summed(self) -> tuple[bool, bool, bool]:
        """Whether the gradients of x, of w and of the bias come from scores."""
        if self.gradient == self.taped:
            return (False, False, False)
        x, w, bias = self.outputs if self.gradient else (self.x, self.inputs[1], self.inputs[3])
        return x is not None, w is not None, bias is not None

    @property
    def products(self) -> int:
        """Matrix products of the size of the scores which the definition needs."""
        if self.gradient and self.taped:
            return 0
        again = self.gradient and self.inputs[6] is None
        return 1 + again + sum(self.summed[:2])

    @property
    def unread(self) -> frozenset[int]:
        """With a tape, all but the gradient, the tape and the labels, which may be checked."""
        return frozenset((1, 2, 4, 5, 6)) if self.gradient and self.taped else self.shapes

    @property
    def flops(self) -> int:
        return 2 * self.products * math.prod(self.rows) * self.classes * self.features or super().flops

    @property
    def x(self) -> Spec:
        """The features of the rows."""
        return self.inputs[int(self.gradient)]

    @property
    def target(self) -> Spec:
        """The labels of the rows."""
        return self.inputs[2 + self.gradient]

    @property
    def tape_parts(self) -> tuple[tuple[int, int], ...]:
        """First number and size of the gradients of x, w and bias on the tape; that of w comes first, so that it is
        aligned whatever the extents."""
        w, x = self.classes * self.features, math.prod(self.rows) * self.features
        biased = self.inputs[3 + self.gradient] is not None
        return (w, x), (0, w), (w + x, self.classes if biased else 0)

    @property
    def tape_spec(self) -> Spec:
        """One axis, of the dtype that the arithmetic is done in: a gradient in a half type would be rounded twice, and
        leave the range of float16."""
        return Spec((sum(size for _, size in self.tape_parts),), checks.statistics_dtype(self.x))


def linear_cross_entropy(
    op: str,
    x: Spec,
    w: Spec,
    target: Spec,
    bias: Spec | None,
    weight: Spec | None,
    *,
    return_tape: Any = False,
    **options: Any,
) -> LinearProblem:
    checks.same_dtype(op, x=x, w=w, bias=bias, weight=weight)
    chosen = row_options(op, **options)
    if x.ndim == 0:
        fail(ShapeError, op, "x", "0-dimensional", "1 dimension (D) or more (N D)")
    rows, features = x.shape[:-1], x.shape[-1]
    checks.shape(op, "w", w, (None, features), "V D, with the D of x")
    classes = w.shape[0]
    if classes == 0:
        fail(ShapeError, op, "w", f"of shape {w.shape}", "one class or more on axis 0")
    if bias is not None:
        checks.shape(op, "bias", bias, (classes,), "V, one per row of w")
    class_weight(op, weight, classes)
    checks.integers(op, "target", target)
    checks.shape(op, "target", target, rows, "the shape of x without its last axis")
    results = loss_fields(x, chosen["reduction"], rows, chosen["return_lse"])
    inputs = (x, w, target, bias, weight)
    problem = LinearProblem(op=op, inputs=inputs, rows=rows, classes=classes, features=features, **results, **chosen)
    return _with_tape(problem) if checks.boolean(op, "return_tape", return_tape) else problem


def _with_tape(forward: LinearProblem) -> LinearProblem:
    """The forward that takes the gradients too, while a block of scores is there."""
    _check_scalar(forward, "return_tape", "True")
    result = TapedCrossEntropyOutput if forward.return_lse else TapedLoss
    return replace(forward, outputs=(*forward.outputs, forward.tape_spec), returns=result, taped=True)


def _check_scalar(forward: LinearProblem, name: str, got: str) -> None:
    if forward.reduction == "none":
        fix = "The gradients for a loss of each row are no multiple of those for a gradient of 1."
        fail(OptionError, forward.op, name, f'{got} with reduction="none"', 'reduction "mean" or "sum"', fix)


def linear_cross_entropy_backward(
    op: str,
    grad: Spec,
    x: Spec,
    w: Spec,
    target: Spec,
    bias: Spec | None,
    weight: Spec | None,
    lse: Spec | None,
    tape: Spec | None,
    **options: Any,
) -> LinearProblem:
    forward = linear_cross_entropy(op, x, w, target, bias, weight, **options)
    checks.gradient(op, grad, forward.result)
    check_lse(op, lse, x, forward.rows)
    if tape is not None:
        _check_scalar(forward, "tape", "given")
        checks.tape(op, tape, forward.tape_spec)
    return replace(
        forward,
        inputs=(grad, x, w, target, bias, weight, lse, tape),
        outputs=(Spec(x.shape, x.dtype), Spec(w.shape, w.dtype), None if bias is None else bias.like()),
        returns=LinearCrossEntropyGradients,
        gradient=True,
        taped=tape is not None,
    )


def with_a_tape(problem: LinearProblem, _device: Any) -> str | None:
    """Why a backward that is given a tape computes nothing again: for ``rejects=``."""
    return "the gradients are on the tape" if problem.gradient and problem.taped else None


def without_a_tape(problem: LinearProblem, _device: Any) -> str | None:
    """Why there is nothing to scale: for ``rejects=``."""
    return None if problem.taped else "no tape is given"
