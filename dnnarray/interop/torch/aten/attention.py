"""Scaled dot-product attention: the operators that ``torch.nn.functional.scaled_dot_product_attention`` ends in on each
type of device.

Each returns the log-sum-exp of the scores as PyTorch's own kernel does, so that PyTorch's gradient can follow
dnnarray's forward. Dropout is PyTorch's.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import dnnarray as dnn
from dnnarray.interop.torch.aten.kernels import decline, kernel

_GRADIENTS = ("q", "k", "v")
_ROWS = 32  # PyTorch's memory-efficient kernel keeps the log-sum-exp of a multiple of so many queries


def _options(bias: Tensor | None, causal: bool, scale: float | None, dropout: float) -> dict[str, Any]:
    if dropout > 0:
        raise decline("attention: dropout, whose random numbers are PyTorch's")
    named = {} if bias is None else {"mask" if bias.dtype is torch.bool else "bias": bias}
    return {"causal": "upper_left" if causal else False, "scale": scale, **named}


def _turned(x: Tensor) -> Tensor:
    """Heads and positions exchanged: the order in memory of PyTorch's results."""
    return x.transpose(1, 2)


def _forward(q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor]:
    found = dnn.attention(_turned(q), _turned(k), _turned(v), layout="BSHD", return_lse=True, **options)
    return _turned(found[0]), found[1]


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, options: dict[str, Any]
) -> Any:
    turned = map(_turned, (grad, q, k, v))
    found = dnn.attention_backward(*turned, output=_turned(output), lse=lse, layout="BSHD", needs=_GRADIENTS, **options)
    return _turned(found.q), _turned(found.k), _turned(found.v)


@kernel("_scaled_dot_product_flash_attention_for_cpu", devices=("cpu",))
def on_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    return _forward(q, k, v, _options(attn_mask, causal, scale, dropout))


@kernel("_scaled_dot_product_flash_attention_for_cpu_backward", devices=("cpu",))
def on_cpu_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    dropout: float,
    causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Any, ...]:
    gradients: tuple[Any, ...] = _backward(grad, q, k, v, output, lse, _options(attn_mask, causal, scale, dropout))
    return gradients


def _no_numbers(q: Tensor) -> tuple[Tensor, Tensor]:
    """What stands for the state of the generator where nothing is dropped."""
    return q.new_empty((), dtype=torch.int64), q.new_empty((), dtype=torch.int64)


@kernel("_scaled_dot_product_flash_attention", devices=("cuda",))
def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if debug:
        raise decline("attention: return_debug_mask")
    output, lse = _forward(q, k, v, _options(None, causal, scale, dropout))
    state = q.new_empty(2, dtype=torch.uint64)
    return output, lse, None, None, q.shape[2], k.shape[2], state, q.new_empty((), dtype=torch.uint64), q.new_empty(0)


@kernel("_scaled_dot_product_flash_attention_backward", devices=("cuda",))
def flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    first_q: Any,
    first_k: Any,
    longest_q: int,
    longest_k: int,
    dropout: float,
    causal: bool,
    seed: Tensor,
    offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    gradients: tuple[Any, ...] = _backward(grad, q, k, v, output, lse, _options(None, causal, scale, dropout))
    return gradients


@kernel("_scaled_dot_product_efficient_attention", devices=("cuda",))
def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute_lse: bool,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    output, lse = _forward(q, k, v, _options(bias, causal, scale, dropout))
    rows = math.ceil(q.shape[2] / _ROWS) * _ROWS if compute_lse else 0
    kept = lse.new_full((*lse.shape[:2], rows), math.inf)
    if compute_lse:
        kept[:, :, : q.shape[2]] = lse
    return output, kept, *_no_numbers(q)


@kernel("_scaled_dot_product_efficient_attention_backward", devices=("cuda",))
def efficient_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    output: Tensor,
    lse: Tensor,
    seed: Tensor,
    offset: Tensor,
    dropout: float,
    mask: list[bool],
    causal: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if mask[3]:
        raise decline("attention: the gradient of the bias")
    rows = lse[:, :, : q.shape[2]].contiguous()
    return *_backward(grad, q, k, v, output, rows, _options(bias, causal, scale, dropout)), None


@kernel("_scaled_dot_product_cudnn_attention", devices=("cuda",))
def cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    compute_lse: bool,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    if debug:
        raise decline("attention: return_debug_mask")
    output, lse = _forward(q, k, v, _options(bias, causal, scale, dropout))
    return output, lse.unsqueeze(-1), None, None, q.shape[2], k.shape[2], *_no_numbers(q), None


@kernel("_scaled_dot_product_cudnn_attention_backward", devices=("cuda",))
def cudnn_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    lse: Tensor,
    seed: Tensor,
    offset: Tensor,
    bias: Tensor | None,
    first_q: Any,
    first_k: Any,
    longest_q: int,
    longest_k: int,
    dropout: float,
    causal: bool,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    rows = lse.reshape(q.shape[:3])  # cuDNN's has an axis of one element behind
    gradients: tuple[Any, ...] = _backward(grad, q, k, v, output, rows, _options(bias, causal, scale, dropout))
    return gradients
