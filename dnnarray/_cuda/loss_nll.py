"""`nll_loss`: plans for look-ups at the labels, and for their gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.zero import zero
from dnnarray._problems.loss import ScoresProblem
from dnnarray._select import Device, Method
from dnnarray._spec import Spec


@dataclass(frozen=True)
class NllConfig(Config):
    """Compile-time settings of ``kernels/loss/nll.cu``."""

    element: str
    target: str
    loss: str
    gradient: bool
    row_gradients: bool
    threads: int


def _nll(problem: ScoresProblem, scores: Spec, target: Spec, loss: str, gradient: bool) -> Kernel:
    rows = gradient and problem.reduction == "none"
    config = NllConfig(TYPES[scores.dtype], INTEGERS[target.dtype], loss, gradient, rows, THREADS)
    kind = ("_backward_rows" if rows else "_backward") if gradient else "_sum" * (problem.reduction != "none")
    return Kernel("loss/nll.cu", f"nll_{SHORT[scores.dtype]}_{target.dtype.name}{kind}", config)


def nll_loss(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The score at the label of each row, then the reduction."""
    scores, target, _ = problem.inputs
    inputs, outputs, last = pointers(problem)
    if not math.prod(problem.rows):
        return nothing_to_do(problem, outputs[0])
    scratch, losses, weights = forward_scratch(problem, last, inputs, outputs)
    lie = arrangement(problem, scores, any_order=problem.reduction != "none")
    loss = TYPES[scores.dtype] if problem.reduction == "none" else TYPES[arithmetic(scores)]
    arguments = (*inputs, losses, weights, lie.rows, problem.classes, lie.inner, problem.ignore_index)
    plan = Plan(_nll(problem, scores, target, loss, False), (-(-lie.rows // THREADS), 1, 1), THREADS, arguments)
    return Program((plan, *finish(problem, scratch, losses, weights, lie.rows, outputs[0])), memory_orders(problem, lie, target=1))


def nll_loss_backward(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """Zeros, then what stands at the labels."""
    _, scores, target, _ = problem.inputs
    if not scores.size:
        return Program(())
    (grad, _, labels, weight), (out,), last = pointers(problem)
    sums, total = total_weight(problem, labels, weight, Scratch(last))
    lie = arrangement(problem, scores, any_order=True)
    arguments = (out, labels, weight, grad, total, lie.rows, problem.classes, lie.inner, problem.ignore_index)
    kernel = _nll(problem, scores, target, TYPES[scores.dtype], True)
    plan = Plan(kernel, (-(-lie.rows // THREADS), 1, 1), THREADS, arguments)
    return Program((*sums, zero(out, scores.nbytes, aligned), plan), memory_orders(problem, lie, target=2))


ALGORITHMS = {
    "nll_loss": (Method("gather", nll_loss, "the scores at the labels", workspace=forward_bytes),),
    "nll_loss_backward": (Method("scatter", nll_loss_backward, "zeros, then the labels", workspace=total_bytes),),
}
