"""`linear_cross_entropy`: plans that take the scores block by block from a matrix product through bounded scratch memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from dnnarray._cuda.loss_sums import (
    INTEGERS,
    NOTHING,
    Scratch,
    arithmetic,
    blocks_for,
    label_blocks,
    label_weights,
    mean,
    pointers,
    reduced,
)
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, MatMul, Matrix, Plan, Program
from dnnarray._cuda.zero import zero
from dnnarray._problems.loss import LinearProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT32, FLOAT64, HALF, Spec

_THREADS = 128
_ROWS = 8192  # of a block of scores, at most
_BYTES = 1 << 27  # of a block of scores, and of its gradients
_CLASSES = 128  # of a block, at the least: a tile of the matrix product; larger blocks are multiples of it


@frozen
class StatisticsConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_statistics.cu``."""

    element: str
    target: str
    loss: str
    smoothing: bool
    vector: int
    threads: int


@frozen
class GradientConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_gradient.cu``."""

    element: str
    target: str
    smoothing: bool
    row_gradients: bool
    split: bool
    vector: int
    threads: int


@frozen
class WeightSumConfig(Config):
    """Compile-time settings of ``kernels/loss/weight_sum.cu``."""

    element: str
    threads: int


@frozen
class ConvertConfig(Config):
    """Compile-time settings of ``kernels/common/convert.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class _Layer:
    """The linear layer as matrices, and how its scores are divided: blocks of rows and of classes, `pitch` classes apart in memory.

    `split` says that gradients of scores in a half type come as two terms.
    """

    x: Spec
    rows: int
    classes: int
    features: int
    block_rows: int
    pitch: int
    precision: str
    split: bool

    @property
    def computed(self) -> np.dtype:
        return arithmetic(self.x)

    @property
    def score_bytes(self) -> int:
        return self.block_rows * self.pitch * self.computed.itemsize

    def row_blocks(self) -> Iterator[tuple[int, int]]:
        """First row and number of rows of each block."""
        return ((i, min(self.block_rows, self.rows - i)) for i in range(0, self.rows, self.block_rows))

    def class_blocks(self) -> Iterator[tuple[int, int]]:
        return ((i, min(self.pitch, self.classes - i)) for i in range(0, self.classes, self.pitch))

    def matrix(self, array: Array, first: int, transposed: bool = False) -> Matrix:
        """The rows of x, or of w, from `first` on."""
        row = max(self.features, 1)
        return Matrix(Array(array.index, array.offset + first * row * self.x.dtype.itemsize), row, transposed=transposed)

    def product(
        self, a: Matrix, b: Matrix, c: Matrix, m: int, n: int, k: int, result: np.dtype, alpha: float = 1, beta: float = 0
    ) -> MatMul:
        return MatMul(a, b, c, m, n, k, self.x.dtype, result, alpha=alpha, beta=beta, precision=self.precision)

    def scores(self, x: Array, w: Array, z: Array, rows: tuple[int, int], classes: tuple[int, int]) -> Plan | MatMul:
        """A block of scores without the bias; sums over no features are 0."""
        if self.features == 0:
            return zero(z, self.score_bytes, aligned=True)
        a, b = self.matrix(x, rows[0]), self.matrix(w, classes[0], transposed=True)
        return self.product(a, b, Matrix(z, self.pitch), rows[1], classes[1], self.features, self.computed)


