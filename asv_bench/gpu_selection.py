"""How well an algorithm is chosen without tuning: the time of the chosen one over that of the best, on problems drawn at random.

    python -m asv_bench.gpu_selection [--count 100] [--seed 0] [--seconds 50] [--share I/N] [--once]

Prints for each convolution the chosen and the best algorithm, their ratio, and predicted and measured microseconds of each; in the end the
geometric mean, the worst, and how many are more than 10% and more than a factor of 2 off. `--share 0/4` takes every fourth problem, `--once`
runs each algorithm once without a clock, which fills the cache of compiled kernels; `--seconds` ends the run early.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np
import torch

import dnnarray as dnn
from asv_bench.gpu import once_ms, written_bytes

_REPEATS, _HOPELESS = 7, 4.0  # an algorithm that takes so many times the best one's time at first is not measured any further
_MOST_WORK, _MOST_ELEMENTS = 1.5e11, 1 << 27
_OPS = ("conv", "conv_backward_input", "conv_backward_weight")
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Drawn:
    """A convolution: extents of the arrays, channels-first in the order of axes, and the options."""

    op: str
    dtype: torch.dtype
    last: bool
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    options: tuple[tuple[str, int], ...]

    @property
    def work(self) -> float:
        """Multiply-adds."""
        return float(math.prod(self.y)) * math.prod(self.w[1:])

    def __str__(self) -> str:
        sides = ["x".join(map(str, s)) for s in (self.x, self.w)]
        words = " ".join(f"{name} {value}" for name, value in self.options if value != 1)
        return f"{self.op} {str(self.dtype)[6:]} {'last' if self.last else 'first'} {sides[0]} by {sides[1]} {words}"


def draw(seed: int) -> Iterator[Drawn]:
    """Convolutions as networks have them, without end: the same ones for a seed."""
    rng = np.random.default_rng(seed)

    def one_of(values: Any, weights: Any = None) -> Any:
        p = None if weights is None else np.array(weights) / sum(weights)
        return values[int(rng.choice(len(values), p=p))]

    while True:
        rank = one_of((1, 2, 3), (1, 7, 1))
        c, k = (one_of((3, 16, 24, 32, 64, 96, 128, 192, 256, 512, 1024)) for _ in range(2))
        kind = one_of(("dense", "depthwise", "groups"), (7, 2, 1))
        groups = {"dense": 1, "depthwise": c, "groups": math.gcd(math.gcd(c, k), one_of((2, 4, 8, 32)))}[kind]
        k = c if kind == "depthwise" else k
        extent = one_of({1: (128, 1000, 4096, 16000), 2: (7, 14, 28, 56, 112, 224), 3: (8, 16, 32)}[rank])
        window = one_of((1, 3, 5, 7), (4, 8, 1, 2))
        stride, dilation = one_of((1, 2), (3, 1)), one_of((1, 2), (7, 1))
        padding = window // 2 * dilation * one_of((0, 1), (1, 4))
        n, op = one_of((1, 2, 4, 8, 16, 32, 64, 128)), one_of(_OPS)
        out = (extent + 2 * padding - (window - 1) * dilation - 1) // stride + 1
        if out < 1:
            continue
        x, w, y = (n, c, *(extent,) * rank), (k, c // groups, *(window,) * rank), (n, k, *(out,) * rank)
        options = (("stride", stride), ("dilation", dilation), ("padding", padding), ("groups", groups))
        found = Drawn(op, one_of(_DTYPES, (2, 1, 1)), rank > 1 and bool(rng.random() < 0.75), x, w, y, options)
        if found.work <= _MOST_WORK and max(map(math.prod, (x, w, y))) <= _MOST_ELEMENTS:
            yield found


def _drawn_array(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> Any:
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape)) if last else None
    array = torch.randn(shape, device="cuda", dtype=dtype)
    return cupy.from_dlpack(array.contiguous(memory_format=memory) if memory else array)


def _call(p: Drawn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arrays and the options of the call."""
    options: dict[str, Any] = dict(p.options)
    x, w, y = (_drawn_array(s, p.dtype, p.last) for s in (p.x, p.w, p.y))
    if p.op == "conv":
        return (x, w), options
    if p.op == "conv_backward_input":
        return (y, w), options | {"input_shape": p.x}
    return (y, x), options | {"weight_shape": p.w}


def measure(p: Drawn, once: bool) -> dict[str, tuple[float, float]]:
    """Predicted and measured milliseconds by algorithm, the chosen one first; those that are hopeless after one run by that run."""
    arrays, options = _call(p)
    found: dict[str, tuple[float, float]] = {}
    for algorithm in dnn.algorithms(p.op, *arrays, **options):

        def call(name=algorithm.name):  # fmt: skip
            return getattr(dnn, p.op)(*arrays, algorithm=name, **options)

        best = min((t for _, t in found.values()), default=math.inf)
        if algorithm.predicted_ms > 30 * best:
            continue
        written = written_bytes(call())
        times = [0.0 if once else once_ms(call, written)]
        if not once and times[0] < _HOPELESS * best:
            times = [once_ms(call, written) for _ in range(_REPEATS)]
        found[algorithm.name] = algorithm.predicted_ms, float(np.median(times))
    return found


def _line(p: Drawn, times: dict[str, tuple[float, float]], ratio: float) -> str:
    chosen, best = next(iter(times)), min(times, key=lambda n: times[n][1])
    rest = ", ".join(f"{name} {a * 1e3:.0f}/{b * 1e3:.0f}" for name, (a, b) in times.items())
    return f"{ratio:5.2f} {p!s:100} {chosen} {'' if chosen == best else '-> ' + best}  [{rest}]"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    first, step = map(int, options.share.split("/"))
    ratios, end = [], time.monotonic() + options.seconds
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        for i, p in zip(range(options.count), draw(options.seed), strict=False):
            if i % step != first or time.monotonic() > end:
                continue
            times = measure(p, options.once)
            if options.once:
                continue
            measured = [t for _, t in times.values()]
            ratios.append(measured[0] / min(measured))
            print(_line(p, times, ratios[-1]), flush=True)
    if ratios:
        off = [sum(r > limit for r in ratios) for limit in (1.1, 2)]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(
            f"{len(ratios)} problems: geometric mean {mean:.3f}, worst {max(ratios):.2f}, {off[0]} more than 10% off, {off[1]} more than 2x"
        )


if __name__ == "__main__":
    main()
