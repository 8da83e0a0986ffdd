"""`linear_cross_entropy`: blocks of rows against blocks of the vocabulary, with a running log-sum-exp; no array of all scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from dnnarray._cpu.loss_rows import Labels, Statistics, deliver, flattened, labels, losses, reduce, row_factors, weight_sum
from dnnarray._problems.loss import LinearProblem
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


_LARGE = Block(512, 2048)  # 4 MB of float32: large enough for a matrix product at full rate, small enough for the caches
_SMALL = Block(32, 128)


class Layer:
    """x, w and bias as matrices, and the memory that the blocks of one call share."""

    def __init__(self, block: Block, scratch: np.ndarray, x: np.ndarray, w: np.ndarray, bias: np.ndarray | None) -> None:
        self.x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        self.w, self.bias, self.block = w, bias, block
        memory = scratch[: scratch.size // x.itemsize * x.itemsize].view(x.dtype)
        scores, features = block.rows * block.classes, x.shape[-1]
        self._scores = memory[:scores]
        self._products = memory[scores : scores + max(block.rows, block.classes) * features]

    def row_blocks(self) -> Iterator[slice]:
        return (slice(i, i + self.block.rows) for i in range(0, len(self.x), self.block.rows))

    def class_blocks(self) -> Iterator[slice]:
        return (slice(i, i + self.block.classes) for i in range(0, len(self.w), self.block.classes))

    def scores(self, rows: slice, classes: slice) -> np.ndarray:
        """The scores of a block, in the shared memory."""
        x, w = self.x[rows], self.w[classes]
        z = self._scores[: len(x) * len(w)].reshape(len(x), len(w))
        np.matmul(x, w.T, out=z)
        if self.bias is not None:
            z += self.bias[classes]
        return z

    def add_product(self, a: np.ndarray, b: np.ndarray, total: np.ndarray, first: bool) -> None:
        """total = a @ b for the first term of a sum, total += a @ b for the others, by way of the shared memory."""
        if first:
            np.matmul(a, b, out=total)
            return
        product = self._products[: total.size].reshape(total.shape)
        total += np.matmul(a, b, out=product)


def _workspace(block: Block, gradients: bool, problem: LinearProblem) -> int:
    """Bytes for the scores of one block and, for the gradients, for one product with them."""
    block = block.fitted(problem)
    itemsize = FLOAT64.itemsize if problem.inputs[0].dtype == FLOAT64 else FLOAT32.itemsize
    elements = block.rows * block.classes
    if gradients:
        elements += max(block.rows, block.classes) * problem.features
    return elements * itemsize


def _cost(block: Block, gradients: bool, problem: LinearProblem, device: Device) -> Cost:
    """Every block of scores is one matrix product (three or four for the gradients) and about a dozen passes over it."""
    count = max(-(-math.prod(problem.rows) // block.rows), 1) * -(-problem.classes // block.classes)
    efficiency = 0.7 if block is _LARGE else 0.2
    return Cost(problem.flops, problem.bytes, efficiency, (16 if gradients else 12) * count)


def _labels_of_block(chosen: Labels, rows: slice, classes: slice, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a block whose label is among its classes, and the label's position there."""
    position = chosen.index[rows] - classes.start
    inside = np.flatnonzero((position >= 0) & (position < count))
    return inside, position[inside]


def _statistics(problem: LinearProblem, layer: Layer, chosen: Labels, weight: np.ndarray | None) -> Statistics:
    parts = ((rows, _row_statistics(problem, layer, chosen, weight, rows)) for rows in layer.row_blocks())
    return Statistics.assembled(chosen.index.shape, layer.x.dtype, problem.label_smoothing > 0, parts)


