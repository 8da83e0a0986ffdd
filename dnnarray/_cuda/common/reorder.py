"""An array in another order of its axes."""

from __future__ import annotations

from collections.abc import Sequence

from dnnarray._cuda.common.channels import THREADS, strided
from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out, Strided
from dnnarray._cuda.core.extents import blocks_of, order_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._spec import Spec


@frozen
class ReorderConfig(Config):
    """Compile-time settings of ``kernels/common/reorder.cu``."""

    element: str
    threads: int


@frozen
class ReorderArguments(Arguments, restrict=True):
    """What ``kernels/common/reorder.cu`` is called with."""

    x: In
    y: Out
    size: Extent
    place: Strided


def reorder(spec: Spec, order: Sequence[int], source: Array, target: Array) -> Plan:
    """A launch that brings an array from `order` to the order of `spec`."""
    config = ReorderConfig(TYPES[spec.dtype], THREADS)
    kernel = Kernel("common/reorder.cu", f"reorder_{SHORT[spec.dtype]}", config, ("core/index",))
    place = strided(spec.shape, order_of(spec), order)
    assert place is not None
    return planned(
        kernel, (blocks_of(spec.size, THREADS), 1, 1), THREADS, ReorderArguments(source, target, spec.size, place)
    )
