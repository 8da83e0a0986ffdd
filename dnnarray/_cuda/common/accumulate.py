"""Numbers on top of others."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS, _VECTOR = 256, 4


@frozen
class AccumulateConfig(Config):
    """Compile-time settings of ``kernels/common/accumulate.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class AccumulateArguments(Arguments, restrict=True):
    """What ``kernels/common/accumulate.cu`` is called with."""

    x: In
    y: Out
    size: Extent


def accumulate(source: Array, target: Array, size: int) -> Plan:
    """`size` float32 numbers, which begin at multiples of 16 bytes, on top of others."""
    kernel = Kernel("common/accumulate.cu", f"accumulate_f32x{_VECTOR}", AccumulateConfig("float", _VECTOR, _THREADS))
    return planned(
        kernel, (blocks_of(size, _THREADS * _VECTOR), 1, 1), _THREADS, AccumulateArguments(source, target, size)
    )
