"""The sum of an array over all but the channel."""

from __future__ import annotations

from dnnarray._cuda.common.channels import THREADS, Sums, SumsArguments, View, partial_bytes, sums
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.core.arguments import In, OutArithmetic
from dnnarray._cuda.core.extents import arithmetic_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import Operand, Planner, planned
from dnnarray._records import frozen


@frozen
class ChannelSumsConfig(Config):
    """Compile-time settings of ``kernels/common/channel_sums.cu``."""

    element: str
    columns: int
    vector: int
    threads: int


@frozen
class ChannelSumsArguments(SumsArguments, restrict=True):
    """What ``kernels/common/channel_sums.cu`` is called with."""

    x: In
    partial: OutArithmetic


def first_stage(x: Operand, s: Sums, partial: Array) -> Plan:
    """Partial sums of x, as many of each channel as `s` says."""
    config = ChannelSumsConfig(TYPES[x.dtype], s.columns, s.vector, THREADS)
    kernel = Kernel("common/channel_sums.cu", f"channel_sums_{SHORT[x.dtype]}x{s.vector}_{s.name}", config)
    return planned(kernel, (s.blocks, 1, 1), THREADS, ChannelSumsArguments(x=x.array, partial=partial, **s.arguments))


def add_channel_sums(planner: Planner, x: Operand, view: View, target: Operand) -> None:
    """The sum of x over all but the channel, as the next launches."""
    if view.channels == 0:
        return
    s, wide = sums(view, x.dtype, planner.aligned), arithmetic_of(x.dtype)
    with planner.borrowed():
        partial = planner.take(wide, partial_bytes(view, x.dtype) // wide.itemsize).array
        planner.add(
            first_stage(x, s, partial), add_parts(partial, target.array, target.dtype, s.view.channels, s.parts)
        )
