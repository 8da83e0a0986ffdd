"""`linear_cross_entropy`: plans that take the scores block by block from a matrix product through bounded scratch memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dnnarray._cuda import conv_parts, loss_linear_parts
from dnnarray._cuda.loss_linear_parts import PartsProducts
from dnnarray._cuda.loss_linear_products import Gradients, Layer, LibraryProducts, Products, advanced, converted
from dnnarray._cuda.loss_sums import (
    INTEGERS,
    NOTHING,
    Scratch,
    blocks_for,
    label_blocks,
    label_weights,
    mean,
    pointers,
    reduced,
)
from dnnarray._cuda.plan import SHORT, TYPES, Array, Config, Kernel, Plan, Program, Step
from dnnarray._cuda.zero import zero
from dnnarray._problems.loss import LinearProblem
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT32, FLOAT64, HALF, Spec

_THREADS = 128

_Run = Callable[..., Program]
_Workspace = Callable[..., int]


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


# --- the forward ------------------------------------------------------------------------------------------------------


@frozen
class _Rows:
    """Arrays with an entry for each row, or nothing, that the statistics leave behind."""

    losses: Any
    weights: Any
    lse: Any
    state: Array
    loss: str


def _statistics(
    problem: LinearProblem, layer: Layer, products: Products, inputs: tuple[Any, ...], z: Array, found: _Rows, labels: Spec
) -> Iterator[Step]:
    """Each block of rows over all blocks of classes."""
    target, bias, weight = inputs
    smoothing, vector, size = problem.label_smoothing > 0, 16 // layer.computed.itemsize, layer.computed.itemsize
    config = StatisticsConfig(TYPES[layer.x.dtype], INTEGERS[labels.dtype], found.loss, smoothing, vector, _THREADS)
    kind = "_sum" * (found.loss != TYPES[layer.x.dtype])
    name = f"linear_statistics_{SHORT[layer.x.dtype]}_{labels.dtype.name}{kind}{'_smoothing' * smoothing}"
    kernel = Kernel("loss/linear_statistics.cu", name, config)
    loss_size = layer.x.dtype.itemsize if found.loss == TYPES[layer.x.dtype] else size
    for rows in layer.row_blocks():
        row, count = rows
        results = (
            advanced(found.losses, row, loss_size),
            advanced(found.weights, row, size),
            advanced(found.lse, row, size),
        )
        for classes in layer.class_blocks():
            yield from products.scores(z, rows, classes)
            numbers = (
                count,
                layer.across(classes[1]),
                classes[1],
                classes[0],
                problem.classes,
                problem.ignore_index,
                float(problem.label_smoothing),
            )
            arguments = (z, bias, weight, advanced(target, row, labels.dtype.itemsize), found.state, *results, *numbers)
            yield Plan(kernel, (count, 1, 1), _THREADS, arguments)


def _divisor(problem: LinearProblem) -> float:
    """What the sum over rows is divided by where nothing weighs the rows."""
    return math.prod(problem.rows) if problem.reduction == "mean" else 1


def _forward_parts(problem: LinearProblem, layer: Layer, index: int, output: Any, lse: Any) -> tuple[Scratch, Array, _Rows]:
    """Scratch memory for a block of scores, the state of its rows, and the losses of all rows where they are reduced."""
    scratch, size = Scratch(index), layer.computed.itemsize
    z, state = scratch.take(layer.score_bytes, 1), scratch.take(5 * layer.block_rows, size)
    if problem.reduction == "none":
        return scratch, z, _Rows(output, NOTHING, lse, state, TYPES[layer.x.dtype])
    losses = scratch.take(layer.rows, size)
    weights = scratch.take(layer.rows, size) if problem.reduction == "mean" else NOTHING
    return scratch, z, _Rows(losses, weights, lse, state, TYPES[layer.computed])


def _products(
    problem: LinearProblem, layer: Layer, x: Array, w: Array, reserved: int, aligned: bool, units: int
) -> LibraryProducts | PartsProducts:
    """How the products are done; `reserved` bytes of the scratch memory are taken."""
    return PartsProducts(problem, layer, x, w, reserved, units) if layer.dense else LibraryProducts(layer, x, w, aligned)


def linear_cross_entropy(problem: LinearProblem, units: int, aligned: bool, precision: str = "highest", parts: bool = False) -> Program:
    """Per block a matrix product and what the losses need of it, then the reduction of the rows' losses."""
    x, labels = problem.inputs[0], problem.inputs[2]
    (inputs, outputs, last), layer = pointers(problem), Layer.of(problem, x, precision, gradients=False, dense=parts and aligned)
    if not layer.rows:
        empty = mean(NOTHING, NOTHING, 0, _divisor(problem), x.dtype, outputs[0])
        return Program(() if problem.reduction == "none" else (empty,))
    lse = outputs[1] if problem.return_lse else NOTHING
    scratch, z, found = _forward_parts(problem, layer, last, outputs[0], lse)
    of_x, of_w, *rest = inputs
    products = _products(problem, layer, of_x, of_w, _forward_bytes(problem, precision), aligned, units)
    plans = list(_statistics(problem, layer, products, tuple(rest), z, found, labels))
    if problem.reduction != "none":
        plans += reduced(found.losses, found.weights, layer.rows, _divisor(problem), x.dtype, layer.computed, scratch, outputs[0])
    return Program(tuple(plans), workspace=products.workspace)


