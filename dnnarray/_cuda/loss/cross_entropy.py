"""What the plans of cross entropy share: settings, records of arguments, and how a kernel's threads share rows or
columns of scores."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, InArithmetic, Out, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.scores import (
    Arrangement,
    arrangement,
    divisor,
    finish,
    forward_scratch,
    memory_orders,
    nothing_to_do,
    target_type,
    total_weight,
)
from dnnarray._cuda.loss.shared import Loss, Target
from dnnarray._problems.base import remembered
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device
from dnnarray._spec import Spec

_LANES = (16, 32, 64, 128)  # threads of a row that they hold in registers
_MOST = 16  # vectors of a row that a thread holds in registers
READ_TWICE = 1.5  # times that two readings and a writing take, relative to one of each


@frozen
class ScoresConfig(Config):
    """Compile-time settings that the kernels of cross entropy have in common."""

    element: str
    target: str
    probabilities: bool
    smoothing: bool


@frozen(kw_only=True)
class ForwardArguments(Arguments, restrict=True):
    """What the kernels of the loss have in common; `row_weights` and `lse` are absent where they are not wanted."""

    z: In
    target: Target
    weight: In
    losses: Loss
    row_weights: OutArithmetic
    lse: OutArithmetic
    rows: Extent
    classes: Extent
    ignore: Extent
    smoothing: Double


@frozen(kw_only=True)
class BackwardArguments(Arguments, restrict=True):
    """What the kernels of the gradient have in common; `totals` are `parts` sums of weights, absent where the gradient
    is divided by `divisor`."""

    grad: In
    z: In
    target: Target
    weight: In
    totals: InArithmetic
    dz: Out
    dq: Out
    classes: Extent
    ignore: Extent
    smoothing: Double
    divisor: Double
    parts: Extent


class Call(NamedTuple):
    """What a launch begins with: the settings that kernels have in common, the end of their names, the scores'
    arrangement, the arguments."""

    planner: Planner
    settings: dict[str, Any]
    tail: str
    scores: Spec
    lie: Arrangement
    classes: int
    arguments: dict[str, Any]

    @property
    def vector(self) -> int:
        return vector_length(self.scores.dtype, self.planner.aligned)

    @property
    def ragged(self) -> bool:
        return self.classes % self.vector != 0

    def columns(self, size: int) -> int:
        """Columns of a thread: `size` bytes, or fewer where the columns are not a multiple."""
        itemsize = self.scores.dtype.itemsize
        return min(vector_length(self.scores.dtype, self.planner.aligned, self.lie.inner), max(size // itemsize, 1))


def scores_of(problem: ScoresProblem) -> Spec:
    found: Spec = problem.inputs[1 if problem.op.endswith("_backward") else 0]
    return found


@remembered
def lying(problem: ScoresProblem) -> Arrangement:
    """How the scores lie; the losses, or the log-sum-exp, of each row keep the order of the rows."""
    any_order = problem.op.endswith("_backward") or (problem.reduction != "none" and not problem.return_lse)
    return arrangement(problem, scores_of(problem), any_order)


def held(problem: ScoresProblem, aligned: bool) -> tuple[int, int] | None:
    """Threads of a row and vectors of each, powers of two; None for rows that are too long for registers."""
    vectors = -(-problem.classes // vector_length(scores_of(problem).dtype, aligned))
    for lanes in _LANES:
        if vectors <= lanes * (2 if lanes < 32 else _MOST):
            return lanes, 1 << (-(-vectors // lanes) - 1).bit_length()
    return None


def no_rows(problem: ScoresProblem) -> str | None:
    """Why a kernel for rows does not do a problem, or None."""
    return None if lying(problem).inner == 1 else "the classes do not run fastest in memory"


def no_columns(problem: ScoresProblem) -> str | None:
    """Why a kernel for columns does not do a problem, or None."""
    return "the classes run fastest in memory: scores form rows" if lying(problem).inner == 1 else None


def two_orders(problem: ScoresProblem) -> str | None:
    """The gradients lie as their arrays do, and one pass in the order of the scores writes both."""
    if not problem.op.endswith("_backward") or not problem.probabilities or problem.outputs[1] is None:
        return None
    _, scores, target, _, _ = problem.inputs
    if scores.like() != target.like():
        return "logits and probabilities lie in different memory orders; copy one of them into the order of the other"
    return None


def times(problem: ScoresProblem, factor: float) -> Cost:
    """The cost of a kernel that takes so many times what it takes to read and write each array once."""
    return Cost(factor * problem.flops, factor * problem.bytes)


def once_or_twice(problem: ScoresProblem, device: Device) -> Cost:
    """The cost of a kernel that reads rows twice where registers do not hold them."""
    return times(problem, 1.0 if held(problem, device.aligned) else READ_TWICE)


def _settings(problem: ScoresProblem, target: str) -> dict[str, Any]:
    smoothing = problem.label_smoothing > 0 and not problem.probabilities
    element = TYPES[scores_of(problem).dtype]
    return {"element": element, "target": target, "probabilities": problem.probabilities, "smoothing": smoothing}


def forward_call(problem: ScoresProblem, planner: Planner) -> Call:
    scores, target, _ = problem.inputs
    losses, weights = forward_scratch(problem, planner)
    (kind, name), summed, lie = target_type(problem, target), problem.reduction != "none", lying(problem)
    loss = TYPES[arithmetic_of(scores.dtype) if summed else scores.dtype]
    settings = _settings(problem, kind) | {"loss": loss, "sums": summed}
    tail = f"{SHORT[scores.dtype]}_{name}{'_smoothing' * settings['smoothing']}{'_sum' * summed}"
    z, labels, weight = planner.inputs
    arguments: dict[str, Any] = {"z": z, "target": labels, "weight": weight, "losses": losses, "row_weights": weights}
    arguments |= {
        "lse": planner.outputs[1] if problem.return_lse else None,
        "rows": lie.rows,
        "classes": problem.classes,
    }
    arguments |= {"ignore": problem.ignore_index, "smoothing": float(problem.label_smoothing)}
    return Call(planner, settings, tail, scores, lie, problem.classes, arguments)


def forward(problem: ScoresProblem, aligned: bool, launch: Any) -> Program:
    """The losses of all rows by `launch(call)`, which gives its number of blocks, then their reduction."""
    if not math.prod(problem.rows):
        return nothing_to_do(problem)
    planner = Planner(problem, aligned)
    call = forward_call(problem, planner)
    blocks = launch(call)
    finish(problem, planner, call.arguments["losses"], call.arguments["row_weights"], blocks)
    return planner.program(memory_orders(problem, call.lie, target=1))


def backward(problem: ScoresProblem, aligned: bool, launch: Any) -> Program:
    """The sums of the labels' weights where the mean needs them, then the gradients of all rows by `launch(call)`."""
    _, scores, target, _, _ = problem.inputs
    if not scores.size:
        return Program(())
    planner = Planner(problem, aligned)
    totals, parts = total_weight(problem, planner)
    (grad, z, labels, weight, _), (dz, *dq) = planner.inputs, planner.outputs
    (kind, name), own = target_type(problem, target), problem.reduction == "none"
    settings = _settings(problem, kind) | {"row_gradients": own}
    tail = f"{SHORT[scores.dtype]}_{name}{'_smoothing' * settings['smoothing']}{'_rows' * own}"
    arguments: dict[str, Any] = {"grad": grad, "z": z, "target": labels, "weight": weight, "totals": totals, "dz": dz}
    arguments |= {
        "dq": dq[0] if dq else None,
        "classes": problem.classes,
        "ignore": problem.ignore_index,
        "parts": parts,
    }
    arguments |= {"smoothing": float(problem.label_smoothing), "divisor": float(divisor(problem))}
    call = Call(planner, settings, tail, scores, lying(problem), problem.classes, arguments)
    launch(call)
    return planner.program(memory_orders(problem, call.lie, target=2))
