"""Processes that make calls. One that dies is reported with the call it was at, and started again behind it.

A worker writes a line of JSON for each call that it begins ("at") and for each failure, and its counts every second.
What it says of a crash goes to its standard error, which is kept in a file."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[2]
_HANGS = 300  # seconds that no call takes
_TOLD = 10  # seconds between two lines of progress
_TAIL = 1500  # characters of what a crash left


@dataclass
class Asked:
    """What a run was asked for."""

    engine: str
    seed: int
    words: tuple[str, ...] = ()
    seconds: float | None = None
    calls: int | None = None
    jobs: int = 1


@dataclass
class Report:
    """What came of a run: counts of verdicts, of operations, of reasons and of algorithms by name, and failures."""

    kinds: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    algorithms: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return sum(self.kinds.values())

    def add(self, counts: dict[str, dict[str, int]]) -> None:
        self.kinds.update(counts["kinds"])
        self.ops.update(counts["ops"])
        self.reasons.update(counts["reasons"])
        self.algorithms.update(counts["algorithms"])


def command(asked: Asked, first: int) -> list[str]:
    """What starts a worker at this number."""
    line = [
        sys.executable,
        "-m",
        "tests.fuzz",
        "--worker",
        str(first),
        "--engine",
        asked.engine,
        "--seed",
        str(asked.seed),
    ]
    line += ["--jobs", str(asked.jobs), "--only", ",".join(asked.words)]
    return line + (["--calls", str(asked.calls)] if asked.calls is not None else [])


class Worker:
    """One process and what it was at."""

    def __init__(self, asked: Asked, first: int) -> None:
        self.asked, self.at, self.begun = asked, first, time.monotonic()
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the worker
        environ = environment(asked.engine)
        self.process = subprocess.Popen(
            command(asked, first), stdout=subprocess.PIPE, stderr=self.errors, cwd=_ROOT, env=environ
        )
        self.done = False
        self._rest = b""

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def lines(self) -> list[dict[str, Any]] | None:
        """What it has written since; None once it has ended."""
        got = os.read(self.output.fileno(), 1 << 16)
        if not got:
            return None
        *lines, self._rest = (self._rest + got).split(b"\n")
        told = [json.loads(line) for line in lines]
        for line in told:
            if "at" in line:
                self.at, self.begun = line["at"], time.monotonic()
            self.done = self.done or "done" in line
        return told

    def ended(self) -> str:
        """How it died and what it said; all its files are closed."""
        status = self.process.wait()
        self.output.close()
        with self.errors:
            self.errors.seek(0)
            return f"the process ended with status {status}\n{self.errors.read()[-_TAIL:]}"


def environment(engine: str) -> dict[str, str]:
    """The variables of a worker: one thread of the BLAS, Numba or not, and a traceback of a crash."""
    variables = {
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "DNNARRAY_NUMBA": "0" if engine == "numpy" else "1",
    }
    return (
        os.environ
        | variables
        | {"PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}
    )


def run(asked: Asked, progress: Callable[[Report], None], failed: Callable[[dict[str, Any]], None]) -> Report:
    """All calls, or as many as the time is enough for; failures are told of as they come."""
    report, begun, told = Report(), time.monotonic(), time.monotonic()
    with selectors.DefaultSelector() as ready:
        for worker in [Worker(asked, first) for first in range(asked.jobs)]:
            ready.register(worker.output, selectors.EVENT_READ, worker)
        while ready.get_map():
            for key, _ in ready.select(timeout=1.0):
                known = len(report.failures)
                _take(ready, key.data, report)
                for failure in report.failures[known:]:
                    failed(failure)
            late = asked.seconds is not None and time.monotonic() - begun > asked.seconds
            for worker in [key.data for key in ready.get_map().values()]:
                _watch(worker, late)
            if time.monotonic() - told > _TOLD:
                progress(report)
                told = time.monotonic()
    return report


def _watch(worker: Worker, late: bool) -> None:
    """End a worker when the time is over, or when it does not come back from a call."""
    if late and not worker.done:
        worker.done = True
        worker.process.terminate()
    elif time.monotonic() - worker.begun > _HANGS:
        worker.process.kill()


def _take(ready: selectors.BaseSelector, worker: Worker, report: Report) -> None:
    """What a worker has to say; another one in its place where it has died."""
    lines = worker.lines()
    for told in lines or ():
        if "kinds" in told:
            report.add(told)
        if "failure" in told:
            report.failures.append(told["failure"])
    if lines is not None:
        return
    ready.unregister(worker.output)
    said = worker.ended()
    if worker.done:
        return
    kind = "HANG" if time.monotonic() - worker.begun > _HANGS else "CRASH"
    report.kinds[kind] += 1
    report.failures.append({"id": f"{worker.asked.seed}:{worker.at}", "kind": kind, "text": said})
    following = worker.at + worker.asked.jobs
    if worker.asked.calls is None or following < worker.asked.calls:
        another = Worker(worker.asked, following)
        ready.register(another.output, selectors.EVENT_READ, another)