def _layer(problem: LinearProblem, x: Spec, precision: str, gradients: bool) -> _Layer:
    rows, itemsize = math.prod(problem.rows), arithmetic(x).itemsize
    block_rows = max(min(rows, _ROWS), 1)
    width = _BYTES // (block_rows * itemsize)
    split = gradients and x.dtype in HALF and precision == "highest"
    if gradients:
        width = min(width, _BYTES // (max(rows, 1) * x.dtype.itemsize * (1 + split)))
    pitch = min(max(width // _CLASSES, 1) * _CLASSES, -(-problem.classes // 16) * 16)
    return _Layer(x, rows, problem.classes, problem.features, block_rows, pitch, precision, split)


# --- the forward ------------------------------------------------------------------------------------------------------


@frozen
class _Rows:
    """Arrays with an entry for each row, or nothing, that the statistics leave behind."""

    losses: Any
    weights: Any
    lse: Any
    state: Array
    loss: str


def _advanced(array: Any, elements: int, itemsize: int) -> Any:
    """The array from a later element on."""
    return array if array == NOTHING else Array(array.index, array.offset + elements * itemsize)


def _statistics(
    problem: LinearProblem, layer: _Layer, inputs: tuple[Any, ...], z: Array, found: _Rows, labels: Spec
) -> Iterator[Plan | MatMul]:
    """Each block of rows over all blocks of classes."""
    x, w, target, bias, weight = inputs
    smoothing, vector, size = problem.label_smoothing > 0, 16 // layer.computed.itemsize, layer.computed.itemsize
    config = StatisticsConfig(TYPES[layer.x.dtype], INTEGERS[labels.dtype], found.loss, smoothing, vector, _THREADS)
    kind = "_sum" * (found.loss != TYPES[layer.x.dtype])
    name = f"linear_statistics_{SHORT[layer.x.dtype]}_{labels.dtype.name}{kind}{'_smoothing' * smoothing}"
    kernel = Kernel("loss/linear_statistics.cu", name, config)
    loss_size = layer.x.dtype.itemsize if found.loss == TYPES[layer.x.dtype] else size
    for rows in layer.row_blocks():
        row, count = rows
        results = (
            _advanced(found.losses, row, loss_size),
            _advanced(found.weights, row, size),
            _advanced(found.lse, row, size),
        )
        for classes in layer.class_blocks():
            yield layer.scores(x, w, z, rows, classes)
            numbers = (count, layer.pitch, classes[1], classes[0], problem.classes, problem.ignore_index, float(problem.label_smoothing))
            arguments = (z, bias, weight, _advanced(target, row, labels.dtype.itemsize), found.state, *results, *numbers)
            yield Plan(kernel, (count, 1, 1), _THREADS, arguments)


def _divisor(problem: LinearProblem) -> float:
    """What the sum over rows is divided by where nothing weighs the rows."""
    return math.prod(problem.rows) if problem.reduction == "mean" else 1


def _forward_parts(problem: LinearProblem, layer: _Layer, index: int, output: Any, lse: Any) -> tuple[Scratch, Array, _Rows]:
    """Scratch memory for a block of scores, the state of its rows, and the losses of all rows where they are reduced."""
    scratch, size = Scratch(index), layer.computed.itemsize
    z, state = scratch.take(layer.score_bytes, 1), scratch.take(5 * layer.block_rows, size)
    if problem.reduction == "none":
        return scratch, z, _Rows(output, NOTHING, lse, state, TYPES[layer.x.dtype])
    losses = scratch.take(layer.rows, size)
    weights = scratch.take(layer.rows, size) if problem.reduction == "mean" else NOTHING
    return scratch, z, _Rows(losses, weights, lse, state, TYPES[layer.computed])


def linear_cross_entropy(problem: LinearProblem, device: Device, aligned: bool, precision: str = "highest") -> Program:
    """Per block a matrix product and what the losses need of it, then the reduction of the rows' losses."""
    x, labels = problem.inputs[0], problem.inputs[2]
    (inputs, outputs, last), layer = pointers(problem), _layer(problem, x, precision, gradients=False)
    if not layer.rows:
        empty = mean(NOTHING, NOTHING, 0, _divisor(problem), x.dtype, outputs[0])
        return Program(() if problem.reduction == "none" else (empty,))
    lse = outputs[1] if problem.return_lse else NOTHING
    scratch, z, found = _forward_parts(problem, layer, last, outputs[0], lse)
    plans = list(_statistics(problem, layer, tuple(inputs), z, found, labels))
    if problem.reduction != "none":
        plans += reduced(found.losses, found.weights, layer.rows, _divisor(problem), x.dtype, layer.computed, scratch, outputs[0])
    return Program(tuple(plans))


def _forward_bytes(problem: LinearProblem) -> int:
    layer = _layer(problem, problem.inputs[0], "highest", gradients=False)
    scratch, _, _ = _forward_parts(problem, layer, 0, NOTHING, NOTHING)
    return scratch.size + 2 * (blocks_for(layer.rows) * layer.computed.itemsize + 16)


# --- the gradient -----------------------------------------------------------------------------------------------------


@frozen
class _Parts:
    """Scratch memory of the gradient; `dx` and `dw` stand for outputs that cannot take sums of several products themselves."""

    z: Array
    dz: Array
    state: Array
    lse: Any
    sums: Array
    total: Array
    shares: Array
    ones: Any
    dx: Any
    dw: Any
    size: int


def _parts(problem: LinearProblem, layer: _Layer, index: int, lse: Any) -> _Parts:
    scratch, size, bias, item = Scratch(index), layer.computed.itemsize, problem.inputs[4], layer.x.dtype.itemsize
    terms = 1 + layer.split
    z, dz = scratch.take(layer.score_bytes, 1), scratch.take(terms * layer.rows * layer.pitch, item)
    state = scratch.take(5 * layer.block_rows, size)
    rows = scratch.take(layer.rows, size) if problem.inputs[6] is None else lse
    sums, total, shares = scratch.take(label_blocks(layer.rows), size), scratch.take(1, size), scratch.take(1, size)
    ones = NOTHING if bias is None else scratch.take(terms * layer.rows, item)
    several = layer.x.dtype in HALF and (layer.split or layer.pitch < layer.classes)
    dx = scratch.take(layer.rows * layer.features, size) if several else NOTHING
    dw = scratch.take(layer.pitch * layer.features, size) if layer.split else NOTHING
    return _Parts(z, dz, state, rows, sums, total, shares, ones, dx, dw, scratch.size)


def _totals(problem: LinearProblem, layer: _Layer, target: Any, weight: Any, parts: _Parts) -> tuple[list[Plan], Any, Any]:
    """The launches that sum the weights of the labels for the mean, and all class weights for the smoothing; where the sums stand then."""
    plans: list[Plan] = []
    total: Any = NOTHING
    shares: Any = NOTHING
    if problem.reduction == "mean":
        labels, total = problem.inputs[3], parts.total
        blocks = label_blocks(layer.rows)
        plans.append(label_weights(target, labels, weight, layer.x.dtype, parts.sums, problem.classes, problem.ignore_index))
        plans.append(mean(parts.sums, NOTHING, blocks, 1, layer.computed, total))
    if problem.label_smoothing > 0 and weight != NOTHING:
        shares, threads = parts.shares, 1024
        kernel = Kernel("loss/weight_sum.cu", f"weight_sum_{SHORT[layer.x.dtype]}", WeightSumConfig(TYPES[layer.x.dtype], threads))
        plans.append(Plan(kernel, (1, 1, 1), threads, (weight, shares, problem.classes)))
    return plans, total, shares


def _gradient_kernel(problem: LinearProblem, layer: _Layer) -> Kernel:
    labels, smoothing, own = problem.inputs[3], problem.label_smoothing > 0, problem.reduction == "none"
    config = GradientConfig(
        TYPES[layer.x.dtype], INTEGERS[labels.dtype], smoothing, own, layer.split, 16 // layer.computed.itemsize, _THREADS
    )
    name = f"linear_gradient_{SHORT[layer.x.dtype]}_{labels.dtype.name}{'_smoothing' * smoothing}{'_rows' * own}{'_split' * layer.split}"
    return Kernel("loss/linear_gradient.cu", name, config)


def _converted(source: Array, target: Array, dtype: np.dtype, n: int, aligned: bool) -> Plan:
    vector = 4 if aligned else 1
    kernel = Kernel("common/convert.cu", f"convert_{SHORT[dtype]}x{vector}", ConvertConfig(TYPES[dtype], vector, _THREADS))
    return Plan(kernel, (-(-n // (_THREADS * vector)), 1, 1), _THREADS, (source, target, n))


def _products(
    layer: _Layer, arrays: tuple[Any, ...], parts: _Parts, classes: tuple[int, int], alpha: float, aligned: bool
) -> list[Plan | MatMul]:
    """From the gradients of a block of scores: its term of dx, and its part of dw and of dbias."""
    x, w, dx, dw, db = arrays
    first, count = classes
    item, features, rows, dtype = layer.x.dtype.itemsize, layer.features, layer.rows, layer.x.dtype
    plans: list[Plan | MatMul] = []
    for term in range((1 + layer.split) if features else 0):
        dz = _advanced(parts.dz, term * rows * layer.pitch, item)
        target, result = (dx, dtype) if parts.dx == NOTHING else (parts.dx, layer.computed)
        a, b, beta = Matrix(dz, layer.pitch), layer.matrix(w, first), 1.0 if first or term else 0.0
        plans.append(layer.product(a, b, Matrix(target, features), rows, features, count, result, alpha, beta))
        a, b = Matrix(dz, layer.pitch, transposed=True), layer.matrix(x, 0)
        if layer.split:
            c, result = Matrix(parts.dw, features), layer.computed
        else:
            c, result = layer.matrix(dw, first), dtype
        plans.append(layer.product(a, b, c, count, features, rows, result, alpha, 1.0 if term else 0.0))
    if layer.split and features:
        plans.append(_converted(parts.dw, _advanced(dw, first * features, item), dtype, count * features, aligned))
    if db != NOTHING:
        terms, out = (1 + layer.split) * rows, Matrix(_advanced(db, first, item), count)
        plans.append(layer.product(Matrix(parts.ones, terms), Matrix(parts.dz, layer.pitch), out, 1, count, terms, dtype, alpha))
    return plans


def linear_cross_entropy_backward(problem: LinearProblem, device: Device, aligned: bool, precision: str = "highest") -> Program:
    """Per block of classes: the scores of all rows again, their gradient, and the products with it."""
    x, labels = problem.inputs[1], problem.inputs[3]
    (inputs, outputs, last), layer = pointers(problem), _layer(problem, x, precision, gradients=True)
    grad, of_x, of_w, target, bias, weight, lse = inputs
    dx, dw, db = outputs
    if not layer.rows:
        empty = ((out, spec.nbytes) for out, spec in zip(outputs, problem.outputs, strict=True) if spec is not None and spec.size)
        return Program(tuple(zero(out, nbytes, aligned) for out, nbytes in empty))
    parts = _parts(problem, layer, last, lse)
    plans, total, shares = _totals(problem, layer, target, weight, parts)
    every: list[Plan | MatMul] = list(plans)
    if lse == NOTHING:
        found = _Rows(NOTHING, NOTHING, parts.lse, parts.state, TYPES[layer.computed])
        every += _statistics(problem, layer, (of_x, of_w, target, bias, weight), parts.z, found, labels)
    # A mean's gradients are as small as the rows are many; half types hold them times the number of rows.
    factor, kernel = float(_divisor(problem)), _gradient_kernel(problem, layer)
    item, size = x.dtype.itemsize, layer.computed.itemsize
    for classes in layer.class_blocks():
        for rows in layer.row_blocks():
            row, count = rows
            every.append(layer.scores(of_x, of_w, parts.z, rows, classes))
            per_row = (
                _advanced(target, row, labels.dtype.itemsize),
                _advanced(grad, row, item) if problem.reduction == "none" else grad,
                _advanced(parts.lse, row, size),
            )
            numbers = (layer.rows, layer.pitch, classes[1], classes[0], problem.classes, problem.ignore_index)
            targets = (
                _advanced(parts.dz, row * layer.pitch, item),
                _advanced(parts.dz, (layer.rows + row) * layer.pitch, item),
                _advanced(parts.ones, row, item),
            )
            every.append(
                Plan(
                    kernel,
                    (count, 1, 1),
                    _THREADS,
                    (parts.z, bias, weight, *per_row, total, shares, *targets, *numbers, float(problem.label_smoothing), factor),
                )
            )
        every += _products(layer, (of_x, of_w, dx, dw, db), parts, classes, 1 / factor, aligned)
    if parts.dx != NOTHING and x.size:
        every.append(_converted(parts.dx, dx, x.dtype, x.size, aligned))
    return Program(tuple(every))


def _backward_bytes(problem: LinearProblem, precision: str = "highest") -> int:
    layer = _layer(problem, problem.inputs[1], precision, gradients=True)
    return _parts(problem, layer, 0, NOTHING).size if layer.rows else 0


def _exact(problem: LinearProblem, device: Device, gradient: bool) -> str | None:
    """Why there is nothing to be gained by rounding: the products of the forward are exact in half types."""
    spec = problem.outputs[0]
    if spec is not None and (spec.dtype == FLOAT64 or (spec.dtype in HALF and not gradient)):
        return f"there is no less exact form for {spec.dtype.name}"
    return None


_SUMMARY = "blocks of scores from matrix products, each reduced and forgotten"
_AGAIN = "blocks of scores computed again, their gradients through matrix products"


def _rounded_cost(problem: LinearProblem, device: Device) -> Cost:
    spec = problem.outputs[0]
    return Cost(problem.flops, problem.bytes, unit="tf32_mma" if spec is not None and spec.dtype == FLOAT32 else None)


def _rounded(run: Any, summary: str, workspace: Any, gradient: bool) -> Method:
    """The entry that rounds more for speed: float32 to TF32, gradients of half types' scores to their own dtype."""
    return Method(
        "blocks_rounded",
        partial(run, precision="high"),
        f"{summary}; float32 in TF32, the gradients of half types' scores rounded",
        rejects=partial(_exact, gradient=gradient),
        workspace=workspace,
        cost=_rounded_cost,
        precision="high",
        rounds=gradient,
    )


ALGORITHMS = {
    "linear_cross_entropy": (
        Method("blocks", linear_cross_entropy, _SUMMARY, workspace=_forward_bytes),
        _rounded(linear_cross_entropy, _SUMMARY, _forward_bytes, gradient=False),
    ),
    "linear_cross_entropy_backward": (
        Method("blocks", linear_cross_entropy_backward, _AGAIN, workspace=_backward_bytes),
        _rounded(linear_cross_entropy_backward, _AGAIN, partial(_backward_bytes, precision="high"), gradient=True),
    ),
}
