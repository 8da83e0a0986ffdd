"""Results of convolution from the domain of Winograd's F(2x2, 3x3), with what follows them."""

from __future__ import annotations

from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.conv.arguments import FloatIn, FloatOut
from dnnarray._cuda.core.arguments import Arguments, Double, Extent, Extents, Int
from dnnarray._cuda.core.plan import Config, Kernel, Plan
from dnnarray._cuda.core.planner import planned
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32

_THREADS = 128


@frozen
class WinogradOutputConfig(Config):
    """Compile-time settings of ``kernels/conv/winograd_output.cu``."""

    activation: str
    bias: bool
    residual: bool
    last: bool
    vector: int
    threads: int


@frozen
class WinogradOutputArguments(Arguments, restrict=True):
    """What ``kernels/conv/winograd_output.cu`` is called with: `high` x `wide` tiles an image, strides of y along
    batch, channels and space."""

    m: FloatIn
    bias: FloatIn
    residual: FloatIn
    y: FloatOut
    units: Extent
    tiles: Extent
    channels: Extent
    high: Int
    wide: Int
    rows: Extent
    columns: Extent
    strides: Extents
    p: Double
    q: Double


def winograd_output(arguments: WinogradOutputArguments, e: Epilogue, last: bool, vector: int) -> Plan:
    """y; a thread takes `vector` channels."""
    activation = formula(e.activation, FLOAT32).type
    config = WinogradOutputConfig(activation, e.bias is not None, e.residual is not None, last, vector, _THREADS)
    name = f"conv_winograd_output_{e.name}_{'last' if last else 'first'}x{vector}"
    kernel = Kernel("conv/winograd_output.cu", name, config, ("core/activation",))
    return planned(kernel, (-(-arguments.units // _THREADS), 1, 1), _THREADS, arguments)
