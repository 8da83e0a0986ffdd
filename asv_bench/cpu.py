"""Side by side with PyTorch on the processor: float32, warm, the same number of threads, each in turn.

    python -m asv_bench.cpu [--only WORD,WORD] [--threads N] [--seconds S] [--json FILE] [--plot FILE]

Prints one row per call: our milliseconds, PyTorch's and the memory order in which it was faster, the ratio (above 1 we
win), and the algorithm that we chose; then the geometric mean of the ratios, the same with every ratio capped at 2, how
many rows are at 1.0 or more, and the least. Each figure is the best call of rounds in which both libraries take turns;
a row ends when no best has moved by more than 1% for five rounds. Without PyTorch the table has our figures alone."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import numpy as np

import dnnarray as dnn
from asv_bench.cpu_rows import ROWS, Case, Row
from dnnarray._cpu.compiled import compiler

SLICE_SECONDS = 0.03  # of calls of one library before it is the other's turn
PAUSE_SECONDS = 0.002  # after which the other library's idle workers no longer spin on the cores
QUIET_ROUNDS = 5  # without a better figure end a row
STABLE = 0.01  # relative change of a best figure that counts
BUSY = 0.5  # load average above which a table is of little use
HOPELESS = 1.5  # a memory order this many times slower than the best after the first round is left out
_THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Measured:
    """One row; PyTorch's fields are None where it is not installed."""

    name: str
    ours_ms: float
    torch_ms: float | None
    torch_layout: str | None
    algorithm: str

    @property
    def ratio(self) -> float | None:
        """PyTorch's time over ours: above 1 we win."""
        return None if self.torch_ms is None else self.torch_ms / self.ours_ms

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.name:46} {self.ours_ms:9.3f} {'-':>9} {'':13} {'-':>6}  {self.algorithm}"
        return (
            f"{self.name:46} {self.ours_ms:9.3f} {self.torch_ms:9.3f} {self.torch_layout:13} {self.ratio:6.2f}  "
            f"{self.algorithm}"
        )


HEAD = f"{'row':46} {'ours ms':>9} {'torch ms':>9} {'its layout':13} {'ratio':>6}  our algorithm"


def algorithm_of(make: Callable[[], Callable[[], Any]]) -> str:
    """The algorithms that the call that `make` gives runs by; a pullback runs under the options that its forward ran
    under."""
    with dnn.options(telemetry=True):
        call = make()
        dnn.telemetry.reset()
        call()
    return ", ".join(name for counts in dnn.telemetry.snapshot().values() for name in counts["algorithms"])


