"""The largest of gradients, which says how far sums of 64-bit integers are shifted."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._spec import Spec

_THREADS, _MOST_BLOCKS, _PART = 256, 1056, 2048  # of a block, blocks, numbers of a block at the least
Largest = Annotated[Array, Pointer("unsigned long long", False)]


@frozen
class ScatterLargestConfig(Config):
    """Compile-time settings of ``kernels/spatial/scatter_largest.cu``."""

    element: str
    threads: int


@frozen
class ScatterLargestArguments(Arguments, restrict=("grad",)):
    """What ``kernels/spatial/scatter_largest.cu`` is called with."""

    grad: In
    largest: Largest
    size: Extent


def scatter_largest(grad: Spec, incoming: Array, largest: Array) -> Plan:
    """The largest of `grad` that is finite, into `largest`, which is 0 before."""
    kernel = Kernel(
        "spatial/scatter_largest.cu",
        f"scatter_largest_{SHORT[grad.dtype]}",
        ScatterLargestConfig(TYPES[grad.dtype], _THREADS),
    )
    blocks = max(1, min(_MOST_BLOCKS, blocks_of(grad.size, _PART)))
    return planned(kernel, (blocks, 1, 1), _THREADS, ScatterLargestArguments(incoming, largest, size=grad.size))
