"""The chains of equal labels in targets, which the gradient of `ctc_loss` adds up along."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent
from dnnarray._cuda.core.plan import Array, Config, Kernel
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.ctc import Lengths, Steps, integers, specs, width_of
from dnnarray._cuda.loss.shared import IntegersOut, Target
from dnnarray._problems.loss import CTCProblem
from dnnarray._records import frozen

_THREADS = 256


@frozen
class CtcChainsConfig(Config):
    """Compile-time settings of ``kernels/loss/ctc_chains.cu``."""

    target: str
    steps: str
    count: str
    padded: bool
    threads: int


@frozen
class CtcChainsArguments(Arguments, restrict=True):
    """What ``kernels/loss/ctc_chains.cu`` is called with."""

    targets: Target
    input_lengths: Steps
    target_lengths: Lengths
    next: IntegersOut
    first: IntegersOut
    steps: Extent
    extent: Extent
    longest: Extent


def chains(problem: CTCProblem, planner: Planner, following: Array, first: Array) -> None:
    """Plan the launch that finds for each label the next equal one, and the first."""
    types, name = integers(problem)
    targets, input_lengths, target_lengths = planner.inputs[-3:]
    arguments = CtcChainsArguments(
        targets,
        input_lengths,
        target_lengths,
        following,
        first,
        steps=problem.steps,
        extent=specs(problem)[1].shape[-1],
        longest=width_of(problem) // 2,
    )
    kernel = Kernel("loss/ctc_chains.cu", f"ctc_chains_{name}", CtcChainsConfig(*types, problem.padded, _THREADS))
    planner.launch(kernel, (problem.batch, 1, 1), _THREADS, arguments)
