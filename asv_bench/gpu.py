"""Side by side with PyTorch on one GPU: device time with a cold L2, share of the copy bandwidth, host time per call.

    python -m asv_bench.gpu [--only WORD,WORD] [--alone]

Prints one row per operation, dtype and direction; the ceiling (copy) is measured in the same run. With ``--alone`` the peers are left out, for
the short way between an edit and its figure.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import time
from pathlib import Path

import cupy
import numpy as np
import torch

import dnnarray as dnn

REPEATS = 21
_flush = None


def flush_l2() -> None:
    """Write more than the L2 holds, so that the next kernel finds none of its inputs there."""
    global _flush
    if _flush is None:
        _flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    _flush.zero_()


def device_ms(call) -> float:
    """Median of the time between events around one call, on PyTorch's current stream, cold L2."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        flush_l2()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def host_us(call, repeats: int = 1000) -> float:
    """Host time per call in a queue that never fills: the best of five rounds."""
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        best = min(best, time.perf_counter() - start)
    torch.cuda.synchronize()
    return best / repeats * 1e6


def copy_bandwidth() -> float:
    """GB/s of a device-to-device copy, bytes read plus bytes written."""
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    return 2 * x.nbytes / device_ms(lambda: y.copy_(x)) / 1e6


def borrowed(tensor):
    """The same memory as a CuPy array."""
    return cupy.from_dlpack(tensor)


def elementwise_rows(name, torch_function, shape=(16384, 4096)):
    """Forward and backward of an activation in each dtype."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(shape, device="cuda").to(dtype)
        g, out = torch.randn(shape, device="cuda").to(dtype), torch.empty_like(x)
        cx, cg, co = map(borrowed, (x, g, out))
        ours = getattr(dnn, name)
        yield (
            f"{name} {str(dtype)[6:]}",
            2 * x.nbytes,
            (lambda ours=ours, cx=cx, co=co: ours(cx, out=co)),
            (lambda x=x: torch_function(x)),
            torch.compile(lambda x: torch_function(x)),
            (x,),
        )
        leaf = x.clone().requires_grad_()
        y = torch_function(leaf)
        backward = getattr(dnn, f"{name}_backward")
        yield f"{name}_backward {str(dtype)[6:]}", 3 * x.nbytes, (lambda backward=backward, cg=cg, cx=cx, co=co: backward(cg, cx, out=co)), (
            lambda y=y, leaf=leaf, g=g: torch.autograd.grad(y, leaf, g, retain_graph=True)), None, ()  # fmt: skip


def rows():
    """The rows of this module and of every ``gpu_<family>`` module beside it."""
    yield from elementwise_rows("relu", torch.nn.functional.relu)
    for module in sorted(
        m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]) if m.name.startswith("gpu_") and m.name != "gpu_small"
    ):
        yield from importlib.import_module(f"asv_bench.{module}").rows()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows whose name holds one of these words, separated by commas")
    parser.add_argument("--alone", action="store_true", help="leave the peers out")
    options = parser.parse_args()
    only = options.only.split(",")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        ceiling = copy_bandwidth()
        print(f"copy {ceiling:,.0f} GB/s on {torch.cuda.get_device_name()}")
        print(f"{'row':34} {'GB/s':>6} {'share':>6} {'eager':>6} {'compiled':>8} {'ratio':>6}")
        for label, moved, ours, eager, compiled, arguments in rows():
            if not any(word in label for word in only):
                continue
            rates = [moved / device_ms(f) / 1e6 for f in ((ours,) if options.alone else (ours, eager))]
            if options.alone:
                print(f"{label:34} {rates[0]:6,.0f} {rates[0] / ceiling:6.0%}", flush=True)
                continue
            best = moved / device_ms(lambda c=compiled, a=arguments: c(*a)) / 1e6 if compiled else 0.0
            ratio = rates[0] / max(rates[1], best)
            print(f"{label:34} {rates[0]:6,.0f} {rates[0] / ceiling:6.0%} {rates[1]:6,.0f} {best:8,.0f} {ratio:6.2f}", flush=True)
        small, out = torch.randn(1024, device="cuda"), torch.empty(1024, device="cuda")
        x, o = borrowed(small), borrowed(out)
        print(f"host us per call, relu on 1024: ours {host_us(lambda: dnn.relu(x)):.2f}, with out= {host_us(lambda: dnn.relu(x, out=o)):.2f}, "
              f"torch {host_us(lambda: torch.relu(small)):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
