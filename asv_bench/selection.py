"""How well an algorithm is chosen without tuning, held against measured times: problems drawn at random, their record,
the quality of the choices.

    python -m asv_bench.selection FILE [--ship FILE]

reads times that `gpu_selection` has measured, and says how the selection of today chooses for an H200: no GPU is
needed, but CuPy. With `--ship` the correction of the model for the card is written (`dnnarray._select.shipped`)."""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dnnarray._call.operation import find
from dnnarray._options import DEFAULT
from dnnarray._problems.base import Problem
from dnnarray._select import Device, Method, rank, shipped
from dnnarray._spec import Spec

RATES = {"float32": 50e12, "float64": 30e12, "tf32_mma": 393e12, "bfloat16_mma": 788e12, "float16_mma": 788e12}
H200 = Device("NVIDIA H200", "cuda", 132, RATES, 4.2e12, 4e-6, (9, 0), 232_448, 141 << 30)
RECORD = Path(__file__).parent / "selection_h200.csv"
HOPELESS = 4.0  # an algorithm that takes so many times the best one's time at first is not measured any further
_MOST_WORK, _MOST_ELEMENTS = 1.5e11, 1 << 27
_OPS = ("conv", "conv_backward_input", "conv_backward_weight")
_DTYPES = ("bfloat16", "float16", "float32")
_OPTIONS = ("stride", "dilation", "padding", "groups")
_HEAD = ("op", "dtype", "order", "x", "weight", *_OPTIONS, "us")


@dataclass(frozen=True)
class Drawn:
    """A convolution: extents of the arrays, channels-first in the order of axes, whether they lie channels-last in
    memory, and the options."""

    op: str
    dtype: str
    last: bool
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    options: tuple[tuple[str, int], ...]

    @property
    def work(self) -> float:
        """Multiply-adds."""
        return float(math.prod(self.y)) * math.prod(self.w[1:])

    @property
    def call(self) -> tuple[tuple[tuple[int, ...], ...], dict[str, Any]]:
        """The shapes of the arrays of the call, and its options."""
        options: dict[str, Any] = dict(self.options)
        if self.op == "conv":
            return (self.x, self.w), options
        if self.op == "conv_backward_input":
            return (self.y, self.w), options | {"input_shape": self.x}
        return (self.y, self.x), options | {"weight_shape": self.w}

    def problem(self) -> Problem:
        """The call as the engine sees it."""
        shapes, options = self.call
        op = find(self.op)
        specs, chosen = op.bind(tuple(self._spec(shape) for shape in shapes), options)
        return op.problem(specs, {n: v for n, v in chosen.items() if n in op.static})

    def _spec(self, shape: tuple[int, ...]) -> Spec:
        if not self.last:
            return Spec(shape, self.dtype)
        n, *space, c = Spec((shape[0], *shape[2:], shape[1]), self.dtype).c_strides
        return Spec(shape, self.dtype, (n, c, *space))

    def row(self, times: Mapping[str, float]) -> dict[str, Any]:
        """As the record has it; `times` are microseconds by algorithm."""
        sides = {"x": "x".join(map(str, self.x)), "weight": "x".join(map(str, self.w))}
        found = " ".join(f"{name}={us:.1f}" for name, us in times.items())
        return {
            "op": self.op,
            "dtype": self.dtype,
            "order": "last" if self.last else "first",
            **sides,
            **dict(self.options),
            "us": found,
        }