def _forward_bytes(problem: LinearProblem, precision: str = "highest") -> int:
    layer = Layer.of(problem, problem.inputs[0], precision, gradients=False)
    scratch, _, _ = _forward_parts(problem, layer, 0, NOTHING, NOTHING)
    return scratch.size + 2 * (blocks_for(layer.rows) * layer.computed.itemsize + 16)


# --- the gradient -----------------------------------------------------------------------------------------------------


@frozen
class _Room:
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


def _room(problem: LinearProblem, layer: Layer, index: int, lse: Any) -> _Room:
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
    return _Room(z, dz, state, rows, sums, total, shares, ones, dx, dw, scratch.size)


def _totals(problem: LinearProblem, layer: Layer, target: Any, weight: Any, room: _Room) -> tuple[list[Plan], Any, Any]:
    """The launches that sum the weights of the labels for the mean, and all class weights for the smoothing; where the sums stand then."""
    plans: list[Plan] = []
    total: Any = NOTHING
    shares: Any = NOTHING
    if problem.reduction == "mean":
        labels, total = problem.inputs[3], room.total
        blocks = label_blocks(layer.rows)
        plans.append(label_weights(target, labels, weight, layer.x.dtype, room.sums, problem.classes, problem.ignore_index))
        plans.append(mean(room.sums, NOTHING, blocks, 1, layer.computed, total))
    if problem.label_smoothing > 0 and weight != NOTHING:
        shares, threads = room.shares, 1024
        kernel = Kernel("loss/weight_sum.cu", f"weight_sum_{SHORT[layer.x.dtype]}", WeightSumConfig(TYPES[layer.x.dtype], threads))
        plans.append(Plan(kernel, (1, 1, 1), threads, (weight, shares, problem.classes)))
    return plans, total, shares


def _gradient_kernel(problem: LinearProblem, layer: Layer) -> Kernel:
    labels, smoothing, own = problem.inputs[3], problem.label_smoothing > 0, problem.reduction == "none"
    config = GradientConfig(
        TYPES[layer.x.dtype], INTEGERS[labels.dtype], smoothing, own, layer.split, 16 // layer.computed.itemsize, _THREADS
    )
    name = f"linear_gradient_{SHORT[layer.x.dtype]}_{labels.dtype.name}{'_smoothing' * smoothing}{'_rows' * own}{'_split' * layer.split}"
    return Kernel("loss/linear_gradient.cu", name, config)


def linear_cross_entropy_backward(
    problem: LinearProblem, units: int, aligned: bool, precision: str = "highest", parts: bool = False
) -> Program:
    """Per block of classes: the scores of all rows again, their gradient, and the products with it."""
    x, labels = problem.inputs[1], problem.inputs[3]
    (inputs, outputs, last), layer = pointers(problem), Layer.of(problem, x, precision, gradients=True, dense=parts and aligned)
    grad, of_x, of_w, target, bias, weight, lse = inputs
    dx, dw, db = outputs
    if not layer.rows:
        empty = ((out, spec.nbytes) for out, spec in zip(outputs, problem.outputs, strict=True) if spec is not None and spec.size)
        return Program(tuple(zero(out, nbytes, aligned) for out, nbytes in empty))
    room = _room(problem, layer, last, lse)
    plans, total, shares = _totals(problem, layer, target, weight, room)
    every: list[Step] = list(plans)
    products = _products(problem, layer, of_x, of_w, room.size, aligned, units)
    if lse == NOTHING:
        found = _Rows(NOTHING, NOTHING, room.lse, room.state, TYPES[layer.computed])
        every += _statistics(problem, layer, products, (target, bias, weight), room.z, found, labels)
    # A mean's gradients are as small as the rows are many; half types hold them times the number of rows.
    factor, kernel = float(_divisor(problem)) if x.dtype in HALF else 1.0, _gradient_kernel(problem, layer)
    item, size = x.dtype.itemsize, layer.computed.itemsize
    results = Gradients(room.dz, room.ones, dx, dw, db, room.dx, room.dw)
    for classes in layer.class_blocks():
        across = layer.across(classes[1])
        for rows in layer.row_blocks():
            row, count = rows
            every += products.scores(room.z, rows, classes)
            per_row = (
                advanced(target, row, labels.dtype.itemsize),
                advanced(grad, row, item) if problem.reduction == "none" else grad,
                advanced(room.lse, row, size),
            )
            numbers = (layer.rows, across, classes[1], classes[0], problem.classes, problem.ignore_index)
            targets = (
                advanced(room.dz, row * across, item),
                advanced(room.dz, (layer.rows + row) * across, item),
                advanced(room.ones, row, item),
            )
            arguments = (room.z, bias, weight, *per_row, total, shares, *targets, *numbers, float(problem.label_smoothing), factor)
            every.append(Plan(kernel, (count, 1, 1), _THREADS, arguments))
        every += products.gradients(results, classes, 1 / factor)
    if room.dx != NOTHING and x.size:
        every.append(converted(room.dx, dx, x.dtype, x.size, aligned))
    return Program(tuple(every), workspace=products.workspace)


