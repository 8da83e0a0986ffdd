"""The algorithm ``nll_backward``: the sum of the labels' weights where the mean needs it, then zeros but for what
stands at the labels."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import INTEGERS, SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.scores import THREADS, arrangement, memory_orders, total_bytes, total_weight
from dnnarray._cuda.loss.shared import Target
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_PART = 64  # classes that a thread writes where they do not lie beside each other
_LANES = ((16, 64), (32, 1024))  # threads of a row, and the vectors up to which they are enough
workspace = total_bytes


@frozen
class NllBackwardConfig(Config):
    """Compile-time settings of ``kernels/loss/nll_backward.cu``."""

    element: str
    target: str
    row_gradients: bool
    columns: bool
    ragged: bool
    vector: int
    lanes: int
    threads: int


@frozen
class NllBackwardArguments(Arguments, restrict=True):
    """What ``kernels/loss/nll_backward.cu`` is called with."""

    grad: In
    target: Target
    weight: In
    totals: InArithmetic
    dz: Out
    rows: Extent
    classes: Extent
    inner: Extent
    ignore: Extent
    parts: Extent
    part: Extent


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    _, scores, target, _ = problem.inputs
    if not scores.size:
        return Program(())
    planner = Planner(problem, aligned)
    (grad, _, labels, weight), totals, parts = planner.inputs, *total_weight(problem, planner)
    lie = arrangement(problem, scores, any_order=True)
    own, columns = problem.reduction == "none", lie.inner > 1
    vector = vector_length(scores.dtype, aligned, lie.inner if columns else 0)
    ragged = not columns and problem.classes % vector != 0
    lanes = 32 if columns else next((n for n, most in _LANES if problem.classes <= most * vector), THREADS)
    config = NllBackwardConfig(
        TYPES[scores.dtype], INTEGERS[target.dtype], own, columns, ragged, vector, lanes, THREADS
    )
    shape = "_columns" if columns else f"_{lanes}{'_ragged' * ragged}"
    name = f"nll_backward_{SHORT[scores.dtype]}x{vector}_{target.dtype.name}{shape}{'_rows' * own}"
    part = max(_PART, blocks_of(problem.classes, 65_535))
    threads, blocks = (lie.rows // vector, blocks_of(problem.classes, part)) if columns else (lie.rows * lanes, 1)
    arguments = NllBackwardArguments(
        grad, labels, weight, totals, planner.outputs[0], rows=lie.rows, classes=problem.classes, inner=lie.inner,
        ignore=problem.ignore_index, parts=parts, part=part,
    )  # fmt: skip
    kernel = Kernel("loss/nll_backward.cu", name, config)
    planner.launch(kernel, (blocks_of(threads, THREADS), blocks, 1), THREADS, arguments, early=True)
    return planner.program(memory_orders(problem, lie, target=2))
