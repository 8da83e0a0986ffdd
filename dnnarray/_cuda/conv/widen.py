"""Dense rows brought to another width: filled up with zeros, or cut."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._records import frozen

_THREADS = 256
_WIDEST = 16  # bytes that a thread stores at once


@frozen
class WidenConfig(Config):
    """Compile-time settings of ``kernels/conv/widen.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class WidenArguments(Arguments, restrict=True):
    """What ``kernels/conv/widen.cu`` is called with."""

    source: In
    out: Out
    total: Extent
    width_in: Extent
    width_out: Extent


def widen(source: Operand, target: Operand, rows: int, width_in: int, width_out: int) -> Plan:
    """Rows of another width; `target` begins at a multiple of 16 bytes."""
    total, vector = rows * width_out, _WIDEST // target.dtype.itemsize
    name, config = f"conv_widen_{SHORT[target.dtype]}", WidenConfig(TYPES[target.dtype], vector, _THREADS)
    arguments = WidenArguments(source.array, target.array, total=total, width_in=width_in, width_out=width_out)
    return planned(Kernel("conv/widen.cu", name, config), (-(-total // (vector * _THREADS)), 1, 1), _THREADS, arguments)
