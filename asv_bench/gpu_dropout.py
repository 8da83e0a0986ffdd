"""Side-by-side rows of the dropout family; `python -m asv_bench.gpu` runs them."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed

_SHAPE = (16384, 4096)


def rows():
    functional = torch.nn.functional

    def fused(x, b, r):
        return functional.dropout(x + b, 0.1) + r

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, r = (torch.randn(_SHAPE, device="cuda").to(dtype) for _ in range(2))
        b = torch.randn(_SHAPE[-1], device="cuda").to(dtype)
        o, p, db = torch.empty_like(x), torch.empty_like(x), torch.empty_like(b)
        cx, cr, cb, co, cp, cd = map(borrowed, (x, r, b, o, p, db))
        name = str(dtype)[6:]
        yield (
            f"dropout {name}",
            2 * x.nbytes,
            (lambda x=cx, o=co: dnn.dropout(x, p=0.1, seed=1, out=o)),
            (lambda x=x: functional.dropout(x, 0.1)),
            torch.compile(lambda x: functional.dropout(x, 0.1)),
            (x,),
        )
        yield (
            f"bias_dropout_add {name}",
            3 * x.nbytes,
            (lambda x=cx, b=cb, r=cr, o=co: dnn.bias_dropout_add(x, b, r, p=0.1, seed=1, out=o)),
            (lambda x=x, b=b, r=r: fused(x, b, r)),
            torch.compile(fused),
            (x, b, r),
        )
        leaves = [t.clone().requires_grad_() for t in (x, b, r)]
        y = fused(*leaves)
        yield (
            f"bias_dropout_add_backward {name}",
            3 * x.nbytes,
            (
                lambda g=cr, x=cx, b=cb, r=cr, o=(co, cd, cp): dnn.bias_dropout_add_backward(
                    g, x, b, r, p=0.1, seed=1, out=o
                )
            ),
            (lambda y=y, leaves=leaves, g=r: torch.autograd.grad(y, leaves, g, retain_graph=True)),
            None,
            (),
        )
