"""Images brought to the domain of Winograd's F(2x2, 3x3)."""

from __future__ import annotations

from dnnarray._cuda.conv.arguments import FloatIn, FloatOut
from dnnarray._cuda.core.arguments import Arguments, Extent, Extents, Int
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen

_THREADS = 128


@frozen
class WinogradInputConfig(Config):
    """Compile-time settings of ``kernels/conv/winograd_input.cu``."""

    last: bool
    vector: int
    threads: int


@frozen
class WinogradInputArguments(Arguments, restrict=True):
    """What ``kernels/conv/winograd_input.cu`` is called with: `high` x `wide` tiles an image, strides of x along batch,
    channels and space."""

    x: FloatIn
    v: FloatOut
    units: Extent
    tiles: Extent
    channels: Extent
    high: Int
    wide: Int
    rows: Extent
    columns: Extent
    before_h: Int
    before_w: Int
    strides: Extents


def winograd_input(arguments: WinogradInputArguments, last: bool, vector: int) -> Plan:
    """v, points x tiles x channels (`last`), or points x channels x tiles; a thread takes `vector` channels."""
    name = f"conv_winograd_input_{'last' if last else 'first'}x{vector}"
    kernel = Kernel("conv/winograd_input.cu", name, WinogradInputConfig(last, vector, _THREADS))
    return planned(kernel, (-(-arguments.units // _THREADS), 1, 1), _THREADS, arguments)
