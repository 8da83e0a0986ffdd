"""The sum of the weights of all classes."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, In, OutArithmetic
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 1024


@frozen
class WeightSumConfig(Config):
    """Compile-time settings of ``kernels/loss/weight_sum.cu``."""

    element: str
    threads: int


@frozen
class WeightSumArguments(Arguments, restrict=True):
    """What ``kernels/loss/weight_sum.cu`` is called with."""

    values: In
    out: OutArithmetic
    size: Extent


def weight_sum(weight: Array, dtype: np.dtype, out: Array, classes: int) -> Plan:
    """A launch of one block."""
    kernel = Kernel("loss/weight_sum.cu", f"weight_sum_{SHORT[dtype]}", WeightSumConfig(TYPES[dtype], _THREADS))
    return planned(kernel, (1, 1, 1), _THREADS, WeightSumArguments(weight, out, size=classes))
