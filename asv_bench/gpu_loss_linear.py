"""Rows of the linear cross entropy for the side-by-side benchmark."""

from __future__ import annotations

from functools import partial

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed


def rows(rows=8192, features=4096, classes=128256):
    """A language model's last layer; the column GB/s is in GFLOP/s of the matrix products that the definition needs."""

    def peer(x, w, t):
        return torch.nn.functional.cross_entropy(x @ w.T, t)

    for dtype in (torch.bfloat16, torch.float32):
        count = rows if dtype == torch.bfloat16 else rows // 4
        x, w = (
            torch.randn((count, features), device="cuda").to(dtype),
            (torch.randn((classes, features), device="cuda") / 64).to(dtype),
        )
        target = torch.randint(0, classes, (count,), device="cuda")
        out, one, dx, dw = (
            torch.empty((), dtype=dtype, device="cuda"),
            torch.ones((), dtype=dtype, device="cuda"),
            x.clone(),
            w.clone(),
        )
        cx, cw, ct, co, c1, cdx, cdw = map(borrowed, (x, w, target, out, one, dx, dw))
        lse = dnn.linear_cross_entropy(cx, cw, ct, return_lse=True).lse
        flops, label = 2 * count * features * classes, f"{count}x{features}x{classes} {str(dtype)[6:]} GFLOP/s"
        yield (
            f"linear_cross_entropy {label}",
            flops,
            (lambda x=cx, w=cw, t=ct, o=co: dnn.linear_cross_entropy(x, w, t, out=o)),
            (lambda x=x, w=w, t=target: peer(x, w, t)),
            None,
            (),
        )
        leaves = x.detach().requires_grad_(), w.detach().requires_grad_()
        loss = peer(*leaves, target)
        ours = partial(dnn.linear_cross_entropy_backward, c1, cx, cw, ct, lse=lse, out=(cdx, cdw, None))
        again = partial(torch.autograd.grad, loss, leaves, one, retain_graph=True)
        yield f"linear_cross_entropy_backward {label}", 2 * flops, ours, again, None, ()
        yield (
            f"linear_cross_entropy and its gradients {label}",
            3 * flops,
            *_both(peer, (x, w, target, one), (cx, cw, ct, c1), (cdx, cdw, None)),
            None,
            (),
        )
        del leaves, loss


def _both(peer, theirs, ours, out):
    """Forward and backward as a training step does them: ours by way of the tape that `vjp` keeps."""

    def step():
        _loss, tape = dnn.linear_cross_entropy(*ours[:3], return_tape=True)
        return dnn.linear_cross_entropy_backward(ours[3], *ours[:3], tape=tape, out=out)

    def their_step():
        leaves = [a.detach().requires_grad_() for a in theirs[:2]]
        return torch.autograd.grad(peer(*leaves, theirs[2]), leaves, theirs[3])

    return step, their_step
