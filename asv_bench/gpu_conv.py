"""Depthwise and grouped convolution side by side with PyTorch: rows for `asv_bench.gpu`, in GB/s of x and y once."""

from __future__ import annotations

import cupy
import torch

import dnnarray as dnn
from asv_bench.gpu_conv_dense import CLASSES, classed

_borrowed = cupy.from_dlpack
LAYERS = {  # x, weight, options
    "depthwise 3x3 96": ((64, 96, 112, 112), (96, 1, 3, 3), {"padding": 1, "groups": 96}),
    "depthwise 7x7 192": ((64, 192, 56, 56), (192, 1, 7, 7), {"padding": 3, "groups": 192}),
}
_HALF_LAYERS = {
    "depthwise 5x5 192": ((64, 192, 56, 56), (192, 1, 5, 5), {"padding": 2, "groups": 192}),
    "depthwise 3x3 96 to 192": ((64, 96, 56, 56), (192, 1, 3, 3), {"padding": 1, "groups": 96}),
    "depthwise 3x3x3 64": ((8, 64, 16, 56, 56), (64, 1, 3, 3, 3), {"padding": 1, "groups": 64}),
    "depthwise k5 512 first": ((8, 512, 16000), (512, 1, 5), {"padding": 2, "groups": 512}),
    "groups of 2 3x3 64 112": ((64, 64, 112, 112), (64, 2, 3, 3), {"padding": 1, "groups": 32}),
    "groups of 8 3x3 256 28": ((64, 256, 28, 28), (256, 8, 3, 3), {"padding": 1, "groups": 32}),
    "groups of 16 3x3 512 14": ((64, 512, 14, 14), (512, 16, 3, 3), {"padding": 1, "groups": 32}),
    "groups of 32 3x3 1024 7": ((64, 1024, 7, 7), (1024, 32, 3, 3), {"padding": 1, "groups": 32}),
}
_GROUPS = "groups of 8 3x3 256 28"  # in float32 too
_PEERS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
_LAST = {1: {}, 2: {"memory_format": torch.channels_last}, 3: {"memory_format": torch.channels_last_3d}}


def _rows(name, x_shape, w_shape, options, dtype):
    """Forward and both gradients, channels-last where PyTorch has such memory."""
    rank = len(x_shape) - 2
    last, peer_conv = _LAST[rank], _PEERS[rank]

    def drawn(shape):
        return torch.randn(shape, device="cuda").to(dtype).contiguous(**last)

    x, weight = drawn(x_shape), drawn(w_shape)
    grad = drawn((x_shape[0], w_shape[0], *x_shape[2:]))
    cx, cw, cg = map(_borrowed, (x, weight, grad))
    out, dx, dw = (_borrowed(torch.empty_like(t)) for t in (grad, x, weight))
    moved = x.nbytes + grad.nbytes

    def backward(dx, dw):
        pads = [options["padding"]] * rank
        return torch.ops.aten.convolution_backward(
            grad, x, weight, None, [1] * rank, pads, [1] * rank, False, [0] * rank, options["groups"], [dx, dw, False]
        )

    label = f"{name} {str(dtype)[6:]}"
    yield label, moved, lambda: dnn.conv(cx, cw, out=out, **options), lambda: peer_conv(x, weight, **options), None, ()
    yield f"{label} input", moved, lambda: dnn.conv_backward_input(cg, cw, input_shape=cx.shape, out=dx, **options), (
        lambda: backward(True, False)), None, ()  # fmt: skip
    yield (
        f"{label} weight",
        moved,
        lambda: dnn.conv_backward_weight(cg, cx, weight_shape=cw.shape, out=dw, **options),
        (lambda: backward(False, True)),
        None,
        (),
    )


def rows():
    torch.backends.cudnn.benchmark = True
    for dtype in (torch.bfloat16, torch.float16):
        for name, layer in LAYERS.items():
            yield from _rows(name, *layer, dtype)
    for name, layer in _HALF_LAYERS.items():
        yield from _rows(name, *layer, torch.bfloat16)
    for name, layer in LAYERS.items():
        yield from classed(_rows(name, *layer, torch.float32), "highest")
    for precision in CLASSES:
        yield from classed(_rows(_GROUPS, *_HALF_LAYERS[_GROUPS], torch.float32), precision)