def _row_statistics(problem: LinearProblem, layer: Layer, chosen: Labels, weight: np.ndarray | None, rows: slice) -> Statistics:
    """Over the blocks of the vocabulary: the maximum so far, and the sum of exponentials below it."""
    size, dtype = len(layer.x[rows]), layer.x.dtype
    peak, total = np.full(size, -np.inf, dtype), np.zeros(size, dtype)
    picked, smooth = np.empty(size, dtype), np.zeros(size, dtype) if problem.label_smoothing else None
    for classes in layer.class_blocks():
        z = layer.scores(rows, classes)
        inside, position = _labels_of_block(chosen, rows, classes, z.shape[1])
        picked[inside] = z[inside, position]
        if smooth is not None:
            smooth += z.sum(1) if weight is None else z @ weight[classes]
        higher = np.maximum(peak, z.max(1))
        shift = np.where(np.isneginf(higher), dtype.type(0), higher)  # a block of -inf adds nothing; -inf - -inf would be NaN
        total *= np.exp(peak - shift)
        z -= shift[:, None]
        total += np.exp(z, out=z).sum(1)
        peak = higher
    if smooth is not None:
        smooth -= peak * weight_sum(problem, weight)
    return Statistics(peak, np.log(total), picked - peak, smooth)


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
    layer = Layer(block.fitted(problem), scratch, x, w, bias)
    chosen = labels(problem, target, weight, layer.x.shape[:1])
    found = _statistics(problem, layer, chosen, weight)
    reduce(problem, losses(problem, found, chosen, weight), chosen.total, outputs[0])
    if problem.return_lse:
        outputs[1][...] = found.lse().reshape(problem.rows)


def _backward(
    block: Block,
    problem: LinearProblem,
    outputs: tuple[np.ndarray, ...],
    scratch: np.ndarray,
    grad: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    target: np.ndarray,
    bias: np.ndarray | None,
    weight: np.ndarray | None,
    lse: np.ndarray | None,
) -> None:
    layer = Layer(block.fitted(problem), scratch, x, w, bias)
    chosen = labels(problem, target, weight, layer.x.shape[:1])
    known = _statistics(problem, layer, chosen, weight).lse() if lse is None else lse.reshape(chosen.index.shape)
    gradients = Gradients(problem, layer, chosen, weight, known, row_factors(problem, grad, chosen, weight))
    dx, dw, db = outputs
    flat = flattened(dx, layer.x.shape)
    if not len(layer.x):
        dw[...] = 0  # no block of rows comes by to write it
    total_bias = np.zeros(len(w), w.dtype)
    gradients.accumulate(flat, dw, total_bias)
    deliver(flat, dx)
    if bias is not None:
        db[...] = total_bias


@dataclass
class Gradients:
    """All that the gradient of a block of scores depends on."""

    problem: LinearProblem
    layer: Layer
    chosen: Labels
    weight: np.ndarray | None
    lse: np.ndarray
    factors: tuple[np.ndarray, ...]

    def of_scores(self, rows: slice, classes: slice) -> np.ndarray:
        """The gradient of one block of scores, in the place of the scores."""
        both, smooth, hard = (f[rows] for f in self.factors)
        z = self.layer.scores(rows, classes)
        z -= self.lse[rows][:, None]
        np.exp(z, out=z)
        z *= both[:, None]
        if self.problem.label_smoothing:
            z -= smooth[:, None] if self.weight is None else smooth[:, None] * self.weight[classes]
        inside, position = _labels_of_block(self.chosen, rows, classes, z.shape[1])
        z[inside, position] -= hard[inside]
        return z

    def accumulate(self, dx: np.ndarray, dw: np.ndarray, db: np.ndarray) -> None:
        layer = self.layer
        for classes in layer.class_blocks():
            for rows in layer.row_blocks():
                dz = self.of_scores(rows, classes)
                layer.add_product(dz, layer.w[classes], dx[rows], first=classes.start == 0)
                layer.add_product(dz.T, layer.x[rows], dw[classes], first=rows.start == 0)
                db[classes] += dz.sum(0)


def _method(name: str, block: Block, gradients: bool) -> Method:
    return Method(
        name,
        partial(_backward if gradients else _forward, block),
        f"blocks of {block.rows} rows by {block.classes} classes" + (", computed again for the gradient" if gradients else ""),
        workspace=partial(_workspace, block, gradients),
        cost=partial(_cost, block, gradients),
    )


ALGORITHMS = {
    f"linear_cross_entropy{suffix}": (_method("blocks", _LARGE, bool(suffix)), _method("small_blocks", _SMALL, bool(suffix)))
    for suffix in ("", "_backward")
}
