"""`linear_cross_entropy`: blocks of rows against blocks of the vocabulary, with a running log-sum-exp; no array of all
scores.

With a tape the scores of a block of rows are held for the whole vocabulary, and become their gradients where they
stand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dnnarray._cpu.loss.rows import Labels, Statistics, deliver, flattened, labels, losses, reduce, row_factors
from dnnarray._cpu.products import spread, whole
from dnnarray._cpu.sums import add_exactly, of_rows
from dnnarray._cpu.sums import total as sum_of
from dnnarray._problems.loss_linear import LinearProblem, with_a_tape, without_a_tape
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT32, FLOAT64


@frozen
class Block:
    """The largest block of scores: rows by classes."""

    rows: int
    classes: int

    def fitted(self, problem: LinearProblem) -> Block:
        """No larger than the problem."""
        return Block(max(min(self.rows, math.prod(problem.rows)), 1), min(self.classes, problem.classes))


_LARGE = Block(
    512, 2048
)  # 4 MB of float32: large enough for a matrix product at full rate, small enough for the caches
_SMALL = Block(32, 128)
_MANY = 64  # blocks, the sums over more of which keep what rounding leaves


class Layer:
    """x, w and bias as matrices, and the memory that the blocks of one call share."""

    def __init__(
        self,
        problem: LinearProblem,
        block: Block,
        scratch: np.ndarray,
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None,
    ) -> None:
        self.x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        self.w, self.bias, self.block = w, bias, block.fitted(problem)
        memory = scratch[: scratch.size // x.itemsize * x.itemsize].view(x.dtype)
        shares = _shares(self.block, problem)
        self._scores, self._products, self._held, self._rest_x, self._rest_w = np.split(
            memory[: sum(shares)], np.cumsum(shares[:-1])
        )

    def row_blocks(self) -> Iterator[slice]:
        return (slice(i, i + self.block.rows) for i in range(0, len(self.x), self.block.rows))

    def class_blocks(self) -> Iterator[slice]:
        return (slice(i, i + self.block.classes) for i in range(0, len(self.w), self.block.classes))

    def place(self, rows: slice, classes: slice) -> np.ndarray:
        """Where the scores of a block go: all to the shared memory, or, held, each to its own place in that of its
        rows."""
        shape = len(self.x[rows]), len(self.w[classes])
        memory = self._held[self.block.rows * classes.start :] if self._held.size else self._scores
        return memory[: math.prod(shape)].reshape(shape)

    def spare(self, z: np.ndarray) -> np.ndarray:
        """Memory for what the statistics make of the scores of a block: their own where they are not held."""
        return self._scores[: z.size].reshape(z.shape)

    def scores(self, rows: slice, classes: slice) -> np.ndarray:
        """The scores of a block, in their place."""
        z = self.place(rows, classes)
        spread(self.x[rows], self.w[classes].T, z, whole)
        if self.bias is not None:
            z += self.bias[classes]
        return z

    def add_to_x(self, slopes: np.ndarray, rows: slice, classes: slice, dx: np.ndarray) -> None:
        """What a block of scores adds to the gradient of x."""
        rest = self._rest_x if self._held.size else self._rest_x[rows.start * dx.shape[1] :]
        self._add_product(slopes, self.w[classes], dx[rows], rest, classes.start == 0, classes.stop >= len(self.w))

    def add_to_w(self, slopes: np.ndarray, rows: slice, classes: slice, dw: np.ndarray) -> None:
        """What a block of scores adds to the gradient of w."""
        self._add_product(slopes.T, self.x[rows], dw[classes], self._rest_w, rows.start == 0, rows.stop >= len(self.x))

    def _add_product(
        self, a: np.ndarray, b: np.ndarray, total: np.ndarray, rest: np.ndarray, first: bool, last: bool
    ) -> None:
        """total = a @ b for the first term of a sum, total += a @ b for the others, by way of the shared memory.

        Of sums of many terms, what rounding leaves stays in `rest` until the last one.
        """
        rest = rest[: total.size].reshape(total.shape) if rest.size else rest
        if first:
            spread(a, b, total, whole)
            rest[...] = 0
            return
        product = spread(a, b, self._products[: total.size].reshape(total.shape), whole)
        if not rest.size:
            total += product
            return
        add_exactly(total, rest, product)
        if last:
            total += rest


def _shares(block: Block, problem: LinearProblem) -> tuple[int, ...]:
    """Numbers of scratch memory: for the scores of one block, for one product with their gradients, for the scores that
    are held, and for what is left of rounded sums: in the gradient of x, and in that of a block of w; with a tape, the
    sums for all of w go on side by side, and keep nothing."""
    scores, rows = block.rows * block.classes, math.prod(problem.rows)
    of_x, of_w, _ = problem.summed
    products = max(block.rows * of_x, block.classes * of_w) * problem.features
    many_classes, many_rows = problem.classes > _MANY * block.classes, rows > _MANY * block.rows
    rest_x = (block.rows if problem.taped else rows) * problem.features if many_classes and of_x else 0
    rest_w = block.classes * problem.features if many_rows and of_w and not problem.taped else 0
    return scores, products, block.rows * problem.classes if problem.taped else 0, rest_x, rest_w


def _workspace(block: Block, problem: LinearProblem) -> int:
    itemsize = FLOAT64.itemsize if problem.x.dtype == FLOAT64 else FLOAT32.itemsize
    return sum(_shares(block.fitted(problem), problem)) * itemsize


def _cost(block: Block, gradients: bool, problem: LinearProblem, device: Device) -> Cost:
    """Every block of scores is one matrix product (three or four for the gradients) and about a dozen passes over
    it."""
    count = max(-(-math.prod(problem.rows) // block.rows), 1) * -(-problem.classes // block.classes)
    efficiency = 0.7 if block is _LARGE else 0.2
    return Cost(problem.flops, problem.bytes, efficiency, (16 if gradients or problem.taped else 12) * count)


def _labels_of_block(chosen: Labels, rows: slice, classes: slice, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a block whose label is among its classes, and the label's position there."""
    position = chosen.index[rows] - classes.start
    inside = np.flatnonzero((position >= 0) & (position < count))
    return inside, position[inside]


