"""The passes of `linear_cross_entropy` over blocks of scores: what the losses must know of each row, and the gradients
of the scores."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.core.clusters import RowShare
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Array, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.loss.linear_gradient import LinearGradientArguments, LinearGradientConfig
from dnnarray._cuda.loss.linear_products import Block, Layer, advanced
from dnnarray._cuda.loss.linear_rows_cluster import LinearRowsClusterArguments, LinearRowsClusterConfig
from dnnarray._cuda.loss.linear_statistics import LinearStatisticsArguments, LinearStatisticsConfig
from dnnarray._cuda.loss.mean import mean
from dnnarray._cuda.loss.sums import label_blocks, label_weights
from dnnarray._cuda.loss.weight_sum import weight_sum
from dnnarray._cuda.positional import NOTHING
from dnnarray._problems.loss_linear import LinearProblem
from dnnarray._records import frozen
from dnnarray._spec import HALF

_THREADS = 128


@frozen
class Rows:
    """Arrays with an entry for each row, or nothing, that the statistics leave behind."""

    losses: Any
    weights: Any
    lse: Any
    state: Array
    loss: str


@frozen
class Labelled:
    """What the passes take of a problem: its labels, the bias of the scores and the weights of the classes."""

    problem: LinearProblem
    layer: Layer
    target: Any
    bias: Any
    weight: Any

    @property
    def factor(self) -> float:
        """A mean's gradients are as small as the rows are many; half types hold them times the number of rows."""
        return float(divisor(self.problem)) if self.layer.x.dtype in HALF else 1.0

    def labels(self, row: int) -> Any:
        """The labels from a row on."""
        return advanced(self.target, row, self.problem.target.dtype.itemsize)

    def statistics(self, z: Array, rows: Block, classes: Block, found: Rows) -> Plan:
        """A block of scores into what is known of its rows; the block of the last classes leaves their losses."""
        problem, layer, labels, smoothing = (
            self.problem,
            self.layer,
            self.problem.target,
            self.problem.label_smoothing > 0,
        )
        element, size = TYPES[layer.x.dtype], layer.computed.itemsize
        config = LinearStatisticsConfig(element, INTEGERS[labels.dtype], found.loss, smoothing, 16 // size, _THREADS)
        kind = "_sum" * (found.loss != element)
        name = f"linear_statistics_{SHORT[layer.x.dtype]}_{labels.dtype.name}{kind}{'_smoothing' * smoothing}"
        (row, count), loss_size = rows, layer.x.dtype.itemsize if found.loss == element else size
        results = (
            advanced(found.losses, row, loss_size),
            advanced(found.weights, row, size),
            advanced(found.lse, row, size),
        )
        arguments = LinearStatisticsArguments(
            z=z,
            bias=self.bias,
            weight=self.weight,
            target=self.labels(row),
            state=found.state,
            losses=results[0],
            row_weights=results[1],
            lse=results[2],
            rows=count,
            pitch=layer.across(classes[1]),
            count=classes[1],
            first=classes[0],
            classes=problem.classes,
            ignore=problem.ignore_index,
            smoothing=float(problem.label_smoothing),
        )
        return planned(Kernel("loss/linear_statistics.cu", name, config), (count, 1, 1), _THREADS, arguments)


@frozen
class ScoreGradients:
    """The pass from a block of scores to their gradients. `grad` is that of the loss, or nothing for 1; `total` and
    `shares` as of `totals`."""

    of: Labelled
    grad: Any
    lse: Any
    total: Any
    shares: Any

    def plan(self, z: Array, rows: Block, classes: Block, held: Block, dz: Array, ones: Any) -> Plan:
        """The scores `z` of these rows to their place in `dz`, which has the rows `held`, and behind them what the
        rounding leaves of them."""
        of, problem, layer = self.of, self.of.problem, self.of.layer
        item, across, (row, count) = layer.x.dtype.itemsize, layer.across(classes[1]), rows
        grad = advanced(self.grad, row, item) if problem.reduction == "none" else self.grad
        dz_here, low, ones_here = self._targets(dz, ones, row, held, across)
        arguments = LinearGradientArguments(
            z=z,
            bias=of.bias,
            weight=of.weight,
            target=of.labels(row),
            grad=grad,
            lse=advanced(self.lse, row, layer.computed.itemsize),
            total=self.total,
            shares=self.shares,
            dz=dz_here,
            low=low,
            ones=ones_here,
            rows=held[1],
            pitch=across,
            count=classes[1],
            first=classes[0],
            classes=problem.classes,
            ignore=problem.ignore_index,
            smoothing=float(problem.label_smoothing),
            factor=of.factor,
        )
        return planned(self._kernel(), (count, 1, 1), _THREADS, arguments)

    def at_once(self, z: Array, rows: Block, held: Block, dz: Array, ones: Any, found: Rows, share: RowShare) -> Plan:
        """`statistics` and `plan` of rows whose scores of all classes are there, for a loss whose gradient is 1: each
        stays on the chip of a cluster in between."""
        of, problem, layer = self.of, self.of.problem, self.of.layer
        (row, count), size, vectors = rows, layer.computed.itemsize, -(-problem.classes // 4)
        across, smoothing, labels = layer.across(problem.classes), problem.label_smoothing > 0, problem.target.dtype
        config = LinearRowsClusterConfig(TYPES[layer.x.dtype], INTEGERS[labels], smoothing, layer.split, *share)
        name = (
            f"linear_rows_cluster_{SHORT[layer.x.dtype]}"
            f"_{labels.name}{'_smoothing' * smoothing}{'_split' * layer.split}_{share.blocks}"
        )
        dz_here, low, ones_here = self._targets(dz, ones, row, held, across)
        arguments = LinearRowsClusterArguments(
            z=z,
            bias=of.bias,
            weight=of.weight,
            target=of.labels(row),
            total=self.total,
            shares=self.shares,
            dz=dz_here,
            low=low,
            ones=ones_here,
            losses=advanced(found.losses, row, size),
            row_weights=advanced(found.weights, row, size),
            lse=advanced(found.lse, row, size),
            held=held[1],
            pitch=across,
            classes=problem.classes,
            ignore=problem.ignore_index,
            smoothing=float(problem.label_smoothing),
            factor=of.factor,
        )
        kernel = Kernel("loss/linear_rows_cluster.cu", name, config)
        return planned(
            kernel, (count * share.blocks, 1, 1), share.threads, arguments, shared_memory=share.memory(vectors, 1)
        )

    def _targets(self, dz: Array, ones: Any, row: int, held: Block, across: int) -> tuple[Any, ...]:
        item, first = self.of.layer.x.dtype.itemsize, row - held[0]
        low = advanced(dz, (held[1] + first) * across, item) if self.of.layer.split else NOTHING
        return advanced(dz, first * across, item), low, advanced(ones, first, item)

    def _kernel(self) -> Kernel:
        problem, layer = self.of.problem, self.of.layer
        labels, smoothing, own = problem.target, problem.label_smoothing > 0, problem.reduction == "none"
        element, kind = TYPES[layer.x.dtype], INTEGERS[labels.dtype]
        config = LinearGradientConfig(
            element, kind, smoothing, own, layer.split, 16 // layer.computed.itemsize, _THREADS
        )
        name = (
            f"linear_gradient_{SHORT[layer.x.dtype]}"
            f"_{labels.dtype.name}{'_smoothing' * smoothing}{'_rows' * own}{'_split' * layer.split}"
        )
        return Kernel("loss/linear_gradient.cu", name, config)


def divisor(problem: LinearProblem) -> float:
    """What the sum over rows is divided by where nothing weighs the rows."""
    return math.prod(problem.rows) if problem.reduction == "mean" else 1


def totals(of: Labelled, sums: Array, total: Array, shares: Array) -> tuple[list[Plan], Any, Any]:
    """The launches that sum the weights of the labels for the mean, and all class weights for the smoothing; where the
    sums stand then."""
    problem, layer, plans = of.problem, of.layer, []
    found: list[Any] = [NOTHING, NOTHING]
    if problem.reduction == "mean":
        blocks = label_blocks(layer.rows)
        plans.append(
            label_weights(
                of.target, problem.target, of.weight, layer.x.dtype, sums, problem.classes, problem.ignore_index
            )
        )
        plans.append(mean(sums, NOTHING, blocks, 1, layer.computed, total))
        found[0] = total
    if problem.label_smoothing > 0 and of.weight != NOTHING:
        plans.append(weight_sum(of.weight, layer.x.dtype, shares, problem.classes))
        found[1] = shares
    return plans, *found
