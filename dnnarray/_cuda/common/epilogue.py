"""What follows a matrix product: bias, residual and activation."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from dnnarray._cuda.common.channels import THREADS, View, channel_mode
from dnnarray._cuda.common.formula import formula
from dnnarray._cuda.core.arguments import Arguments, Channels, Double, Extent, In, Out, Pointer
from dnnarray._cuda.core.extents import blocks_of
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand, planned
from dnnarray._problems.activation import Activation
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, HALF

_EXACT = ("relu", "relu6", "clipped_relu", "hard_tanh", "threshold")  # their derivative is 0 or 1
Source = Annotated[Array, Pointer("Config::Source", True)]


@frozen
class Epilogue:
    """y = activation(z + bias + residual); the residual lies in memory as y does."""

    bias: Array | None = None
    residual: Array | None = None
    activation: Activation | None = None

    @property
    def empty(self) -> bool:
        return self.bias is None and self.residual is None and self.activation is None

    @property
    def name(self) -> str:
        """For symbols."""
        words = ["bias"] * (self.bias is not None) + ["residual"] * (self.residual is not None)
        if self.activation is not None:
            words.append(formula(self.activation, FLOAT32).name)
        return "_".join(words) or "plain"

    def rounds_slope(self, dtype: np.dtype) -> bool:
        """Whether the gradient in front of the activation has digits that this dtype would lose."""
        return dtype in HALF and self.activation is not None and self.activation.name not in _EXACT


@frozen
class EpilogueConfig(Config):
    """Compile-time settings of ``kernels/common/epilogue.cu``."""

    element: str
    source: str
    activation: str
    bias: bool
    residual: bool
    channel: int
    vector: int
    threads: int


@frozen
class EpilogueArguments(Arguments, restrict=True):
    """What ``kernels/common/epilogue.cu`` is called with."""

    z: Source
    bias: In
    residual: In
    y: Out
    size: Extent
    view: Channels
    p: Double
    q: Double


def apply(e: Epilogue, z: Operand, y: Operand, view: View, aligned: bool, first: int = 0) -> Plan | None:
    """y from z, both seen as `view`; `first` is the element of y that `view` begins with, for the residual."""
    if view.size == 0:
        return None
    f, vector = formula(e.activation, y.dtype), vector_length(y.dtype, aligned, first)
    mode, (size, *channels) = channel_mode(view, vector) if e.bias is not None else 0, view.sizes
    config = EpilogueConfig(
        TYPES[y.dtype], TYPES[z.dtype], f.type, e.bias is not None, e.residual is not None, mode, vector, THREADS
    )
    name = f"epilogue_{e.name}_{SHORT[z.dtype]}_to_{SHORT[y.dtype]}x{vector}_channel{mode}"
    kernel = Kernel("common/epilogue.cu", name, config, ("core/activation", "core/channels"))
    residual = None if e.residual is None else Operand(e.residual, y.dtype).at(first)
    arguments = EpilogueArguments(z.array, e.bias, residual, y.array, size=size, view=channels, p=f.p, q=f.q)
    return planned(kernel, (blocks_of(size, THREADS * vector), 1, 1), THREADS, arguments)
