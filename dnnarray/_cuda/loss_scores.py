"""`cross_entropy` and `nll_loss`: plans for the kernels over rows of scores, in the memory order that the scores have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dnnarray._cuda.loss_sums import INTEGERS, NOTHING, Scratch, arithmetic, blocks_for, label_weights, mean, pointers, reduced
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, vector_length
from dnnarray._cuda.zero import zero
from dnnarray._problems.loss import ScoresProblem
from dnnarray._select import Device, Method
from dnnarray._spec import Spec

_THREADS = 128
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


@dataclass(frozen=True)
class NllConfig(Config):
    """Compile-time settings of ``kernels/loss/nll.cu``."""

    element: str
    target: str
    loss: str
    gradient: bool
    row_gradients: bool
    threads: int


@dataclass(frozen=True)
class _Arrangement:
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


def _arrangement(problem: ScoresProblem, scores: Spec, any_order: bool) -> _Arrangement:
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
    return _Arrangement(order, row_order, math.prod(extents[:place]), math.prod(extents[place + 1 :]))


def _target(problem: ScoresProblem, target: Spec) -> tuple[str, str]:
    """Type and short name of the target's elements; those of probabilities are the scores' own."""
    return ("char", "probabilities") if problem.probabilities else (INTEGERS[target.dtype], target.dtype.name)


def _lanes(classes: int, most: tuple[tuple[int, int], ...], longest: int) -> int:
    """Threads of a row: the first entry whose number of classes is enough."""
    return next((lanes for lanes, limit in most if classes <= limit), longest)


_SHORT_ROWS = 4  # rows that part of a warp holds at once
_COLUMN_CLASSES = 8  # that a thread of the forward fetches together where they do not lie beside each other
_AT_ONCE = 8  # elements that a thread of the forward loads before it computes
_FORWARD_LANES = ((8, 128), (32, 2048), (128, 16384))


def _forward(problem: ScoresProblem, scratch_index: int, inputs: list[Any], outputs: list[Any]) -> tuple[Scratch, Any, Any]:
    """Where the losses of the rows and their weights go."""
    scratch, scores = Scratch(scratch_index), problem.inputs[0]
    rows, itemsize = math.prod(problem.rows), arithmetic(scores).itemsize
    if problem.reduction == "none":
        return scratch, outputs[0], NOTHING
    losses = scratch.take(rows, itemsize)
    weighted = problem.reduction == "mean" and not problem.probabilities
    return scratch, losses, scratch.take(rows, itemsize) if weighted else NOTHING


def _forward_bytes(problem: ScoresProblem) -> int:
    """The rows' losses and weights, and partial sums of both."""
    rows = math.prod(problem.rows)
    if problem.reduction == "none" or not rows:
        return 0
    itemsize = arithmetic(problem.inputs[0]).itemsize
    return _forward(problem, 0, [], [None])[0].size + 2 * (blocks_for(rows) * itemsize + 16)


def _divisor(problem: ScoresProblem) -> float:
    """What a sum over rows is divided by where that is known without the labels."""
    return math.prod(problem.rows) if problem.reduction == "mean" else 1


def _finish(problem: ScoresProblem, scratch: Scratch, losses: Any, weights: Any, count: int, out: Array) -> list[Plan]:
    """The launches that reduce `count` losses, each of a row or the sum of a block's."""
    if problem.reduction == "none":
        return []
    spec = problem.inputs[0]
    return reduced(losses, weights, count, _divisor(problem), spec.dtype, arithmetic(spec), scratch, out)


def _nothing_to_do(problem: ScoresProblem, out: Array) -> Program:
    """The loss without any row: 0, or NaN for the mean."""
    dtype = problem.inputs[0].dtype
    return Program(() if problem.reduction == "none" else (mean(NOTHING, NOTHING, 0, _divisor(problem), dtype, out),))


