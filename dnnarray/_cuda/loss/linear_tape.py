"""`linear_cross_entropy` with a tape: the gradients are taken in the forward, while all scores of a block of rows are
there, and scaled in the backward.

The scores of a block of rows stand in scratch memory for all classes, in the dtype of the arithmetic, so that their
gradients are rounded once; the gradients of several such blocks are held together, in the dtype of x and for no more
rows than the tape has bytes for, so that the sums over rows are long products."""

from __future__ import annotations

from functools import partial

from dnnarray._cuda.common.zero import zero
from dnnarray._cuda.core.clusters import COPIES_FROM, RowShare, smallest_share
from dnnarray._cuda.core.plan import TYPES, Array, Program, Step
from dnnarray._cuda.loss.linear_parts import products_of
from dnnarray._cuda.loss.linear_passes import Labelled, Rows, ScoreGradients, divisor, totals
from dnnarray._cuda.loss.linear_products import Block, Gradients, Layer, Products, advanced
from dnnarray._cuda.loss.linear_scaled import linear_scaled
from dnnarray._cuda.loss.mean import mean
from dnnarray._cuda.loss.shared import reduced
from dnnarray._cuda.loss.sums import blocks_for, label_blocks
from dnnarray._cuda.positional import NOTHING, Scratch, pointers
from dnnarray._problems.loss_linear import LinearProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_CLUSTER_FROM = 1024  # classes; shorter rows leave most of its threads idle


# --- the forward ------------------------------------------------------------------------------------------------------


@frozen
class _Room:
    """Scratch memory of the forward."""

    z: Array
    dz: Array
    state: Array
    ones: Array
    lse: Array
    losses: Array
    weights: Array
    sums: Array
    total: Array
    shares: Array
    size: int


def _room(problem: LinearProblem, layer: Layer, scratch: Scratch) -> _Room:
    size, item, terms = layer.computed.itemsize, layer.x.dtype.itemsize, 1 + layer.split
    z, dz = (
        scratch.take(layer.block_rows * layer.width, size),
        scratch.take(terms * layer.held_rows * layer.width, item),
    )
    state, ones = scratch.take(5 * layer.block_rows, size), scratch.take(terms * layer.held_rows, item)
    lse, losses, weights = (scratch.take(layer.rows, size) for _ in range(3))
    sums, total, shares = (scratch.take(count, size) for count in (label_blocks(layer.rows), 1, 1))
    return _Room(z, dz, state, ones, lse, losses, weights, sums, total, shares, scratch.size)


def workspace(problem: LinearProblem, precision: str) -> int:
    """Bytes of scratch memory, but for what products by parts take."""
    layer, scratch = Layer.of(problem, precision), Scratch()
    if not layer.rows:
        return 0
    return _room(problem, layer, scratch).size + 2 * (blocks_for(layer.rows) * layer.computed.itemsize + 16)


def sums(scratch: Scratch, layer: Layer, count: int) -> Array:
    """Scratch memory for so many sums."""
    return scratch.take(count, layer.computed.itemsize)


def forward(problem: LinearProblem, device: Device, aligned: bool, precision: str, parts: bool) -> Program:
    """Per block of rows their scores, the losses and the gradients of the scores; per block of those the products with
    them; then the reduction of the losses."""
    (inputs, outputs, last), layer = pointers(problem), Layer.of(problem, precision, parts, aligned)
    loss, tape = outputs[0], outputs[-1]
    if not layer.rows:
        empty = mean(NOTHING, NOTHING, 0, divisor(problem), layer.x.dtype, loss)
        return Program((zero(tape, problem.tape_spec.nbytes, aligned), empty) if problem.tape_spec.size else (empty,))
    scratch, (x, w, *rest) = Scratch(last), inputs
    of, room = Labelled(problem, layer, *rest), _room(problem, layer, scratch)
    first, total, shares = totals(of, room.sums, room.total, room.shares)
    weights, lse = (
        room.weights if problem.reduction == "mean" else NOTHING,
        outputs[1] if problem.return_lse else room.lse,
    )
    found = Rows(room.losses, weights, lse, room.state, TYPES[layer.computed])
    of_scores = ScoreGradients(of, NOTHING, lse, total, shares)
    take = partial(sums, scratch, layer)
    finish = reduced(room.losses, weights, layer.rows, divisor(problem), layer.x.dtype, take, loss)
    products = products_of(problem, layer, x, w, scratch.size, aligned, device.units)
    of_x, of_w, of_bias = (advanced(tape, begin, layer.computed.itemsize) for begin, _ in problem.tape_parts)
    results = Gradients(room.dz, room.ones, of_x, of_w, NOTHING if of.bias == NOTHING else of_bias, taped=True)
    steps, share = list[Step](first), _share(layer, device)
    for held in layer.held_blocks():
        for rows in layer.row_blocks(held):
            steps += _of_rows(of_scores, products, room, found, rows, held, share)
        for classes in layer.class_blocks():
            steps += products.gradients(
                results.reading(_place(room.dz, layer, held, classes)), held, classes, 1 / of.factor
            )
    return Program((*steps, *finish), workspace=products.workspace)


def _share(layer: Layer, device: Device) -> RowShare | None:
    """How a row's scores of all classes are spread over a cluster that holds them; None where there is none, or they do
    not stand beside each other."""
    if (
        layer.dense
        or layer.computed == FLOAT64
        or layer.classes < _CLUSTER_FROM
        or (device.capability or (0, 0)) < COPIES_FROM
    ):
        return None
    return smallest_share(-(-layer.classes // 4), 1, device)


def _of_rows(
    of_scores: ScoreGradients,
    products: Products,
    room: _Room,
    found: Rows,
    rows: Block,
    held: Block,
    share: RowShare | None,
) -> list[Step]:
    """The scores of a block of rows, over all classes, and their gradients."""
    of, layer = of_scores.of, of_scores.of.layer
    if share is not None:
        every = (0, layer.classes)
        return [
            *products.scores(room.z, rows, every),
            of_scores.at_once(room.z, rows, held, room.dz, room.ones, found, share),
        ]
    steps: list[Step] = []
    blocks = [
        (classes, advanced(room.z, layer.block_rows * classes[0], layer.computed.itemsize))
        for classes in layer.class_blocks()
    ]
    for classes, z in blocks:
        steps += [*products.scores(z, rows, classes), of.statistics(z, rows, classes, found)]
    for classes, z in blocks:
        steps.append(of_scores.plan(z, rows, classes, held, _place(room.dz, layer, held, classes), room.ones))
    return steps


def _place(dz: Array, layer: Layer, held: Block, classes: Block) -> Array:
    """Where the gradients of the scores of a block of classes stand."""
    return advanced(dz, (1 + layer.split) * held[1] * classes[0], layer.x.dtype.itemsize)


# --- the backward -----------------------------------------------------------------------------------------------------


def scaled(problem: LinearProblem, device: Device, aligned: bool) -> Program:
    """The parts of the tape times the gradient of the loss, which stays on the device; nothing else is read."""
    (inputs, outputs, _), dtype = pointers(problem), problem.x.dtype
    grad, tape = inputs[0], inputs[-1]
    plans = [
        linear_scaled(grad, tape, begin, out, size, dtype, problem.tape_spec.dtype.itemsize, aligned)
        for (begin, size), out in zip(problem.tape_parts, outputs, strict=True)
        if out != NOTHING
    ]
    given = [spec for spec in problem.inputs if spec is not None]
    orders = tuple(tuple(range(spec.ndim)) if i in (0, len(given) - 1) else None for i, spec in enumerate(given))
    return Program(tuple(plans), orders)
