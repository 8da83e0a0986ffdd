"""Linear layers side by side with PyTorch: rows for `asv_bench.gpu`. A row's unit is not bytes but operations: 1,000 are 1 TFLOP/s."""

from __future__ import annotations

import cupy
import torch

import dnnarray as dnn

_borrowed = cupy.from_dlpack


def rows():
    for rows_, features, outs in ((8192, 4096, 4096), (16384, 1024, 4096)):
        for dtype in (torch.bfloat16, torch.float32):
            x, w = torch.randn(rows_, features, device="cuda").to(dtype), torch.randn(outs, features, device="cuda").to(dtype)
            b, g = torch.randn(outs, device="cuda").to(dtype), torch.randn(rows_, outs, device="cuda").to(dtype)
            cx, cw, cb, cg = map(_borrowed, (x, w, b, g))
            label, work = f"linear {rows_}x{features}x{outs} {str(dtype)[6:]}", 2 * rows_ * features * outs // 1000
            peer = torch.nn.functional.linear
            y = torch.empty(rows_, outs, device="cuda", dtype=dtype)
            cy = _borrowed(y)
            yield label, work, lambda: dnn.linear(cx, cw, out=cy), lambda: peer(x, w), None, ()
            yield f"{label} bias gelu", work, lambda: dnn.linear(cx, cw, cb, activation="gelu", out=cy), (
                lambda: torch.nn.functional.gelu(peer(x, w, b))), torch.compile(lambda x, w, b: torch.nn.functional.gelu(peer(x, w, b))), (x, w, b)  # fmt: skip
            yield f"{label} backward", 2 * work, lambda: dnn.linear_backward(cg, cx, cw), lambda: (g @ w, g.T @ x), None, ()
