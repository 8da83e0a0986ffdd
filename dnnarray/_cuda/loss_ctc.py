"""`ctc_loss`: plans for the recursion over states, a block for each sequence, and for the gradient from both directions of it."""

from __future__ import annotations

import math
from typing import Any

from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, Program
from dnnarray._cuda.loss_sums import INTEGERS, NOTHING, Scratch, arithmetic, blocks_for, pointers, reduced
from dnnarray._problems.loss import CTCProblem
from dnnarray._records import frozen
from dnnarray._select import Device, Method
from dnnarray._spec import Spec

_STATES = 8  # at most, for a thread
_THREADS = 1024
_GRADIENT_STEPS, _GRADIENT_THREADS = 8, 128


@frozen
class LatticeConfig(Config):
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


@frozen
class ChainsConfig(Config):
    """Compile-time settings of ``kernels/loss/ctc_chains.cu``."""

    target: str
    steps: str
    count: str
    padded: bool
    threads: int


@frozen
class GradientConfig(Config):
    """Compile-time settings of ``kernels/loss/ctc_gradient.cu``."""

    element: str
    target: str
    steps: str
    count: str
    padded: bool
    sequence_gradients: bool
    steps_of_block: int
    threads: int


def _specs(problem: CTCProblem) -> tuple[Spec, ...]:
    """Scores, targets and both kinds of lengths."""
    return problem.inputs[-4:]


def _width(problem: CTCProblem) -> int:
    """States of the longest target that may have an alignment: it has no more labels than there are steps."""
    return 2 * min(_specs(problem)[1].shape[-1], problem.steps) + 1


def _threads(width: int) -> tuple[int, int]:
    """Threads of a block and states of a thread."""
    states = 1
    while states * _THREADS < width:
        states *= 2
    return next(t for t in (32, 64, 128, 256, 512, _THREADS) if t * states >= width), states


def _too_many(problem: CTCProblem, device: Device) -> str | None:
    width = _width(problem)
    if width > _STATES * _THREADS:
        return f"targets of up to {width // 2:,} labels; a block holds the states of {_STATES * _THREADS // 2 - 1:,}"
    needed = 2 * (width + 2) * arithmetic(_specs(problem)[0]).itemsize
    if device.shared_memory and needed > device.shared_memory - 1024:
        return f"targets of up to {width // 2:,} labels need {needed:,} bytes of shared memory, {device.name} has {device.shared_memory:,}"
    return None


def _integers(problem: CTCProblem) -> tuple[tuple[str, str, str], str]:
    """The C++ types of targets and lengths, and what names them in a symbol."""
    dtypes = [s.dtype for s in _specs(problem)[1:]]
    names = [d.name.replace("uint", "u").replace("int", "i") for d in dtypes]
    return (INTEGERS[dtypes[0]], INTEGERS[dtypes[1]], INTEGERS[dtypes[2]]), "_".join(names) + "_padded" * problem.padded


def _order(problem: CTCProblem) -> tuple[int, ...]:
    """The memory order of the scores, as they lie where they are dense."""
    scores = _specs(problem)[0]
    return scores.axis_order() or tuple(range(scores.ndim))


def _strides(problem: CTCProblem) -> tuple[int, int, int]:
    """Elements between steps, sequences and classes."""
    shape, order = _specs(problem)[0].shape, _order(problem)
    strides = [math.prod(shape[a] for a in order[order.index(axis) + 1 :]) for axis in range(len(shape))]
    return strides[0], strides[1] if problem.batched else 0, strides[-1]


def _orders(problem: CTCProblem) -> tuple[tuple[int, ...], ...]:
    """The memory orders that the kernels expect of the inputs."""
    position = len(problem.inputs) - 4
    return tuple(_order(problem) if i == position else tuple(range(s.ndim)) for i, s in enumerate(problem.inputs))


def _lattice(problem: CTCProblem, inputs: list[Any], losses: Any, lattice: Any, loss: str, zero_infinity: bool, mean: bool) -> Plan:
    """The recursion: forward alone, or both directions with all their variables."""
    scores, targets = _specs(problem)[:2]
    width, (types, name) = _width(problem), _integers(problem)
    threads, states = _threads(width)
    keep = lattice != NOTHING
    config = LatticeConfig(TYPES[scores.dtype], *types, loss, keep, problem.padded, states, threads)
    kind = "both" if keep else "row" if problem.reduction == "none" else "sum"
    kernel = Kernel("loss/ctc_lattice.cu", f"ctc_lattice_{SHORT[scores.dtype]}_{name}_{kind}_{threads}x{states}", config)
    sizes = (problem.batch, problem.steps, problem.classes, targets.shape[-1], problem.blank, width)
    flags = (*_strides(problem), int(zero_infinity), int(mean))
    shared = 2 * (width + 2) * arithmetic(scores).itemsize
    return Plan(kernel, (problem.batch, 2 if keep else 1, 1), threads, (*inputs[-4:], losses, lattice, *sizes, *flags), shared)


