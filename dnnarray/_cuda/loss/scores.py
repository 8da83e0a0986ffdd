"""What `cross_entropy` and `nll_loss` share: how the scores lie in memory, and where losses and weights go."""

from __future__ import annotations

import math

from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import INTEGERS, Array, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.mean import mean
from dnnarray._cuda.loss.shared import reduced
from dnnarray._cuda.loss.sums import blocks_for, label_blocks, label_weights
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._spec import Spec

THREADS = 128


@frozen
class Arrangement:
    """The scores in memory: `order` of their axes, that of the axes of the rows, the extents before and behind the
    classes."""

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
        if n == problem.classes
        and math.prod(scores.shape[:i]) == problem.shape[0]
        and math.prod(scores.shape[i + 1 :]) == problem.shape[2]
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


def forward_scratch(problem: ScoresProblem, planner: Planner) -> tuple[Array, Array | None]:
    """Where the losses of the rows and their weights go."""
    rows, computed = math.prod(problem.rows), arithmetic_of(problem.inputs[0].dtype)
    if problem.reduction == "none":
        return planner.outputs[0], None
    losses = planner.take(computed, rows).array
    weighted = problem.reduction == "mean" and not problem.probabilities
    return losses, planner.take(computed, rows).array if weighted else None


def forward_bytes(problem: ScoresProblem) -> int:
    """The rows' losses and weights, and partial sums of both."""
    rows = math.prod(problem.rows)
    if problem.reduction == "none" or not rows:
        return 0
    planner = Planner(problem, True)
    forward_scratch(problem, planner)
    for _ in range(2):
        planner.take(arithmetic_of(problem.inputs[0].dtype), blocks_for(rows))
    return planner.workspace


def divisor(problem: ScoresProblem) -> float:
    """What a sum over rows is divided by where that is known without the labels."""
    return math.prod(problem.rows) if problem.reduction == "mean" else 1


def finish(problem: ScoresProblem, planner: Planner, losses: Array, weights: Array | None, count: int) -> None:
    """Plan the launches that reduce `count` losses, each of a row or the sum of a block's."""
    if problem.reduction == "none":
        return
    dtype = problem.inputs[0].dtype
    computed = arithmetic_of(dtype)
    take, out = lambda n: planner.take(computed, n).array, planner.outputs[0]
    planner.add(*reduced(losses, weights, count, divisor(problem), dtype, take, out))


def nothing_to_do(problem: ScoresProblem) -> Program:
    """The loss without any row: 0, or NaN for the mean."""
    if problem.reduction == "none":
        return Program(())
    out = Planner(problem, True).outputs[0]
    return Program((mean(None, None, 0, divisor(problem), problem.inputs[0].dtype, out),))


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


def total_weight(problem: ScoresProblem, planner: Planner) -> tuple[Array | None, int]:
    """Plan the launch that sums the weights of the labels in parts; where these are then, and how many."""
    if problem.probabilities or problem.reduction != "mean":
        return None, 0
    _, _, labels, weight = planner.inputs[:4]
    scores, target = problem.inputs[1:3]
    blocks = label_blocks(target.size)
    parts = planner.take(arithmetic_of(scores.dtype), blocks).array
    # The weights are in the scores' dtype, and so is the kernel; its sums are in the arithmetic dtype.
    planner.add(label_weights(labels, target, weight, scores.dtype, parts, problem.classes, problem.ignore_index))
    return parts, blocks


def total_bytes(problem: ScoresProblem) -> int:
    if problem.probabilities or problem.reduction != "mean" or not problem.inputs[1].size:
        return 0
    planner = Planner(problem, True)
    planner.take(arithmetic_of(problem.inputs[1].dtype), label_blocks(problem.inputs[2].size))
    return planner.workspace
