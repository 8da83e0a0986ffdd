"""The second stage of sums: what the blocks of the first left for each element of the result is added up."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, InArithmetic, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 256


@frozen
class PartialSumsConfig(Config):
    """Compile-time settings of ``kernels/common/partial_sums.cu``."""

    element: str
    lanes: int
    threads: int


@frozen
class PartialSumsArguments(Arguments):
    """What ``kernels/common/partial_sums.cu`` is called with."""

    partial: InArithmetic
    out: Out
    size: Extent
    parts: Extent


def add_parts(
    partial: Array | None, target: Array, dtype: np.dtype, size: int, parts: int, lanes: int | None = None
) -> Plan:
    """A launch that adds up `parts` neighbouring partial sums for each of `size` elements of the target, by so many
    threads for each element."""
    lanes = lanes or (32 if parts <= 1024 else _THREADS)
    kernel = Kernel(
        "common/partial_sums.cu",
        f"partial_sums_{SHORT[dtype]}_{lanes}",
        PartialSumsConfig(TYPES[dtype], lanes, _THREADS),
    )
    arguments = PartialSumsArguments(partial, target, size, parts)
    return planned(kernel, (blocks_of(size, _THREADS // lanes), 1, 1), _THREADS, arguments, early=parts > 0)
