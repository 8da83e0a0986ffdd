"""The algorithm ``ctc_gradient``: both recursions side by side, the chains of equal labels, then the posteriors of the
states."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import In, InArithmetic, Out
from dnnarray._cuda.core.extents import arithmetic_of, blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Program
from dnnarray._cuda.core.planner import Planner
from dnnarray._cuda.loss.ctc import (
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
from dnnarray._cuda.loss.ctc_chains import chains
from dnnarray._cuda.loss.ctc_lattice import recursion
from dnnarray._cuda.loss.shared import Integers, Target
from dnnarray._problems.loss import CTCProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import INT32

_STEPS, _THREADS = 8, 128  # of a block
rejects = too_many


@frozen
class CtcGradientConfig(Config):
    """Compile-time settings of ``kernels/loss/ctc_gradient.cu``."""

    element: str
    target: str
    steps: str
    count: str
    padded: bool
    sequence_gradients: bool
    steps_of_block: int
    threads: int


@frozen(kw_only=True)
class CtcGradientArguments(SequenceArguments, restrict=("targets", "losses", "lattice", "next", "first")):
    """What ``kernels/loss/ctc_gradient.cu`` is called with."""

    grad: In
    targets: Target
    input_lengths: Steps
    target_lengths: Lengths
    losses: InArithmetic
    lattice: InArithmetic
    next: Integers
    first: Integers
    dlog_probs: Out


def _room(problem: CTCProblem, planner: Planner) -> tuple[Array, ...]:
    """Scratch memory: losses, variables of both directions, chains of labels."""
    computed, width, batch = arithmetic_of(specs(problem)[0].dtype), width_of(problem), problem.batch
    sizes = ((computed, batch), (computed, 2 * batch * problem.steps * width), *((INT32, batch * (width // 2)),) * 2)
    return tuple(planner.take(dtype, size).array for dtype, size in sizes)


def run(problem: CTCProblem, device: Device, aligned: bool) -> Program:
    scores = specs(problem)[0]
    if not scores.size:
        return Program(())
    planner, (types, name) = Planner(problem, aligned), integers(problem)
    grad, _, targets, input_lengths, target_lengths = planner.inputs
    losses, lattice, following, first = _room(problem, planner)
    recursion(problem, planner, losses, lattice, TYPES[arithmetic_of(scores.dtype)], False, False)
    chains(problem, planner, following, first)
    own = problem.reduction == "none" and problem.batched
    config = CtcGradientConfig(TYPES[scores.dtype], *types, problem.padded, own, _STEPS, _THREADS)
    kernel = Kernel("loss/ctc_gradient.cu", f"ctc_gradient_{SHORT[scores.dtype]}_{name}{'_rows' * own}", config)
    arguments = CtcGradientArguments(
        grad=grad,
        targets=targets,
        input_lengths=input_lengths,
        target_lengths=target_lengths,
        losses=losses,
        lattice=lattice,
        next=following,
        first=first,
        dlog_probs=planner.outputs[0],
        **sequences(problem, problem.zero_infinity, problem.reduction == "mean"),
    )
    blocks, shared = (
        problem.batch * blocks_of(problem.steps, _STEPS),
        max(width_of(problem) // 2, 1) * arithmetic_of(scores.dtype).itemsize,
    )
    planner.launch(kernel, (blocks, 1, 1), _THREADS, arguments, shared_memory=shared)
    return planner.program(orders(problem))


def workspace(problem: CTCProblem) -> int:
    planner = Planner(problem, True)
    _room(problem, planner)
    return planner.workspace
