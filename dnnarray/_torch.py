"""Tensors of torch on a CUDA device. Calls go by their addresses: DLPack costs ten times as much.

Nothing here is imported before such a tensor arrives, so torch is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np

from dnnarray._arrays import Direct, Door, as_it_is, no_counterpart, plain_tensor
from dnnarray._body import Kind
from dnnarray._spec import BFLOAT16


@lru_cache(maxsize=1)
def door(engine: ModuleType) -> Door:
    """How tensors come in and go out."""
    torch = sys.modules["torch"]
    direct = Direct(
        pointer=torch.Tensor.data_ptr,
        like=torch.empty_like,
        maker=_maker,
        fits=_fits,
        strides=torch.Tensor.stride,
        copy=torch.Tensor.copy_,
        scratch=_scratch,
        stream=torch._C._cuda_getCurrentRawStream,  # the public way makes an object first: 1.2 us
    )
    return Door("torch", partial(_take, engine), as_it_is, direct)


@lru_cache(maxsize=1)
def kind(engine: ModuleType) -> Kind:
    """How the text of a public function looks up calls on tensors: by everything that `_take` looks at."""
    entries = "{n}.shape, {n}.dtype, {n}.stride(), {n}.get_device(), {n}.requires_grad and _graded(), {n}.is_neg() and _no_key()"
    scope = {"_device": engine.current_place, "_graded": sys.modules["torch"].is_grad_enabled, "_no_key": _no_key}
    return Kind("torch", _types(), "'torch'" if engine.alone() else "'torch', _device()", entries, scope, lambda tensor: False)


def _no_key() -> None:
    """For memory that holds the negated values, which is copied on each call."""
    raise TypeError


def _types() -> frozenset[type]:
    torch = sys.modules["torch"]
    return frozenset((torch.Tensor, torch.nn.Parameter))


def _take(engine: ModuleType, tensor: Any) -> Any:
    """The engine's view of the same memory."""
    tensor = plain_tensor(tensor)
    dtype = _dtypes().get(tensor.dtype)
    if dtype is None:
        raise no_counterpart(tensor)
    itemsize = dtype.itemsize
    strides = tuple([s * itemsize for s in tensor.stride()])
    return engine.view(tensor.data_ptr(), tuple(tensor.shape), dtype, strides, tensor, tensor.device.index)


def _maker(output: Any, index: int) -> Callable[[], Any]:
    torch = sys.modules["torch"]
    empty, shape, strides = torch.empty_strided, output.shape, output.element_strides
    dtype, device = _counterparts()[output.dtype], torch.device("cuda", index)
    return lambda: empty(shape, strides, dtype=dtype, device=device)


def _fits(output: Any, index: int) -> Callable[[Any], bool]:
    torch = sys.modules["torch"]
    types, graded, strided = _types(), torch.is_grad_enabled, torch.strided
    shape, dtype = output.shape, _counterparts()[output.dtype]

    def fits(tensor: Any) -> bool:
        if type(tensor) not in types or tensor.dtype is not dtype or tensor.shape != shape or tensor.layout is not strided:
            return False
        return tensor.is_cuda and tensor.get_device() == index and not tensor.is_neg() and not (tensor.requires_grad and graded())

    return fits


def _scratch(needed: int, index: int) -> Callable[[Any], int | None]:
    torch = sys.modules["torch"]
    types, kind = _types(), torch.uint8

    def address(tensor: Any) -> int | None:
        if type(tensor) not in types or tensor.dtype is not kind or tensor.dim() != 1 or not tensor.is_contiguous():
            return None
        there = tensor.is_cuda and tensor.get_device() == index and tensor.numel() >= needed
        return tensor.data_ptr() if there else None

    return address


@lru_cache(maxsize=1)
def _dtypes() -> dict[Any, np.dtype]:
    torch = sys.modules["torch"]
    names = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
    return {torch.bfloat16: BFLOAT16} | {getattr(torch, name): np.dtype(name) for name in names}


@lru_cache(maxsize=1)
def _counterparts() -> dict[np.dtype, Any]:
    return {ours: theirs for theirs, ours in _dtypes().items()}
