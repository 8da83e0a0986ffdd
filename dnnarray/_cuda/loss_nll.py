"""`nll_loss`: plans for look-ups at the labels, and for the gradient, zeros but for them."""

from __future__ import annotations

import math

from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.loss_rows import (
    THREADS,
    arrangement,
    finish,
    forward_bytes,
    forward_scratch,
    memory_orders,
    nothing_to_do,
    total_bytes,
    total_weight,
)
from dnnarray._cuda.loss_sums import INTEGERS, Scratch, arithmetic, pointers
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method

_PART = 64  # classes that a thread of the gradient writes where they do not lie beside each other
_LANES = ((16, 64), (32, 1024))  # threads of a row of the gradient, and the vectors up to which they are enough


@frozen
class NllConfig(Config):
    """Compile-time settings of ``kernels/loss/nll.cu``."""

    element: str
    target: str
    loss: str
    threads: int


@frozen
class NllBackwardConfig(Config):
    """Compile-time settings of ``kernels/loss/nll_backward.cu``."""

    element: str
    target: str
    row_gradients: bool
    columns: bool
    ragged: bool
    vector: int
    lanes: int
    threads: int


def nll_loss(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The score at the label of each row, then the reduction."""
    scores, target, _ = problem.inputs
    inputs, outputs, last = pointers(problem)
    if not math.prod(problem.rows):
        return nothing_to_do(problem, outputs[0])
    scratch, losses, weights = forward_scratch(problem, last, inputs, outputs)
    lie = arrangement(problem, scores, any_order=problem.reduction != "none")
    loss = TYPES[scores.dtype] if problem.reduction == "none" else TYPES[arithmetic(scores)]
    config = NllConfig(TYPES[scores.dtype], INTEGERS[target.dtype], loss, THREADS)
    kernel = Kernel("loss/nll.cu", f"nll_{SHORT[scores.dtype]}_{target.dtype.name}{'_sum' * (problem.reduction != 'none')}", config)
    arguments = (*inputs, losses, weights, lie.rows, problem.classes, lie.inner, problem.ignore_index)
    plan = Plan(kernel, (-(-lie.rows // THREADS), 1, 1), THREADS, arguments)
    return Program((plan, *finish(problem, scratch, losses, weights, lie.rows, outputs[0])), memory_orders(problem, lie, target=1))


def nll_loss_backward(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The sum of the labels' weights where the mean needs it, then zeros but for what stands at the labels."""
    _, scores, target, _ = problem.inputs
    if not scores.size:
        return Program(())
    (grad, _, labels, weight), (out,), last = pointers(problem)
    sums, total, parts = total_weight(problem, labels, weight, Scratch(last))
    lie = arrangement(problem, scores, any_order=True)
    own, columns = problem.reduction == "none", lie.inner > 1
    vector = vector_length(scores.dtype, aligned, lie.inner if columns else 0)
    ragged = not columns and problem.classes % vector != 0
    lanes = 32 if columns else next((n for n, most in _LANES if problem.classes <= most * vector), THREADS)
    config = NllBackwardConfig(TYPES[scores.dtype], INTEGERS[target.dtype], own, columns, ragged, vector, lanes, THREADS)
    shape = "_columns" if columns else f"_{lanes}{'_ragged' * ragged}"
    kernel = Kernel(
        "loss/nll_backward.cu", f"nll_backward_{SHORT[scores.dtype]}x{vector}_{target.dtype.name}{shape}{'_rows' * own}", config
    )
    part = max(_PART, -(-problem.classes // 65_535))
    threads, blocks = (lie.rows // vector, -(-problem.classes // part)) if columns else (lie.rows * lanes, 1)
    arguments = (grad, labels, weight, total, out, lie.rows, problem.classes, lie.inner, problem.ignore_index, parts, part)
    plan = Plan(kernel, (-(-threads // THREADS), blocks, 1), THREADS, arguments, early=True)
    return Program((*sums, plan), memory_orders(problem, lie, target=2))


ALGORITHMS = {
    "nll_loss": (Method("gather", nll_loss, "the scores at the labels", workspace=forward_bytes),),
    "nll_loss_backward": (Method("scatter", nll_loss_backward, "zeros but for the labels", workspace=total_bytes),),
}
