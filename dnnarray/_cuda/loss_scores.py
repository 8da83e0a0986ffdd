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
    memory_orders,
    nothing_to_do,
    several_rows,
    target_type,
    total_bytes,
    total_weight,
)
from dnnarray._cuda.loss_sums import NOTHING, Scratch, arithmetic, pointers
from dnnarray._cuda.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.softmax import COPIES_FROM, smallest_share
from dnnarray._problems.loss import ScoresProblem
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT64, Spec

_COLUMN_CLASSES = 8  # that a thread of the forward fetches together where they do not lie beside each other
_COLUMN_BYTES, _KEPT_BYTES = 8, 8  # of neighbouring columns of a thread: in the forward, in the backward where it holds all their classes
_AGAIN_BYTES = 4  # in the backward where it reads them twice: more would ask more of the second-level cache than it holds
_LANES = (16, 32, 64, 128)  # threads of a row that they hold in registers
_MOST = 16  # vectors of a row that a thread holds in registers
_LONG_LANES, _LONG_UNROLL = 512, 4  # threads of longer rows, and the vectors of each that are on their way together
_CLUSTER_THREADS = 512


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
class BackwardClusterConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_cluster.cu``."""

    element: str
    target: str
    probabilities: bool
    smoothing: bool
    row_gradients: bool
    blocks: int
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


def _held(classes: int, vector: int) -> tuple[int, int] | None:
    """Threads of a row and vectors of each, powers of two; None for rows that are too long for registers."""
    vectors = -(-classes // vector)
    for lanes in _LANES:
        if vectors <= lanes * (2 if lanes < 32 else _MOST):
            return lanes, 1 << (-(-vectors // lanes) - 1).bit_length()
    return None


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
        lanes, unroll = _held(problem.classes, vector) or (_LONG_LANES, _LONG_UNROLL)
        ragged, threads = problem.classes % vector != 0, lanes if lanes > 32 else THREADS
        config: Config = RowsConfig(element, kind, loss, *flags, problem.reduction != "none", ragged, vector, unroll, lanes, threads)
        symbol = f"cross_entropy_rows_{tail}_{unroll}x{vector}_{lanes}{'_ragged' * ragged}"
        kernel = Kernel("loss/cross_entropy_rows.cu", symbol, config)
        count = grid = -(-lie.rows // (threads // lanes))
        first = Plan(kernel, (grid, 1, 1), threads, (*arguments, *options))
    else:
        vector = column_vector(scores, aligned, lie.inner, _COLUMN_BYTES)
        unroll = _COLUMN_CLASSES
        config = ColumnsConfig(element, kind, loss, *flags, problem.reduction != "none", vector, unroll, THREADS)
        kernel = Kernel("loss/cross_entropy_columns.cu", f"cross_entropy_columns_{tail}_{unroll}x{vector}", config)
        count = grid = -(-lie.rows // (THREADS * vector))
        first = Plan(kernel, (grid, 1, 1), THREADS, (*arguments, lie.inner, *options))
    orders = memory_orders(problem, lie, target=1)
    return Program((first, *finish(problem, scratch, losses, weights, count, outputs[0])), orders)


def _cluster(problem: ScoresProblem, scores: Spec, device: Device) -> tuple[int, int] | None:
    """Blocks of the cluster that holds a row on the chip, and vectors of each thread; None where there is none."""
    vectors, capability = -(-problem.classes * scores.dtype.itemsize // 16), device.capability or (0, 0)
    share = smallest_share(vectors, 1, device)
    if share is None or scores.dtype == FLOAT64 or capability < COPIES_FROM:
        return None
    return share.blocks, share.count(vectors)


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
        held = _held(problem.classes, vector)
        cluster = None if held or not aligned else _cluster(problem, scores, device)
        if cluster is not None:
            blocks, count = cluster
            config: Config = BackwardClusterConfig(element, kind, *flags, blocks, _CLUSTER_THREADS)
            kernel = Kernel("loss/cross_entropy_backward_cluster.cu", f"cross_entropy_backward_cluster_{tail}_{blocks}", config)
            where, shared = arguments[:7], count * _CLUSTER_THREADS * 16
            plan = Plan(kernel, (lie.rows * blocks, 1, 1), _CLUSTER_THREADS, (*where, problem.classes, count, *options), shared)
        else:
            lanes, keep = held or (_LONG_LANES, _LONG_UNROLL)
            ragged, threads = problem.classes % vector != 0, lanes if lanes > 32 else THREADS
            config = BackwardRowsConfig(element, kind, *flags, ragged, held is None, vector, keep, lanes, threads)
            symbol = f"cross_entropy_backward_rows_{tail}_x{vector}_{keep}_{lanes}{'_ragged' * ragged}{'_long' * (held is None)}"
            kernel = Kernel("loss/cross_entropy_backward_rows.cu", symbol, config)
            plan = Plan(kernel, (-(-lie.rows // (threads // lanes)), 1, 1), threads, (*arguments, *options))
    else:
        unroll, kept = classes_at_once(problem.classes)
        vector = column_vector(scores, aligned, lie.inner, _KEPT_BYTES if kept else _AGAIN_BYTES)
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
