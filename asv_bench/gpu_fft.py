"""Rows of the convolution in large float32 windows, where Fourier transforms pay: all of its directions.

Labels say batch, channels and extents, the window, and groups where there are several; the selection chooses the
algorithm."""

from __future__ import annotations

import torch

import dnnarray as dnn
from asv_bench.gpu import borrowed

_CALLS = [  # x, weight, groups
    ((16, 64, 56, 56), (64, 64, 7, 7), 1),
    ((8, 32, 128, 128), (32, 32, 11, 11), 1),
    ((2, 16, 224, 224), (16, 16, 31, 31), 1),
    ((8, 96, 56, 56), (96, 1, 31, 31), 96),
    ((4, 64, 16000), (64, 64, 127), 1),
    ((8, 768, 4096), (768, 1, 255), 768),
]


def rows():
    back = torch.ops.aten.convolution_backward
    for x_shape, w_shape, groups in _CALLS:
        x, w = torch.randn(x_shape, device="cuda"), torch.randn(w_shape, device="cuda")
        rank, options = len(x_shape) - 2, {"padding": w_shape[-1] // 2, "groups": groups}
        forward = torch.nn.functional.conv2d if rank == 2 else torch.nn.functional.conv1d
        y = forward(x, w, **options)
        g = torch.randn_like(y)
        a, b, c = map(borrowed, (x, w, g))
        label = f"{'x'.join(map(str, x_shape))} {'x'.join(map(str, w_shape[2:]))}{f' g{groups}' if groups > 1 else ''}"
        bytes_ = 4 * (x.numel() + w.numel() + y.numel())
        rest = (None, (1,) * rank, (options["padding"],) * rank, (1,) * rank, False, (0,) * rank, groups)
        yield f"conv {label}", bytes_, (lambda a=a, b=b, o=options: dnn.conv(a, b, **o)), (
            lambda f=forward, x=x, w=w, o=options: f(x, w, **o)), None, ()  # fmt: skip
        yield (
            f"input {label}",
            bytes_,
            (lambda c=c, b=b, s=x_shape, o=options: dnn.conv_backward_input(c, b, input_shape=s, **o)),
            (lambda g=g, x=x, w=w, r=rest, back=back: back(g, x, w, *r, (True, False, False))),
            None,
            (),
        )
        yield (
            f"weight {label}",
            bytes_,
            (lambda c=c, a=a, s=w_shape, o=options: dnn.conv_backward_weight(c, a, weight_shape=s, **o)),
            (lambda g=g, x=x, w=w, r=rest, back=back: back(g, x, w, *r, (False, True, False))),
            None,
            (),
        )
