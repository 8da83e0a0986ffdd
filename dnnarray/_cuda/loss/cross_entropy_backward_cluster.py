"""The algorithm ``cross_entropy_backward_cluster``: softmax less target, rows in the shared memory of a cluster of
blocks."""

from __future__ import annotations

from dnnarray._cuda.core.clusters import COPIES_FROM, RowShare, smallest_share
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.loss.cross_entropy import (
    BackwardArguments,
    Call,
    ScoresConfig,
    backward,
    held,
    no_rows,
    scores_of,
    two_orders,
)
from dnnarray._cuda.loss.scores import total_bytes
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import FLOAT64

workspace = total_bytes


@frozen
class CrossEntropyBackwardClusterConfig(ScoresConfig):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_cluster.cu``."""

    row_gradients: bool
    blocks: int
    threads: int


@frozen(kw_only=True)
class CrossEntropyBackwardClusterArguments(BackwardArguments):
    """What ``kernels/loss/cross_entropy_backward_cluster.cu`` is called with."""


def _vectors(problem: ScoresProblem) -> int:
    return -(-problem.classes * scores_of(problem).dtype.itemsize // 16)


def _share(problem: ScoresProblem, device: Device) -> RowShare | None:
    return smallest_share(_vectors(problem), 1, device)


def rejects(problem: ScoresProblem, device: Device) -> str | None:
    if reason := two_orders(problem) or no_rows(problem):
        return reason
    dtype, capability = scores_of(problem).dtype, device.capability or (0, 0)
    if dtype == FLOAT64:
        return "float64 arrays; it takes narrower ones"
    if not device.aligned or capability < COPIES_FROM:
        return (
            "memory that is not aligned to 16 bytes"
            if not device.aligned
            else f"{device.name} has no asynchronous copies"
        )
    if held(problem, True) is not None:
        return f"{problem.classes} classes, which the registers of a block hold"
    return None if _share(problem, device) else f"a row of {problem.classes} elements does not fit a cluster"


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    def launch(call: Call) -> None:
        share = _share(problem, device)
        assert share is not None
        config = CrossEntropyBackwardClusterConfig(**call.settings, blocks=share.blocks, threads=share.threads)
        symbol = f"cross_entropy_backward_cluster_{call.tail}_{share.blocks}"
        kernel, grid = (
            Kernel("loss/cross_entropy_backward_cluster.cu", symbol, config),
            (call.lie.rows * share.blocks, 1, 1),
        )
        arguments, memory = CrossEntropyBackwardClusterArguments(**call.arguments), share.memory(_vectors(problem), 1)
        call.planner.launch(kernel, grid, share.threads, arguments, shared_memory=memory, early=True)

    return backward(problem, aligned, launch)
