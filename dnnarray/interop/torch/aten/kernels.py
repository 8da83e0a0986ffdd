"""The table of the operators of PyTorch that dnnarray implements, and the helpers that their implementations share.

An implementation takes the arguments of its operator and returns what the operator returns, or raises one of the errors
of dnnarray, upon which PyTorch's own kernel runs. It gets plain tensors, runs without grad mode, and leaves memory to
PyTorch: dnnarray's functions put their results in PyTorch's own memory when their arguments are tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, TypeVar

import torch

from dnnarray._errors import UnsupportedError
from dnnarray._records import frozen

F = TypeVar("F", bound=Callable[..., Any])
ANYWHERE = ("cpu", "cuda")
BACKEND = ("{device}",)  # below autograd: PyTorch's own rule differentiates the operator
ABOVE_AUTOGRAD = ("{device}", "Autograd{device}")  # the implementation brings its own gradient


@frozen
class Kernel:
    """One operator that dnnarray implements.

    Attributes
    ----------
    name : the operator with its overload, as ``aten::relu``
    family : the module that holds the implementation, by which users choose
    run : the implementation
    devices : the types of device that PyTorch has the operator for
    keys : the dispatch keys to register under, with the name of the device's own key to be filled in
    instead : runs in the place of PyTorch's kernel where `run` declines, for operators whose own kernel needs what only
        its forward makes
    """

    name: str
    family: str
    run: Callable[..., Any]
    devices: tuple[str, ...] = ANYWHERE
    keys: tuple[str, ...] = BACKEND
    instead: Callable[..., Any] | None = None

    def keys_on(self, device: str) -> tuple[str, ...]:
        """The dispatch keys for a type of device."""
        return tuple(key.format(device=device.upper()) for key in self.keys)


KERNELS: dict[str, Kernel] = {}


def kernel(*names: str, **properties: Any) -> Callable[[F], F]:
    """Enter a function into `KERNELS` as the implementation of these operators."""

    def enter(run: F) -> F:
        family = run.__module__.rpartition(".")[2]
        for name in names:
            KERNELS[f"aten::{name}"] = Kernel(f"aten::{name}", family, run, **properties)
        return run

    return enter


def sizes(values: Sequence[int]) -> Any:
    """A list of PyTorch's as an option that calls can be looked up by: one number for all axes, or a tuple."""
    return values[0] if len(values) == 1 else tuple(values)


def dense(x: torch.Tensor) -> torch.Tensor:
    """The tensor, or where its memory has gaps a copy without them, whose axes lie in the order that PyTorch gives to
    results.
    """
    if x.is_contiguous() or torch.ops.aten.is_non_overlapping_and_dense(x):
        return x
    return x.clone()


def batched(x: torch.Tensor, spatial: int) -> tuple[torch.Tensor, bool]:
    """The tensor with a batch axis in front of its channels, and whether that was added: PyTorch knows no channels-last
    memory without one.
    """
    missing = x.dim() == spatial + 1
    return (x.contiguous().unsqueeze(0), True) if missing else (x, False)


def unbatched(x: torch.Tensor, added: bool) -> torch.Tensor:
    """The tensor without the batch axis that `batched` added."""
    return x.squeeze(0) if added else x


@lru_cache(maxsize=8192)
def lies_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether PyTorch takes a tensor with these strides to be in channels-last memory, which extents of 1 leave open
    for one in the default order.
    """
    if len(shape) not in (4, 5) or strides[1] != 1:
        return False
    least = 1
    for axis in (1, *range(len(shape) - 1, 1, -1), 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * shape[axis] if shape[axis] > 1 else max(least, strides[axis])
    return True


def channels_last(x: torch.Tensor) -> torch.memory_format | None:
    """PyTorch's name for the channels-last order that the tensor is in, None for any other order."""
    if (x.is_contiguous() and x.shape[1] != 1) or not lies_channels_last(x.shape, x.stride()):
        return None
    return torch.channels_last if x.dim() == 4 else torch.channels_last_3d


def differentiable(name: str) -> Any:
    """The function of this name with a gradient of its own; the module of those functions imports this one."""
    return getattr(import_module("dnnarray.interop.torch"), name)


def decline(reason: str) -> UnsupportedError:
    """The error that hands a call on to PyTorch's own kernel."""
    return UnsupportedError(reason)


def chosen(names: tuple[str, ...], mask: Sequence[bool]) -> tuple[str, ...]:
    """The names of the gradients that an output mask asks for."""
    return tuple([name for name, wanted in zip(names, mask, strict=True) if wanted])
