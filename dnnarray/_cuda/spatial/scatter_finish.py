"""Scattered sums as numbers of the result's dtype."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.core.arguments import Arguments, Extent, Out, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._cuda.spatial.shared import THREADS
from dnnarray._records import frozen
from dnnarray._spec import Spec

Sums = Annotated[Array, Pointer("void", True)]
Flags = Annotated[Array | None, Pointer("unsigned char", True)]
Largest = Annotated[Array | None, Pointer("unsigned long long", True)]


@frozen
class ScatterFinishConfig(Config):
    """Compile-time settings of ``kernels/spatial/scatter_finish.cu``."""

    element: str
    fixed: bool
    threads: int


@frozen
class ScatterFinishArguments(Arguments, restrict=True):
    """What ``kernels/spatial/scatter_finish.cu`` is called with; `flags` and `largest` belong to sums of integers."""

    sums: Sums
    flags: Flags
    largest: Largest
    y: Out
    size: Extent
    bits: Extent


def scatter_finish(
    target: Spec, fixed: bool, sums: Array, flags: Array | None, largest: Array | None, out: Array, bits: int
) -> Plan:
    """`sums` rounded into `out`; `bits` hold the number of contributions that may meet in an element."""
    name = f"scatter_finish_{SHORT[target.dtype]}{'_fixed' * fixed}"
    kernel = Kernel("spatial/scatter_finish.cu", name, ScatterFinishConfig(TYPES[target.dtype], fixed, THREADS))
    arguments = ScatterFinishArguments(sums, flags, largest, out, size=target.size, bits=bits)
    return planned(kernel, (blocks_of(target.size, THREADS), 1, 1), THREADS, arguments)
