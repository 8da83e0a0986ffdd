"""Side-by-side rows of the attention family; `python -m asv_bench.gpu` runs them."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed


def _turned(x, cos, sin, interleaved):
    """The usual formula in PyTorch, (B, H, S, D)."""
    if interleaved:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _rotary_rows():
    for layout, shape in (("BHSD", (4, 32, 4096, 128)), ("BSHD", (4, 4096, 32, 128))):
        for dtype in (torch.float32, torch.bfloat16):
            for interleaved in (False, True):
                x, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
                cos, sin = (torch.randn(4096, 64, device="cuda").to(dtype) for _ in range(2))
                out = torch.empty_like(x), torch.empty_like(cos), torch.empty_like(sin)
                cx, cg, cc, cs, *co = map(borrowed, (x, g, cos, sin, *out))
                spread = (cos, sin) if layout == "BHSD" else (cos[:, None], sin[:, None])
                options = {"layout": layout, "interleaved": interleaved}
                tail = f"{layout} {'interleaved ' * interleaved}{str(dtype)[6:]}"

                def peer(x, cos, sin, interleaved=interleaved):
                    return _turned(x, cos, sin, interleaved)

                yield (
                    f"rotary {tail}",
                    2 * x.nbytes,
                    (lambda x=cx, c=cc, s=cs, o=co[0], k=options: dnn.rotary_embedding(x, c, s, out=o, **k)),
                    (lambda x=x, t=spread, f=peer: f(x, *t)),
                    torch.compile(peer),
                    (x, *spread),
                )
                yield (
                    f"rotary_backward {tail}",
                    3 * x.nbytes,
                    (lambda g=cg, x=cx, c=cc, s=cs, o=tuple(co), k=options: dnn.rotary_embedding_backward(g, x, c, s, out=o, **k)),
                    (lambda g=g, t=spread, f=peer: f(g, t[0], -t[1])),
                    None,
                    (),
                )


def rows():
    yield from _rotary_rows()
