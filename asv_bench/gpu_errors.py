"""What the table of convolutions beside PyTorch does not show: errors of the classes of numerics, and the speed of the
portable path.

    python -m asv_bench.gpu_errors [--only highest]

Errors are root mean squares of the difference from float64, over the root mean square of the result. The portable path
is the kernel for sm_80 and newer, forced on whatever card there is."""

from __future__ import annotations

import argparse

import cupy
import torch

import dnnarray as dnn
from asv_bench.gpu import device_ms
from asv_bench.gpu_conv import LAYERS as IN_GROUPS
from asv_bench.gpu_conv_dense import LAYERS as DENSE

_PORTABLE = ("3x3 64 56", "3x3 256 56")


def _tensors(name, dtype):
    x_shape, w_shape, options = (DENSE | IN_GROUPS)[name]
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(x_shape), torch.contiguous_format)
    output = dnn.infer("conv", dnn.Spec(x_shape, "float32"), dnn.Spec(w_shape, "float32"), **options).output.shape
    return *(
        torch.randn(s, device="cuda").to(dtype).contiguous(memory_format=memory) for s in (x_shape, w_shape, output)
    ), options


def _backward(x, w, g, options):
    rank = x.ndim - 2
    stride, padding, dilation = (
        [options.get(key, default)] * rank for key, default in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    mask = [True, True, False]
    return torch.ops.aten.convolution_backward(
        g, x, w, None, stride, padding, dilation, False, [0] * rank, options.get("groups", 1), mask
    )[:2]


def _theirs(x, w, g, options):
    conv = {3: torch.nn.functional.conv1d, 4: torch.nn.functional.conv2d, 5: torch.nn.functional.conv3d}[x.ndim]
    return conv(x, w, **options), *_backward(x, w, g, options)


def _ours(x, w, g, options):
    cx, cw, cg = map(cupy.from_dlpack, (x, w, g))
    results = (
        dnn.conv(cx, cw, **options),
        dnn.conv_backward_input(cg, cw, input_shape=cx.shape, **options),
        dnn.conv_backward_weight(cg, cx, weight_shape=cw.shape, **options),
    )
    return tuple(map(torch.from_dlpack, results))


def _relative(found, exact):
    return float((found.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


def errors(name, precision):
    """Of the result and both gradients: ours and cuDNN's in one class of numerics."""
    x, w, g, options = _tensors(name, torch.float32)
    exact = _theirs(x.double(), w.double(), g.double(), options)
    torch.backends.cudnn.allow_tf32 = precision != "highest"
    with dnn.options(float32_precision=precision):
        return [tuple(map(_relative, found, exact)) for found in (_ours(x, w, g, options), _theirs(x, w, g, options))]


def portable_tflops(name):
    x, w, _, options = _tensors(name, torch.bfloat16)
    cx, cw = cupy.from_dlpack(x), cupy.from_dlpack(w)
    y = dnn.conv(cx, cw, algorithm="implicit_gemm", **options)
    ms = device_ms(lambda: dnn.conv(cx, cw, algorithm="implicit_gemm", out=y, **options))
    return 2 * y.size * w[0].numel() / ms / 1e9


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("highest", "high"), help="errors of this class alone")
    wanted = parser.parse_args().only
    torch.backends.cudnn.benchmark = True  # as in the table
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        for name in _PORTABLE:
            print(f"portable {name} bfloat16: {portable_tflops(name):.0f} TFLOP/s", flush=True)
        print(f"{'float32 conv':34} {'forward':>17} {'input':>17} {'weight':>17}   (ours, cuDNN)")
        for precision in (wanted,) if wanted else ("highest", "high"):
            for name in (*DENSE, *IN_GROUPS):
                pairs = zip(*errors(name, precision), strict=True)
                print(
                    f"{precision + ' ' + name:34} " + " ".join(f"{ours:.2e} {theirs:.2e}" for ours, theirs in pairs),
                    flush=True,
                )


if __name__ == "__main__":
    main()
