"""The algorithm ``cross_entropy_columns``: one pass over columns of scores with a running maximum, neighbouring columns
in a thread."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.loss.cross_entropy import Call, ForwardArguments, ScoresConfig, forward, no_columns
from dnnarray._cuda.loss.scores import THREADS, classes_at_once, forward_bytes
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

_CLASSES = (8, 7, 6, 5)  # that a thread fetches together
_HELD = 22  # and the most that it holds, where they are all
_BYTES = 8  # of neighbouring columns of a thread
workspace = forward_bytes


@frozen
class CrossEntropyColumnsConfig(ScoresConfig):
    """Compile-time settings of ``kernels/loss/cross_entropy_columns.cu``."""

    loss: str
    sums: bool
    kept: bool
    vector: int
    unroll: int
    threads: int


@frozen(kw_only=True)
class CrossEntropyColumnsArguments(ForwardArguments):
    """What ``kernels/loss/cross_entropy_columns.cu`` is called with."""

    inner: Extent


def rejects(problem: ScoresProblem, device: Device) -> str | None:
    return no_columns(problem)


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    def launch(call: Call) -> int:
        vector = call.columns(_BYTES)
        unroll, kept = classes_at_once(call.classes)
        if (
            unroll > _HELD
            or call.scores.dtype == FLOAT64
            or call.settings["probabilities"]
            or call.settings["smoothing"]
        ):
            kept = False  # more than registers hold
        if not kept:
            unroll = min(_CLASSES, key=lambda n: -(-call.classes // n) * n)
        config = CrossEntropyColumnsConfig(**call.settings, kept=kept, vector=vector, unroll=unroll, threads=THREADS)
        symbol = f"cross_entropy_columns_{call.tail}_{unroll}x{vector}{'_kept' * kept}"
        kernel, blocks = (
            Kernel("loss/cross_entropy_columns.cu", symbol, config),
            blocks_of(call.lie.rows, THREADS * vector),
        )
        call.planner.launch(
            kernel, (blocks, 1, 1), THREADS, CrossEntropyColumnsArguments(**call.arguments, inner=call.lie.inner)
        )
        return blocks

    return forward(problem, aligned, launch)
