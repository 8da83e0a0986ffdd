"""Side-by-side rows of the activation family; `python -m asv_bench.gpu` runs them."""

from __future__ import annotations

from functools import partial

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed, elementwise_rows

_DTYPES = (torch.float32, torch.bfloat16)
_SHAPE = (16384, 4096)


def _tensors(dtype, *shapes):
    return [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]


def _gradient(function, tensors, g):
    """What autograd does in a backward pass of `function` for all tensors."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = function(*leaves)
    return lambda: torch.autograd.grad(y, leaves, g, retain_graph=True)


def swiglu_rows():
    def peer(gate, x):
        return torch.nn.functional.silu(gate) * x

    for dtype in _DTYPES:
        gate, x, g, o, p = _tensors(dtype, *[_SHAPE] * 5)
        cgate, cx, cg, co, cp = map(borrowed, (gate, x, g, o, p))
        name = str(dtype)[6:]
        yield (
            f"swiglu {name}",
            3 * x.nbytes,
            (lambda a=cgate, b=cx, o=co: dnn.swiglu(a, b, out=o)),
            (lambda a=gate, b=x: peer(a, b)),
            torch.compile(peer),
            (gate, x),
        )
        yield (
            f"swiglu_backward {name}",
            5 * x.nbytes,
            (lambda g=cg, a=cgate, b=cx, o=(co, cp): dnn.swiglu_backward(g, a, b, out=o)),
            _gradient(peer, (gate, x), g),
            None,
            (),
        )


def glu_rows():
    for dtype in _DTYPES:
        x, half = _tensors(dtype, (16384, 8192), _SHAPE)
        out, dx = torch.empty_like(half), torch.empty_like(x)
        cx, ch, co, cd = map(borrowed, (x, half, out, dx))
        peer, name = torch.nn.functional.glu, str(dtype)[6:]
        yield (
            f"glu {name}",
            3 * half.nbytes,
            (lambda x=cx, o=co: dnn.glu(x, out=o)),
            (lambda x=x, f=peer: f(x)),
            torch.compile(peer),
            (x,),
        )
        ours = partial(dnn.glu_backward, ch, cx, out=cd)
        yield f"glu_backward {name}", 5 * half.nbytes, ours, _gradient(peer, (x,), half), None, ()


def bias_rows():
    """bias + gelu over the last axis of a matrix, and bias + relu over the channels of an image."""
    gelu, relu = torch.nn.functional.gelu, torch.nn.functional.relu
    for function, label, shape, axis, view in (
        (gelu, "gelu", _SHAPE, -1, (-1,)),
        (relu, "relu", (64, 256, 56, 56), 1, (1, -1, 1, 1)),
        (relu, "relu", (64, 512, 7, 7), 1, (1, -1, 1, 1)),
    ):

        def peer(x, b, function=function, view=view):
            return function(x + b.view(view))

        for dtype in _DTYPES:
            x, b, g = _tensors(dtype, shape, (shape[axis],), shape)
            out, db = torch.empty_like(x), torch.empty_like(b)
            cx, cb, cg, co, cd = map(borrowed, (x, b, g, out, db))
            name, options = f"{'x'.join(map(str, shape))} {str(dtype)[6:]}", {"activation": label, "axis": axis}
            yield (
                f"bias_{label} {name}",
                2 * x.nbytes,
                (lambda x=cx, b=cb, o=co, k=options: dnn.bias_activation(x, b, out=o, **k)),
                (lambda x=x, b=b, f=peer: f(x, b)),
                torch.compile(peer),
                (x, b),
            )
            yield (
                f"bias_{label}_backward {name}",
                3 * x.nbytes,
                (
                    lambda g=cg, x=cx, b=cb, o=(co, cd, None), k=options: dnn.bias_activation_backward(
                        g, x, b, out=o, **k
                    )
                ),
                _gradient(peer, (x, b), g),
                None,
                (),
            )


def prelu_rows():
    peer, shape = torch.nn.functional.prelu, (64, 256, 56, 56)
    for dtype in _DTYPES:
        x, w, g = _tensors(dtype, shape, (256,), shape)
        out, dw = torch.empty_like(x), torch.empty_like(w)
        cx, cw, cg, co, cd = map(borrowed, (x, w, g, out, dw))
        name = str(dtype)[6:]
        ours, eager = (lambda x=cx, w=cw, o=co: dnn.prelu(x, w, out=o)), (lambda x=x, w=w: peer(x, w))
        yield f"prelu {name}", 2 * x.nbytes, ours, eager, torch.compile(peer), (x, w)
        back = partial(dnn.prelu_backward, cg, cx, cw, out=(co, cd))
        yield f"prelu_backward {name}", 3 * x.nbytes, back, _gradient(peer, (x, w), g), None, ()


def rows():
    functional = torch.nn.functional
    for name in ("gelu", "silu", "mish", "tanh", "softplus", "elu"):
        yield from elementwise_rows(name, getattr(functional, name) if name != "tanh" else torch.tanh)
    yield from swiglu_rows()
    yield from glu_rows()
    yield from bias_rows()
    yield from prelu_rows()
