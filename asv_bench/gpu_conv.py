"""Depthwise convolution side by side with PyTorch: rows for `asv_bench.gpu`, which uses each before it asks for the next."""

from __future__ import annotations

import cupy
import torch

import dnnarray as dnn

_borrowed = cupy.from_dlpack


def _depthwise_rows(channels, extent, window, dtype):
    """Forward and both gradients, channels-last."""
    last = torch.channels_last
    x = torch.randn((64, channels, extent, extent), device="cuda").to(dtype).contiguous(memory_format=last)
    w = torch.randn((channels, 1, window, window), device="cuda").to(dtype)
    pad, peer_conv = window // 2, torch.nn.functional.conv2d
    options = {"padding": pad, "groups": channels}
    grad = torch.randn_like(x)
    cx, cw, cg, out = map(_borrowed, (x, w, grad, torch.empty_like(x)))
    weight = w.contiguous(memory_format=last)
    label = f"depthwise {window}x{window} {channels} {str(dtype)[6:]}"
    yield label, 2 * x.nbytes, lambda: dnn.conv(cx, cw, out=out, **options), lambda: peer_conv(x, weight, **options), None, ()
    yield f"{label} input", 2 * x.nbytes, lambda: dnn.conv_backward_input(cg, cw, input_shape=cx.shape, out=out, **options), lambda: (
        torch.nn.grad.conv2d_input(x.shape, weight, grad, padding=pad, groups=channels)), None, ()  # fmt: skip
    dw = _borrowed(torch.empty_like(w))
    yield f"{label} weight", 2 * x.nbytes, lambda: dnn.conv_backward_weight(cg, cx, weight_shape=cw.shape, out=dw, **options), lambda: (
        torch.nn.grad.conv2d_weight(x, w.shape, grad, padding=pad, groups=channels)), None, ()  # fmt: skip


def rows():
    torch.backends.cudnn.benchmark = True
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        yield from _depthwise_rows(96, 112, 3, dtype)
        yield from _depthwise_rows(192, 56, 7, dtype)
