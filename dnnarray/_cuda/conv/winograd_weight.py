"""Weights of 3 x 3 brought to the domain of Winograd's F(2x2, 3x3)."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import FloatIn, FloatOut
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents
from dnnarray._cuda.core.plan import Array, Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128


@frozen
class WinogradWeightConfig(Config):
    """Compile-time settings of ``kernels/conv/winograd_weight.cu``."""

    threads: int


@frozen
class WinogradWeightArguments(Arguments, restrict=True):
    """What ``kernels/conv/winograd_weight.cu`` is called with; the strides of w are along outputs, inputs and the
    window."""

    w: FloatIn
    u: FloatOut
    inputs: Extent
    outputs: Extent
    strides: Extents


def winograd_weight(w: Array, u: Array, inputs: int, outputs: int, strides: tuple[int, ...]) -> Plan:
    """u, points x inputs x outputs."""
    kernel = Kernel("conv/winograd_weight.cu", "conv_winograd_weight", WinogradWeightConfig(_THREADS))
    arguments = WinogradWeightArguments(w, u, inputs=inputs, outputs=outputs, strides=strides)
    return planned(kernel, (-(-inputs * outputs // _THREADS), 1, 1), _THREADS, arguments)
