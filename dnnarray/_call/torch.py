"""Tensors of torch. On a CUDA device calls go by their addresses, on the processor by NumPy's views: DLPack costs ten
times as much.

Nothing here is imported before a tensor arrives, so torch is there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from dnnarray._engine.doors import Direct, Door, Views, as_it_is
from dnnarray._engine.kinds import Kind
from dnnarray._engine.protocol import DeviceEngine
from dnnarray._errors import ArrayTypeError
from dnnarray._spec import BFLOAT16


@lru_cache(maxsize=1)
def door(engine: DeviceEngine) -> Door:
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
def host_door() -> Door:
    """How tensors in the memory of the processor come in and go out."""
    return Door("torch", _take_host, as_it_is, views=Views(_view_of, _host_maker))


@lru_cache(maxsize=2)
def kind(engine: DeviceEngine | None = None) -> Kind:
    """How the text of a public function looks up calls on tensors: by everything that `_take` and `_take_host` look at.

    The `engine` of the CUDA devices is named where there are several of them; the key holds the current one then.
    """
    entries = (
        "{n}.shape, {n}.dtype, {n}.stride(), {n}.get_device(), {n}.requires_grad and _graded(), {n}.is_neg() "
        "and _no_key()"
    )
    scope = {"_graded": sys.modules["torch"].is_grad_enabled, "_no_key": _no_key}
    if engine is None:
        return Kind("torch", _types(), "'torch'", entries, scope)
    return Kind("torch", _types(), "'torch', _device()", entries, scope | {"_device": engine.current_place})


def _no_key() -> None:
    """For memory that holds the negated values, which is copied on each call."""
    raise TypeError


def _types() -> frozenset[type]:
    torch = sys.modules["torch"]
    return frozenset((torch.Tensor, torch.nn.Parameter))


def _plain_tensor(tensor: Any) -> Any:
    """A torch tensor as memory with strides, or the error that says what stands in the way."""
    torch = sys.modules["torch"]
    if tensor.requires_grad and torch.is_grad_enabled():
        raise ArrayTypeError(
            "a torch tensor that requires grad would lose its gradient here; pass its .detach(), or call under "
            "torch.no_grad()"
        )
    if tensor.layout is not torch.strided:
        raise ArrayTypeError("a sparse torch tensor has no strides; pass its .to_dense()")
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def _no_counterpart(tensor: Any) -> ArrayTypeError:
    return ArrayTypeError(
        f"a torch tensor of {tensor.dtype} has no counterpart in NumPy; convert it first, with .to(dtype)"
    )


def _take_host(tensor: Any) -> np.ndarray:
    tensor = _plain_tensor(tensor).detach()
    try:
        return _any_view(tensor)
    except TypeError:
        raise _no_counterpart(tensor) from None


def _view(tensor: Any) -> np.ndarray:
    """`_take_host` of a tensor like one that it took before."""
    view: np.ndarray = tensor.detach().numpy() if tensor.requires_grad else tensor.numpy()
    return view


def _brain_view(tensor: Any) -> np.ndarray:
    """`_view` in bfloat16, which PyTorch does not hand to NumPy."""
    return _view(tensor.detach().view(sys.modules["torch"].int16)).view(BFLOAT16)


def _any_view(tensor: Any) -> np.ndarray:
    return _brain_view(tensor) if tensor.dtype == sys.modules["torch"].bfloat16 else _view(tensor)


def _view_of(dtype: np.dtype | None) -> Callable[[Any], np.ndarray]:
    if dtype is None:
        return _any_view
    return _brain_view if dtype == BFLOAT16 else _view


def _host_maker(output: Any, inputs: tuple[Any, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """PyTorch makes a tensor like another one in two thirds of the time that it takes for one of a given shape."""
    torch = sys.modules["torch"]
    for i, spec in enumerate(inputs):
        if spec == output.spec and spec.axis_order() is not None:
            like = torch.empty_like
            return lambda arrays: like(arrays[i])
    make = _made_on(torch.device("cpu"), output)
    return lambda arrays: make()


def _take(engine: DeviceEngine, tensor: Any) -> Any:
    """The engine's view of the same memory."""
    tensor = _plain_tensor(tensor)
    dtype = _dtypes().get(tensor.dtype)
    if dtype is None:
        raise _no_counterpart(tensor)
    itemsize = dtype.itemsize
    strides = tuple([s * itemsize for s in tensor.stride()])
    return engine.view(tensor.data_ptr(), tuple(tensor.shape), dtype, strides, tensor, tensor.device.index)


def _maker(output: Any, index: int) -> Callable[[], Any]:
    return _made_on(sys.modules["torch"].device("cuda", index), output)


def _made_on(device: Any, output: Any) -> Callable[[], Any]:
    """What makes tensors for a result."""
    torch = sys.modules["torch"]
    empty, shape, strides = torch.empty_strided, output.shape, output.element_strides
    dtype = _counterparts()[output.dtype]
    return lambda: empty(shape, strides, dtype=dtype, device=device)


def _fits(output: Any, index: int) -> Callable[[Any], bool]:
    torch = sys.modules["torch"]
    types, graded, strided = _types(), torch.is_grad_enabled, torch.strided
    shape, dtype = output.shape, _counterparts()[output.dtype]

    def fits(tensor: Any) -> bool:
        if (
            type(tensor) not in types
            or tensor.dtype is not dtype
            or tensor.shape != shape
            or tensor.layout is not strided
        ):
            return False
        return (
            tensor.is_cuda
            and tensor.get_device() == index
            and not tensor.is_neg()
            and not (tensor.requires_grad and graded())
        )

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
