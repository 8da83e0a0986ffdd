"""Pooling, shuffles and look-ups side by side with PyTorch: rows for `asv_bench.gpu`, which uses each before it asks
for the next."""

from __future__ import annotations

import cupy
import torch

import dnnarray as dnn

_F = torch.nn.functional
_DTYPES = (torch.float32, torch.bfloat16)
_POOL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_FORMATS = {"last": torch.channels_last, "first": torch.contiguous_format}


_borrowed = cupy.from_dlpack


def _name(dtype):
    return str(dtype)[6:]


def _pool_rows(name, shape, function, ours, options, memory, dtype):
    """Forward and gradient of one pooling; the gradient of a maximum is given the input alone, PyTorch has its
    indices."""
    x = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=_FORMATS[memory])
    y = function(x)
    cx, out = _borrowed(x), _borrowed(torch.empty_like(y))
    forward, backward = getattr(dnn, ours), getattr(dnn, f"{ours}_backward")
    label = f"{name} {memory} {_name(dtype)}"
    yield (
        label,
        x.nbytes + y.nbytes,
        lambda: forward(cx, out=out, **options),
        lambda: function(x),
        torch.compile(function),
        (x,),
    )
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    result, grad = function(leaf), torch.randn_like(y)
    cg, dx = _borrowed(grad), _borrowed(torch.empty_like(x))
    moved = x.nbytes * (1 if "avg" in ours else 2) + y.nbytes
    yield f"{label} backward", moved, lambda: backward(cg, cx, out=dx, **options), lambda: torch.autograd.grad(
        result, leaf, grad, retain_graph=True), None, ()  # fmt: skip
    if "max" in ours:
        found, places = getattr(dnn, f"{ours}_with_indices")(cx, **options)
        pair = (found, places)
        yield (
            f"{label} indices",
            x.nbytes + y.nbytes + 8 * y.numel(),
            lambda: getattr(dnn, f"{ours}_with_indices")(cx, out=pair, **options),
            lambda: _F.max_pool2d(
                x, options["kernel_size"], options.get("stride"), options.get("padding", 0), return_indices=True
            ),
            None,
            (),
        )
        saved = x.nbytes + y.nbytes + places.nbytes
        yield (
            f"{label} backward saved",
            saved,
            lambda: backward(cg, cx, indices=places, out=dx, **options),
            lambda: torch.autograd.grad(result, leaf, grad, retain_graph=True),
            None,
            (),
        )


def _pools():
    shape, overlapping = (64, 64, 112, 112), {"kernel_size": 3, "stride": 2, "padding": 1}
    kinds = (
        ("max_pool 3/2", lambda x: _F.max_pool2d(x, 3, 2, 1), "max_pool", overlapping),
        ("avg_pool 3/2", lambda x: _F.avg_pool2d(x, 3, 2, 1), "avg_pool", overlapping),
        ("max_pool 2/2", lambda x: _F.max_pool2d(x, 2, 2), "max_pool", {"kernel_size": 2}),
        ("avg_pool 2/2", lambda x: _F.avg_pool2d(x, 2, 2), "avg_pool", {"kernel_size": 2}),
        (
            "max_pool 3/1",
            lambda x: _F.max_pool2d(x, 3, 1, 1),
            "max_pool",
            {"kernel_size": 3, "stride": 1, "padding": 1},
        ),
        (
            "avg_pool 3/1",
            lambda x: _F.avg_pool2d(x, 3, 1, 1),
            "avg_pool",
            {"kernel_size": 3, "stride": 1, "padding": 1},
        ),
        (
            "max_pool 5/2",
            lambda x: _F.max_pool2d(x, 5, 2, 2),
            "max_pool",
            {"kernel_size": 5, "stride": 2, "padding": 2},
        ),
        ("lp_pool 3/2", lambda x: _F.lp_pool2d(x, 2.0, 3, 2), "lp_pool", {"kernel_size": 3, "stride": 2}),
        ("adaptive_avg_pool 14", lambda x: _F.adaptive_avg_pool2d(x, 14), "adaptive_avg_pool", {"output_size": 14}),
        ("adaptive_avg_pool 13", lambda x: _F.adaptive_avg_pool2d(x, 13), "adaptive_avg_pool", {"output_size": 13}),
    )
    for dtype in _POOL_DTYPES:
        for memory in _FORMATS:
            for name, function, ours, options in kinds:
                yield from _pool_rows(name, shape, function, ours, options, memory, dtype)
            for whole in ((64, 2048, 7, 7), (64, 256, 56, 56)):
                yield from _pool_rows(
                    f"adaptive_avg_pool 1 of {whole[-1]}",
                    whole,
                    lambda x: _F.adaptive_avg_pool2d(x, 1),
                    "adaptive_avg_pool",
                    {"output_size": 1},
                    memory,
                    dtype,
                )
            yield from _unpool_rows((64, 64, 112, 112), memory, dtype)


