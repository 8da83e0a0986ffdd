"""What the plans of `ctc_loss` share: the extents of sequences and targets, and how the scores lie in memory."""

from __future__ import annotations

import math
from typing import Annotated, Any

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.extents import arithmetic_of, order_of
from dnnarray._cuda.core.plan import INTEGERS, Array
from dnnarray._problems.loss import CTCProblem
from dnnarray._records import frozen
from dnnarray._select import Device
from dnnarray._spec import Spec

_STATES = 8  # at most, for a thread
MOST_THREADS = 1024
Steps = Annotated[Array, Pointer("Config::Steps", True)]
Lengths = Annotated[Array, Pointer("Config::Count", True)]


@frozen(kw_only=True)
class SequenceArguments(Arguments):
    """What the kernels of the recursion and of the gradient have in common; strides are in elements of the scores."""

    batch: Extent
    steps: Extent
    classes: Extent
    extent: Extent
    blank: Extent
    width: Extent
    step_stride: Extent
    sequence_stride: Extent
    class_stride: Extent
    zero_infinity: Extent
    mean: Extent


def specs(problem: CTCProblem) -> tuple[Spec, ...]:
    """Scores, targets and both kinds of lengths."""
    return problem.inputs[-4:]


def width_of(problem: CTCProblem) -> int:
    """States of the longest target that may have an alignment: it has no more labels than there are steps."""
    return 2 * min(specs(problem)[1].shape[-1], problem.steps) + 1


def too_many(problem: CTCProblem, device: Device) -> str | None:
    """Why a block does not hold the states of a target, or None."""
    width = width_of(problem)
    if width > _STATES * MOST_THREADS:
        return (
            f"targets of up to {width // 2:,} labels; a block holds the states of {_STATES * MOST_THREADS // 2 - 1:,}"
        )
    needed = 2 * (width + 2) * arithmetic_of(specs(problem)[0].dtype).itemsize
    if device.shared_memory and needed > device.shared_memory - 1024:
        return (
            f"targets of up to {width // 2:,} labels need {needed:,} bytes of shared memory, {device.name} has "
            f"{device.shared_memory:,}"
        )
    return None


def integers(problem: CTCProblem) -> tuple[tuple[str, str, str], str]:
    """The C++ types of targets and lengths, and what names them in a symbol."""
    dtypes = [s.dtype for s in specs(problem)[1:]]
    names = [d.name.replace("uint", "u").replace("int", "i") for d in dtypes]
    return (INTEGERS[dtypes[0]], INTEGERS[dtypes[1]], INTEGERS[dtypes[2]]), "_".join(names) + "_padded" * problem.padded


def _strides(problem: CTCProblem) -> tuple[int, int, int]:
    """Elements between steps, sequences and classes."""
    scores = specs(problem)[0]
    order = order_of(scores)
    strides = [math.prod(scores.shape[a] for a in order[order.index(axis) + 1 :]) for axis in range(scores.ndim)]
    return strides[0], strides[1] if problem.batched else 0, strides[-1]


def orders(problem: CTCProblem) -> tuple[tuple[int, ...], ...]:
    """The memory orders that the kernels expect of the inputs."""
    position = len(problem.inputs) - 4
    return tuple(order_of(s) if i == position else tuple(range(s.ndim)) for i, s in enumerate(problem.inputs))


def sequences(problem: CTCProblem, zero_infinity: bool, mean: bool) -> dict[str, Any]:
    """The fields of `SequenceArguments`."""
    step, sequence, label = _strides(problem)
    return {
        "batch": problem.batch,
        "steps": problem.steps,
        "classes": problem.classes,
        "extent": specs(problem)[1].shape[-1],
        "blank": problem.blank,
        "width": width_of(problem),
        "step_stride": step,
        "sequence_stride": sequence,
        "class_stride": label,
        "zero_infinity": int(zero_infinity),
        "mean": int(mean),
    }
