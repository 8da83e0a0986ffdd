"""The algorithm ``cross_entropy_short``: rows of few classes, of which a part of a warp holds several at once; the loss
and the gradient."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, In, Out, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Program, vector_length
from dnnarray._cuda.loss.cross_entropy import Call, backward, forward, no_rows, scores_of
from dnnarray._cuda.loss.scores import THREADS, divisor, forward_bytes, total_bytes
from dnnarray._cuda.loss.shared import Loss, Target
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_ROWS = 4  # that part of a warp holds at once
_WARP = 32


@frozen
class CrossEntropyShortConfig(Config):
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


@frozen(kw_only=True)
class CrossEntropyShortArguments(Arguments, restrict=("z", "target", "weight", "grad")):
    """What ``kernels/loss/cross_entropy_short.cu`` is called with; `row_weights` are written by the loss, and `parts`
    sums of them are read by the gradient."""

    z: In
    target: Target
    weight: In
    grad: In = None
    losses: Loss = None
    row_weights: OutArithmetic
    lse: OutArithmetic = None
    dz: Out = None
    rows: Extent
    classes: Extent
    ignore: Extent
    divisor: Double
    parts: Extent = 0


def _lanes(problem: ScoresProblem, aligned: bool) -> tuple[int, int]:
    """Threads of a row, and elements of a vector."""
    vector = vector_length(scores_of(problem).dtype, aligned, problem.classes)
    return max(_ROWS, 1 << (problem.classes // vector - 1).bit_length()), vector


def rejects(problem: ScoresProblem, device: Device) -> str | None:
    if reason := no_rows(problem):
        return reason
    if problem.probabilities or problem.label_smoothing > 0:
        return "targets of more than one class"
    return (
        f"{problem.classes} classes; part of a warp holds fewer" if _lanes(problem, device.aligned)[0] > _WARP else None
    )


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    gradient, each = problem.op.endswith("_backward"), problem.reduction == "none"

    def launch(call: Call) -> int:
        dtype, (lanes, vector) = call.scores.dtype, _lanes(problem, aligned)
        loss = TYPES[dtype if each else arithmetic_of(dtype)]
        flags = (gradient, gradient and each, not (each or gradient))
        config = CrossEntropyShortConfig(
            TYPES[dtype], call.settings["target"], loss, *flags, vector, lanes, _ROWS, THREADS
        )
        kind = f"{'backward_' * gradient}{'rows' if each else 'sum'}"
        symbol = (
            f"cross_entropy_short_{SHORT[dtype]}_{problem.inputs[1 + gradient].dtype.name}_{kind}_x{vector}_{lanes}"
        )
        blocks = blocks_of(call.lie.rows, THREADS // lanes * _ROWS)
        given = call.arguments
        names = (
            "z",
            "target",
            "weight",
            "classes",
            "ignore",
            *(("grad", "dz", "parts") if gradient else ("losses", "row_weights", "lse")),
        )
        arguments = {name: given[name] for name in names} | {"rows": call.lie.rows, "divisor": float(divisor(problem))}
        if gradient:
            arguments["row_weights"] = given["totals"]
        kernel = Kernel("loss/cross_entropy_short.cu", symbol, config)
        call.planner.launch(kernel, (blocks, 1, 1), THREADS, CrossEntropyShortArguments(**arguments), early=gradient)
        return blocks

    return (backward if gradient else forward)(problem, aligned, launch)


def workspace(problem: ScoresProblem) -> int:
    return total_bytes(problem) if problem.op.endswith("_backward") else forward_bytes(problem)
