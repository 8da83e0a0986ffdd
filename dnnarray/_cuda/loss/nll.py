"""The algorithm ``nll``: the score at the label of each row, then the reduction."""

from __future__ import annotations

import math

from dnnarray._cuda.core.arguments import Arguments, Extent, In, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.scores import (
    THREADS,
    arrangement,
    finish,
    forward_bytes,
    forward_scratch,
    memory_orders,
    nothing_to_do,
)
from dnnarray._cuda.loss.shared import Loss, Target
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device

workspace = forward_bytes


@frozen
class NllConfig(Config):
    """Compile-time settings of ``kernels/loss/nll.cu``."""

    element: str
    target: str
    loss: str
    threads: int


@frozen
class NllArguments(Arguments, restrict=True):
    """What ``kernels/loss/nll.cu`` is called with."""

    z: In
    target: Target
    weight: In
    losses: Loss
    row_weights: OutArithmetic
    rows: Extent
    classes: Extent
    inner: Extent
    ignore: Extent


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    scores, target, _ = problem.inputs
    if not math.prod(problem.rows):
        return nothing_to_do(problem)
    planner, summed = Planner(problem, aligned), problem.reduction != "none"
    losses, weights = forward_scratch(problem, planner)
    lie = arrangement(problem, scores, any_order=summed)
    loss = TYPES[arithmetic_of(scores.dtype) if summed else scores.dtype]
    name = f"nll_{SHORT[scores.dtype]}_{target.dtype.name}{'_sum' * summed}"
    kernel = Kernel("loss/nll.cu", name, NllConfig(TYPES[scores.dtype], INTEGERS[target.dtype], loss, THREADS))
    z, labels, weight = planner.inputs
    arguments = NllArguments(
        z,
        labels,
        weight,
        losses,
        weights,
        rows=lie.rows,
        classes=problem.classes,
        inner=lie.inner,
        ignore=problem.ignore_index,
    )
    planner.launch(kernel, (blocks_of(lie.rows, THREADS), 1, 1), THREADS, arguments)
    finish(problem, planner, losses, weights, lie.rows)
    return planner.program(memory_orders(problem, lie, target=1))