def _backward_bytes(problem: LinearProblem, precision: str = "highest") -> int:
    layer = Layer.of(problem, problem.inputs[1], precision, gradients=True)
    return _room(problem, layer, 0, NOTHING).size if layer.rows else 0


# --- the table --------------------------------------------------------------------------------------------------------


def _exact(problem: LinearProblem, device: Device, gradient: bool) -> str | None:
    """Why there is nothing to be gained by rounding: the products of the forward are exact in half types."""
    spec = problem.outputs[0]
    if spec is not None and (spec.dtype == FLOAT64 or (spec.dtype in HALF and not gradient)):
        return f"there is no less exact form for {spec.dtype.name}"
    return None


_SUMMARY = "blocks of scores from matrix products, each reduced and forgotten"
_AGAIN = "blocks of scores computed again, their gradients through matrix products"


def _cost(terms: int, problem: LinearProblem, device: Device) -> Cost:
    """In half types a second term of the scores' gradient takes two products more. One term has to gain more than a launch, since it rounds."""
    x = problem.inputs[problem.products > 1]
    if problem.products == 1 or x.dtype not in HALF:
        return Cost(problem.flops, problem.bytes, unit="tf32_mma" if terms == 1 and x.dtype == FLOAT32 else None)
    return Cost(problem.flops / problem.products * (problem.products + 2 * (terms - 1)), problem.bytes, launches=3 - terms)


def _on(run: _Run, precision: str, parts: bool, problem: LinearProblem, device: Device, aligned: bool) -> Program:
    return run(problem, device.units, aligned, precision, parts)


def _library(run: _Run, summary: str, workspace: _Workspace) -> Method:
    return Method("blocks", partial(_on, run, "highest", False), summary, workspace=workspace, cost=partial(_cost, 2))


def _rounded(run: _Run, summary: str, workspace: _Workspace, gradient: bool) -> Method:
    """The entry that rounds more for speed: float32 to TF32, gradients of half types' scores to their own dtype."""
    return Method(
        "blocks_rounded",
        partial(_on, run, "high", False),
        f"{summary}; float32 in TF32, the gradients of half types' scores rounded",
        rejects=partial(_exact, gradient=gradient),
        workspace=partial(workspace, precision="high"),
        cost=partial(_cost, 1),
        precision="high",
        rounds=gradient,
    )


def _dense(problem: LinearProblem, precision: str) -> Layer:
    gradients = problem.products > 1
    return Layer.of(problem, problem.inputs[int(gradients)], precision, gradients, dense=True)


def _parts_workspace(run: _Run, precision: str, problem: LinearProblem) -> int:
    return run(problem, 1, True, precision, True).workspace or 0


def _parts_rejects(precision: str, problem: LinearProblem, device: Device) -> str | None:
    return loss_linear_parts.rejects(problem, _dense(problem, precision), device)


def _parts_cost(precision: str, problem: LinearProblem, device: Device) -> Cost:
    return loss_linear_parts.cost(problem, _dense(problem, precision), device)


def _in_parts(run: _Run, summary: str, precision: str, name: str) -> Method:
    """The entry whose products are those of `conv_parts`."""
    return Method(
        name,
        partial(_on, run, precision, True),
        f"{summary}; {conv_parts.SUMMARY}",
        rejects=partial(_parts_rejects, precision),
        workspace=partial(_parts_workspace, run, precision),
        cost=partial(_parts_cost, precision),
        precision=precision,
    )


def _table(run: _Run, summary: str, workspace: _Workspace, gradient: bool) -> tuple[Method, ...]:
    parts = (_in_parts(run, summary, precision, name) for precision, name in conv_parts.NAMES.items())
    return _library(run, summary, workspace), _rounded(run, summary, workspace, gradient), *parts


ALGORITHMS = {
    "linear_cross_entropy": _table(linear_cross_entropy, _SUMMARY, _forward_bytes, gradient=False),
    "linear_cross_entropy_backward": _table(linear_cross_entropy_backward, _AGAIN, _backward_bytes, gradient=True),
}
