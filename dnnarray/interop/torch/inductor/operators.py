"""The operators that compiled graphs call: PyTorch's own ones by dnnarray, and the forms that fuse several of them.

Each has a meaning in PyTorch's operators, ``plain``, and an implementation by dnnarray, ``run``. The meaning gives the
shapes, dtypes and strides at compile time, and runs where dnnarray declines a call. The operators have no gradients,
since graphs hold them after autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dnnarray.interop.torch.aten import KERNELS
from dnnarray.interop.torch.aten.kernels import BACKEND
from dnnarray.interop.torch.routes import route, signature, without_grad
from dnnarray.interop.torch.switch import SWITCH

_NAMESPACE = "dnnarray_compiled"
_MOST_SIGNATURES = 1024  # of calls whose strides are known
_LIBRARY = torch.library.Library(_NAMESPACE, "DEF")

# These move running statistics without saying so in their schemas; PyTorch takes them apart before autograd.
_BEFORE_AUTOGRAD = ("native_batch_norm", "cudnn_batch_norm", "cudnn_batch_norm_backward")

MIRRORS: dict[str, dict[Any, Any]] = {}
"""By the family of `accelerate`: PyTorch's operators, and that of a compiled graph for each."""


def _layer_norm(x: torch.Tensor, *rest: Any) -> Any:
    return torch.ops.aten.native_layer_norm(x.contiguous(), *rest)


def _layer_norm_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
    return torch.ops.aten.native_layer_norm_backward(grad.contiguous(), x.contiguous(), *rest)


def _batch_norm_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
    of_x, *others = torch.ops.aten.native_batch_norm_backward(grad, x, *rest)
    return None if of_x is None else torch.empty_like(x).copy_(of_x), *others


# PyTorch's rules for fake tensors keep the order of some argument where PyTorch's kernels, and dnnarray's, give results
# in the default order or in that of the input.
_MEANINGS = {
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
    torch.ops.aten.native_layer_norm.default: _layer_norm,
    torch.ops.aten.native_layer_norm_backward.default: _layer_norm_backward,
}


def define(name: str, schema: str, plain: Callable[..., Any], run: Callable[..., Any], counted: str) -> Any:
    """Register an operator, and give its overload.

    Parameters
    ----------
    name, schema : the name in ``torch.ops.dnnarray_compiled``, and what follows the name in PyTorch's schema
    plain, run : the meaning, and the implementation by dnnarray
    counted : the name under which `dnnarray.interop.torch.report` counts the calls
    """
    _LIBRARY.define(f"{name}{schema}")
    routed = route(
        without_grad(run),
        lambda keys, *arguments, **named: plain(*arguments, **named),
        SWITCH.count(counted),
        SWITCH.settings,
    )
    _LIBRARY.impl(name, routed, "CompositeExplicitAutograd", with_keyset=True)
    torch.library.register_fake(f"{_NAMESPACE}::{name}", plain, lib=_LIBRARY)
    return getattr(getattr(torch.ops, _NAMESPACE), name).default


def _as_meant(run: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """An implementation whose results have the strides of the meaning's results."""
    known: dict[Any, list[Any]] = {}

    def laid(*arguments: Any, **named: Any) -> tuple[Any, ...]:
        key = signature((*arguments, *named.items()))
        strides = known.get(key)
        if strides is None:
            if len(known) >= _MOST_SIGNATURES:
                known.clear()
            strides = known[key] = _strides(plain, arguments, named)
        return tuple(map(_laid_out, run(*arguments, **named), strides))

    return laid


def _strides(plain: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """The strides of what a function of PyTorch's returns, None for what is no tensor."""

    def empty(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

    with FakeTensorMode():
        results = plain(*map(empty, arguments), **{name: empty(value) for name, value in named.items()})
        return [r.stride() if isinstance(r, torch.Tensor) else None for r in results]


def _laid_out(result: Any, strides: Any) -> Any:
    if strides is None or result is None or result.stride() == strides:
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def mirror(operator: Any, run: Callable[..., Any], family: str) -> None:
    """Enter an operator of PyTorch that dnnarray implements into `MIRRORS`."""
    name, _, rest = str(operator._schema).partition("(")
    base = name.removeprefix("aten::").replace(".", "_")
    # Attention's results lie in different orders for each of PyTorch's kernels.
    laid = _as_meant(run, operator) if family == "attention" else run
    found = define(base, f"({rest}", _MEANINGS.get(operator, operator), laid, name)
    MIRRORS.setdefault(family, {})[operator] = found


def _mirror_kernels() -> None:
    """The operators of `accelerate` that graphs hold: those without effects on their arguments, below autograd."""
    for name, kernel in KERNELS.items():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if base in _BEFORE_AUTOGRAD:
            continue
        packet = getattr(torch.ops.aten, base, None)  # an older PyTorch lacks some
        operator = None if packet is None else getattr(packet, overload or "default", None)
        if operator is not None and kernel.keys is BACKEND and not operator._schema.is_mutable:
            mirror(operator, kernel.run, kernel.family)


_mirror_kernels()
