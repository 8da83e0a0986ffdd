"""The algorithm ``cross_entropy_backward_rows``: softmax less target, rows in registers, or read twice where those do
not hold them."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Extent
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.loss.cross_entropy import (
    BackwardArguments,
    Call,
    ScoresConfig,
    backward,
    held,
    no_rows,
    once_or_twice,
    two_orders,
)
from dnnarray._cuda.loss.scores import THREADS, total_bytes
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_LONG_LANES, _LONG_UNROLL = (
    512,
    4,
)  # threads of rows that they do not hold, and the vectors of each that are on their way together
cost = once_or_twice
workspace = total_bytes


@frozen
class CrossEntropyBackwardRowsConfig(ScoresConfig):
    """Compile-time settings of ``kernels/loss/cross_entropy_backward_rows.cu``."""

    row_gradients: bool
    ragged: bool
    long: bool
    vector: int
    keep: int
    lanes: int
    threads: int


@frozen(kw_only=True)
class CrossEntropyBackwardRowsArguments(BackwardArguments):
    """What ``kernels/loss/cross_entropy_backward_rows.cu`` is called with."""

    rows: Extent


def rejects(problem: ScoresProblem, device: Device) -> str | None:
    return two_orders(problem) or no_rows(problem)


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    def launch(call: Call) -> None:
        found = held(problem, aligned)
        lanes, keep = found or (_LONG_LANES, _LONG_UNROLL)
        threads, long = lanes if lanes > 32 else THREADS, found is None
        config = CrossEntropyBackwardRowsConfig(
            **call.settings, ragged=call.ragged, long=long, vector=call.vector, keep=keep, lanes=lanes, threads=threads
        )
        symbol = (
            f"cross_entropy_backward_rows_{call.tail}_x{call.vector}_{keep}"
            f"_{lanes}{'_ragged' * call.ragged}{'_long' * long}"
        )
        grid = (blocks_of(call.lie.rows, threads // lanes), 1, 1)
        arguments = CrossEntropyBackwardRowsArguments(**call.arguments, rows=call.lie.rows)
        call.planner.launch(
            Kernel("loss/cross_entropy_backward_rows.cu", symbol, config), grid, threads, arguments, early=True
        )

    return backward(problem, aligned, launch)
