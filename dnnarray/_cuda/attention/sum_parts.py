"""The launch that adds up what parts of a sum leave, for one or two results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from dnnarray._cuda.core.arguments import Arguments, Extent, Out, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128
Parts = Annotated[Array | None, Pointer("Config::Part", True)]


@frozen
class SumPartsConfig(Config):
    """Compile-time settings of ``kernels/attention/sum_parts.cu``."""

    element: str
    part: str
    threads: int


@frozen
class SumPartsArguments(Arguments, restrict=True):
    """What ``kernels/attention/sum_parts.cu`` is called with; the second sum is absent where there is one."""

    parts: Parts
    y: Out
    second_parts: Parts
    second_y: Out
    size: Extent
    count: Extent


def sum_parts(
    sums: Sequence[tuple[Array, Array]], size: int, count: int, result: np.dtype, arithmetic: np.dtype
) -> Plan:
    """One or two sums (parts, result) over the first axis of `count` x `size` numbers, in the dtype of the result."""
    config = SumPartsConfig(TYPES[result], TYPES[arithmetic], _THREADS)
    kernel = Kernel("attention/sum_parts.cu", f"sum_parts_{SHORT[arithmetic]}_{SHORT[result]}", config)
    (parts, y), (second_parts, second_y) = sums[0], sums[1] if len(sums) == 2 else (None, None)
    arguments = SumPartsArguments(parts, y, second_parts, second_y, size, count)
    return planned(kernel, (blocks_of(size, _THREADS), len(sums), 1), _THREADS, arguments, early=True)
