"""Errors in float32 beside PyTorch's on the processor: every row of the speed table and its gradients, against PyTorch
in float64.

    python -m asv_bench.cpu_errors [--only WORD,WORD] [--seeds N] [--first N] [--threads N] [--layout channels_last]
    [--json FILE]

Both libraries get the same float32 arrays, and the error of a result is what it differs by from PyTorch's of the same
numbers in float64: the root of the mean square over that of the exact result, and the largest difference over the
largest exact number. Arrays are drawn anew for each seed. A line has both errors over all seeds (root mean square;
largest), the ratios ours / PyTorch's, the range of the first ratio over the seeds, which is what chance does to it, and
the verdict: "larger" where our root mean square over the seeds is more than 2% above PyTorch's and is above it with
every single seed.

We run by the algorithm that a warm call takes. The gradients are those of the table's rows and of each forward row that
has none there; parameters that come as a list count as one. Copies without arithmetic are exact in both libraries.
Dropout draws other numbers and is left out."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

import dnnarray as dnn
from asv_bench.cpu import algorithm_of, circumstances, with_threads
from asv_bench.cpu_rows import ROWS, Case, Row, floating, head, leaves
from dnnarray._cpu.compiled import compiler

CHANCE = 1.02  # a ratio of root mean squares up to here is no difference
_NO_GRADIENT = ("conv_backward_input", "conv_backward_weight", "batch_norm")  # PyTorch has none of the statistics
HEAD = (
    f"{'result':62} {'rms, ours':>9} {'PyTorch':>9} {'ratio':>6} {'of seeds':>11} {'largest':>9} {'PyTorch':>9} "
    f"{'ratio':>6}  {'verdict':9}  our algorithm"
)


@dataclass(frozen=True)
class Errors:
    """Of one result: relative root mean square and relative largest error of both libraries, a number for each seed."""

    name: str
    algorithm: str
    ours: list[float]
    theirs: list[float]
    ours_largest: list[float]
    theirs_largest: list[float]

    @property
    def ratios(self) -> list[float]:
        """Our root mean square over PyTorch's, for each seed."""
        return [_ratio(a, b) for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The same over all seeds."""
        return _ratio(_mean(self.ours), _mean(self.theirs))

    @property
    def verdict(self) -> str:
        if not any(self.ours):
            return "exact"
        if self.ratio <= CHANCE:
            return "no larger"
        return "larger" if min(self.ratios) > 1 else "chance"

    def __str__(self) -> str:
        largest = max(self.ours_largest), max(self.theirs_largest)
        seeds = f"{min(self.ratios):.2f}-{max(self.ratios):.2f}"
        return (
            f"{self.name:62} {_mean(self.ours):9.2e} {_mean(self.theirs):9.2e} {self.ratio:6.3f} {seeds:>11}"
            f" {largest[0]:9.2e} {largest[1]:9.2e} {_ratio(*largest):6.2f}  {self.verdict:9}  {self.algorithm}"
        )


def _ratio(ours: float, theirs: float) -> float:
    if theirs:
        return ours / theirs
    return float("inf") if ours else 1.0


def _mean(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def rows() -> Iterator[Row]:
    """Those of the speed table, each forward one followed by its gradient where the table has none of it."""
    there = {_call(row) for row in ROWS if row.backward}
    for row in ROWS:
        if row.random:
            continue
        yield row
        if not row.backward and row.operation not in _NO_GRADIENT and _call(row) not in there:
            yield replace(row, name=f"{row.name} backward", backward=True)


def _call(row: Row) -> tuple[Any, ...]:
    return row.operation, row.shapes, tuple(sorted(row.options.items()))


def in_double(tree: Any) -> Any:
    """Nested arrays with their float32 numbers as float64."""
    if isinstance(tree, (list, tuple)):
        return [in_double(item) for item in tree]
    return tree.astype(np.float64) if isinstance(tree, np.ndarray) and tree.dtype == np.float32 else tree


def results(case: Case, found: Any) -> list[list[np.ndarray]]:
    """The results to compare: the first one of a forward call; of a gradient, the arrays for each argument that has
    one."""
    if not case.row.backward:
        return [[np.asarray(head(found))]]
    arrays = iter([np.asarray(a) for a in leaves(found)])
    return [[next(arrays) for _ in floating([tree])] for tree in case.arrays if floating([tree])]


def names(case: Case) -> list[str]:
    """Of the results: the row's, for gradients with the argument."""
    if not case.row.backward:
        return [case.row.name]
    arguments = [
        name for name in inspect.signature(getattr(dnn, case.row.operation)).parameters if name not in case.row.options
    ]
    return [f"{case.row.name}: {name}" for name, tree in zip(arguments, case.arrays, strict=False) if floating([tree])]


def error(found: list[np.ndarray], exact: list[np.ndarray]) -> tuple[float, float]:
    """(relative root mean square, relative largest error) of arrays that count as one."""
    squares, largest = [], []
    for a, b in zip(found, exact, strict=True):
        difference = a.astype(np.float64) - b
        squares.append(np.square(difference).mean() / np.square(b).mean())
        largest.append(np.abs(difference).max() / np.abs(b).max())
    return float(np.sqrt(np.mean(squares))), float(max(largest))


def warm(row: Row, *, small: bool = False) -> str:
    """Have everything compiled that the row's calls want; gives the algorithm that they take from then on."""
    for _ in range(2):
        row.case(small).ours()()
        compiler.settle()
    return algorithm_of(row.case(small).ours)


def compare(row: Row, torch: Any, seeds: range, layout: str = "contiguous", *, small: bool = False) -> list[Errors]:
    """A row's results; PyTorch's images lie in this memory order."""
    algorithm = warm(row, small=small)
    table: dict[str, Errors] = {}
    for seed in seeds:
        case = row.case(small, seed)
        exact = replace(case, arrays=tuple(in_double(a) for a in case.arrays), grad=in_double(case.grad))
        one, other, truth = (
            results(case, _numpy(call()))
            for call in (case.ours(), case.theirs(torch, layout), exact.theirs(torch, "contiguous"))
        )
        for name, ours, theirs, right in zip(names(case), one, other, truth, strict=True):
            entry = table.setdefault(name, Errors(name, algorithm, [], [], [], []))
            for values, value in zip(
                (entry.ours, entry.ours_largest, entry.theirs, entry.theirs_largest),
                (*error(ours, right), *error(theirs, right)),
                strict=True,
            ):
                values.append(value)
    return list(table.values())


def _numpy(found: Any) -> Any:
    """Results of either library as NumPy arrays."""
    if isinstance(found, (list, tuple)):
        return tuple(_numpy(item) for item in found)
    return found.detach().numpy() if hasattr(found, "detach") else found


def told(table: list[Errors]) -> str:
    """The verdicts in words."""
    larger = sorted((e for e in table if e.verdict == "larger"), key=lambda e: -e.ratio)
    end = ": " + ", ".join(f"{e.name} {e.ratio:.2f}" for e in larger) if larger else ""
    return (
        f"{len(table)} results, of {len(table) - len(larger)} our error is no larger than PyTorch's, of "
        f"{len(larger)} it is{end}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name holds one of these words, separated by commas")
    parser.add_argument("--seeds", type=int, default=3, help="how often the arrays are drawn (default: 3)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--threads", type=int, default=2, help="of each library (default: 2)")
    parser.add_argument(
        "--layout",
        default="contiguous",
        choices=("contiguous", "channels_last"),
        help="PyTorch's memory order of images",
    )
    parser.add_argument("--json", help="write the table to this file")
    options = parser.parse_args()
    if options.seeds < 1 or options.threads < 1:
        parser.error("--seeds, --threads: at least 1")
    chosen = [row for row in rows() if any(word.lower() in row.name.lower() for word in options.only.split(","))]
    if not chosen:
        parser.error(f"--only: no row's name holds one of {options.only!r}")
    with_threads(options.threads, "asv_bench.cpu_errors")
    torch = import_module("torch")
    torch.set_num_threads(options.threads)
    where = circumstances(options.threads)
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    print(HEAD)
    table: list[Errors] = []
    for row in chosen:
        for entry in compare(row, torch, range(options.first, options.first + options.seeds), options.layout):
            table.append(entry)
            print(entry, flush=True)
    print(told(table))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "circumstances": where,
                    "results": [asdict(e) | {"ratio": e.ratio, "verdict": e.verdict} for e in table],
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
