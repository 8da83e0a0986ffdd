"""Rows of the losses for the side-by-side benchmark."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed

_SCORES = [
    ((16384, 4096), torch.float32),
    ((16384, 4096), torch.bfloat16),
    ((4096, 128256), torch.float32),
    ((4096, 128256), torch.bfloat16),
    ((8192, 50257), torch.bfloat16),
    ((1048576, 32), torch.float32),
    ((16, 21, 512, 512), torch.float32),
    ((16, 21, 512, 512), torch.bfloat16),
]


def _cross_entropy_rows():
    loss_of = torch.nn.functional.cross_entropy
    for shape, dtype in _SCORES:
        z = torch.randn(shape, device="cuda").to(dtype)
        target = torch.randint(0, shape[1], (shape[0], *shape[2:]), device="cuda")
        out, gradient = torch.empty((), dtype=dtype, device="cuda"), torch.empty_like(z)
        one = torch.ones((), dtype=dtype, device="cuda")
        cz, ct, co, cd, c1 = map(borrowed, (z, target, out, gradient, one))
        label = f"{'x'.join(map(str, shape))} {str(dtype)[6:]}"
        moved = z.nbytes + target.nbytes
        yield (
            f"cross_entropy {label}",
            moved,
            (lambda cz=cz, ct=ct, co=co: dnn.cross_entropy(cz, ct, out=co)),
            (lambda z=z, target=target: loss_of(z, target)),
            torch.compile(loss_of),
            (z, target),
        )
        leaf = z.detach().requires_grad_()
        loss = loss_of(leaf, target)
        yield (
            f"cross_entropy_backward {label}",
            moved + z.nbytes,
            (lambda c1=c1, cz=cz, ct=ct, cd=cd: dnn.cross_entropy_backward(c1, cz, ct, out=cd)),
            (lambda loss=loss, leaf=leaf, one=one: torch.autograd.grad(loss, leaf, one, retain_graph=True)),
            None,
            (),
        )


def _nll_rows():
    """The forward looks up one score a row; the gradient is zeros but for it."""
    loss_of = torch.nn.functional.nll_loss
    for dtype in (torch.float32, torch.bfloat16):
        z = torch.randn((65536, 1000), device="cuda").to(dtype).log_softmax(-1)
        target = torch.randint(0, 1000, (65536,), device="cuda")
        out, gradient, one = (
            torch.empty((), dtype=dtype, device="cuda"),
            torch.empty_like(z),
            torch.ones((), dtype=dtype, device="cuda"),
        )
        cz, ct, co, cd, c1 = map(borrowed, (z, target, out, gradient, one))
        label = f"65536x1000 {str(dtype)[6:]}"
        yield (
            f"nll_loss {label}",
            target.nbytes + 32 * len(target),
            (lambda cz=cz, ct=ct, co=co: dnn.nll_loss(cz, ct, out=co)),
            (lambda z=z, target=target: loss_of(z, target)),
            torch.compile(loss_of),
            (z, target),
        )
        leaf = z.detach().requires_grad_()
        loss = loss_of(leaf, target)
        yield (
            f"nll_loss_backward {label}",
            target.nbytes + z.nbytes,
            (lambda c1=c1, cz=cz, ct=ct, cd=cd: dnn.nll_loss_backward(c1, cz, ct, out=cd)),
            (lambda loss=loss, leaf=leaf, one=one: torch.autograd.grad(loss, leaf, one, retain_graph=True)),
            None,
            (),
        )


def _ctc_rows(steps=512, batch=64, classes=128, labels=100):
    z = torch.randn(steps, batch, classes, device="cuda").log_softmax(-1)
    targets = torch.randint(1, classes, (batch, labels), device="cuda")
    lengths, counts = (torch.full((batch,), n, device="cuda") for n in (steps, labels))
    out, gradient, one = torch.empty((), device="cuda"), torch.empty_like(z), torch.ones((), device="cuda")
    cz, ct, cl, cc, co, cd, c1 = map(borrowed, (z, targets, lengths, counts, out, gradient, one))
    loss_of = torch.nn.functional.ctc_loss
    on_host = lengths.tolist(), counts.tolist()
    yield (
        f"ctc_loss T{steps} N{batch} C{classes} S{labels}",
        z.nbytes,
        lambda: dnn.ctc_loss(cz, ct, cl, cc, out=co),
        lambda: loss_of(z, targets, *on_host),
        None,
        (),
    )
    leaf = z.detach().requires_grad_()
    loss = loss_of(leaf, targets, *on_host)
    yield (
        f"ctc_loss_backward T{steps} N{batch} C{classes} S{labels}",
        2 * z.nbytes,
        lambda: dnn.ctc_loss_backward(c1, cz, ct, cl, cc, out=cd),
        lambda: torch.autograd.grad(loss, leaf, one, retain_graph=True),
        None,
        (),
    )


def rows():
    yield from _ctc_rows()
    yield from _nll_rows()
    yield from _cross_entropy_rows()
