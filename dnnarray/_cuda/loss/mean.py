"""The sum of losses over a number, or over the sum of their weights."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Double, Extent, InArithmetic, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen


@frozen
class MeanConfig(Config):
    """Compile-time settings of ``kernels/loss/mean.cu``."""

    element: str
    weighted: bool
    threads: int


@frozen
class MeanArguments(Arguments, restrict=True):
    """What ``kernels/loss/mean.cu`` is called with."""

    values: InArithmetic
    weights: InArithmetic
    out: Out
    size: Extent
    divisor: Double


def mean(values: Array | None, weights: Array | None, n: int, divisor: float, dtype: np.dtype, out: Array) -> Plan:
    """The sum of n numbers, over that of `weights` if they are given, else over `divisor`."""
    weighted, threads = weights is not None, 128 if n <= 1024 else 1024
    name = f"loss_mean_{SHORT[dtype]}{'_weighted' * weighted}_{threads}"
    kernel = Kernel("loss/mean.cu", name, MeanConfig(TYPES[dtype], weighted, threads))
    arguments = MeanArguments(values, weights, out, size=n, divisor=float(divisor))
    return planned(kernel, (1, 1, 1), threads, arguments, early=True)