def cross_entropy(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The losses of all rows, then their reduction."""
    scores, target, _ = problem.inputs
    inputs, outputs, last = pointers(problem)
    if not math.prod(problem.rows):
        return _nothing_to_do(problem, outputs[0])
    scratch, losses, weights = _forward(problem, last, inputs, outputs)
    lie = _arrangement(problem, scores, any_order=problem.reduction != "none" and not problem.return_lse)
    element, short = TYPES[scores.dtype], SHORT[scores.dtype]
    kind, name = _target(problem, target)
    loss = element if problem.reduction == "none" else TYPES[arithmetic(scores)]
    flags = (problem.probabilities, problem.label_smoothing > 0 and not problem.probabilities)
    tail = f"{short}_{name}{'_smoothing' * flags[1]}{'_sum' * (problem.reduction != 'none')}"
    lse = outputs[1] if problem.return_lse else NOTHING
    options = (problem.ignore_index, float(problem.label_smoothing))
    arguments = (*inputs, losses, weights, lse, lie.rows, problem.classes)
    short_rows = (*inputs, NOTHING, losses, weights, lse, NOTHING)
    plan = _short(problem, scores, target, short_rows, lie.rows, False, aligned) if lie.inner == 1 else None
    if plan is not None:
        count, first = plan.grid[0], plan
    elif lie.inner == 1:
        vector = vector_length(scores.dtype, aligned)
        lanes, ragged = _lanes(problem.classes, _FORWARD_LANES, 512), problem.classes % vector != 0
        threads = max(lanes, _THREADS)
        unroll = next(n for n in (1, 2, 4, 8) if n * lanes * vector >= problem.classes or n * vector >= _AT_ONCE)
        config: Config = RowsConfig(element, kind, loss, *flags, problem.reduction != "none", ragged, vector, unroll, lanes, threads)
        symbol = f"cross_entropy_rows_{tail}_{unroll}x{vector}_{lanes}{'_ragged' * ragged}"
        kernel = Kernel("loss/cross_entropy_rows.cu", symbol, config)
        count = grid = -(-lie.rows // (threads // lanes))
        first = Plan(kernel, (grid, 1, 1), threads, (*arguments, *options))
    else:
        vector = _column_vector(scores, aligned, lie.inner)
        unroll = _COLUMN_CLASSES
        config = ColumnsConfig(element, kind, loss, *flags, problem.reduction != "none", vector, unroll, _THREADS)
        kernel = Kernel("loss/cross_entropy_columns.cu", f"cross_entropy_columns_{tail}_{unroll}x{vector}", config)
        count = grid = -(-lie.rows // (_THREADS * vector))
        first = Plan(kernel, (grid, 1, 1), _THREADS, (*arguments, lie.inner, *options))
    orders = _orders(problem, lie, target=1)
    return Program((first, *_finish(problem, scratch, losses, weights, count, outputs[0])), orders)


def _short(
    problem: ScoresProblem, scores: Spec, target: Spec, arguments: tuple[Any, ...], rows: int, gradient: bool, aligned: bool
) -> Plan | None:
    """The launch for rows of which a part of a warp holds several at once; None where they are longer."""
    vector = vector_length(scores.dtype, aligned, problem.classes)
    lanes = max(_SHORT_ROWS, 1 << (problem.classes // vector - 1).bit_length())
    if problem.probabilities or problem.label_smoothing > 0 or lanes > 32:
        return None
    each, sums = problem.reduction == "none", problem.reduction != "none" and not gradient
    loss = TYPES[scores.dtype] if each else TYPES[arithmetic(scores)]
    flags = (gradient, gradient and each, sums)
    config = ShortConfig(TYPES[scores.dtype], INTEGERS[target.dtype], loss, *flags, vector, lanes, _SHORT_ROWS, _THREADS)
    kind = f"{'backward_' * gradient}{'rows' if each else 'sum'}"
    name = f"cross_entropy_short_{SHORT[scores.dtype]}_{target.dtype.name}_{kind}_x{vector}_{lanes}"
    kernel = Kernel("loss/cross_entropy_short.cu", name, config)
    grid = -(-rows // (_THREADS // lanes * _SHORT_ROWS))
    return Plan(kernel, (grid, 1, 1), _THREADS, (*arguments, rows, problem.classes, problem.ignore_index, float(_divisor(problem))))


def _classes_at_once(classes: int) -> tuple[int, bool]:
    """Classes of a column that a thread fetches together, and whether they are all."""
    unroll = next((n for n in (8, 16, 24, 32) if n >= classes), 8)
    return unroll, unroll >= classes


def _column_vector(scores: Spec, aligned: bool, inner: int) -> int:
    """Columns of a thread: 4 bytes. More would ask more of the second-level cache for the second reading than it holds."""
    return min(vector_length(scores.dtype, aligned, inner), max(4 // scores.dtype.itemsize, 1))


def _orders(problem: ScoresProblem, lie: _Arrangement, target: int) -> tuple[tuple[int, ...], ...]:
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


def _total(problem: ScoresProblem, target: Any, weight: Any, scratch: Scratch) -> tuple[list[Plan], Any]:
    """The launches that sum the weights of the labels, and where the sum is then."""
    if problem.probabilities or problem.reduction != "mean":
        return [], NOTHING
    spec, computed = problem.inputs[2], arithmetic(problem.inputs[1])
    blocks = blocks_for(spec.size)
    parts = scratch.take(blocks, computed.itemsize)
    # The weights are in the scores' dtype, and so is the kernel; its sums are in the arithmetic dtype.
    plans = [label_weights(target, spec, weight, problem.inputs[1].dtype, parts, problem.classes, problem.ignore_index)]
    if blocks == 1:
        return plans, parts
    total = scratch.take(1, computed.itemsize)
    return [*plans, mean(parts, NOTHING, blocks, 1, computed, total)], total


def _total_bytes(problem: ScoresProblem) -> int:
    if problem.probabilities or problem.reduction != "mean" or not problem.inputs[1].size:
        return 0
    return (blocks_for(problem.inputs[2].size) + 8) * arithmetic(problem.inputs[1]).itemsize


_BACKWARD_LANES = (8, 32, 128, 256, 512)
_LONG_LANES = 1024  # of rows beyond those, with fewer registers each


def _rows_in_block(classes: int, vector: int, size: int, device: Device) -> tuple[int, int, int]:
    """Threads of a row, vectors of `size` bytes that each holds in registers, and in shared memory where a row is longer."""
    most = min(_KEEP // size, 32 // vector)
    vectors = -(-classes // vector) + (classes % vector > 0)  # a ragged row may reach into one more
    lanes = _lanes(vectors, tuple((n, n * most) for n in _BACKWARD_LANES), _BACKWARD_LANES[-1])
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
    sums, total = _total(problem, labels, weight, Scratch(last))
    lie = _arrangement(problem, scores, any_order=True)
    element, short = TYPES[scores.dtype], SHORT[scores.dtype]
    kind, name = _target(problem, target)
    flags = (problem.probabilities, problem.label_smoothing > 0 and not problem.probabilities, problem.reduction == "none")
    tail = f"{short}_{name}{'_smoothing' * flags[1]}{'_rows' * flags[2]}"
    dq = outputs[1] if problem.probabilities else NOTHING
    arguments = (grad, z, labels, weight, total, outputs[0], dq, lie.rows, problem.classes)
    options = (problem.ignore_index, float(problem.label_smoothing), float(_divisor(problem)))
    short_rows = (z, labels, weight, grad, NOTHING, total, NOTHING, outputs[0])
    short_plan = _short(problem, scores, target, short_rows, lie.rows, True, aligned) if lie.inner == 1 else None
    if short_plan is not None:
        plan = short_plan
    elif lie.inner == 1:
        vector = vector_length(scores.dtype, aligned)
        lanes, keep, held = _rows_in_block(problem.classes, vector, vector * scores.dtype.itemsize, device)
        ragged, threads = problem.classes % vector != 0, max(lanes, _THREADS)
        config: Config = BackwardRowsConfig(element, kind, *flags, ragged, held > 0, vector, keep, lanes, threads)
        symbol = f"cross_entropy_backward_rows_{tail}_x{vector}_{keep}_{lanes}{'_ragged' * ragged}{'_long' * (held > 0)}"
        kernel = Kernel("loss/cross_entropy_backward_rows.cu", symbol, config)
        grid = -(-lie.rows // (threads // lanes))
        shared = held * threads * vector * scores.dtype.itemsize
        plan = Plan(kernel, (grid, 1, 1), threads, (*arguments, held, *options), shared)
    else:
        vector = _column_vector(scores, aligned, lie.inner)
        unroll, kept = _classes_at_once(problem.classes)
        config = BackwardColumnsConfig(element, kind, *flags, kept, unroll, vector, _THREADS)
        name = f"cross_entropy_backward_columns_{tail}_{unroll}x{vector}{'_kept' * kept}"
        kernel = Kernel("loss/cross_entropy_backward_columns.cu", name, config)
        grid = -(-lie.rows // (_THREADS * vector))
        plan = Plan(kernel, (grid, 1, 1), _THREADS, (*arguments, lie.inner, *options))
    return Program((*sums, plan), _orders(problem, lie, target=2))


def _two_orders(problem: ScoresProblem, device: Device) -> str | None:
    """The gradients lie as their arrays do, and one pass writes both."""
    _, scores, target, _, _ = problem.inputs
    if problem.probabilities and scores.like() != target.like():
        return "logits and probabilities lie in different memory orders; copy one of them into the order of the other"
    return None


def _nll(problem: ScoresProblem, scores: Spec, target: Spec, loss: str, gradient: bool) -> Kernel:
    rows = gradient and problem.reduction == "none"
    config = NllConfig(TYPES[scores.dtype], INTEGERS[target.dtype], loss, gradient, rows, _THREADS)
    kind = ("_backward_rows" if rows else "_backward") if gradient else "_sum" * (problem.reduction != "none")
    return Kernel("loss/nll.cu", f"nll_{SHORT[scores.dtype]}_{target.dtype.name}{kind}", config)


def nll_loss(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """The score at the label of each row, then the reduction."""
    scores, target, _ = problem.inputs
    inputs, outputs, last = pointers(problem)
    if not math.prod(problem.rows):
        return _nothing_to_do(problem, outputs[0])
    scratch, losses, weights = _forward(problem, last, inputs, outputs)
    lie = _arrangement(problem, scores, any_order=problem.reduction != "none")
    loss = TYPES[scores.dtype] if problem.reduction == "none" else TYPES[arithmetic(scores)]
    arguments = (*inputs, losses, weights, lie.rows, problem.classes, lie.inner, problem.ignore_index)
    plan = Plan(_nll(problem, scores, target, loss, False), (-(-lie.rows // _THREADS), 1, 1), _THREADS, arguments)
    return Program((plan, *_finish(problem, scratch, losses, weights, lie.rows, outputs[0])), _orders(problem, lie, target=1))


def nll_loss_backward(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    """Zeros, then what stands at the labels."""
    _, scores, target, _ = problem.inputs
    if not scores.size:
        return Program(())
    (grad, _, labels, weight), (out,), last = pointers(problem)
    sums, total = _total(problem, labels, weight, Scratch(last))
    lie = _arrangement(problem, scores, any_order=True)
    arguments = (out, labels, weight, grad, total, lie.rows, problem.classes, lie.inner, problem.ignore_index)
    kernel = _nll(problem, scores, target, TYPES[scores.dtype], True)
    plan = Plan(kernel, (-(-lie.rows // _THREADS), 1, 1), _THREADS, arguments)
    return Program((*sums, zero(out, scores.nbytes, aligned), plan), _orders(problem, lie, target=2))


ALGORITHMS = {
    "cross_entropy": (Method("online", cross_entropy, "one pass over the scores with a running maximum", workspace=_forward_bytes),),
    "cross_entropy_backward": (
        Method("online", cross_entropy_backward, "softmax less target, rows in registers", rejects=_two_orders, workspace=_total_bytes),
    ),
    "nll_loss": (Method("gather", nll_loss, "the scores at the labels", workspace=_forward_bytes),),
    "nll_loss_backward": (Method("scatter", nll_loss_backward, "zeros, then the labels", workspace=_total_bytes),),
}
