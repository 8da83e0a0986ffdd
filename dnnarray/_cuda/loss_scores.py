"""`cross_entropy`: plans for the kernels over rows of scores, in the memory order that the scores have."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dnnarray._cuda.loss_rows import (
    THREADS,
    arrangement,
    classes_at_once,
    column_vector,
    divisor,
    finish,
    forward_bytes,
    forward_scratch,
    lanes_for,
    memory_orders,
    nothing_to_do,
    several_rows,
    target_type,
    total_bytes,
    total_weight,
)
from dnnarray._cuda.loss_sums import NOTHING, Scratch, arithmetic, pointers
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._problems.loss import ScoresProblem
from dnnarray._select import Device, Method

_COLUMN_CLASSES = 8  # that a thread of the forward fetches together where they do not lie beside each other
_AT_ONCE = 8  # elements that a thread of the forward loads before it computes
_FORWARD_LANES = ((8, 128), (32, 2048), (128, 16384))
_KEEP = 128  # bytes of a row that a thread of the backward holds in registers; half of it for half types, which it unpacks
_OTHERS = 4096  # bytes of shared memory that a block needs besides its row's


@dataclass(frozen=True)
class RowsConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_rows.cu``."""

    element: str
    target: str
    loss: str
    probabilities: bool
    smoothing: bool
    sums: bool
    ragged: bool
    vector: int
    unroll: int
    lanes: int
    threads: int


@dataclass(frozen=True)
class ColumnsConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_columns.cu``."""

    element: str
    target: str
    loss: str
    probabilities: bool
    smoothing: bool
    sums: bool
    vector: int
    unroll: int
    threads: int


@dataclass(frozen=True)
class BackwardRowsConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_rows.cu``."""

    element: str
    target: str
    probabilities: bool
    smoothing: bool
    row_gradients: bool
    ragged: bool
    long: bool
    vector: int
    keep: int
    lanes: int
    threads: int