def _unpool_rows(shape, memory, dtype):
    """Maxima of 2 x 2 windows put back, and the gradient of that."""
    whole = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=_FORMATS[memory])
    x, places = _F.max_pool2d(whole, 2, return_indices=True)
    x, places = (t.contiguous(memory_format=_FORMATS[memory]) for t in (x, places))
    cx, ci, cg, out, dx = map(_borrowed, (x, places, whole, torch.empty_like(whole), torch.empty_like(x)))
    label, moved, size = f"max_unpool {memory} {_name(dtype)}", whole.nbytes + x.nbytes + places.nbytes, shape[2:]
    yield label, moved, lambda: dnn.max_unpool(cx, ci, size, out=out), lambda: _F.max_unpool2d(x, places, 2), None, ()
    leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = _F.max_unpool2d(leaf, places, 2)
    yield (
        f"{label} backward",
        moved,
        lambda: dnn.max_unpool_backward(cg, cx, ci, size, out=dx),
        lambda: torch.autograd.grad(y, leaf, whole, retain_graph=True),
        None,
        (),
    )


def _shuffle_row(name, shape, function, option, memory, dtype):
    x = torch.randn(shape, device="cuda").to(dtype).contiguous(memory_format=_FORMATS[memory])
    cx, ours = _borrowed(x), getattr(dnn, name)
    out = cupy.empty_like(ours(cx, **option))
    label = f"{name} {memory} {_name(dtype)}"
    return label, 2 * x.nbytes, lambda: ours(cx, out=out, **option), lambda: function(x), torch.compile(function), (x,)


def _shuffles():
    for dtype in _DTYPES:
        for memory in _FORMATS:
            yield _shuffle_row(
                "pixel_shuffle", (32, 256, 64, 64), lambda x: _F.pixel_shuffle(x, 2), {"factor": 2}, memory, dtype
            )
            yield _shuffle_row(
                "pixel_unshuffle", (32, 64, 128, 128), lambda x: _F.pixel_unshuffle(x, 2), {"factor": 2}, memory, dtype
            )
            yield _shuffle_row(
                "channel_shuffle", (32, 256, 64, 64), lambda x: _F.channel_shuffle(x, 4), {"groups": 4}, memory, dtype
            )


def _embedding_rows(kind, indices, dtype):
    weight = torch.randn((50_000, 768), device="cuda").to(dtype).requires_grad_()
    y = _F.embedding(indices, weight)
    grad = torch.randn_like(y)
    ci, cw, cg, out, dw = map(
        _borrowed, (indices, weight.detach(), grad, torch.empty_like(grad), torch.empty_like(weight.detach()))
    )
    label, table = f"embedding {kind} {_name(dtype)}", weight.detach()
    yield (
        label,
        2 * y.nbytes + indices.nbytes,
        lambda: dnn.embedding(ci, cw, out=out),
        lambda: _F.embedding(indices, table),
        torch.compile(_F.embedding),
        (indices, table),
    )
    yield (
        f"{label} backward",
        grad.nbytes + weight.nbytes + indices.nbytes,
        lambda: dnn.embedding_backward(cg, ci, cw, out=dw),
        lambda: torch.autograd.grad(y, weight, grad, retain_graph=True),
        None,
        (),
    )


def _lookups():
    for dtype in _DTYPES:
        yield from _embedding_rows("uniform", torch.randint(0, 50_000, (32, 2048), device="cuda"), dtype)
        yield from _embedding_rows("skewed", (50_000 * torch.rand((32, 2048), device="cuda") ** 6).long(), dtype)
    labels = torch.randint(0, 1000, (65_536,), device="cuda")
    cl, out = _borrowed(labels), cupy.empty((65_536, 1000), "int64")
    yield "one_hot 1000", out.nbytes, lambda: dnn.one_hot(cl, 1000, out=out), lambda: _F.one_hot(labels, 1000), None, ()


def rows():
    yield from _pools()
    yield from _shuffles()
    yield from _lookups()
