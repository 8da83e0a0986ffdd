"""`linear_cross_entropy`: plans that take the scores block by block from a matrix product through bounded scratch
memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dnnarray._cuda.common.convert import convert
from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.conv import parts as conv_parts
from dnnarray._cuda.core.plan import TYPES, Array, Plan, Program, Step
from dnnarray._cuda.loss import linear_parts, linear_tape
from dnnarray._cuda.loss.linear_parts import products_of
from dnnarray._cuda.loss.linear_passes import Labelled, Rows, ScoreGradients, divisor, totals
from dnnarray._cuda.loss.linear_products import Gradients, Layer, Products
from dnnarray._cuda.loss.mean import mean
from dnnarray._cuda.loss.shared import reduced
from dnnarray._cuda.loss.sums import blocks_for, label_blocks
from dnnarray._cuda.positional import NOTHING, Scratch, pointers
from dnnarray._problems.loss_linear import LinearProblem, with_a_tape, without_a_tape
from dnnarray._records import frozen
from dnnarray._select import Cost, Device, Method
from dnnarray._spec import FLOAT32, FLOAT64, HALF

_Run = Callable[..., Program]
_Workspace = Callable[..., int]


# --- the forward ------------------------------------------------------------------------------------------------------


def _statistics(of: Labelled, products: Products, z: Array, found: Rows) -> Iterator[Step]:
    """Each block of rows over all blocks of classes."""
    for rows in of.layer.row_blocks():
        for classes in of.layer.class_blocks():
            yield from products.scores(z, rows, classes)
            yield of.statistics(z, rows, classes, found)


def _forward_parts(
    problem: LinearProblem, layer: Layer, index: int, output: Any, lse: Any
) -> tuple[Scratch, Array, Rows]:
    """Scratch memory for a block of scores, the state of its rows, and the losses of all rows where they are
    reduced."""
    scratch, size = Scratch(index), layer.computed.itemsize
    z, state = scratch.take(layer.score_bytes, 1), scratch.take(5 * layer.block_rows, size)
    if problem.reduction == "none":
        return scratch, z, Rows(output, NOTHING, lse, state, TYPES[layer.x.dtype])
    losses = scratch.take(layer.rows, size)
    weights = scratch.take(layer.rows, size) if problem.reduction == "mean" else NOTHING
    return scratch, z, Rows(losses, weights, lse, state, TYPES[layer.computed])


def linear_cross_entropy(
    problem: LinearProblem, device: Device, aligned: bool, precision: str = "highest", parts: bool = False
) -> Program:
    """Per block a matrix product and what the losses need of it, then the reduction of the rows' losses."""
    if problem.taped:
        return linear_tape.forward(problem, device, aligned, precision, parts)
    x = problem.x
    (inputs, outputs, last), layer = pointers(problem), Layer.of(problem, precision, parts, aligned)
    if not layer.rows:
        empty = mean(NOTHING, NOTHING, 0, divisor(problem), x.dtype, outputs[0])
        return Program(() if problem.reduction == "none" else (empty,))
    lse = outputs[1] if problem.return_lse else NOTHING
    scratch, z, found = _forward_parts(problem, layer, last, outputs[0], lse)
    finish: list[Plan] = []
    if problem.reduction != "none":
        take = partial(linear_tape.sums, scratch, layer)
        finish = reduced(found.losses, found.weights, layer.rows, divisor(problem), x.dtype, take, outputs[0])
    of_x, of_w, *rest = inputs
    products = products_of(problem, layer, of_x, of_w, scratch.size, aligned, device.units)
    return Program(
        (*_statistics(Labelled(problem, layer, *rest), products, z, found), *finish), workspace=products.workspace
    )


def _forward_bytes(problem: LinearProblem, precision: str = "highest") -> int:
    if problem.taped:
        return linear_tape.workspace(problem, precision)
    layer = Layer.of(problem, precision)
    scratch, _, _ = _forward_parts(problem, layer, 0, NOTHING, NOTHING)
    return scratch.size + 2 * (blocks_for(layer.rows) * layer.computed.itemsize + 16)


# --- the gradient -----------------------------------------------------------------------------------------------------


@frozen
class _Room:
    """Scratch memory of the gradient; `dx` and `dw` stand for outputs that cannot take sums of several products
    themselves."""

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
    scratch, size, item, terms = Scratch(index), layer.computed.itemsize, layer.x.dtype.itemsize, 1 + layer.split
    of_x, of_w, of_bias = problem.summed
    z, dz = scratch.take(layer.score_bytes, 1), scratch.take(terms * layer.rows * layer.pitch, item)
    state = scratch.take(5 * layer.block_rows, size)
    rows = scratch.take(layer.rows, size) if problem.inputs[6] is None else lse
    sums, total, shares = scratch.take(label_blocks(layer.rows), size), scratch.take(1, size), scratch.take(1, size)
    ones = scratch.take(terms * layer.rows, item) if of_bias else NOTHING
    several = layer.x.dtype in HALF and (layer.split or layer.pitch < layer.classes)
    dx = scratch.take(layer.rows * layer.features, size) if several and of_x else NOTHING
    dw = scratch.take(layer.pitch * layer.features, size) if layer.split and of_w else NOTHING
    return _Room(z, dz, state, rows, sums, total, shares, ones, dx, dw, scratch.size)


