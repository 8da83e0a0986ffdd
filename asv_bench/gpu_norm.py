"""Rows of the side-by-side benchmark: norms."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_SHAPES = ((16384, 4096), (65536, 768), (8192, 8192), (4096, 16384), (1024, 131072), (1 << 20, 64))


def _label(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{name} {'x'.join(map(str, shape))} {str(dtype)[6:]}"


def _gradient(y, leaves, g):
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)


def row_norms(shape, dtype):
    """layer_norm, rms_norm and add_rms_norm, forward and backward."""
    functional, n = torch.nn.functional, shape[-1:]
    x, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
    w, b = torch.rand(n, device="cuda").to(dtype), torch.randn(n, device="cuda").to(dtype)
    y, dx, total = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    dw, db = torch.empty_like(w), torch.empty_like(b)
    cx, cg, cw, cb, cy, cdx, cdw, cdb, ct = map(borrowed, (x, g, w, b, y, dx, dw, db, total))
    moved = x.nbytes

    def layer(x, w, b):
        return functional.layer_norm(x, n, w, b)

    def rms(x, w):
        return functional.rms_norm(x, n, w, 1e-5)

    def add_rms(x, r, w):
        s = x + r
        return functional.rms_norm(s, n, w, 1e-5), s

    yield (
        _label("layer_norm", shape, dtype),
        2 * moved,
        lambda: dnn.layer_norm(cx, cw, cb, out=cy),
        lambda: layer(x, w, b),
        torch.compile(layer),
        (x, w, b),
    )
    yield (
        _label("rms_norm", shape, dtype),
        2 * moved,
        lambda: dnn.rms_norm(cx, cw, out=cy),
        lambda: rms(x, w),
        torch.compile(rms),
        (x, w),
    )
    yield (
        _label("add_rms_norm", shape, dtype),
        4 * moved,
        lambda: dnn.add_rms_norm(cx, cg, cw, out=(cy, ct)),
        lambda: add_rms(x, g, w),
        torch.compile(add_rms),
        (x, g, w),
    )
    stats = dnn.layer_norm(cx, cw, cb, return_stats=True)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    yield (
        _label("layer_norm_backward", shape, dtype),
        3 * moved,
        lambda: dnn.layer_norm_backward(cg, cx, cw, cb, mean=stats.mean, rstd=stats.rstd, out=(cdx, cdw, cdb)),
        _gradient(layer(*leaves), leaves, g),
        None,
        (),
    )
    rstd = dnn.rms_norm(cx, cw, return_stats=True).rstd
    leaves = leaves[:2]
    yield (
        _label("rms_norm_backward", shape, dtype),
        3 * moved,
        lambda: dnn.rms_norm_backward(cg, cx, cw, rstd=rstd, out=(cdx, cdw)),
        _gradient(rms(*leaves), leaves, g),
        None,
        (),
    )


def rows():
    for shape in _SHAPES:
        for dtype in _DTYPES:
            yield from row_norms(shape, dtype)
