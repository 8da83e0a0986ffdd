"""Weights in C order brought to what products of channels-last images take, (K, window, C), by way of shared memory."""

from __future__ import annotations

from dnnarray._cuda.core.arguments import Arguments, Extent, In, Int, Out
from dnnarray._cuda.core.plan import SHORT, TYPES, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._records import frozen

_THREADS, _SHARED = 256, 16 << 10  # of a block; bytes of shared memory at the most
_STEP = 8  # channels


@frozen
class WeightOrderConfig(Config):
    """Compile-time settings of ``kernels/conv/weight_order.cu``."""

    element: str
    vector: int
    threads: int


@frozen
class WeightOrderArguments(Arguments, restrict=True):
    """What ``kernels/conv/weight_order.cu`` is called with; a block takes `each` channels, of which K has `parts`."""

    source: In
    out: Out
    channels: Extent
    taps: Extent
    each: Int
    parts: Int


def weight_order(source: Operand, target: Operand, shape: tuple[int, int, int], aligned: bool) -> Plan | None:
    """Dense memory of `shape` (K, C, taps); None for a window that is too large."""
    k, c, taps = shape
    size = source.dtype.itemsize
    each = min(-(-c // _STEP) * _STEP, _SHARED // (taps * size) // _STEP * _STEP)
    if each == 0 or k * c * taps == 0:
        return None
    vector, parts = vector_length(source.dtype, aligned, c), -(-c // each)
    kernel = Kernel(
        "conv/weight_order.cu",
        f"conv_weight_order_{SHORT[source.dtype]}x{vector}",
        WeightOrderConfig(TYPES[source.dtype], vector, _THREADS),
    )
    arguments = WeightOrderArguments(source.array, target.array, channels=c, taps=taps, each=each, parts=parts)
    return planned(kernel, (k * parts, 1, 1), _THREADS, arguments, shared_memory=each * taps * size)