def _drawn(
    op: str, dtype: str, last: bool, x: tuple[int, ...], w: tuple[int, ...], options: Mapping[str, int]
) -> Drawn | None:
    """None where the window is larger than the padded image."""
    stride, dilation, padding = (options[n] for n in _OPTIONS[:3])
    covered = [(r - 1) * dilation + 1 for r in w[2:]]
    out = tuple((n + 2 * padding - r) // stride + 1 for n, r in zip(x[2:], covered, strict=True))
    return (
        Drawn(op, dtype, last, x, w, (x[0], w[0], *out), tuple((n, options[n]) for n in _OPTIONS))
        if min(out) >= 1
        else None
    )


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
        window = one_of((1, 3, 5, 7, 15, 31), (8, 16, 2, 4, 1, 1))
        stride, dilation = one_of((1, 2), (3, 1)), one_of((1, 2), (7, 1))
        padding = window // 2 * dilation * one_of((0, 1), (1, 4))
        n, op, dtype = one_of((1, 2, 4, 8, 16, 32, 64, 128)), one_of(_OPS), one_of(_DTYPES, (2, 1, 1))
        options = {"stride": stride, "dilation": dilation, "padding": padding, "groups": groups}
        last = rank > 1 and bool(rng.random() < 0.75)
        found = _drawn(op, dtype, last, (n, c, *(extent,) * rank), (k, c // groups, *(window,) * rank), options)
        if found and found.work <= _MOST_WORK and max(map(math.prod, (found.x, found.w, found.y))) <= _MOST_ELEMENTS:
            yield found


def read(lines: Iterable[str]) -> Iterator[tuple[Drawn, dict[str, float]]]:
    """The problems of a record, each with its microseconds by algorithm."""
    for row in csv.DictReader(lines):
        x, w = (tuple(map(int, row[side].split("x"))) for side in ("x", "weight"))
        found = _drawn(row["op"], row["dtype"], row["order"] == "last", x, w, {n: int(row[n]) for n in _OPTIONS})
        assert found is not None
        pairs = (text.split("=") for text in row["us"].split())
        yield found, {name: float(us) for name, us in pairs}


class Writer:
    """A record, line by line."""

    def __init__(self, file: Any) -> None:
        self._file, self._rows = file, csv.DictWriter(file, _HEAD, lineterminator="\n")
        self._rows.writeheader()

    def add(self, problem: Drawn, times: Mapping[str, float]) -> None:
        self._rows.writerow(problem.row(times))
        self._file.flush()


@dataclass(frozen=True)
class Choice:
    """What is chosen for a problem of a record among what was measured, the best one, and how much longer the chosen
    one takes.

    `untimed` are the algorithms that would be preferred to it, but have no time in the record.
    """

    problem: Drawn
    chosen: str
    best: str
    ratio: float
    untimed: tuple[str, ...] = ()

    def __str__(self) -> str:
        row = self.problem.row({})
        words = " ".join(f"{n} {row[n]}" for n in _OPTIONS if row[n] != (0 if n == "padding" else 1))
        name = f"{row['op']} {row['dtype']} {row['order']} {row['x']} by {row['weight']} {words}"
        rest = f" (not measured: {', '.join(self.untimed)})" if self.untimed else ""
        return (
            f"{self.ratio:5.2f} {name:100} {self.chosen}{'' if self.chosen == self.best else f' -> {self.best}'}{rest}"
        )


def judge(problem: Drawn, times: Mapping[str, float], device: Device = H200) -> Choice:
    """The choice of today, held against measured times."""
    names = [method.name for method, _ in _ranked(problem, device)]
    chosen = next(name for name in names if name in times)
    best = min(times, key=lambda name: times[name])
    return Choice(problem, chosen, best, times[chosen] / times[best], tuple(names[: names.index(chosen)]))


def _ranked(problem: Drawn, device: Device) -> list[tuple[Method, float]]:
    """The algorithms that may run, the chosen one first, with their predicted milliseconds."""
    table = import_module(f"dnnarray._cuda.{find(problem.op).family}").ALGORITHMS[problem.op]
    judged = rank(problem.problem(), device, DEFAULT, table)
    return [(j.method, j.algorithm.predicted_ms) for j in judged if j.reason is None]


def summary(ratios: list[float]) -> str:
    """The quality in a line."""
    off = [sum(r > limit for r in ratios) for limit in (1.1, 2)]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    worst = f"worst {max(ratios):.2f}, {off[0]} more than 10% off, {off[1]} more than 2x"
    return f"{len(ratios)} problems: geometric mean {mean:.3f}, {worst}"


def samples(record: Iterable[tuple[Drawn, Mapping[str, float]]]) -> Iterator[shipped.Sample]:
    """What the correction of the model is made of; algorithms out of the running were measured by one run only."""
    for problem, times in record:
        described, most = problem.problem(), HOPELESS * min(times.values())
        for method, predicted in _ranked(problem, shipped.bare(H200)):
            if times.get(method.name, math.inf) <= most:
                yield shipped.Sample(shipped.class_of(described, method.name), predicted, times[method.name] / 1e3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("record", type=Path)
    parser.add_argument("--ship", type=Path, help="write the correction of the model for the card there")
    options = parser.parse_args()
    with options.record.open() as file:
        record = list(read(file))
    if options.ship:
        shipped.write(options.ship, H200, samples(record))
        shipped.factors.cache_clear()
    choices = sorted((judge(problem, times) for problem, times in record), key=lambda c: c.ratio)
    print("\n".join(map(str, choices)))
    print(summary([c.ratio for c in choices]))


if __name__ == "__main__":
    main()
