"""What stands around a matrix product: bias, residual and activation behind it, their gradients, sums over all but the channel, copies
from one memory order or dtype to another."""

from __future__ import annotations

import numpy as np

from dnnarray._cuda.activation import formula
from dnnarray._cuda.common.channels import View, channel_mode, partial_bytes, sums
from dnnarray._cuda.common.partial_sums import add_parts
from dnnarray._cuda.core.plan import SHORT, TYPES, Array, Config, Kernel, Plan, vector_length
from dnnarray._cuda.core.planner import Operand, Planner
from dnnarray._problems.activation import Activation
from dnnarray._records import frozen
from dnnarray._spec import FLOAT32, FLOAT64, HALF

THREADS = 128
_AXES = 5  # of struct Strided
_EXACT = ("relu", "relu6", "clipped_relu", "hard_tanh", "threshold")  # the slope is 0 or 1


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype that sums of products are kept in."""
    return FLOAT64 if dtype == FLOAT64 else FLOAT32


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
    """Compile-time settings of ``kernels/linear/epilogue.cu``."""

    element: str
    source: str
    activation: str
    bias: bool
    residual: bool
    channel: int
    vector: int
    threads: int


def apply(e: Epilogue, z: Operand, y: Operand, view: View, aligned: bool, first: int = 0) -> Plan | None:
    """y from z, both seen as `view`; `first` is the element of y that `view` begins with, for the residual."""
    if view.size == 0:
        return None
    f, vector = formula(e.activation, y.dtype), vector_length(y.dtype, aligned, first)
    mode = channel_mode(view, vector) if e.bias is not None else 0
    config = EpilogueConfig(TYPES[y.dtype], TYPES[z.dtype], f.type, e.bias is not None, e.residual is not None, mode, vector, THREADS)
    name = f"epilogue_{e.name}_{SHORT[z.dtype]}_to_{SHORT[y.dtype]}x{vector}_channel{mode}"
    kernel = Kernel("linear/epilogue.cu", name, config, ("activation",))
    residual = y.array if e.residual is None else Operand(e.residual, y.dtype).at(first)
    arguments = (z.array, e.bias or y.array, residual, y.array, *view.sizes, f.p, f.q)
    return Plan(kernel, (-(-view.size // (THREADS * vector)), 1, 1), THREADS, arguments)


@frozen
class SlopeConfig(Config):
    """Compile-time settings of ``kernels/linear/slope.cu``."""

    element: str
    target: str
    activation: str
    bias: bool
    residual: bool
    channel: int
    vector: int
    threads: int


def slope(e: Epilogue, grad: Operand, z: Operand, target: Operand, view: View, aligned: bool) -> Plan:
    """The gradient in front of the activation, from the product `z` and the gradient behind the activation."""
    f, vector = formula(e.activation, grad.dtype), vector_length(grad.dtype, aligned)
    mode = channel_mode(view, vector) if e.bias is not None else 0
    config = SlopeConfig(TYPES[grad.dtype], TYPES[target.dtype], f.type, e.bias is not None, e.residual is not None, mode, vector, THREADS)
    name = f"slope_{e.name}_{SHORT[grad.dtype]}_to_{SHORT[target.dtype]}x{vector}_channel{mode}"
    kernel = Kernel("linear/slope.cu", name, config, ("activation",))
    arguments = (grad.array, z.array, e.bias or grad.array, e.residual or grad.array, target.array)
    sizes = (*view.sizes, f.p, f.q)
    return Plan(kernel, (-(-view.size // (THREADS * vector)), 1, 1), THREADS, (*arguments, *sizes))


@frozen
class SumsConfig(Config):
    """Compile-time settings of ``kernels/linear/channel_sums.cu``."""

    element: str
    columns: int
    vector: int
    threads: int


def add_channel_sums(steps: Planner, x: Operand, view: View, target: Operand) -> None:
    """The sum of x over all but the channel."""
    if view.channels == 0:
        return
    s = sums(view, x.dtype, steps.aligned)
    config = SumsConfig(TYPES[x.dtype], s.columns, s.vector, THREADS)
    kernel = Kernel("linear/channel_sums.cu", f"linear_channel_sums_{SHORT[x.dtype]}x{s.vector}_{s.name}", config)
    with steps.borrowed():
        wide = accumulator(x.dtype)
        partial = steps.take(wide, partial_bytes(view, x.dtype) // wide.itemsize)
        steps.add(Plan(kernel, (s.blocks, 1, 1), THREADS, (x.array, partial.array, *s.sizes)))
        steps.add(add_parts(partial.array, target.array, target.dtype, s.view.channels, s.parts))
