"""Rows of the side-by-side benchmark: norms over channels."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_IMAGES = ((64, 256, 56, 56), (64, 64, 112, 112), (64, 2048, 7, 7), (2, 32, 14, 14))
_MEDIUM = ((4, 255, 24, 24), (7, 320, 27, 27))  # 1 to 7 MB, channels last; an odd number of them


def _gradient(y, leaves, g):
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)


def _label(shape, dtype, last) -> str:
    return f"{'last' if last else 'first'} {'x'.join(map(str, shape))} {str(dtype)[6:]}"


class Arrays:
    """x, a gradient, a residual and a result of one shape and memory order; parameters in float32."""

    def __init__(self, shape, dtype, last) -> None:
        memory = torch.channels_last if last else torch.contiguous_format
        self.x, self.g, self.r, self.y, self.more = (
            torch.randn(shape, device="cuda").to(dtype).to(memory_format=memory) for _ in range(5)
        )
        self.w, self.b = torch.rand(shape[1], device="cuda"), torch.randn(shape[1], device="cuda")
        self.mean, self.var = torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")

    def borrowed(self):
        return map(borrowed, (self.x, self.g, self.r, self.y, self.more, self.w, self.b))


def batch_norms(shape, dtype, last):
    """Training, inference, and training with residual and relu. Bytes as for three passes, five backward (a residual:
    one, two more)."""
    functional, arrays, name = torch.nn.functional, Arrays(shape, dtype, last), _label(shape, dtype, last)
    cx, cg, cr, cy, cmore, cw, cb = arrays.borrowed()
    cmean, cvar = borrowed(arrays.mean), borrowed(arrays.var)
    cdw, cdb = borrowed(torch.empty_like(arrays.w)), borrowed(torch.empty_like(arrays.b))
    moved = arrays.x.nbytes

    def train(x, w, b):
        return functional.batch_norm(x, None, None, w, b, True)

    def given(x, w, b):
        return functional.batch_norm(x, arrays.mean, arrays.var, w, b, False)

    def fused(x, w, b, r):
        return torch.relu(train(x, w, b) + r)

    stats = dnn.batch_norm_train(cx, cw, cb)
    out, known = (cy, stats.mean, stats.rstd), {"mean": stats.mean, "rstd": stats.rstd}
    tensors = (arrays.x, arrays.w, arrays.b)
    leaves = [t.clone().requires_grad_() for t in (*tensors, arrays.r)]
    yield (
        f"batch_norm_train {name}",
        3 * moved,
        lambda: dnn.batch_norm_train(cx, cw, cb, out=out),
        lambda: train(*tensors),
        None,
        (),
    )
    yield (
        f"batch_norm_train_backward {name}",
        5 * moved,
        lambda: dnn.batch_norm_train_backward(cg, cx, cw, cb, **known, out=(cy, cdw, cdb)),
        _gradient(train(*leaves[:3]), leaves[:3], arrays.g),
        None,
        (),
    )
    yield (
        f"batch_norm {name}",
        2 * moved,
        lambda: dnn.batch_norm(cx, cmean, cvar, cw, cb, out=cy),
        lambda: given(*tensors),
        torch.compile(given),
        tensors,
    )
    options = {"residual": cr, "activation": "relu"}
    yield (
        f"batch_norm_train+residual+relu {name}",
        4 * moved,
        lambda: dnn.batch_norm_train(cx, cw, cb, **options, out=out),
        lambda: fused(*tensors, arrays.r),
        None,
        (),
    )
    yield (
        f"batch_norm_train+residual+relu_backward {name}",
        8 * moved,
        lambda: dnn.batch_norm_train_backward(cg, cx, cw, cb, **known, **options, out=(cy, cdw, cdb, cmore)),
        _gradient(fused(*leaves), leaves, arrays.g),
        None,
        (),
    )


def group_norms(shape, dtype, last):
    """Group norm with 32 groups and instance norm, parameters in the dtype of x. Bytes as for three passes, five
    backward."""
    functional, arrays, name = torch.nn.functional, Arrays(shape, dtype, last), _label(shape, dtype, last)
    cx, cg, _, cy, *_ = arrays.borrowed()
    wide = [arrays.w.to(dtype), arrays.b.to(dtype)]
    parameters, gradients = [borrowed(t) for t in wide], [borrowed(torch.empty_like(t)) for t in wide]
    tensors, moved = (arrays.x, *wide), arrays.x.nbytes

    def group(x, w, b):
        return functional.group_norm(x, 32, w, b)

    def instance(x, w, b):
        return functional.instance_norm(x, None, None, w, b)

    out = (cy, *gradients)
    leaves = [t.clone().requires_grad_() for t in tensors]
    yield (
        f"group_norm {name}",
        3 * moved,
        lambda: dnn.group_norm(cx, 32, *parameters, out=cy),
        lambda: group(*tensors),
        None,
        (),
    )
    yield f"group_norm_backward {name}", 5 * moved, lambda: dnn.group_norm_backward(
        cg, cx, *parameters, num_groups=32, out=out), _gradient(group(*leaves), leaves, arrays.g), None, ()  # fmt: skip
    yield (
        f"instance_norm {name}",
        3 * moved,
        lambda: dnn.instance_norm(cx, *parameters, out=cy),
        lambda: instance(*tensors),
        None,
        (),
    )
    yield (
        f"instance_norm_backward {name}",
        5 * moved,
        lambda: dnn.instance_norm_backward(cg, cx, *parameters, out=out),
        _gradient(instance(*leaves), leaves, arrays.g),
        None,
        (),
    )


def local_response(shape, dtype, last):
    """A window of five channels, channels first in the shape."""
    arrays, name = Arrays(shape, dtype, last), _label(shape, dtype, last)
    cx, cg, _, cy, *_ = arrays.borrowed()
    leaf, moved = arrays.x.clone().requires_grad_(), arrays.x.nbytes

    def peer(x):
        return torch.nn.functional.local_response_norm(x, 5)

    yield f"local_response_norm {name}", 2 * moved, lambda: dnn.local_response_norm(cx, size=5, out=cy), lambda: peer(
        arrays.x), torch.compile(peer), (arrays.x,)  # fmt: skip
    yield (
        f"local_response_norm_backward {name}",
        3 * moved,
        lambda: dnn.local_response_norm_backward(cg, cx, size=5, out=cy),
        _gradient(peer(leaf), leaf, arrays.g),
        None,
        (),
    )


def rows():
    for shape in _IMAGES:
        for dtype in _DTYPES:
            for last in (False, True):
                for family in (batch_norms, group_norms, local_response):
                    yield from family(shape, dtype, last)
    for shape in _MEDIUM:
        for dtype in _DTYPES:
            yield from batch_norms(shape, dtype, True)
