"""Convolution side by side with PyTorch and cuDNN: rows for `asv_bench.gpu`, whose figures stand for TFLOP/s here."""

from __future__ import annotations

import math

import cupy
import torch

import dnnarray as dnn

_borrowed = cupy.from_dlpack
LAYERS = {  # x, weight, options
    "7x7/2 3->64 224": ((64, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "3x3 64 56": ((64, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "1x1 64->256 56": ((64, 64, 56, 56), (256, 64, 1, 1), {}),
    "3x3 256 14": ((64, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
    "3x3 512 7": ((64, 512, 7, 7), (512, 512, 3, 3), {"padding": 1}),
    "3x3 256 56": ((64, 256, 56, 56), (256, 256, 3, 3), {"padding": 1}),
    "groups 32 3x3 128 56": ((64, 128, 56, 56), (128, 4, 3, 3), {"padding": 1, "groups": 32}),
    "3x3x3 64 32x64x64": ((2, 64, 32, 64, 64), (64, 64, 3, 3, 3), {"padding": 1}),
    "k3/2 512 16000": ((8, 512, 16000), (512, 512, 3), {"padding": 1, "stride": 2}),
}
CLASSES = {
    "highest": "float32",
    "high": "tf32",
}  # precision classes and how rows are labelled; the peer runs without and with TF32
_PEERS = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def _rows(name, x_shape, w_shape, options, dtype, last):
    rank = len(x_shape) - 2
    memory = {"memory_format": {2: torch.channels_last, 3: torch.channels_last_3d}[rank]} if last and rank > 1 else {}

    def drawn(shape):
        return torch.randn(shape, device="cuda").to(dtype).contiguous(**memory)

    x, w, conv = drawn(x_shape), drawn(w_shape) / math.sqrt(math.prod(w_shape[1:])), _PEERS[rank]
    bias = torch.randn(w_shape[0], device="cuda").to(dtype)
    cx, cw = _borrowed(x), _borrowed(w)
    y = drawn(dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape)
    g = drawn(y.shape)
    work = 2 * y.numel() * math.prod(w_shape[1:]) // 1000
    cg, cb = _borrowed(g), _borrowed(bias)
    cy, cdx, cdw = (_borrowed(torch.empty_like(t)) for t in (y, x, w))
    rest = {"stride": 1, "dilation": 1, "groups": 1, "padding": 0} | options
    axes = {k: [v] * rank for k, v in rest.items() if k != "groups"}

    def backward(dx, dw):
        mask = [dx, dw, False]
        return torch.ops.aten.convolution_backward(
            g, x, w, None, axes["stride"], axes["padding"], axes["dilation"], False, [0] * rank, rest["groups"], mask
        )

    label = f"conv {name} {str(dtype)[6:]}{'' if last else ' first'}"
    yield label, work, lambda: dnn.conv(cx, cw, out=cy, **options), lambda: conv(x, w, **options), None, ()
    yield f"{label} bias relu", work, lambda: dnn.conv(cx, cw, cb, out=cy, activation="relu", **options), (
        lambda: torch.relu_(conv(x, w, bias, **options))), None, ()  # fmt: skip
    if dtype is torch.bfloat16 and last:
        residual = drawn(y.shape)
        cr = _borrowed(residual)
        yield (
            f"{label} bias residual relu",
            work,
            lambda: dnn.conv(cx, cw, cb, residual=cr, out=cy, activation="relu", **options),
            (lambda: torch.relu_(conv(x, w, bias, **options).add_(residual))),
            None,
            (),
        )
    yield f"{label} input", work, lambda: dnn.conv_backward_input(cg, cw, input_shape=cx.shape, out=cdx, **options), (
        lambda: backward(True, False)), None, ()  # fmt: skip
    yield (
        f"{label} weight",
        work,
        lambda: dnn.conv_backward_weight(cg, cx, weight_shape=cw.shape, out=cdw, **options),
        (lambda: backward(False, True)),
        None,
        (),
    )


def classed(rows, precision):
    """Rows in a numerics class of float32, the peer's too."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, precision != "highest"
    with dnn.options(float32_precision=precision):
        for label, *rest in rows:
            yield label.replace("float32", CLASSES[precision]), *rest
    torch.backends.cudnn.allow_tf32 = before


def rows():
    torch.backends.cudnn.benchmark = True
    for name, (x, w, options) in LAYERS.items():
        yield from _rows(name, x, w, options, torch.bfloat16, len(x) > 3)
    for precision in CLASSES:
        for name, (x, w, options) in LAYERS.items():
            yield from classed(_rows(name, x, w, options, torch.float32, len(x) > 3), precision)
    for name in ("3x3 64 56", "3x3 256 14"):
        yield from _rows(name, *LAYERS[name], torch.bfloat16, False)
