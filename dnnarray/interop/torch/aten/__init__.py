"""Implementations of PyTorch's own operators by dnnarray's functions, one module for each family, and the table
`KERNELS` of all of them.
"""

from dnnarray.interop.torch.aten import (
    activation,
    attention,
    convolution,
    loss,
    norm,
    pool,
    recurrent,
    softmax,
    spatial,
)
from dnnarray.interop.torch.aten.kernels import KERNELS, Kernel

__all__ = [
    "KERNELS",
    "Kernel",
    "activation",
    "attention",
    "convolution",
    "loss",
    "norm",
    "pool",
    "recurrent",
    "softmax",
    "spatial",
]
