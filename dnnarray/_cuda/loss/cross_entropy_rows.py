"""The algorithm ``cross_entropy_rows``: one pass over rows of scores with a running maximum, a part of a block for
each."""

from __future__ import annotations

from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Kernel, Program
from dnnarray._cuda.loss.cross_entropy import Call, ForwardArguments, ScoresConfig, forward, held, no_rows
from dnnarray._cuda.loss.scores import THREADS, forward_bytes
from dnnarray._problems.loss import ScoresProblem
from dnnarray._records import frozen
from dnnarray._select import Device

_LONG_LANES, _LONG_UNROLL = (
    512,
    4,
)  # threads of rows that they do not hold, and the vectors of each that are on their way together
workspace = forward_bytes


@frozen
class CrossEntropyRowsConfig(ScoresConfig):
    """Compile-time settings of ``kernels/loss/cross_entropy_rows.cu``."""

    loss: str
    sums: bool
    ragged: bool
    vector: int
    unroll: int
    lanes: int
    threads: int


@frozen(kw_only=True)
class CrossEntropyRowsArguments(ForwardArguments):
    """What ``kernels/loss/cross_entropy_rows.cu`` is called with."""


def rejects(problem: ScoresProblem, device: Device) -> str | None:
    return no_rows(problem)


def run(problem: ScoresProblem, device: Device, aligned: bool) -> Program:
    def launch(call: Call) -> int:
        lanes, unroll = held(problem, aligned) or (_LONG_LANES, _LONG_UNROLL)
        threads = lanes if lanes > 32 else THREADS
        config = CrossEntropyRowsConfig(
            **call.settings, ragged=call.ragged, vector=call.vector, unroll=unroll, lanes=lanes, threads=threads
        )
        symbol = f"cross_entropy_rows_{call.tail}_{unroll}x{call.vector}_{lanes}{'_ragged' * call.ragged}"
        kernel, blocks = (
            Kernel("loss/cross_entropy_rows.cu", symbol, config),
            blocks_of(call.lie.rows, threads // lanes),
        )
        call.planner.launch(kernel, (blocks, 1, 1), threads, CrossEntropyRowsArguments(**call.arguments))
        return blocks

    return forward(problem, aligned, launch)