def best_of_slice(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of a short stretch of calls, the first one left out."""
    time.sleep(PAUSE_SECONDS)
    call()
    best, end = float("inf"), time.perf_counter() + SLICE_SECONDS
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def in_turns(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Best seconds of each call: all take turns until no figure moves any more, or for this long (three rounds at
    least)."""
    for call in calls.values():
        call()
    best, quiet, rounds, end = dict.fromkeys(calls, float("inf")), 0, 0, time.perf_counter() + seconds
    running = list(calls)
    while quiet < QUIET_ROUNDS and (rounds < 3 or time.perf_counter() < end):
        quiet, rounds = quiet + 1, rounds + 1
        for name in running:
            found = best_of_slice(calls[name])
            if found < best[name] * (1 - STABLE):
                quiet = 0
            best[name] = min(best[name], found)
        theirs = [best[name] for name in running if name != "ours"]
        running = [name for name in running if name == "ours" or best[name] <= HOPELESS * min(theirs)]
    return best


def measure(row: Row, torch: Any, seconds: float, *, small: bool = False) -> Measured:
    """One row; `torch` is the module or None."""
    case: Case = row.case(small)
    case.ours()()
    compiler.settle()  # what the first call asked for would else be compiled while others are measured
    calls = {"ours": case.ours()}
    if torch is not None:
        calls |= {layout: case.theirs(torch, layout) for layout in case.layouts()}
    best = in_turns(calls, seconds)
    ours, algorithm = best.pop("ours") * 1e3, algorithm_of(case.ours)
    if not best:
        return Measured(row.name, ours, None, None, algorithm)
    layout = min(best, key=best.__getitem__)
    return Measured(row.name, ours, best[layout] * 1e3, layout, algorithm)


def chosen(only: str) -> list[Row]:
    """The rows whose name holds one of these words, separated by commas."""
    return [row for row in ROWS if any(word.lower() in row.name.lower() for word in only.split(","))]


def summary(table: Iterable[Measured]) -> dict[str, Any]:
    """What the table comes to; empty where PyTorch was not there."""
    ratios = {row.name: row.ratio for row in table if row.ratio is not None}
    if not ratios:
        return {}
    values = np.array(list(ratios.values()))
    least = min(ratios, key=ratios.__getitem__)
    return {
        "rows": len(ratios),
        "geometric_mean": float(np.exp(np.log(values).mean())),
        "geometric_mean_capped_at_2": float(np.exp(np.log(np.minimum(values, 2)).mean())),
        "share_at_1_or_more": float((values >= 1).mean()),
        "least": ratios[least],
        "least_row": least,
    }


def told(found: dict[str, Any]) -> str:
    """The summary in words."""
    if not found:
        return "PyTorch is not installed: no ratios."
    return (
        f"{found['rows']} rows: geometric mean {found['geometric_mean']:.2f}, with every ratio capped at 2 "
        f"{found['geometric_mean_capped_at_2']:.2f}, "
        f"{found['share_at_1_or_more']:.0%} at 1.0 or more, the least {found['least']:.2f} ({found['least_row']})"
    )


def circumstances(threads: int) -> dict[str, Any]:
    """What the figures depend on."""
    packages = {name: metadata.version(name) for name in ("numpy", "numba", "torch") if find_spec(name)}
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "threads": threads,
        "dnnarray": dnn.__version__,
        **packages,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
    except OSError:  # not Linux
        import platform

        return platform.processor() or "unknown"


def plot(table: list[Measured], path: str) -> None:
    """The ratios as bars on a logarithmic axis."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    ratios = {row.name: row.ratio for row in reversed(table) if row.ratio is not None}
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.2 * len(ratios)), layout="constrained")
    colours = ["C0" if ratio >= 1 else "C1" for ratio in ratios.values()]
    axes.barh(list(ratios), [ratio - 1 for ratio in ratios.values()], left=1, color=colours)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(-0.6, len(ratios) - 0.4)
    axes.set_xlabel("PyTorch's time / ours (right of 1: ours is faster)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def with_threads(threads: int, module: str = "asv_bench.cpu") -> None:
    """Start this program, the module of this name, anew where the environment does not hold every library to so many
    threads: they read it when they are loaded.

    OPENBLAS_CORETYPE goes too: set to an older processor, it halves the matrix products of NumPy.
    """
    wanted = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"} | dict.fromkeys(
        _THREAD_LIMITS, str(threads)
    )
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], wanted)


def warn_of_load() -> None:
    """Say so where other programs want the cores: figures measured then are worth little."""
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > BUSY:
        print(f"This machine is busy (load {os.getloadavg()[0]:.1f}): measure when it is quiet.", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name holds one of these words, separated by commas")
    parser.add_argument("--threads", type=int, default=2, help="of each library (default: 2)")
    parser.add_argument("--seconds", type=float, default=10.0, help="the longest that a row may take (default: 10)")
    parser.add_argument("--json", help="write the table and the summary to this file")
    parser.add_argument("--plot", help="draw the ratios into this file; needs matplotlib")
    options = parser.parse_args()
    if options.threads < 1:
        parser.error("--threads: at least 1")
    if not chosen(options.only):
        parser.error(f"--only: no row's name holds one of {options.only!r}")
    with_threads(options.threads)
    torch = import_module("torch") if find_spec("torch") else None
    if torch is not None:
        torch.set_num_threads(options.threads)
    where = circumstances(options.threads)
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    warn_of_load()
    print(HEAD)
    table = []
    for row in chosen(options.only):
        table.append(measure(row, torch, options.seconds))
        print(table[-1], flush=True)
    found = summary(table)
    print(told(found))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(
                {
                    "circumstances": where,
                    "rows": [asdict(row) | {"ratio": row.ratio} for row in table],
                    "summary": found,
                },
                file,
                indent=1,
            )
    if options.plot and found:
        plot(table, options.plot)


if __name__ == "__main__":
    main()
