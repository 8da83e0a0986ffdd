"""`cross_entropy`: plans for the kernels over rows of scores, in the memory order that the scores have."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

from dnnarray._cuda.core.clusters import COPIES_FROM, smallest_share
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.loss_rows import (
    THREADS,
    Arrangement,
    arrangement,
    classes_at_once,
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
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT64, Spec

_COLUMN_CLASSES = (8, 7, 6, 5)  # that a thread of the forward fetches together where they do not lie beside each other
_COLUMN_HELD = 22  # and the most that it holds, where they are all
_COLUMN_BYTES, _KEPT_BYTES = 8, 8  # of neighbouring columns of a thread: in the forward, in the backward where it holds all their classes
_AGAIN_BYTES = 4  # in the backward where it reads them twice: more would ask more of the second-level cache than it holds
_LANES = (16, 32, 64, 128)  # threads of a row that they hold in registers
_MOST = 16  # vectors of a row that a thread holds in registers
_LONG_LANES, _LONG_UNROLL = 512, 4  # threads of longer rows, and the vectors of each that are on their way together


@frozen
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


@frozen
class ColumnsConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_columns.cu``."""

    element: str
    target: str
    loss: str
    probabilities: bool
    smoothing: bool
    sums: bool
    kept: bool
    vector: int
    unroll: int
    threads: int


@frozen
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


@frozen
class BackwardClusterConfig(Config):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_cluster.cu``."""

    element: str
    target: str
    probabilities: bool
    smoothing: bool
    row_gradients: bool
    blocks: int
    threads: int


@frozen
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


class _Call(NamedTuple):
    """What the launches of one call share: the settings that kernels begin with, the end of their names, the scores' arrangement, the arguments
    up to the number of rows and behind the extents."""

    settings: dict[str, Any]
    tail: str
    scores: Spec
    lie: Arrangement
    classes: int
    arguments: tuple[Any, ...]
    options: tuple[Any, ...]
    aligned: bool

    def held(self) -> tuple[int, int] | None:
        """Threads of a row and vectors of each, powers of two; None for rows that are too long for registers."""
        vectors = -(-self.classes // self.vector)
        for lanes in _LANES:
            if vectors <= lanes * (2 if lanes < 32 else _MOST):
                return lanes, 1 << (-(-vectors // lanes) - 1).bit_length()
        return None

    @property
    def vector(self) -> int:
        return vector_length(self.scores.dtype, self.aligned)

    @property
    def ragged(self) -> bool:
        return self.classes % self.vector != 0

    def columns(self, size: int) -> int:
        """Columns of a thread: `size` bytes, or fewer where the columns are not a multiple."""
        itemsize = self.scores.dtype.itemsize
        return min(vector_length(self.scores.dtype, self.aligned, self.lie.inner), max(size // itemsize, 1))

    def by_rows(self, source: str, symbol: str, config: Config, lanes: int, threads: int) -> Plan:
        kernel = Kernel(f"loss/{source}.cu", symbol, config)
        return Plan(kernel, (-(-self.lie.rows // (threads // lanes)), 1, 1), threads, (*self.arguments, self.classes, *self.options))

    def by_columns(self, source: str, symbol: str, config: Config, vector: int) -> Plan:
        kernel = Kernel(f"loss/{source}.cu", symbol, config)
        grid = (-(-self.lie.rows // (THREADS * vector)), 1, 1)
        return Plan(kernel, grid, THREADS, (*self.arguments, self.classes, self.lie.inner, *self.options))


def _settings(problem: ScoresProblem, scores: Spec, target: str) -> dict[str, Any]:
    """The settings that all kernels begin with; `target` is the type of its elements."""
    smoothing = problem.label_smoothing > 0 and not problem.probabilities
    return {"element": TYPES[scores.dtype], "target": target, "probabilities": problem.probabilities, "smoothing": smoothing}


def _forward_rows(call: _Call) -> Plan:
    lanes, unroll = call.held() or (_LONG_LANES, _LONG_UNROLL)
    threads = lanes if lanes > 32 else THREADS
    config = RowsConfig(**call.settings, ragged=call.ragged, vector=call.vector, unroll=unroll, lanes=lanes, threads=threads)
    symbol = f"cross_entropy_rows_{call.tail}_{unroll}x{call.vector}_{lanes}{'_ragged' * call.ragged}"
    return call.by_rows("cross_entropy_rows", symbol, config, lanes, threads)


def _forward_columns(call: _Call) -> Plan:
    vector = call.columns(_COLUMN_BYTES)
    unroll, kept = classes_at_once(call.classes)
    if unroll > _COLUMN_HELD or call.scores.dtype == FLOAT64 or call.settings["probabilities"] or call.settings["smoothing"]:
        kept = False  # more than registers hold
    if not kept:
        unroll = min(_COLUMN_CLASSES, key=lambda n: -(-call.classes // n) * n)
    config = ColumnsConfig(**call.settings, kept=kept, vector=vector, unroll=unroll, threads=THREADS)
    symbol = f"cross_entropy_columns_{call.tail}_{unroll}x{vector}{'_kept' * kept}"
    return call.by_columns("cross_entropy_columns", symbol, config, vector)


def cross_entropy(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The losses of all rows, then their reduction."""
    scores, target, _ = problem.inputs
    inputs, outputs, last = pointers(problem)
    if not math.prod(problem.rows):
        return nothing_to_do(problem, outputs[0])
    scratch, losses, weights = forward_scratch(problem, last, inputs, outputs)
    lie = arrangement(problem, scores, any_order=problem.reduction != "none" and not problem.return_lse)
    (kind, name), summed = target_type(problem, target), problem.reduction != "none"
    settings = _settings(problem, scores, kind) | {"loss": TYPES[arithmetic(scores) if summed else scores.dtype], "sums": summed}
    tail = f"{SHORT[scores.dtype]}_{name}{'_smoothing' * settings['smoothing']}{'_sum' * summed}"
    lse = outputs[1] if problem.return_lse else NOTHING
    options = (problem.ignore_index, float(problem.label_smoothing))
    call = _Call(settings, tail, scores, lie, problem.classes, (*inputs, losses, weights, lse, lie.rows), options, aligned)
    short = (*inputs, NOTHING, losses, weights, lse, NOTHING)
    first = several_rows(problem, scores, target, short, lie.rows, False, aligned) if lie.inner == 1 else _forward_columns(call)
    first = first or _forward_rows(call)
    orders = memory_orders(problem, lie, target=1)
    return Program((first, *finish(problem, scratch, losses, weights, first.grid[0], outputs[0])), orders)