def _statistics(problem: LinearProblem, layer: Layer, chosen: Labels, weight: np.ndarray | None) -> Statistics:
    parts = ((rows, _row_statistics(problem, layer, chosen, weight, rows)) for rows in layer.row_blocks())
    return Statistics.assembled(chosen.index.shape, problem.label_smoothing > 0, parts)


def _row_statistics(
    problem: LinearProblem, layer: Layer, chosen: Labels, weight: np.ndarray | None, rows: slice
) -> Statistics:
    """Over the blocks of the vocabulary: the maximum so far, and the sums of the exponentials and of the weighted
    scores below it."""
    size, dtype = len(layer.x[rows]), layer.x.dtype
    peak, total = np.full(size, -np.inf, dtype), np.zeros(size)
    picked, smooth, weights = np.empty(size, dtype), np.zeros(size) if problem.label_smoothing else None, 0.0
    for classes in layer.class_blocks():
        z = layer.scores(rows, classes)
        inside, position = _labels_of_block(chosen, rows, classes, z.shape[1])
        picked[inside] = z[inside, position]
        below = layer.spare(z)
        higher = np.maximum(peak, z.max(1))
        shift = np.where(
            np.isneginf(higher), dtype.type(0), higher
        )  # a block of -inf adds nothing; -inf - -inf would be NaN
        total *= np.exp(peak - shift)
        np.subtract(z, shift[:, None], out=below)
        if smooth is not None:
            if weights:
                smooth += np.subtract(peak, shift, dtype=FLOAT64) * weights
            weights += z.shape[1] if weight is None else float(weight[classes].sum(dtype=FLOAT64))
            smooth += sum_of(below, (1,), None if weight is None else weight[None, classes])[:, 0]
        total += sum_of(np.exp(below, out=below), (1,))[:, 0]
        peak = higher
    return Statistics(
        peak.astype(FLOAT64), np.log(total, dtype=FLOAT64), np.subtract(picked, peak, dtype=FLOAT64), smooth
    )


def _forward(
    block: Block,
    problem: LinearProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    target: np.ndarray,
    bias: np.ndarray | None,
    weight: np.ndarray | None,
) -> None:
    layer = Layer(problem, block, scratch, x, w, bias)
    chosen = labels(problem, target, weight, layer.x.shape[:1])
    if problem.taped:
        found = _with_gradients(problem, layer, chosen, weight, outputs[-1])
    else:
        found = _statistics(problem, layer, chosen, weight)
    reduce(problem, losses(problem, found, chosen, weight), chosen.total, outputs[0])
    if problem.return_lse:
        outputs[1][...] = found.lse().reshape(problem.rows)


def _with_gradients(
    problem: LinearProblem, layer: Layer, chosen: Labels, weight: np.ndarray | None, out: np.ndarray
) -> Statistics:
    """The statistics, and on the tape the gradients for a loss whose gradient is 1: of each block of rows, while its
    scores are held."""
    tape = out if out.flags.carray else np.empty_like(out, order="C", subok=False)
    dx, dw, db = (tape[first : first + size] for first, size in problem.tape_parts)
    if not len(layer.x):
        tape[...] = 0
    (known, rest), one = np.empty((2, *chosen.index.shape), layer.x.dtype), np.ones((), layer.x.dtype)
    of_bias = np.zeros(db.size)
    gradients = Gradients(
        problem, layer, chosen, weight, (known, rest), row_factors(problem, one, chosen, weight), of_bias
    )

    def parts() -> Iterator[tuple[slice, Statistics]]:
        for rows in layer.row_blocks():
            found = _row_statistics(problem, layer, chosen, weight, rows)
            known[rows], rest[rows] = found.peak, found.log_sum
            for classes in layer.class_blocks():
                gradients.accumulate(
                    layer.place(rows, classes), rows, classes, dx.reshape(layer.x.shape), dw.reshape(layer.w.shape)
                )
            yield rows, found

    found = Statistics.assembled(chosen.index.shape, problem.label_smoothing > 0, parts())
    db[...] = of_bias
    if tape is not out:
        out[...] = tape
    return found


