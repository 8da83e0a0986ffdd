"""Every case of every operation by every algorithm, forward and backward, aligned and not, without looking at the results: for compute-sanitizer.

    python -m tests.gpu.every_kernel --tool memcheck [--shards 16] [--dtypes float32,bfloat16] [--only conv,norm] [--once] [--seconds 150]

starts so many processes under the tool and prints a line for each, every error, and how far they are. ``--shard 3/16`` instead is one of these processes.

Each array has an allocation of exactly its size, so that a read beyond it is seen. Blocks are used again for arrays of the same size: under the
tool an allocation takes longer than a kernel.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import astuple
from functools import partial
from threading import Thread
from typing import IO, Any

import cupy
import numpy as np

import dnnarray as dnn
from dnnarray._cuda import engine
from dnnarray._introspect import question
from dnnarray._operation import find
from dnnarray._problems.base import tree_map
from tests.registry import CASES
from tests.support import FLOAT64, Case, call_by

_PROGRESS, _RESULT = "progress:", "result:"
_EVERY = 10  # seconds between two lines of progress
_ERROR = 9  # the exit status of the tool where it found something


def _parts(dtypes: list[str], only: list[str], count: int) -> list[list[tuple[Case, np.dtype]]]:
    """The cases for each process. An operation stays in one in every dtype: loading a kernel takes the tool longer than running it."""
    groups = defaultdict(list)
    for case in CASES:
        if any(word in case.op for word in only):
            groups[case.op] += [(case, d) for d in case.dtypes if np.dtype(d).name in dtypes]
    parts: list[list[tuple[Case, np.dtype]]] = [[] for _ in range(count)]
    for group in sorted(_cut(groups.values(), count), key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def _cut(groups: Any, count: int) -> list[list[tuple[Case, np.dtype]]]:
    """Groups that are larger than a process's share in pieces by dtype."""
    groups = list(groups)
    share = sum(map(len, groups)) / count
    found = []
    for group in groups:
        pieces = len(group) // share + 1
        by_dtype = sorted(group, key=lambda pair: np.dtype(pair[1]).name)
        length = int(-(-len(group) // pieces)) or 1
        found += [by_dtype[i : i + length] for i in range(0, len(group), length)]
    return found


class Runner:
    """Runs cases, each algorithm once or wherever it is offered."""

    def __init__(self, once: bool) -> None:
        self.once = once
        self.counts: Counter[str] = Counter()
        self._seen: set[Any] = set()

    def case(self, case: Case, dtype: np.dtype) -> None:
        """The case in memory that is aligned, and in memory that is not; doubles are loaded one by one or in pairs, like anything else."""
        for offset in (0, 1) if dtype != FLOAT64 else (0,):
            try:
                self._case(case, dtype, offset)
            except dnn.UnsupportedError:
                self.counts["absent"] += 1

    def _case(self, case: Case, dtype: np.dtype, offset: int) -> None:
        arrays = tuple(tree_map(partial(_apart, offset=offset), a) for a in case.draw(dtype))
        self._by_every_algorithm(case.op, arrays, case.options, offset)
        if not case.gradient:
            return
        inferred = dnn.infer(case.op, *arrays, **case.options)
        head = inferred.outputs[0]
        assert head is not None
        grad = _apart(np.ones(head.shape, head.dtype), offset)
        alone = not isinstance(inferred.output, tuple) and case.op == find(case.op).base
        new = not alone or self._by_every_algorithm(f"{case.op}_backward", (grad, *arrays), case.options, offset)
        if new or not self.once:
            output, pullback = dnn.vjp(case.op, *arrays, **case.options)
            pullback((grad, *(None,) * (len(output) - 1)) if isinstance(output, tuple) else grad)

    def _by_every_algorithm(self, op: str, arrays: tuple[Any, ...], options: dict[str, Any], offset: int) -> bool:
        """Whether there was anything new."""
        new = False
        for algorithm in dnn.algorithms(op, *arrays, **options):
            if self.once and not self._is_new(op, algorithm.name, arrays, options, offset):
                self.counts["left out"] += 1
                continue
            new = True
            call_by(algorithm.name, op, arrays, options)
            self.counts["ran"] += 1
        return new

    def _is_new(self, op: str, algorithm: str, arrays: tuple[Any, ...], options: dict[str, Any], offset: int) -> bool:
        """Whether one of its kernels did not run yet, in whatever type."""
        asked = question(op, arrays, dict(options))
        method = next(m for m in engine.methods(asked.operation) if m.name == algorithm)
        kernels = method.run(asked.problem, engine.device(), offset == 0).kernels
        keys = {(k.source, *(v for v in astuple(k.config) if not isinstance(v, str))) for k in kernels}
        new = not keys <= self._seen
        self._seen |= keys
        return new


_free: dict[int, list[Any]] = defaultdict(list)


class _Lease:
    """Memory in use; it goes back to the free blocks of its size with the last array on it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __del__(self) -> None:
        _free[self.memory.size].append(self.memory)


def _allocate(size: int) -> Any:
    size = max(size, 1)
    memory = _free[size].pop() if _free[size] else cupy.cuda.Memory(size)
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(memory.ptr, size, _Lease(memory)), 0)


def _apart(array: np.ndarray, offset: int) -> Any:
    """The array at the end of an allocation of its own, `offset` elements behind its beginning."""
    there = cupy.ndarray((array.size + offset,), array.dtype)[offset:].reshape(array.shape)
    there.set(np.array(array, order="C"))
    return there


def run(part: list[tuple[Case, np.dtype]], once: bool) -> None:
    """One process's share."""
    cupy.cuda.set_allocator(_allocate)
    runner, start, last = Runner(once), time.monotonic(), 0.0
    for i, (case, dtype) in enumerate(part):
        if (now := time.monotonic()) > last + _EVERY:
            last = now
            print(f"{_PROGRESS} {i} {len(part)} {case} {np.dtype(dtype).name}", flush=True)
        try:
            runner.case(case, dtype)
            cupy.cuda.get_current_stream().synchronize()
        except Exception as error:
            print(f"{_RESULT} {case} {np.dtype(dtype).name}, after {i} of {len(part)} cases: {type(error).__name__}: {error}", flush=True)
            sys.exit(1)
    counted = ", ".join(f"{n} {what}" for what, n in runner.counts.items())
    print(f"{_RESULT} {len(part)} cases in {time.monotonic() - start:.0f} s; calls: {counted}", flush=True)


class Shard:
    """A process under the tool, and what it has said so far."""

    def __init__(self, number: int, arguments: argparse.Namespace) -> None:
        command = [sys.executable, "-m", "tests.gpu.every_kernel", "--shard", f"{number}/{arguments.shards}", "--dtypes", arguments.dtypes]
        command += ["--only", arguments.only]
        command += ["--once"] * arguments.once
        if arguments.tool != "none":
            # What a call of the driver returns is checked by the caller; the bindings ask for functions that this driver does not have yet.
            command = [
                "compute-sanitizer",
                "--report-api-errors",
                "no",
                "--error-exitcode",
                str(_ERROR),
                "--tool",
                arguments.tool,
                *command,
            ]
        self.number, self.done, self.total, self.at = number, 0, 1, ""
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self._reader = Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            if line.startswith(_PROGRESS):
                _, done, total, self.at = line.split(maxsplit=3)
                self.done, self.total = int(done), int(total)
            elif line.startswith(_RESULT):
                self.done = self.total
                print(f"[{self.number}] {line.removeprefix(_RESULT).strip()}", flush=True)
            elif not line.startswith("========= COMPUTE-SANITIZER") and " 0 errors" not in line and line.strip():
                print(f"[{self.number}] {line.rstrip()}", flush=True)

    def finish(self) -> int:
        status = self.process.wait()
        self._reader.join()
        return status


def lead(arguments: argparse.Namespace) -> int:
    """Start all processes and report until they are done, or the time is over."""
    start = time.monotonic()
    shards = [Shard(i, arguments) for i in range(arguments.shards)]
    last = start
    while any(s.process.poll() is None for s in shards):
        time.sleep(0.5)
        now = time.monotonic()
        if now > start + arguments.seconds:
            running = [s for s in shards if s.process.poll() is None]
            for shard in running:
                os.killpg(shard.process.pid, signal.SIGKILL)
            left = ", ".join(f"[{s.number}] {s.total - s.done} of {s.total} cases, at {s.at.strip()}" for s in running)
            print(f"not done after {arguments.seconds:.0f} s: {left}", flush=True)
            break
        if now > last + 2 * _EVERY:
            last = now
            print(f"{now - start:.0f} s: {sum(s.done / s.total for s in shards) / len(shards):.0%}", flush=True)
    failed = [s.number for s in shards if s.finish()]
    print(f"{arguments.tool}: {'errors in ' + ', '.join(map(str, failed)) if failed else 'no errors'}, {time.monotonic() - start:.0f} s")
    return bool(failed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default="memcheck", help="memcheck, racecheck, initcheck, synccheck, or none")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--shard", help="be one of the processes: number/count")
    parser.add_argument("--dtypes", default="float64,float32,float16,bfloat16")
    parser.add_argument("--only", default="", help="operations whose name holds one of these words, separated by commas")
    parser.add_argument("--once", action="store_true", help="leave out calls whose kernels all ran before, in whatever dtype")
    parser.add_argument("--seconds", type=float, default=3600)
    arguments = parser.parse_args()
    if not arguments.shard:
        sys.exit(lead(arguments))
    number, count = map(int, arguments.shard.split("/"))
    run(_parts(arguments.dtypes.split(","), arguments.only.split(","), count)[number], arguments.once)


if __name__ == "__main__":
    main()