def _backward_cluster(call: _Call, device: Device) -> Plan | None:
    """Rows that a cluster of blocks holds on the chip; None where there is none."""
    vectors, capability = -(-call.classes * call.scores.dtype.itemsize // 16), device.capability or (0, 0)
    share = smallest_share(vectors, 1, device)
    if share is None or not call.aligned or call.scores.dtype == FLOAT64 or capability < COPIES_FROM:
        return None
    config = BackwardClusterConfig(**call.settings, blocks=share.blocks, threads=share.threads)
    kernel = Kernel("loss/cross_entropy_backward_cluster.cu", f"cross_entropy_backward_cluster_{call.tail}_{share.blocks}", config)
    arguments = (*call.arguments[:-1], call.classes, share.count(vectors), *call.options)
    return Plan(kernel, (call.lie.rows * share.blocks, 1, 1), share.threads, arguments, share.memory(vectors, 1))


def _backward_rows(call: _Call, device: Device) -> Plan:
    held = call.held()
    cluster = None if held else _backward_cluster(call, device)
    if cluster is not None:
        return cluster
    lanes, keep = held or (_LONG_LANES, _LONG_UNROLL)
    threads, long = lanes if lanes > 32 else THREADS, held is None
    config = BackwardRowsConfig(**call.settings, ragged=call.ragged, long=long, vector=call.vector, keep=keep, lanes=lanes, threads=threads)
    symbol = f"cross_entropy_backward_rows_{call.tail}_x{call.vector}_{keep}_{lanes}{'_ragged' * call.ragged}{'_long' * long}"
    return call.by_rows("cross_entropy_backward_rows", symbol, config, lanes, threads)


def _backward_columns(call: _Call) -> Plan:
    unroll, kept = classes_at_once(call.classes)
    vector = call.columns(_KEPT_BYTES if kept else _AGAIN_BYTES)
    config = BackwardColumnsConfig(**call.settings, kept=kept, unroll=unroll, vector=vector, threads=THREADS)
    symbol = f"cross_entropy_backward_columns_{call.tail}_{unroll}x{vector}{'_kept' * kept}"
    return call.by_columns("cross_entropy_backward_columns", symbol, config, vector)


def cross_entropy_backward(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The sums of the labels' weights where the mean needs them, then the gradients of all rows."""
    _, scores, target, _, _ = problem.inputs
    if not scores.size:
        return Program(())
    (grad, z, labels, weight, _), outputs, last = pointers(problem)
    sums, total, parts = total_weight(problem, labels, weight, Scratch(last))
    lie = arrangement(problem, scores, any_order=True)
    (kind, name), own = target_type(problem, target), problem.reduction == "none"
    settings = _settings(problem, scores, kind) | {"row_gradients": own}
    tail = f"{SHORT[scores.dtype]}_{name}{'_smoothing' * settings['smoothing']}{'_rows' * own}"
    arguments = (grad, z, labels, weight, total, outputs[0], *(outputs[1:] or (NOTHING,)), lie.rows)
    options = (problem.ignore_index, float(problem.label_smoothing), float(divisor(problem)), parts)
    call = _Call(settings, tail, scores, lie, problem.classes, arguments, options, aligned)
    short = (z, labels, weight, grad, NOTHING, total, NOTHING, outputs[0])
    plan = several_rows(problem, scores, target, short, lie.rows, True, aligned, parts) if lie.inner == 1 else _backward_columns(call)
    plan = replace(plan or _backward_rows(call, device), early=True)
    return Program((*sums, plan), memory_orders(problem, lie, target=2))


def _two_orders(problem: ScoresProblem, device: Device) -> str | None:
    """The gradients lie as their arrays do, and one pass in the order of the scores writes both."""
    _, scores, target, _, _ = problem.inputs
    if problem.probabilities and problem.outputs[1] is not None and scores.like() != target.like():
        return "logits and probabilities lie in different memory orders; copy one of them into the order of the other"
    return None


ALGORITHMS = {
    "cross_entropy": (Method("online", cross_entropy, "one pass over the scores with a running maximum", workspace=forward_bytes),),
    "cross_entropy_backward": (
        Method("online", cross_entropy_backward, "softmax less target, rows in registers", rejects=_two_orders, workspace=total_bytes),
    ),
}
