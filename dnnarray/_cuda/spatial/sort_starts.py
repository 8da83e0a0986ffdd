"""Where the entries of each bucket start among sorted keys."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128
Keys = Annotated[Array, Pointer("unsigned", True)]
Starts = Annotated[Array, Pointer("unsigned", False)]


@frozen
class SortStartsConfig(Config):
    """Compile-time settings of ``kernels/spatial/sort_starts.cu``."""

    threads: int


@frozen
class SortStartsArguments(Arguments, restrict=True):
    """What ``kernels/spatial/sort_starts.cu`` is called with."""

    keys: Keys
    starts: Starts
    segments: Extent
    length: Extent
    buckets: Extent


def sort_starts(keys: Array, starts: Array, segments: int, length: int, buckets: int) -> Plan:
    """A launch with a thread for each bucket."""
    kernel = Kernel("spatial/sort_starts.cu", "sort_starts", SortStartsConfig(_THREADS))
    arguments = SortStartsArguments(keys, starts, segments=segments, length=length, buckets=buckets)
    return planned(kernel, (blocks_of(segments * (buckets + 1), _THREADS), 1, 1), _THREADS, arguments)
