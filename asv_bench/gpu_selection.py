"""Measure what is chosen without tuning, and everything else that could have been, on problems drawn at random.

    python -m asv_bench.gpu_selection [--count 100] [--skip 0] [--seed 0] [--seconds 50] [--share I/N] [--once]

Prints a record as `asv_bench.selection` reads it (microseconds of each algorithm), then a summary. `--share 0/4` takes
every fourth problem, `--once` runs each algorithm once without a clock, which fills the cache of compiled kernels;
`--seconds` ends the run early, and `--skip` goes on where it has ended."""

from __future__ import annotations

import argparse
import math
import sys
import time
from typing import Any

import cupy
import numpy as np
import torch

import dnnarray as dnn
from asv_bench.gpu import once_ms, written_bytes
from asv_bench.selection import HOPELESS, Drawn, Writer, draw, summary

_REPEATS = 5
_NOT_TRIED = 30  # times the best one's time, as predicted


def _array(shape: tuple[int, ...], dtype: str, last: bool) -> Any:
    memory = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape)) if last else None
    array = torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))
    return cupy.from_dlpack(array.contiguous(memory_format=memory) if memory else array)


def measure(p: Drawn, once: bool) -> dict[str, float]:
    """Microseconds by algorithm, the chosen one first; those that are hopeless after three runs by these."""
    shapes, options = p.call
    arrays = tuple(_array(shape, p.dtype, p.last) for shape in shapes)
    found: dict[str, float] = {}
    for algorithm in dnn.algorithms(p.op, *arrays, **options):

        def call(name=algorithm.name):  # fmt: skip
            return getattr(dnn, p.op)(*arrays, algorithm=name, **options)

        best = min(found.values(), default=math.inf)
        if algorithm.predicted_ms * 1e3 > _NOT_TRIED * best:
            continue
        written = written_bytes(call())
        times = [0.0 if once else once_ms(call, written) * 1e3 for _ in range(1 if once else 3)]
        if not once and min(times) < HOPELESS * best:
            times = [once_ms(call, written) * 1e3 for _ in range(_REPEATS)]
        found[algorithm.name] = float(np.median(times) if len(times) > 3 else min(times))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    first, step = map(int, options.share.split("/"))
    ratios, end, record = [], time.monotonic() + options.seconds, Writer(sys.stdout)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.Stream.from_external(stream):
        for i, p in zip(range(options.count), draw(options.seed), strict=False):
            if i < options.skip or i % step != first or time.monotonic() > end:
                continue
            times = measure(p, options.once)
            if not options.once:
                ratios.append(next(iter(times.values())) / min(times.values()))
                record.add(p, times)
    if ratios:
        print(summary(ratios))


if __name__ == "__main__":
    main()
