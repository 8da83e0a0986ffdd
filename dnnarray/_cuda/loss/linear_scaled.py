"""The gradients that a forward left on its tape, scaled."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, InArithmetic, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.loss.linear_products import advanced
from dnnarray._records import frozen

_THREADS = 256


@frozen
class LinearScaledConfig(Config):
    """Compile-time settings of ``kernels/loss/linear_scaled.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class LinearScaledArguments(Arguments, restrict=True):
    """What ``kernels/loss/linear_scaled.cu`` is called with."""

    x: InArithmetic
    grad: In
    y: Out
    size: Extent


def linear_scaled(
    grad: Array, tape: Array, begin: int, out: Array, size: int, dtype: np.dtype, item: int, aligned: bool
) -> Plan:
    """A part of the tape, from the element `begin` on, times the gradient of the loss."""
    vector = 16 // dtype.itemsize if aligned and begin * item % 16 == 0 else 1
    kernel = Kernel(
        "loss/linear_scaled.cu",
        f"linear_scaled_{SHORT[dtype]}x{vector}",
        LinearScaledConfig(TYPES[dtype], vector, _THREADS),
    )
    arguments = LinearScaledArguments(advanced(tape, begin, item), grad, out, size=size)
    return planned(kernel, (blocks_of(size, _THREADS * vector), 1, 1), _THREADS, arguments)
