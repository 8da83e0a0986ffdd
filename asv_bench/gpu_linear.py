"""Linear layers side by side with PyTorch: rows for `asv_bench.gpu`, whose figures stand for TFLOP/s here."""

from __future__ import annotations

import cupy
import torch

import dnnarray as dnn

_borrowed = cupy.from_dlpack


def _rows(count, features, outs, dtype):
    x, w = torch.randn(count, features, device="cuda").to(dtype), torch.randn(outs, features, device="cuda").to(dtype)
    b, g = torch.randn(outs, device="cuda").to(dtype), torch.randn(count, outs, device="cuda").to(dtype)
    cx, cw, cb, cg = map(_borrowed, (x, w, b, g))
    label, work = f"linear {count}x{features}x{outs} {str(dtype)[6:]}", 2 * count * features * outs // 1000
    linear, gelu = torch.nn.functional.linear, torch.nn.functional.gelu
    cy = _borrowed(torch.empty(count, outs, device="cuda", dtype=dtype))
    yield label, work, lambda: dnn.linear(cx, cw, out=cy), lambda: linear(x, w), None, ()
    compiled = torch.compile(lambda x, w, b: gelu(linear(x, w, b)))
    yield (
        f"{label} bias gelu",
        work,
        lambda: dnn.linear(cx, cw, cb, activation="gelu", out=cy),
        lambda: gelu(linear(x, w, b)),
        compiled,
        (x, w, b),
    )
    yield f"{label} backward", 2 * work, lambda: dnn.linear_backward(cg, cx, cw), lambda: (g @ w, g.T @ x), None, ()


def rows():
    for shape in ((8192, 4096, 4096), (16384, 1024, 4096)):
        for dtype in (torch.bfloat16, torch.float32):
            yield from _rows(*shape, dtype)
