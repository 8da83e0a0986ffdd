"""What `cross_entropy` and `nll_loss` share: how the scores lie in memory, where losses and weights go, rows of few classes."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.loss_sums import INTEGERS, NOTHING, Scratch, arithmetic, blocks_for, label_blocks, label_weights, mean, reduced
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

THREADS = 128
_SHORT_ROWS = 4  # rows that part of a warp holds at once


@frozen
class ShortConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_short.cu``."""

    element: str
    target: str
    loss: str
    gradient: bool
    row_gradients: bool
    sums: bool
    vector: int
    lanes: int
    rows: int
    threads: int


@frozen
class Arrangement:
    """The scores in memory: `order` of their axes, that of the axes of the rows, the extents before and behind the classes."""

    order: tuple[int, ...]
    row_order: tuple[int, ...]
    outer: int
    inner: int

    @property
    def rows(self) -> int:
        return self.outer * self.inner


def _class_axis(problem: ScoresProblem, scores: Spec) -> int:
    """Where the classes stand; between places that only extents of 1 part, it does not matter."""
    if len(problem.shape) == 2:
        return scores.ndim - 1
    return next(
        i
        for i, n in enumerate(scores.shape)
        if n == problem.classes and math.prod(scores.shape[:i]) == problem.shape[0] and math.prod(scores.shape[i + 1 :]) == problem.shape[2]
    )


def arrangement(problem: ScoresProblem, scores: Spec, any_order: bool) -> Arrangement:
    """That of the scores as they lie; with `any_order` False the rows keep their own order, for results per row."""
    axis = _class_axis(problem, scores)
    plain = tuple(range(scores.ndim))
    order = scores.axis_order() or plain
    rest = [a for a in order if a != axis]
    if not any_order and rest != sorted(rest):
        order, rest = plain, [a for a in plain if a != axis]
    place = order.index(axis)
    extents = [scores.shape[a] for a in order]
    row_order = tuple(a - (a > axis) for a in rest)
    return Arrangement(order, row_order, math.prod(extents[:place]), math.prod(extents[place + 1 :]))


def target_type(problem: ScoresProblem, target: Spec) -> tuple[str, str]:
    """Type and short name of the target's elements; those of probabilities are the scores' own."""
    return ("char", "probabilities") if problem.probabilities else (INTEGERS[target.dtype], target.dtype.name)


def forward_scratch(problem: ScoresProblem, scratch_index: int, inputs: list[Any], outputs: list[Any]) -> tuple[Scratch, Any, Any]:
    """Where the losses of the rows and their weights go."""
    scratch, scores = Scratch(scratch_index), problem.inputs[0]
    rows, itemsize = math.prod(problem.rows), arithmetic(scores).itemsize
    if problem.reduction == "none":
        return scratch, outputs[0], NOTHING
    losses = scratch.take(rows, itemsize)
    weighted = problem.reduction == "mean" and not problem.probabilities
    return scratch, losses, scratch.take(rows, itemsize) if weighted else NOTHING


def forward_bytes(problem: ScoresProblem) -> int:
    """The rows' losses and weights, and partial sums of both."""
    rows = math.prod(problem.rows)
    if problem.reduction == "none" or not rows:
        return 0
    itemsize = arithmetic(problem.inputs[0]).itemsize
    return forward_scratch(problem, 0, [], [None])[0].size + 2 * (blocks_for(rows) * itemsize + 16)


def divisor(problem: ScoresProblem) -> float:
    """What a sum over rows is divided by where that is known without the labels."""
    return math.prod(problem.rows) if problem.reduction == "mean" else 1


def finish(problem: ScoresProblem, scratch: Scratch, losses: Any, weights: Any, count: int, out: Array) -> list[Plan]:
    """The launches that reduce `count` losses, each of a row or the sum of a block's."""
    if problem.reduction == "none":
        return []
    spec = problem.inputs[0]
    return reduced(losses, weights, count, divisor(problem), spec.dtype, arithmetic(spec), scratch, out)


def nothing_to_do(problem: ScoresProblem, out: Array) -> Program:
    """The loss without any row: 0, or NaN for the mean."""
    dtype = problem.inputs[0].dtype
    return Program(() if problem.reduction == "none" else (mean(NOTHING, NOTHING, 0, divisor(problem), dtype, out),))


def several_rows(
    problem: ScoresProblem, scores: Spec, target: Spec, arguments: tuple[Any, ...], rows: int, gradient: bool, aligned: bool, parts: int = 0
) -> Plan | None:
    """The launch for rows of which a part of a warp holds several at once; None where they are longer."""
    vector = vector_length(scores.dtype, aligned, problem.classes)
    lanes = max(_SHORT_ROWS, 1 << (problem.classes // vector - 1).bit_length())
    if problem.probabilities or problem.label_smoothing > 0 or lanes > 32:
        return None
    each, sums = problem.reduction == "none", problem.reduction != "none" and not gradient
    loss = TYPES[scores.dtype] if each else TYPES[arithmetic(scores)]
    flags = (gradient, gradient and each, sums)
    config = ShortConfig(TYPES[scores.dtype], INTEGERS[target.dtype], loss, *flags, vector, lanes, _SHORT_ROWS, THREADS)
    kind = f"{'backward_' * gradient}{'rows' if each else 'sum'}"
    name = f"cross_entropy_short_{SHORT[scores.dtype]}_{target.dtype.name}_{kind}_x{vector}_{lanes}"
    kernel = Kernel("loss/cross_entropy_short.cu", name, config)
    grid = -(-rows // (THREADS // lanes * _SHORT_ROWS))
    return Plan(kernel, (grid, 1, 1), THREADS, (*arguments, rows, problem.classes, problem.ignore_index, float(divisor(problem)), parts))


def classes_at_once(classes: int) -> tuple[int, bool]:
    """Classes of a column that a thread fetches together, and whether they are all."""
    unroll = next((n for n in range(2, 33, 2) if n >= classes), 8)
    return unroll, unroll >= classes


def memory_orders(problem: ScoresProblem, lie: Arrangement, target: int) -> tuple[tuple[int, ...], ...]:
    """The memory order of each given input; `target` is the position of the target, behind the scores."""
    orders = []
    for i, spec in enumerate(problem.inputs):
        if spec is None:
            continue
        if i == target - 1 or (i == target and problem.probabilities):
            orders.append(lie.order)
        else:
            orders.append(lie.row_order if spec.shape == problem.rows and i != target + 1 else tuple(range(spec.ndim)))
    return tuple(orders)


def total_weight(problem: ScoresProblem, target: Any, weight: Any, scratch: Scratch) -> tuple[list[Plan], Any, int]:
    """The launch that sums the weights of the labels in parts, where these are then, and how many."""
    if problem.probabilities or problem.reduction != "mean":
        return [], NOTHING, 0
    spec, blocks = problem.inputs[2], label_blocks(problem.inputs[2].size)
    parts = scratch.take(blocks, arithmetic(problem.inputs[1]).itemsize)
    # The weights are in the scores' dtype, and so is the kernel; its sums are in the arithmetic dtype.
    plan = label_weights(target, spec, weight, problem.inputs[1].dtype, parts, problem.classes, problem.ignore_index)
    return [plan], parts, blocks


def total_bytes(problem: ScoresProblem) -> int:
    if problem.probabilities or problem.reduction != "mean" or not problem.inputs[1].size:
        return 0
    return (label_blocks(problem.inputs[2].size) + 8) * arithmetic(problem.inputs[1]).itemsize