def _backward(
    block: Block,
    problem: LinearProblem,
    outputs: tuple[np.ndarray | None, ...],
    scratch: np.ndarray,
    grad: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    target: np.ndarray,
    bias: np.ndarray | None,
    weight: np.ndarray | None,
    lse: np.ndarray | None,
    tape: None,
) -> None:
    layer = Layer(problem, block, scratch, x, w, bias)
    chosen = labels(problem, target, weight, layer.x.shape[:1])
    known: tuple[np.ndarray, ...]
    if lse is None:
        found = _statistics(problem, layer, chosen, weight)
        known = found.peak.astype(layer.x.dtype), found.log_sum.astype(layer.x.dtype)
    else:
        known = (lse.reshape(chosen.index.shape),)
    dx, dw, db = outputs
    of_bias = np.zeros(0 if db is None else db.size)
    gradients = Gradients(problem, layer, chosen, weight, known, row_factors(problem, grad, chosen, weight), of_bias)
    flat = None if dx is None else flattened(dx, layer.x.shape)
    if not len(layer.x) and dw is not None:
        dw[...] = 0  # no block of rows comes by to write it
    for classes in layer.class_blocks():
        for rows in layer.row_blocks():
            gradients.accumulate(layer.scores(rows, classes), rows, classes, flat, dw)
    if flat is not None and dx is not None:
        deliver(flat, dx)
    if db is not None:
        db[...] = of_bias


def _scaled(
    problem: LinearProblem, outputs: tuple[np.ndarray, ...], scratch: np.ndarray, grad: np.ndarray, *arrays: Any
) -> None:
    """The gradients on the tape, the last array, times that of the loss."""
    for (first, size), out in zip(problem.tape_parts, outputs, strict=True):
        if out is not None:
            np.multiply(arrays[-1][first : first + size].reshape(out.shape), grad, out=out)


@dataclass
class Gradients:
    """All that the gradient of a block of scores depends on, and where its sums for the bias go; empty where they are
    not wanted.

    `lse` is the log-sum-exp, or the largest score and the logarithm of the sum below it, which round less.
    """

    problem: LinearProblem
    layer: Layer
    chosen: Labels
    weight: np.ndarray | None
    lse: tuple[np.ndarray, ...]
    factors: tuple[np.ndarray, ...]
    bias: np.ndarray

    def of_scores(self, z: np.ndarray, rows: slice, classes: slice) -> None:
        """The gradient of one block of scores, in the place of the scores."""
        both, smooth, hard = (f[rows] for f in self.factors)
        for part in self.lse:
            z -= part[rows][:, None]
        np.exp(z, out=z)
        z *= both[:, None]
        if self.problem.label_smoothing:
            z -= smooth[:, None] if self.weight is None else smooth[:, None] * self.weight[classes]
        inside, position = _labels_of_block(self.chosen, rows, classes, z.shape[1])
        z[inside, position] -= hard[inside]

    def accumulate(
        self, z: np.ndarray, rows: slice, classes: slice, dx: np.ndarray | None, dw: np.ndarray | None
    ) -> None:
        """What a block of scores, which are lost, adds to the sums that are wanted; the first block of a sum begins
        it."""
        self.of_scores(z, rows, classes)
        if dx is not None:
            self.layer.add_to_x(z, rows, classes, dx)
        if dw is not None:
            self.layer.add_to_w(z, rows, classes, dw)
        if self.bias.size:
            self.bias[classes] += of_rows(z)


def _method(name: str, block: Block, gradients: bool) -> Method:
    return Method(
        name,
        partial(_backward if gradients else _forward, block),
        f"blocks of {block.rows} rows by {block.classes} classes"
        + (", computed again for the gradient" if gradients else ""),
        rejects=with_a_tape,
        workspace=partial(_workspace, block),
        cost=partial(_cost, block, gradients),
    )


def _methods(gradients: bool) -> tuple[Method, ...]:
    return _method("blocks", _LARGE, gradients), _method("small_blocks", _SMALL, gradients)


_TAPE = Method("tape", _scaled, "the gradients that the forward left on its tape, scaled", without_a_tape)

ALGORITHMS = {"linear_cross_entropy": _methods(False), "linear_cross_entropy_backward": (*_methods(True), _TAPE)}