@dataclass(frozen=True)
class BackwardColumnsConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_columns.cu``."""

    element: str
    target: str
    probabilities: bool
    smoothing: bool
    row_gradients: bool
    kept: bool
    unroll: int
    vector: int
    threads: int


def cross_entropy(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The losses of all rows, then their reduction."""
    scores, target, _ = problem.inputs
    inputs, outputs, last = pointers(problem)
    if not math.prod(problem.rows):
        return nothing_to_do(problem, outputs[0])
    scratch, losses, weights = forward_scratch(problem, last, inputs, outputs)
    lie = arrangement(problem, scores, any_order=problem.reduction != "none" and not problem.return_lse)
    element, short = TYPES[scores.dtype], SHORT[scores.dtype]
    kind, name = target_type(problem, target)
    loss = element if problem.reduction == "none" else TYPES[arithmetic(scores)]
    flags = (problem.probabilities, problem.label_smoothing > 0 and not problem.probabilities)
    tail = f"{short}_{name}{'_smoothing' * flags[1]}{'_sum' * (problem.reduction != 'none')}"
    lse = outputs[1] if problem.return_lse else NOTHING
    options = (problem.ignore_index, float(problem.label_smoothing))
    arguments = (*inputs, losses, weights, lse, lie.rows, problem.classes)
    short_rows = (*inputs, NOTHING, losses, weights, lse, NOTHING)
    plan = several_rows(problem, scores, target, short_rows, lie.rows, False, aligned) if lie.inner == 1 else None
    if plan is not None:
        count, first = plan.grid[0], plan
    elif lie.inner == 1:
        vector = vector_length(scores.dtype, aligned)
        lanes, ragged = lanes_for(problem.classes, _FORWARD_LANES, 512), problem.classes % vector != 0
        threads = max(lanes, THREADS)
        unroll = next(n for n in (1, 2, 4, 8) if n * lanes * vector >= problem.classes or n * vector >= _AT_ONCE)
        config: Config = RowsConfig(element, kind, loss, *flags, problem.reduction != "none", ragged, vector, unroll, lanes, threads)
        symbol = f"cross_entropy_rows_{tail}_{unroll}x{vector}_{lanes}{'_ragged' * ragged}"
        kernel = Kernel("loss/cross_entropy_rows.cu", symbol, config)
        count = grid = -(-lie.rows // (threads // lanes))
        first = Plan(kernel, (grid, 1, 1), threads, (*arguments, *options))
    else:
        vector = column_vector(scores, aligned, lie.inner)
        unroll = _COLUMN_CLASSES
        config = ColumnsConfig(element, kind, loss, *flags, problem.reduction != "none", vector, unroll, THREADS)
        kernel = Kernel("loss/cross_entropy_columns.cu", f"cross_entropy_columns_{tail}_{unroll}x{vector}", config)
        count = grid = -(-lie.rows // (THREADS * vector))
        first = Plan(kernel, (grid, 1, 1), THREADS, (*arguments, lie.inner, *options))
    orders = memory_orders(problem, lie, target=1)
    return Program((first, *finish(problem, scratch, losses, weights, count, outputs[0])), orders)


_BACKWARD_LANES = (8, 32, 128, 256, 512)
_LONG_LANES = 1024  # of rows beyond those, with fewer registers each


def _rows_in_block(classes: int, vector: int, size: int, device: Device) -> tuple[int, int, int]:
    """Threads of a row, vectors of `size` bytes that each holds in registers, and in shared memory where a row is longer."""
    most = min(_KEEP // size, 32 // vector)
    vectors = -(-classes // vector) + (classes % vector > 0)  # a ragged row may reach into one more
    lanes = lanes_for(vectors, tuple((n, n * most) for n in _BACKWARD_LANES), _BACKWARD_LANES[-1])
    each = -(-vectors // lanes)
    keep = next((n for n in (1, 2, 4, 8, 16, 32) if n >= each), most)
    if each <= most:
        return lanes, keep, 0
    keep, room = max(most // 4, 1), max(device.shared_memory, 48 << 10) - _OTHERS
    each = -(-vectors // _LONG_LANES)
    return _LONG_LANES, keep, max(min(each - keep, room // (_LONG_LANES * size)), 1)


def cross_entropy_backward(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The sum of the labels' weights where the mean needs it, then the gradients of all rows."""
    _, scores, target, _, _ = problem.inputs
    if not scores.size:
        return Program(())
    (grad, z, labels, weight, _), outputs, last = pointers(problem)
    sums, total = total_weight(problem, labels, weight, Scratch(last))
    lie = arrangement(problem, scores, any_order=True)
    element, short = TYPES[scores.dtype], SHORT[scores.dtype]
    kind, name = target_type(problem, target)
    flags = (problem.probabilities, problem.label_smoothing > 0 and not problem.probabilities, problem.reduction == "none")
    tail = f"{short}_{name}{'_smoothing' * flags[1]}{'_rows' * flags[2]}"
    dq = outputs[1] if problem.probabilities else NOTHING
    arguments = (grad, z, labels, weight, total, outputs[0], dq, lie.rows, problem.classes)
    options = (problem.ignore_index, float(problem.label_smoothing), float(divisor(problem)))
    short_rows = (z, labels, weight, grad, NOTHING, total, NOTHING, outputs[0])
    short_plan = several_rows(problem, scores, target, short_rows, lie.rows, True, aligned) if lie.inner == 1 else None
    if short_plan is not None:
        plan = short_plan
    elif lie.inner == 1:
        vector = vector_length(scores.dtype, aligned)
        lanes, keep, held = _rows_in_block(problem.classes, vector, vector * scores.dtype.itemsize, device)
        ragged, threads = problem.classes % vector != 0, max(lanes, THREADS)
        config: Config = BackwardRowsConfig(element, kind, *flags, ragged, held > 0, vector, keep, lanes, threads)
        symbol = f"cross_entropy_backward_rows_{tail}_x{vector}_{keep}_{lanes}{'_ragged' * ragged}{'_long' * (held > 0)}"
        kernel = Kernel("loss/cross_entropy_backward_rows.cu", symbol, config)
        grid = -(-lie.rows // (threads // lanes))
        shared = held * threads * vector * scores.dtype.itemsize
        plan = Plan(kernel, (grid, 1, 1), threads, (*arguments, held, *options), shared)
    else:
        vector = column_vector(scores, aligned, lie.inner)
        unroll, kept = classes_at_once(problem.classes)
        config = BackwardColumnsConfig(element, kind, *flags, kept, unroll, vector, THREADS)
        name = f"cross_entropy_backward_columns_{tail}_{unroll}x{vector}{'_kept' * kept}"
        kernel = Kernel("loss/cross_entropy_backward_columns.cu", name, config)
        grid = -(-lie.rows // (THREADS * vector))
        plan = Plan(kernel, (grid, 1, 1), THREADS, (*arguments, lie.inner, *options))
    return Program((*sums, plan), memory_orders(problem, lie, target=2))


def _two_orders(problem: ScoresProblem, device: Device) -> str | None:
    """The gradients lie as their arrays do, and one pass writes both."""
    _, scores, target, _, _ = problem.inputs
    if problem.probabilities and scores.like() != target.like():
        return "logits and probabilities lie in different memory orders; copy one of them into the order of the other"
    return None


ALGORITHMS = {
    "cross_entropy": (Method("online", cross_entropy, "one pass over the scores with a running maximum", workspace=forward_bytes),),
    "cross_entropy_backward": (
        Method("online", cross_entropy_backward, "softmax less target, rows in registers", rejects=_two_orders, workspace=total_bytes),
    ),
}
