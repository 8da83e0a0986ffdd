"""The algorithm ``ctc_lattice``: the forward recursion in logarithms, a block for each sequence, then the reduction of
the losses."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import In, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.ctc import (
    MOST_THREADS,
    Lengths,
    SequenceArguments,
    Steps,
    integers,
    orders,
    sequences,
    specs,
    too_many,
    width_of,
)
from dnnarray._cuda.loss.mean import mean
from dnnarray._cuda.loss.shared import Loss, Target, reduced
from dnnarray._cuda.loss.sums import blocks_for
from dnnarray._problems.loss import CTCProblem
from dnnarray._records import frozen
from dnnarray._select import Device

rejects = too_many


@frozen
class CtcLatticeConfig(Config):
    """Compile-time settings of ``kernels/loss/ctc_lattice.cu``."""

    element: str
    target: str
    steps: str
    count: str
    loss: str
    keep: bool
    padded: bool
    states: int
    threads: int


@frozen(kw_only=True)
class CtcLatticeArguments(SequenceArguments, restrict=True):
    """What ``kernels/loss/ctc_lattice.cu`` is called with; `lattice` is absent where only the losses are wanted."""

    log_probs: In
    targets: Target
    input_lengths: Steps
    target_lengths: Lengths
    losses: Loss
    lattice: OutArithmetic


def _threads(width: int) -> tuple[int, int]:
    """Threads of a block and states of a thread."""
    states = 1
    while states * MOST_THREADS < width:
        states *= 2
    return next(t for t in (32, 64, 128, 256, 512, MOST_THREADS) if t * states >= width), states


def recursion(
    problem: CTCProblem,
    planner: Planner,
    losses: Array,
    lattice: Array | None,
    loss: str,
    zero_infinity: bool,
    mean: bool,
) -> None:
    """Plan the recursion: forward alone, or both directions with all their variables."""
    dtype, width, (types, name) = specs(problem)[0].dtype, width_of(problem), integers(problem)
    (threads, states), keep = _threads(width), lattice is not None
    config = CtcLatticeConfig(TYPES[dtype], *types, loss, keep, problem.padded, states, threads)
    kind = "both" if keep else "row" if problem.reduction == "none" else "sum"
    kernel = Kernel("loss/ctc_lattice.cu", f"ctc_lattice_{SHORT[dtype]}_{name}_{kind}_{threads}x{states}", config)
    log_probs, targets, input_lengths, target_lengths = planner.inputs[-4:]
    arguments = CtcLatticeArguments(
        log_probs=log_probs,
        targets=targets,
        input_lengths=input_lengths,
        target_lengths=target_lengths,
        losses=losses,
        lattice=lattice,
        **sequences(problem, zero_infinity, mean),
    )
    shared = 2 * (width + 2) * arithmetic_of(dtype).itemsize
    planner.launch(kernel, (problem.batch, 2 if keep else 1, 1), threads, arguments, shared_memory=shared)


def run(problem: CTCProblem, device: Device, aligned: bool) -> Program:
    dtype, planner = specs(problem)[0].dtype, Planner(problem, aligned)
    (out,), computed = planner.outputs, arithmetic_of(dtype)
    if problem.reduction == "none":
        if problem.batch:
            recursion(problem, planner, out, None, TYPES[dtype], problem.zero_infinity, False)
        return planner.program(orders(problem))
    divided = problem.reduction == "mean"
    divisor = problem.batch if divided else 1
    if not problem.batch:
        planner.add(mean(None, None, 0, divisor, dtype, out))
        return planner.program(orders(problem))
    losses = planner.take(computed, problem.batch).array
    recursion(problem, planner, losses, None, TYPES[computed], problem.zero_infinity, divided)
    planner.add(*reduced(losses, None, problem.batch, divisor, dtype, lambda n: planner.take(computed, n).array, out))
    return planner.program(orders(problem))


def workspace(problem: CTCProblem) -> int:
    if problem.reduction == "none":
        return 0
    planner, computed = Planner(problem, True), arithmetic_of(specs(problem)[0].dtype)
    planner.take(computed, problem.batch)
    planner.take(computed, blocks_for(problem.batch))
    return planner.workspace
