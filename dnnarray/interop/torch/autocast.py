"""The rules of `torch.autocast` for dnnarray's operators: which dtype each computes in, as PyTorch has it for its own.

`torch.library.register_autocast` would fix the dtype when an operator is registered; these rules take the one that the
user gives to `torch.autocast`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

DEVICES = ("cpu", "cuda")

LOWER = frozenset(
    "conv conv_transpose linear attention attention_varlen multi_head_attention prelu rnn gru lstm".split()
)
"""Operations that compute in the dtype of autocast: products of matrices, and what is made of these."""

FULL = frozenset(
    "layer_norm add_layer_norm rms_norm add_rms_norm group_norm local_response_norm softmax log_softmax softmin "
    "softplus cross_entropy nll_loss ctc_loss linear_cross_entropy".split()
)
"""Operations that compute in float32: sums of exponentials and of squares, and losses."""

WIDEST = frozenset("grid_sample bias_activation bias_dropout_add".split())
"""Operations that compute in the widest dtype of their arguments."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)  # autocast leaves float64 alone


def register(library: torch.library.Library, name: str, call: Callable[..., Any]) -> None:
    """Enter the rule of an operation, if it has one; `call` is its operator."""
    choose = _choice(name)
    if choose is None:
        return
    for device in DEVICES:
        library.impl(name, _rule(call, device, choose), f"Autocast{device.upper()}")


def _choice(name: str) -> Callable[[list[torch.Tensor], str], torch.dtype] | None:
    """A function that chooses the dtype by the floating-point arguments and the type of device."""
    if name in LOWER:
        return lambda tensors, device: torch.get_autocast_dtype(device)
    if name in FULL:
        return lambda tensors, device: torch.float32
    if name in WIDEST:
        return lambda tensors, device: _widest(tensors)
    return None


def _widest(tensors: list[torch.Tensor]) -> torch.dtype:
    dtypes = {t.dtype for t in tensors}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def _rule(
    call: Callable[..., Any], device: str, choose: Callable[[list[torch.Tensor], str], torch.dtype]
) -> Callable[..., Any]:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))

    def casts(*arguments: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            floats = [t for t in torch.utils._pytree.tree_leaves(arguments) if _is_cast(t, device)]
            dtype = choose(floats, device) if floats else None
            return call(*(_cast(a, device, dtype) for a in arguments))

    return casts


def _is_cast(value: Any, device: str) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == device and value.dtype in _FLOATS


def _cast(value: Any, device: str, dtype: torch.dtype | None) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(v, device, dtype) for v in value]
    return value.to(dtype) if dtype is not None and _is_cast(value, device) else value
