"""Numbers of the arithmetic rounded to another dtype."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, InArithmetic, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128


@frozen
class ConvertConfig(Config):
    """Compile-time settings of ``kernels/common/convert.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class ConvertArguments(Arguments, restrict=True):
    """What ``kernels/common/convert.cu`` is called with."""

    x: InArithmetic
    y: Out
    size: Extent


def convert(source: Array, target: Array, dtype: np.dtype, size: int, aligned: bool) -> Plan:
    """`size` numbers of float32, or float64 for float64, to another dtype."""
    vector = 4 if aligned else 1
    kernel = Kernel(
        "common/convert.cu", f"convert_{SHORT[dtype]}x{vector}", ConvertConfig(TYPES[dtype], vector, _THREADS)
    )
    return planned(kernel, (blocks_of(size, _THREADS * vector), 1, 1), _THREADS, ConvertArguments(source, target, size))
