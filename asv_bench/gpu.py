"""Side by side with PyTorch on one GPU: device time with a cold L2, share of the copy bandwidth, host time per call.

    python -m asv_bench.gpu [--family WORD,WORD] [--only WORD,WORD] [--alone] [--markdown FILE]

Prints one row per operation, dtype and direction; the ceiling (copy) is measured in the same run. With ``--alone`` the
peers are left out, for the short way between an edit and its figure; with ``--markdown`` the table is written to a file
too, as it stands in docs/development/h200.md."""

from __future__ import annotations

import argparse
import importlib
import itertools
import pkgutil
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cupy
import numpy as np
import torch

import dnnarray as dnn

REPEATS = 21
_FLUSH = 1 << 30  # bytes that are read: many times the L2, and some 0.3 ms in which the host gets ahead of the device
_DIRTY = 64 << 20  # bytes that are written then at the most: what the largest L2 holds


@cache
def _flush() -> torch.Tensor:
    return torch.zeros(_FLUSH // 4, dtype=torch.int32, device="cuda")


def flush_l2(written: int) -> None:
    """Leave the L2 as a call that writes so many bytes would find it in a queue of such calls: none of its inputs, and
    as many unwritten lines as it will leave behind."""
    _flush().amax()
    if written:
        _flush()[: min(written, _DIRTY) // 4 + 1].zero_()


def written_bytes(result) -> int:
    """Bytes of the arrays that a call returned."""
    if isinstance(result, (tuple, list)):
        return sum(map(written_bytes, result))
    return 0 if result is None else result.nbytes


def once_ms(call, written: int) -> float:
    """Time between events around one call, on PyTorch's current stream, cold L2."""
    flush_l2(written)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def device_ms(call) -> float:
    """Median of `once_ms`, warm."""
    for _ in range(3):
        written = written_bytes(call())
    return float(np.median([once_ms(call, written) for _ in range(REPEATS)]))


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


@cache
def copy_bandwidth(moved: int = 2 << 30) -> float:
    """GB/s of a device-to-device copy of so many bytes, read plus written: a small one is mostly its launch."""
    x = torch.zeros(max(moved // 32, 1) * 4, dtype=torch.int32, device="cuda")
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
        yield (
            f"{name}_backward {str(dtype)[6:]}",
            3 * x.nbytes,
            (lambda backward=backward, cg=cg, cx=cx, co=co: backward(cg, cx, out=co)),
            (lambda y=y, leaf=leaf, g=g: torch.autograd.grad(y, leaf, g, retain_graph=True)),
            None,
            (),
        )


_OPERATIONS = (
    "gpu_attention",
    "gpu_conv_dense",
    "gpu_linear",
    "gpu_loss_linear",
)  # modules whose rows count thousands of operations in place of bytes
_OWN = ("gpu_small", "gpu_selection", "gpu_start", "gpu_errors")  # modules with a table of their own


def families() -> list[str]:
    """The modules of this folder that have rows."""
    names = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in names if name.startswith("gpu_") and name not in _OWN)


def rows(family: str):
    """The rows of a module ``gpu_<family>`` beside this one: label, bytes that must move, our call, PyTorch's, a
    compiled function or None, its arguments."""
    if family == "gpu_activation":
        yield from elementwise_rows("relu", torch.nn.functional.relu)
    yield from importlib.import_module(f"asv_bench.{family}").rows()


@dataclass(frozen=True)
class Measured:
    """One row, in GB/s of the bytes that must move; 0 where there is no such peer or it was left out."""

    label: str
    ours: float
    eager: float
    compiled: float
    ceiling: float
    alike: float

    @property
    def share(self) -> float:
        """Of the bandwidth of a large copy in the same run."""
        return self.ours / self.ceiling

    @property
    def share_alike(self) -> float:
        """Of the bandwidth of a copy that moves as many bytes, in the same run."""
        return self.ours / self.alike

    @property
    def ratio(self) -> float:
        """To the faster peer."""
        best = max(self.eager, self.compiled)
        return self.ours / best if best else 0.0

    def __str__(self) -> str:
        return (
            f"{self.label:38} {self.ours:6,.0f} {self.share:6.0%} {self.share_alike:6.0%} {self.eager:6,.0f} "
            f"{self.compiled:8,.0f} {self.ratio:6.2f}"
        )


def measure(family: str, only: list[str], alone: bool, ceiling: float):
    """The rows of a family whose label holds one of these words, measured one after another."""
    for label, moved, ours, eager, compiled, arguments in rows(family):
        if not any(word in label for word in only):
            continue
        rate = moved / device_ms(ours) / 1e6
        alike = copy_bandwidth(int(moved)) if family not in _OPERATIONS else ceiling
        if alone:
            yield Measured(label, rate, 0.0, 0.0, ceiling, alike)
            continue
        best = moved / device_ms(lambda c=compiled, a=arguments: c(*a)) / 1e6 if compiled else 0.0
        yield Measured(label, rate, moved / device_ms(eager) / 1e6, best, ceiling, alike)


def markdown(found: dict[str, list[Measured]]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| row | GB/s | share of copy | of one as large | eager | compiled | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for table in found.values():
        lines += [
            f"| {r.label} | {r.ours:,.0f} | {r.share:.0%} | {r.share_alike:.0%} | {r.eager:,.0f} | "
            f"{r.compiled:,.0f} | {r.ratio:.2f} |"
            for r in table
        ]
    return "\n".join(lines) + "\n"


def summary(found: dict[str, list[Measured]]) -> str:
    """A line for each family: how many rows, the geometric means, the worst, and how many fall short."""
    lines = [
        f"{'family':26} {'rows':>4} {'share':>6} {'least':>6} {'<85%':>5} {'alike':>6} {'ratio':>6} {'least':>6} "
        f"{'<1':>4}"
    ]
    for family, table in found.items():
        shares, ratios = [r.share for r in table], [r.ratio for r in table if r.ratio]
        if not table:
            continue
        mean = [float(np.exp(np.mean(np.log(v)))) if v else 0.0 for v in (shares, ratios)]
        lines.append(
            f"{family:26} {len(table):4} {mean[0]:6.0%} {min(shares):6.0%} {sum(s < 0.85 for s in shares):5} "
            f"{sum(r.share_alike < 0.85 for r in table):6} "
            f"{mean[1]:6.2f} {min(ratios, default=0):6.2f} {sum(r < 1 for r in ratios):4}"
        )
    return "\n".join(lines)


def host_line() -> str:
    """Host time of a warm call beside PyTorch's."""
    small, out = torch.randn(1024, device="cuda"), torch.empty(1024, device="cuda")
    x, o = borrowed(small), borrowed(out)
    shapes = (1, 64, 14, 14), (64, 64, 3, 3)
    small_image, small_window = (
        torch.randn(s, device="cuda").bfloat16().to(memory_format=torch.channels_last) for s in shapes
    )
    image, window = borrowed(small_image), borrowed(small_window)
    results = itertools.cycle([dnn.conv(image, window, padding=1) for _ in range(2)])
    figures = {
        "relu": (lambda: dnn.relu(x)),
        "with out=": (lambda: dnn.relu(x, out=o)),
        "on a torch tensor": (lambda: dnn.relu(small)),
        "torch.relu": (lambda: torch.relu(small)),
        "layer_norm": (lambda: dnn.layer_norm(x)),
        "torch's layer_norm": (lambda: torch.nn.functional.layer_norm(small, (1024,))),
        "conv": (lambda: dnn.conv(image, window, padding=1)),
        "conv, out= elsewhere each time": (lambda: dnn.conv(image, window, padding=1, out=next(results))),
        "its weight's gradient (two launches)": (
            lambda: dnn.conv_backward_weight(image, image, weight_shape=(64, 64, 3, 3), padding=1)
        ),
        "torch's conv": (lambda: torch.nn.functional.conv2d(small_image, small_window, padding=1)),
    }
    return "host us per warm call on 1024 numbers: " + ", ".join(
        f"{name} {host_us(call):.2f}" for name, call in figures.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="rows whose name holds one of these words, separated by commas")
    parser.add_argument("--family", default="", help="modules whose name holds one of these words, separated by commas")
    parser.add_argument("--host", action="store_true", help="the host's time of warm calls and nothing else")
    parser.add_argument("--alone", action="store_true", help="leave the peers out")
    parser.add_argument("--markdown", type=Path, help="a file to write the table to as well")
    options = parser.parse_args()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        if options.host:
            print(host_line())
            return
        ceiling = copy_bandwidth()
        print(f"copy {ceiling:,.0f} GB/s on {torch.cuda.get_device_name()}")
        print(f"{'row':38} {'GB/s':>6} {'share':>6} {'alike':>6} {'eager':>6} {'compiled':>8} {'ratio':>6}")
        found: dict[str, list[Measured]] = {}
        for family in families():
            if not any(word in family for word in options.family.split(",")):
                continue
            found[family] = []
            for row in measure(family, options.only.split(","), options.alone, ceiling):
                found[family].append(row)
                print(row, flush=True)
            if options.markdown:
                options.markdown.write_text(markdown(found))
        print(host_line())
        print(summary(found))


if __name__ == "__main__":
    main()