def ctc_loss(problem: CTCProblem, device: Device, aligned: bool) -> Program:
    """The losses of all sequences, then their reduction."""
    scores = _specs(problem)[0]
    inputs, (out,), last = pointers(problem)
    mean, computed = problem.reduction == "mean", arithmetic(scores)
    if problem.reduction == "none":
        if not problem.batch:
            return Program(())
        return Program((_lattice(problem, inputs, out, NOTHING, TYPES[scores.dtype], problem.zero_infinity, False),), _orders(problem))
    scratch = Scratch(last)
    losses = scratch.take(problem.batch, computed.itemsize)
    divisor = problem.batch if mean else 1
    if not problem.batch:
        return Program(tuple(reduced(NOTHING, NOTHING, 0, divisor, scores.dtype, computed, scratch, out)))
    first = _lattice(problem, inputs, losses, NOTHING, TYPES[computed], problem.zero_infinity, mean)
    return Program((first, *reduced(losses, NOTHING, problem.batch, divisor, scores.dtype, computed, scratch, out)), _orders(problem))


def _loss_bytes(problem: CTCProblem) -> int:
    if problem.reduction == "none":
        return 0
    scratch, itemsize = Scratch(), arithmetic(_specs(problem)[0]).itemsize
    scratch.take(problem.batch, itemsize)
    scratch.take(blocks_for(problem.batch), itemsize)
    return scratch.size


def _parts(problem: CTCProblem, index: int) -> tuple[int, Any, Any, Any, Any]:
    """Bytes of scratch memory, and its parts: losses, variables of both directions, chains of labels."""
    scratch, itemsize = Scratch(index), arithmetic(_specs(problem)[0]).itemsize
    width, batch = _width(problem), problem.batch
    losses = scratch.take(batch, itemsize)
    lattice = scratch.take(2 * batch * problem.steps * width, itemsize)
    following, first = (scratch.take(batch * (width // 2), 4) for _ in range(2))
    return scratch.size, losses, lattice, following, first


def ctc_loss_backward(problem: CTCProblem, device: Device, aligned: bool) -> Program:
    """Both directions at once, the chains of equal labels, then the gradient."""
    scores, targets = _specs(problem)[:2]
    if not scores.size:
        return Program(())
    inputs, (out,), last = pointers(problem)
    grad, _, labels, steps, counts = inputs
    _, losses, lattice, following, first = _parts(problem, last)
    width, (types, name) = _width(problem), _integers(problem)
    extent = targets.shape[-1]
    plans = [_lattice(problem, inputs, losses, lattice, TYPES[arithmetic(scores)], False, False)]
    kernel = Kernel("loss/ctc_chains.cu", f"ctc_chains_{name}", ChainsConfig(*types, problem.padded, 256))
    plans.append(Plan(kernel, (problem.batch, 1, 1), 256, (labels, steps, counts, following, first, problem.steps, extent, width // 2)))
    own = problem.reduction == "none" and problem.batched
    config = GradientConfig(TYPES[scores.dtype], *types, problem.padded, own, _GRADIENT_STEPS, _GRADIENT_THREADS)
    kernel = Kernel("loss/ctc_gradient.cu", f"ctc_gradient_{SHORT[scores.dtype]}_{name}{'_rows' * own}", config)
    sizes = (problem.batch, problem.steps, problem.classes, extent, problem.blank, width)
    flags = (*_strides(problem), int(problem.zero_infinity), int(problem.reduction == "mean"))
    blocks = problem.batch * -(-problem.steps // _GRADIENT_STEPS)
    shared = max(width // 2, 1) * arithmetic(scores).itemsize
    arguments = (grad, labels, steps, counts, losses, lattice, following, first, out, *sizes, *flags)
    plans.append(Plan(kernel, (blocks, 1, 1), _GRADIENT_THREADS, arguments, shared))
    return Program(tuple(plans), _orders(problem))


ALGORITHMS = {
    "ctc_loss": (
        Method("forward", ctc_loss, "the forward recursion in logarithms, a block a sequence", rejects=_too_many, workspace=_loss_bytes),
    ),
    "ctc_loss_backward": (
        Method(
            "forward_backward",
            ctc_loss_backward,
            "both recursions side by side, then the posteriors of the states",
            rejects=_too_many,
            workspace=lambda problem: _parts(problem, 0)[0],
        ),
    ),
}
