"""`linear_cross_entropy`: plans that take the scores block by block from a matrix product through bounded scratch memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dnnarray._cuda.channels import lies
from dnnarray._cuda.loss_sums import INTEGERS, NOTHING, Scratch, arithmetic, blocks_for, label_weights, mean, pointers, reduced
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, MatMul, Matrix, Plan, Program
from dnnarray._cuda.zero import zero
from dnnarray._problems.loss import LinearProblem
from dnnarray._select import Device, Method
from dnnarray._spec import FLOAT32, HALF, Spec

_THREADS = 128
_ROWS = 8192  # of a block of scores, at most
_BYTES = 1 << 27  # of a block of scores, and of its gradients
_CLASSES = 128  # of a block, at the least: a tile of the matrix product; larger blocks are multiples of it


@dataclass(frozen=True)
class StatisticsConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_statistics.cu``."""

    element: str
    target: str
    loss: str
    smoothing: bool
    vector: int
    threads: int


@dataclass(frozen=True)
class GradientConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_gradient.cu``."""

    element: str
    target: str
    smoothing: bool
    row_gradients: bool
    vector: int
    threads: int


@dataclass(frozen=True)
class WeightSumConfig(Config):
    """Compile-time settings of ``kernels/loss/weight_sum.cu``."""

    element: str
    threads: int


@dataclass(frozen=True)
class ConvertConfig(Config):
    """Compile-time settings of ``kernels/common/convert.cu``."""

    element: str
    vector: int
    threads: int


@dataclass(frozen=True)
class _Layer:
    """The linear layer as matrices, and how its scores are divided: blocks of rows and of classes, `pitch` classes apart in memory."""

    x: Spec
    rows: int
    classes: int
    features: int
    block_rows: int
    pitch: int
    precision: str

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
    if gradients:
        width = min(width, _BYTES // (max(rows, 1) * x.dtype.itemsize))
    width = max(width // _CLASSES, 1) * _CLASSES
    return _Layer(x, rows, problem.classes, problem.features, block_rows, min(width, -(-problem.classes // 16) * 16), precision)


# --- the forward ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class _Parts:
    """Scratch memory of the gradient; `dx` is the output itself where that can take the sums over the classes."""

    z: Array
    dz: Array
    state: Array
    lse: Any
    sums: Array
    total: Array
    shares: Array
    ones: Any
    dx: Any
    size: int


def _parts(problem: LinearProblem, layer: _Layer, index: int, lse: Any, dx: Any) -> _Parts:
    scratch, size, bias = Scratch(index), layer.computed.itemsize, problem.inputs[4]
    z, dz = scratch.take(layer.score_bytes, 1), scratch.take(layer.rows * layer.pitch, layer.x.dtype.itemsize)
    state = scratch.take(5 * layer.block_rows, size)
    rows = scratch.take(layer.rows, size) if problem.inputs[6] is None else lse
    sums, total, shares = scratch.take(blocks_for(layer.rows), size), scratch.take(1, size), scratch.take(1, size)
    ones = NOTHING if bias is None else scratch.take(layer.rows, layer.x.dtype.itemsize)
    several = layer.x.dtype in HALF and layer.pitch < layer.classes
    sum_of_dx = scratch.take(layer.rows * layer.features, size) if several else dx
    return _Parts(z, dz, state, rows, sums, total, shares, ones, sum_of_dx, scratch.size)


def _totals(problem: LinearProblem, layer: _Layer, target: Any, weight: Any, parts: _Parts) -> tuple[list[Plan], Any, Any]:
    """The launches that sum the weights of the labels for the mean, and all class weights for the smoothing; where the sums stand then."""
    plans: list[Plan] = []
    total: Any = NOTHING
    shares: Any = NOTHING
    if problem.reduction == "mean":
        labels, total = problem.inputs[3], parts.total
        blocks = blocks_for(layer.rows)
        plans.append(label_weights(target, labels, weight, layer.x.dtype, parts.sums, problem.classes, problem.ignore_index))
        plans.append(mean(parts.sums, NOTHING, blocks, 1, layer.computed, total))
    if problem.label_smoothing > 0 and weight != NOTHING:
        shares, threads = parts.shares, 1024
        kernel = Kernel("loss/weight_sum.cu", f"weight_sum_{SHORT[layer.x.dtype]}", WeightSumConfig(TYPES[layer.x.dtype], threads))
        plans.append(Plan(kernel, (1, 1, 1), threads, (weight, shares, problem.classes)))
    return plans, total, shares


def _gradient_kernel(problem: LinearProblem, layer: _Layer) -> Kernel:
    labels, smoothing, own = problem.inputs[3], problem.label_smoothing > 0, problem.reduction == "none"
    config = GradientConfig(TYPES[layer.x.dtype], INTEGERS[labels.dtype], smoothing, own, 16 // layer.computed.itemsize, _THREADS)
    name = f"linear_gradient_{SHORT[layer.x.dtype]}_{labels.dtype.name}{'_smoothing' * smoothing}{'_rows' * own}"
    return Kernel("loss/linear_gradient.cu", name, config)


def _converted(source: Array, target: Array, dtype: np.dtype, n: int, aligned: bool) -> Plan:
    vector = 4 if aligned else 1
    kernel = Kernel("common/convert.cu", f"convert_{SHORT[dtype]}x{vector}", ConvertConfig(TYPES[dtype], vector, _THREADS))
    return Plan(kernel, (-(-n // (_THREADS * vector)), 1, 1), _THREADS, (source, target, n))


def _products(layer: _Layer, arrays: tuple[Any, ...], parts: _Parts, classes: tuple[int, int], alpha: float) -> list[MatMul]:
    """From the gradients of a block of scores: its term of dx, and its part of dw and of dbias."""
    x, w, dw, db = arrays
    first, count = classes
    item, features, dtype = layer.x.dtype.itemsize, layer.features, layer.x.dtype
    dz, turned = Matrix(parts.dz, layer.pitch), Matrix(parts.dz, layer.pitch, transposed=True)
    products = []
    if features:
        result = layer.computed if parts.dx.index == parts.z.index else dtype
        beta = 1.0 if first else 0.0
        products.append(
            layer.product(dz, layer.matrix(w, first), Matrix(parts.dx, features), layer.rows, features, count, result, alpha, beta)
        )
        products.append(layer.product(turned, layer.matrix(x, 0), layer.matrix(dw, first), count, features, layer.rows, dtype, alpha))
    if db != NOTHING:
        out = Matrix(Array(db.index, db.offset + first * item), count)
        products.append(layer.product(Matrix(parts.ones, layer.rows), dz, out, 1, count, layer.rows, dtype, alpha))
    return products


def linear_cross_entropy_backward(problem: LinearProblem, device: Device, aligned: bool, precision: str = "highest") -> Program:
    """Per block of classes: the scores of all rows again, their gradient, and the products with it."""
    x, labels = problem.inputs[1], problem.inputs[3]
    (inputs, outputs, last), layer = pointers(problem), _layer(problem, x, precision, gradients=True)
    grad, of_x, of_w, target, bias, weight, lse = inputs
    dx, dw, db = outputs
    if not layer.rows:
        empty = ((out, spec.nbytes) for out, spec in zip(outputs, problem.outputs, strict=True) if spec is not None and spec.size)
        return Program(tuple(zero(out, nbytes, aligned) for out, nbytes in empty))
    parts = _parts(problem, layer, last, lse, dx)
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
            numbers = (layer.pitch, classes[1], classes[0], problem.classes, problem.ignore_index, float(problem.label_smoothing), factor)
            targets = (_advanced(parts.dz, row * layer.pitch, item), _advanced(parts.ones, row, item))
            every.append(Plan(kernel, (count, 1, 1), _THREADS, (parts.z, bias, weight, *per_row, total, shares, *targets, *numbers)))
        every += _products(layer, (of_x, of_w, dw, db), parts, classes, 1 / factor)
    if parts.dx != dx and x.size:
        every.append(_converted(parts.dx, dx, x.dtype, x.size, aligned))
    return Program(tuple(every))


def _backward_bytes(problem: LinearProblem) -> int:
    layer = _layer(problem, problem.inputs[1], "highest", gradients=True)
    return _parts(problem, layer, 0, NOTHING, NOTHING).size if layer.rows else 0


def _other_order(problem: LinearProblem, device: Device) -> str | None:
    """The gradients lie as x and w do, and the products write them in C order."""
    for name, spec in zip(("x", "w"), problem.outputs, strict=False):
        if spec is not None and not lies(spec, range(spec.ndim)):
            return f"{name} does not lie in C order; copy it with ascontiguousarray"
    return None


def _only_float32(problem: LinearProblem, device: Device, gradient: bool) -> str | None:
    if problem.outputs[0] is not None and problem.outputs[0].dtype != FLOAT32:
        return "only float32 has a less exact form"
    return _other_order(problem, device) if gradient else None


_SUMMARY = "blocks of scores from matrix products, each reduced and forgotten"
_AGAIN = "blocks of scores computed again, their gradients through matrix products"
ALGORITHMS = {
    "linear_cross_entropy": (
        Method("blocks", linear_cross_entropy, _SUMMARY, workspace=_forward_bytes),
        Method(
            "blocks_tf32",
            partial(linear_cross_entropy, precision="high"),
            f"{_SUMMARY}, in TF32",
            rejects=partial(_only_float32, gradient=False),
            workspace=_forward_bytes,
            precision="high",
        ),
    ),
    "linear_cross_entropy_backward": (
        Method("blocks", linear_cross_entropy_backward, _AGAIN, rejects=_other_order, workspace=_backward_bytes),
        Method(
            "blocks_tf32",
            partial(linear_cross_entropy_backward, precision="high"),
            f"{_AGAIN}, in TF32",
            rejects=partial(_only_float32, gradient=True),
            workspace=_backward_bytes,
            precision="high",
        ),
    ),
}
