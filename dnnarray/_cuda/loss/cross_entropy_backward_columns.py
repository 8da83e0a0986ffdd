"""The algorithm ``cross_entropy_backward_columns``: softmax less target, neighbouring columns in a thread."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.loss.cross_entropy import BackwardArguments, Call, ScoresConfig, backward, no_columns, two_orders
from dnnarray._cuda.loss.scores import THREADS, classes_at_once, total_bytes
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_KEPT_BYTES = 8  # of neighbouring columns of a thread that holds all their classes
_AGAIN_BYTES = 4  # of one that reads them twice: more would ask more of the second-level cache than it holds
workspace = total_bytes


@frozen
class CrossEntropyBackwardColumnsConfig(ScoresConfig):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_columns.cu``."""

    row_gradients: bool
    kept: bool
    unroll: int
    vector: int
    threads: int


@frozen(kw_only=True)
class CrossEntropyBackwardColumnsArguments(BackwardArguments):
    """What ``kernels/loss/cross_entropy_backward_columns.cu`` is called with."""

    rows: Extent
    inner: Extent


def rejects(problem: ScoresProblem, device: Device) -> str | None:
    return two_orders(problem) or no_columns(problem)


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    def launch(call: Call) -> None:
        unroll, kept = classes_at_once(call.classes)
        vector = call.columns(_KEPT_BYTES if kept else _AGAIN_BYTES)
        config = CrossEntropyBackwardColumnsConfig(
            **call.settings, kept=kept, unroll=unroll, vector=vector, threads=THREADS
        )
        symbol = f"cross_entropy_backward_columns_{call.tail}_{unroll}x{vector}{'_kept' * kept}"
        grid = (blocks_of(call.lie.rows, THREADS * vector), 1, 1)
        arguments = CrossEntropyBackwardColumnsArguments(**call.arguments, rows=call.lie.rows, inner=call.lie.inner)
        call.planner.launch(
            Kernel("loss/cross_entropy_backward_columns.cu", symbol, config), grid, THREADS, arguments, early=True
        )

    return backward(problem, aligned, launch)
