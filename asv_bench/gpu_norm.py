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

    yield _label("layer_norm", shape, dtype), 2 * moved, lambda: dnn.layer_norm(cx, cw, cb, out=cy), lambda: layer(x, w, b), torch.compile(
        layer), (x, w, b)  # fmt: skip
    yield _label("rms_norm", shape, dtype), 2 * moved, lambda: dnn.rms_norm(cx, cw, out=cy), lambda: rms(x, w), torch.compile(rms), (x, w)
    yield _label("add_rms_norm", shape, dtype), 4 * moved, lambda: dnn.add_rms_norm(cx, cg, cw, out=(cy, ct)), lambda: add_rms(
        x, g, w), torch.compile(add_rms), (x, g, w)  # fmt: skip
    stats = dnn.layer_norm(cx, cw, cb, return_stats=True)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    yield _label("layer_norm_backward", shape, dtype), 3 * moved, lambda: dnn.layer_norm_backward(
        cg, cx, cw, cb, mean=stats.mean, rstd=stats.rstd, out=(cdx, cdw, cdb)), _gradient(layer(*leaves), leaves, g), None, ()  # fmt: skip
    rstd = dnn.rms_norm(cx, cw, return_stats=True).rstd
    leaves = leaves[:2]
    yield _label("rms_norm_backward", shape, dtype), 3 * moved, lambda: dnn.rms_norm_backward(cg, cx, cw, rstd=rstd, out=(cdx, cdw)), _gradient(
        rms(*leaves), leaves, g), None, ()  # fmt: skip


_IMAGES = ((64, 256, 56, 56), (64, 64, 112, 112), (64, 2048, 7, 7))


def channel_norms(shape, dtype, last):
    """batch, group and instance norm on channels-first shapes, in either memory order. Bytes as for three passes, five backward."""
    functional, channels = torch.nn.functional, shape[1]
    memory = torch.channels_last if last else torch.contiguous_format
    x, g, y = (torch.randn(shape, device="cuda").to(dtype).to(memory_format=memory) for _ in range(3))
    w, b = torch.rand(channels, device="cuda"), torch.randn(channels, device="cuda")
    mean, var, dw, db = (torch.ones(channels, device="cuda") for _ in range(4))
    cx, cg, cy, cw, cb, cmean, cvar, cdw, cdb = map(borrowed, (x, g, y, w, b, mean, var, dw, db))
    name, moved = f"{'last' if last else 'first'} {'x'.join(map(str, shape))} {str(dtype)[6:]}", x.nbytes

    def train(x, w, b):
        return functional.batch_norm(x, None, None, w, b, True)

    def given(x, w, b):
        return functional.batch_norm(x, mean, var, w, b, False)

    def group(x, w, b):
        return functional.group_norm(x, 32, w, b)

    stats = dnn.batch_norm_train(cx, cw, cb)
    out = (cy, stats.mean, stats.rstd)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    wide = [w.to(dtype), b.to(dtype)]
    cwide = [borrowed(t) for t in wide]
    yield f"batch_norm_train {name}", 3 * moved, lambda: dnn.batch_norm_train(cx, cw, cb, out=out), lambda: train(x, w, b), None, ()
    yield f"batch_norm_train_backward {name}", 5 * moved, lambda: dnn.batch_norm_train_backward(
        cg, cx, cw, cb, mean=stats.mean, rstd=stats.rstd, out=(cy, cdw, cdb)), _gradient(train(*leaves), leaves, g), None, ()  # fmt: skip
    yield f"batch_norm {name}", 2 * moved, lambda: dnn.batch_norm(cx, cmean, cvar, cw, cb, out=cy), lambda: given(x, w, b), torch.compile(
        given), (x, w, b)  # fmt: skip
    leaves = [t.clone().requires_grad_() for t in (x, *wide)]
    yield f"group_norm {name}", 3 * moved, lambda: dnn.group_norm(cx, 32, *cwide, out=cy), lambda: group(x, *wide), None, ()
    cdw, cdb = (borrowed(torch.empty_like(t)) for t in wide)
    yield f"group_norm_backward {name}", 5 * moved, lambda: dnn.group_norm_backward(
        cg, cx, *cwide, num_groups=32, out=(cy, cdw, cdb)), _gradient(group(*leaves), leaves, g), None, ()  # fmt: skip


def rows():
    for shape in _SHAPES:
        for dtype in _DTYPES:
            yield from row_norms(shape, dtype)
    for shape in _IMAGES:
        for dtype in _DTYPES:
            for last in (False, True):
                yield from channel_norms(shape, dtype, last)
