"""The gradient in front of the activation that follows a matrix product."""

from __future__ import annotations

from typing import Annotated

from dnnarray._cuda.common.channels import THREADS, View, channel_mode
from dnnarray._cuda.common.epilogue import Epilogue
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Channels, Double, Extent, In, InArithmetic, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._records import frozen

Target = Annotated[Array, Pointer("Config::Target", False)]


@frozen
class EpilogueBackwardConfig(Config):
    """Compile-time settings of ``kernels/common/epilogue_backward.cu``."""

    element: str
    target: str
    activation: str
    bias: bool
    residual: bool
    channel: int
    vector: int
    threads: int


@frozen
class EpilogueBackwardArguments(Arguments, restrict=True):
    """What ``kernels/common/epilogue_backward.cu`` is called with."""

    grad: In
    z: InArithmetic
    bias: In
    residual: In
    dz: Target
    size: Extent
    view: Channels
    p: Double
    q: Double


def slope(e: Epilogue, grad: Operand, z: Operand, target: Operand, view: View, aligned: bool) -> Plan:
    """The gradient in front of the activation, from the product `z` and the gradient behind the activation."""
    f, vector = formula(e.activation, grad.dtype), vector_length(grad.dtype, aligned)
    mode, (size, *channels) = channel_mode(view, vector) if e.bias is not None else 0, view.sizes
    config = EpilogueBackwardConfig(
        TYPES[grad.dtype],
        TYPES[target.dtype],
        f.type,
        e.bias is not None,
        e.residual is not None,
        mode,
        vector,
        THREADS,
    )
    name = f"epilogue_backward_{e.name}_{SHORT[grad.dtype]}_to_{SHORT[target.dtype]}x{vector}_channel{mode}"
    kernel = Kernel("common/epilogue_backward.cu", name, config, ("core/activation", "core/channels"))
    arguments = EpilogueBackwardArguments(
        grad.array, z.array, e.bias, e.residual, target.array, size=size, view=channels, p=f.p, q=f.q
    )
    return planned(kernel, (blocks_of(size, THREADS * vector), 1, 1), THREADS, arguments)