def linear_cross_entropy_backward(
    problem: LinearProblem, device: Device, aligned: bool, precision: str = "highest", parts: bool = False
) -> Program:
    """Per block of classes: the scores of all rows again, their gradient, and the products with it."""
    x = problem.x
    (inputs, outputs, last), layer = pointers(problem), Layer.of(problem, precision, parts, aligned)
    grad, of_x, of_w, target, bias, weight, lse, _ = inputs
    dx, dw, db = outputs
    if not layer.rows:
        empty = (
            (out, spec.nbytes)
            for out, spec in zip(outputs, problem.outputs, strict=True)
            if spec is not None and spec.size
        )
        return Program(tuple(zero(out, nbytes, aligned) for out, nbytes in empty))
    room, of = _room(problem, layer, last, lse), Labelled(problem, layer, target, bias, weight)
    plans, total, shares = totals(of, room.sums, room.total, room.shares)
    every: list[Step] = list(plans)
    products = products_of(problem, layer, of_x, of_w, room.size, aligned, device.units)
    if lse == NOTHING:
        every += _statistics(of, products, room.z, Rows(NOTHING, NOTHING, room.lse, room.state, TYPES[layer.computed]))
    of_scores, held = ScoreGradients(of, grad, room.lse, total, shares), (0, layer.rows)
    results = Gradients(room.dz, room.ones, dx, dw, db, room.dx, room.dw)
    for classes in layer.class_blocks():
        for rows in layer.row_blocks():
            every += products.scores(room.z, rows, classes)
            every.append(of_scores.plan(room.z, rows, classes, held, room.dz, room.ones))
        every += products.gradients(results, held, classes, 1 / of.factor)
    if room.dx != NOTHING and x.size:
        every.append(convert(room.dx, dx, x.dtype, x.size, aligned))
    return Program(tuple(every), workspace=products.workspace)


def _backward_bytes(problem: LinearProblem, precision: str = "highest") -> int:
    layer = Layer.of(problem, precision)
    return _room(problem, layer, 0, NOTHING).size if layer.rows else 0


# --- the table --------------------------------------------------------------------------------------------------------


def _exact(problem: LinearProblem, device: Device) -> str | None:
    """Why there is nothing to be gained by rounding: the products of the forward are exact in half types."""
    dtype = problem.x.dtype
    if dtype == FLOAT64 or (dtype in HALF and not (problem.gradient or problem.taped)):
        return f"there is no less exact form for {dtype.name}"
    return with_a_tape(problem, device)


_ANY = Device("any", "cuda", 1, {}, 1.0, 1.0)  # whatever the device, the scratch memory is the same
_SUMMARY = "blocks of scores from matrix products, each reduced and forgotten"
_AGAIN = "blocks of scores computed again, their gradients through matrix products"


def _cost(terms: int, problem: LinearProblem, device: Device) -> Cost:
    """In half types a second term of the scores' gradient takes each product with it twice. One term has to gain more
    than a launch, since it rounds."""
    x, gradients = problem.x, sum(problem.summed[:2])
    if not gradients or x.dtype not in HALF:
        return Cost(problem.flops, problem.bytes, unit="tf32_mma" if terms == 1 and x.dtype == FLOAT32 else None)
    return Cost(
        problem.flops / problem.products * (problem.products + gradients * (terms - 1)),
        problem.bytes,
        launches=3 - terms,
    )


def _on(run: _Run, precision: str, parts: bool, problem: LinearProblem, device: Device, aligned: bool) -> Program:
    return run(problem, device, aligned, precision, parts)


def _library(run: _Run, summary: str, workspace: _Workspace) -> Method:
    return Method("blocks", partial(_on, run, "highest", False), summary, with_a_tape, workspace, partial(_cost, 2))


def _rounded(run: _Run, summary: str, workspace: _Workspace) -> Method:
    """The entry that rounds more for speed: float32 to TF32, gradients of half types' scores to their own dtype."""
    return Method(
        "blocks_rounded",
        partial(_on, run, "high", False),
        f"{summary}; float32 in TF32, the gradients of half types' scores rounded",
        rejects=_exact,
        workspace=partial(workspace, precision="high"),
        cost=partial(_cost, 1),
        precision="high",
        rounds=True,
    )


def _parts_workspace(run: _Run, precision: str, problem: LinearProblem) -> int:
    return run(problem, _ANY, True, precision, True).workspace or 0


def _parts_rejects(precision: str, problem: LinearProblem, device: Device) -> str | None:
    if (reason := with_a_tape(problem, device)) is not None:
        return reason
    return linear_parts.rejects(problem, Layer.of(problem, precision, parts=True), device)


def _parts_cost(precision: str, problem: LinearProblem, device: Device) -> Cost:
    return linear_parts.cost(problem, Layer.of(problem, precision, parts=True), device)


def _in_parts(run: _Run, summary: str, precision: str, name: str) -> Method:
    """The entry whose products are those of `conv.parts`."""
    return Method(
        name,
        partial(_on, run, precision, True),
        f"{summary}; {conv_parts.SUMMARY}",
        rejects=partial(_parts_rejects, precision),
        workspace=partial(_parts_workspace, run, precision),
        cost=partial(_parts_cost, precision),
        precision=precision,
    )


def _table(run: _Run, summary: str, workspace: _Workspace) -> tuple[Method, ...]:
    parts = (_in_parts(run, summary, precision, name) for precision, name in conv_parts.NAMES.items())
    return _library(run, summary, workspace), _rounded(run, summary, workspace), *parts


_TAPE = Method("tape", linear_tape.scaled, "the gradients that the forward left on its tape, scaled", without_a_tape)

ALGORITHMS = {
    "linear_cross_entropy": _table(linear_cross_entropy, _SUMMARY, _forward_bytes),
    "linear_cross_entropy_backward": (*_table(linear_cross_entropy_backward, _AGAIN, _backward_bytes), _TAPE),
}
