"""Side-by-side rows of the softmax family; `python -m asv_bench.gpu` runs them."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed

_SHAPES = [
    ((1048576, 64), -1),
    ((262144, 128), -1),
    ((65536, 1000), -1),
    ((65536, 1024), -1),
    ((16384, 4096), -1),
    ((4096, 16384), -1),
    ((2048, 32768), -1),
    ((4096, 50257), -1),
    ((4096, 128256), -1),
    ((16, 21, 512, 512), 1),
    ((64, 1000, 32, 32), 1),
]


def rows():
    for shape, axis in _SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            x, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
            out = torch.empty_like(x)
            cx, cg, co = map(borrowed, (x, g, out))
            tail = f"{'x'.join(map(str, shape))} {str(dtype)[6:]}"
            for op in ("softmax", "log_softmax"):
                peer = getattr(torch, op)
                if op == "log_softmax" and shape[-1] not in (4096, 128256):
                    continue
                y = peer(x, axis)
                cy = borrowed(y)
                ours, ours_backward = getattr(dnn, op), getattr(dnn, f"{op}_backward")
                backward = getattr(torch, f"_{op}_backward_data")
                yield (
                    f"{op} {tail}",
                    2 * x.nbytes,
                    (lambda f=ours, x=cx, o=co, a=axis: f(x, axis=a, out=o)),
                    (lambda f=peer, x=x, a=axis: f(x, a)),
                    torch.compile(lambda x, f=peer, a=axis: f(x, a)),
                    (x,),
                )
                yield (
                    f"{op}_backward {tail}",
                    3 * x.nbytes,
                    (lambda f=ours_backward, g=cg, x=cx, y=cy, o=co, a=axis: f(g, x, y=y, axis=a, out=o)),
                    (lambda f=backward, g=g, y=y, a=axis, d=dtype: f(g, y, a % y.ndim, d)),
                    None,
                    (),
                )
