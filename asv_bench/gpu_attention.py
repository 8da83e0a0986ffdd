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
                    (
                        lambda g=cg, x=cx, c=cc, s=cs, o=tuple(co), k=options: dnn.rotary_embedding_backward(
                            g, x, c, s, out=o, **k
                        )
                    ),
                    (lambda g=g, t=spread, f=peer: f(g, t[0], -t[1])),
                    None,
                    (),
                )


_SHAPES = ((16, 16, 1024, 128), (4, 16, 4096, 128), (1, 16, 16384, 128), (4, 32, 4096, 64), (2, 8, 4096, 256))


def _attention_rows():
    """Arithmetic is the bound: what stands in the column of bytes are operations, GFLOP/s, half as many where
    causal."""
    for dtype, shapes in ((torch.bfloat16, _SHAPES), (torch.float32, _SHAPES[:1])):
        for shape in shapes:
            for causal in (False, True):
                batch, heads, length, width = shape
                q, k, v, g = (torch.randn(shape, device="cuda").to(dtype) for _ in range(4))
                arrays = tuple(map(borrowed, (q, k, v)))
                operations = 4 * batch * heads * length * length * width // (2 if causal else 1)
                tail = f"{'x'.join(map(str, shape))} {'causal ' * causal}{str(dtype)[6:]} (GFLOP/s)"
                leaves = tuple(t.clone().requires_grad_() for t in (q, k, v))
                y = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
                ours, lse = dnn.attention(*arrays, causal=causal, return_lse=True)
                saved, grad = {"output": ours, "lse": lse, "causal": causal}, borrowed(g)
                yield (
                    f"attention {tail}",
                    operations,
                    (lambda a=arrays, c=causal: dnn.attention(*a, causal=c)),
                    (lambda t=(q, k, v), c=causal: torch.nn.functional.scaled_dot_product_attention(*t, is_causal=c)),
                    None,
                    (),
                )
                yield (
                    f"attention_backward {tail}",
                    operations * 5 // 2,
                    (lambda g=grad, a=arrays, k=saved: dnn.attention_backward(g, *a, **k)),
                    (lambda y=y, t=leaves, g=g: torch.autograd.grad(y, t, g, retain_graph=True)),
                    None,
                    (),
                )


def _decode_rows():
    for batch, heads, kv_heads, length, width in ((32, 32, 8, 8192, 128), (1, 32, 8, 32768, 128)):
        q = torch.randn(batch, heads, 1, width, device="cuda").to(torch.bfloat16)
        k, v = (torch.randn(batch, kv_heads, length, width, device="cuda").to(torch.bfloat16) for _ in range(2))
        arrays = tuple(map(borrowed, (q, k, v)))
        yield (
            f"attention decode {batch}x{heads}/{kv_heads}x{length}x{width} bfloat16",
            2 * k.nbytes,
            (lambda a=arrays: dnn.attention(*a)),
            (lambda a=(q, k, v): torch.nn.functional.scaled_dot_product_attention(*a, enable_gqa=True)),
            None,
            (),
        )


def rows():
    yield from _attention_rows()
    yield from _decode_rows()
    yield from _rotary_rows()
