"""Every case of every operation by every algorithm, forward and backward, aligned and not, without looking at the
results: for compute-sanitizer.

The large calls of ``tests/problems.py`` follow, by the algorithms that have a kernel which no case runs: so every
source that something plans on the card is seen.

    python -m tests.gpu.every_kernel --tool memcheck [--shards 16] [--dtypes float32,bfloat16] [--only conv,norm]
    [--once] [--large] [--seconds 150]

starts so many processes under the tool and prints a line for each, every error, and how far they are. ``--shard 3/16``
instead is one of these processes.

Each array has an allocation of exactly its size, so that a read beyond it is seen. Blocks are used again for arrays of
the same size: under the tool an allocation takes longer than a kernel."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import astuple, replace
from functools import partial
from threading import Thread
from typing import IO, Any, NamedTuple

import cupy
import numpy as np

import dnnarray as dnn
from dnnarray._call.introspect import question
from dnnarray._call.operation import find
from dnnarray._cuda import engine
from dnnarray._cuda.core import module
from dnnarray._cuda.core.plan import Kernel
from dnnarray._problems.base import tree_map
from tests.problems import METHODS, Call, calls_of_cases, large
from tests.registry import CASES
from tests.support import DTYPES, FLOAT64, Case, call_by

_PROGRESS, _SOURCES, _RESULT = "progress:", "sources:", "result:"
_EVERY = 10  # seconds between two lines of progress
_ERROR = 9  # the exit status of the tool where it found something
_ACCUSED = re.compile(r" access at (\w+)\+0x")  # a kernel in a report of racecheck
# how cuBLAS's kernels begin, between whose accesses racecheck sees races; without them the tool itself fails
_NOT_OURS = "nvjet"


class Task(NamedTuple):
    """A case in a dtype; `once`: by those algorithms alone that have a kernel which did not run yet."""

    case: Case
    dtype: np.dtype
    once: bool


def _cases(arguments: argparse.Namespace, count: int) -> list[list[Task]]:
    """The cases for each process. An operation stays in one in every dtype: loading a kernel takes the tool longer than
    running it."""
    groups = defaultdict(list)
    for case in CASES:
        if _is_asked(case.op, arguments) and not arguments.large:
            asked = (d for d in case.dtypes if d not in DTYPES or d.name in arguments.dtypes.split(","))
            groups[case.op] += [Task(case, d, arguments.once) for d in asked]
    parts: list[list[Task]] = [[] for _ in range(count)]
    for group in sorted(_cut(groups.values(), count), key=len, reverse=True):
        min(parts, key=len).extend(group)
    return parts


def _large(arguments: argparse.Namespace, count: int) -> list[list[Task]]:
    """The large calls for each process."""
    dtypes = (d for d in DTYPES if d.name in arguments.dtypes.split(","))
    tasks = [Task(call.case(d), d, True) for d in dtypes for call in large(d) if _is_asked(call.op, arguments)]
    return [tasks[i::count] for i in range(count)]


def _is_asked(op: str, arguments: argparse.Namespace) -> bool:
    return any(word in op for word in arguments.only.split(","))


def _cut(groups: Any, count: int) -> list[list[Task]]:
    """Groups that are larger than a process's share in pieces by dtype."""
    groups = list(groups)
    share = sum(map(len, groups)) / count
    found = []
    for group in groups:
        pieces = len(group) // share + 1
        by_dtype = sorted(group, key=lambda task: np.dtype(task.dtype).name)
        length = int(-(-len(group) // pieces)) or 1
        found += [by_dtype[i : i + length] for i in range(0, len(group), length)]
    return found


class Runner:
    """Runs tasks, and remembers which kernels ran; `anything`: a kernel that ran in one dtype has run in all."""

    def __init__(self, anything: bool) -> None:
        self.anything = anything
        self.counts: Counter[str] = Counter()
        self.sources: set[str] = set()
        self._seen: set[Any] = set()

    def run(self, task: Task) -> None:
        """The case in memory that is aligned, and in memory that is not; doubles are loaded one by one or in pairs,
        like anything else."""
        for offset in (0, 1) if task.dtype != FLOAT64 else (0,):
            try:
                self._run(task, offset)
            except dnn.UnsupportedError:
                self.counts["absent"] += 1

    def _run(self, task: Task, offset: int) -> None:
        case = task.case
        arrays = tuple(tree_map(partial(_apart, offset=offset), a) for a in case.draw(task.dtype))
        call = Call(case.op, *find(case.op).bind(arrays, case.options))
        self._by_every_algorithm(task, call)
        if not case.gradient:
            return
        inferred = dnn.infer(case.op, *arrays, **case.options)
        head = inferred.outputs[0]
        assert head is not None
        grad, several = _apart(np.ones(head.shape, head.dtype), offset), isinstance(inferred.output, tuple)
        backward = call.backward(grad)
        new = backward is not None and self._by_every_algorithm(task, backward)
        if new or several or not task.once:
            output, pullback = dnn.vjp(case.op, *arrays, **case.options)
            pullback((grad, *(None,) * (len(output) - 1)) if several else grad)

    def _by_every_algorithm(self, task: Task, call: Call) -> bool:
        """Whether there was anything new."""
        any_new = False
        for algorithm in dnn.algorithms(call.op, *call.arrays, **call.options):
            new = self._is_new(call, algorithm.name)
            any_new |= new
            if task.once and not new:
                self.counts["left out"] += 1
                continue
            call_by(algorithm.name, call.op, call.arrays, call.options)
            self.counts["ran"] += 1
        return any_new

    def _is_new(self, call: Call, algorithm: str) -> bool:
        """Whether one of its kernels did not run yet."""
        asked = question(call.op, call.arrays, dict(call.options))
        method = next(m for m in engine.methods(asked.operation) if m.name == algorithm)
        here = engine.device_for(asked.arrays)
        kernels = method.run(asked.problem, here, here.aligned).kernels
        self.sources |= {k.source for k in kernels}
        return self._look(kernels)

    def _look(self, kernels: Iterable[Kernel]) -> bool:
        """Whether one of the kernels was not seen yet."""
        keys = {
            (k.source, *(v for v in astuple(k.config) if not (self.anything and isinstance(v, str)))) for k in kernels
        }
        new = not keys <= self._seen
        self._seen |= keys
        return new

    def leave_to_others(self, arguments: argparse.Namespace) -> None:
        """What the cases plan runs in some process: count it as seen."""
        device = engine.device()
        for call in calls_of_cases():
            if not _is_asked(call.op, arguments):
                continue
            problem = call.problem()
            for method in METHODS.get(call.base, ()):
                for here in (device, replace(device, aligned=False)):
                    if method.rejects(problem, here) is None:
                        self._look(method.run(problem, here, here.aligned).kernels)


_free: dict[int, list[Any]] = defaultdict(list)
_KEPT = 1 << 24  # bytes; larger blocks go back to the card


class _Lease:
    """Memory in use; it goes back to the free blocks of its size with the last array on it."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __del__(self) -> None:
        if self.memory.size <= _KEPT:
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


def run(number: int, count: int, arguments: argparse.Namespace) -> None:
    """One process's share."""
    cupy.cuda.set_allocator(_allocate)
    runner, start, last = Runner(arguments.once), time.monotonic(), 0.0
    cases = _cases(arguments, count)[number]
    part = cases + _large(arguments, count)[number]
    for i, task in enumerate(part):
        if i == len(cases):
            runner.leave_to_others(arguments)
        if (now := time.monotonic()) > last + _EVERY:
            last = now
            print(f"{_PROGRESS} {i} {len(part)} {task.case} {np.dtype(task.dtype).name}", flush=True)
        try:
            runner.run(task)
            cupy.cuda.get_current_stream().synchronize()
        except Exception as error:
            print(
                f"{_RESULT} {task.case} {np.dtype(task.dtype).name}, after {i} of {len(part)} cases: "
                f"{type(error).__name__}: {error}",
                flush=True,
            )
            sys.exit(1)
    print(_SOURCES, *sorted(runner.sources), flush=True)
    counted = ", ".join(f"{n} {what}" for what, n in runner.counts.items())
    print(f"{_RESULT} {len(part)} cases in {time.monotonic() - start:.0f} s; calls: {counted}", flush=True)


class Shard:
    """A process under the tool, and what it has said so far."""

    def __init__(self, number: int, arguments: argparse.Namespace) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.gpu.every_kernel",
            "--shard",
            f"{number}/{arguments.shards}",
            "--dtypes",
            arguments.dtypes,
        ]
        command += ["--only", arguments.only]
        command += ["--once"] * arguments.once + ["--large"] * arguments.large
        if arguments.tool != "none":
            # What a call of the driver returns is checked by the caller; the bindings ask for functions that this
            # driver does not have yet.
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
        self.sources: set[str] = set()
        self.accused: set[str] = set()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._reader = Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            self.accused.update(_ACCUSED.findall(line))
            if line.startswith(_PROGRESS):
                _, done, total, self.at = line.split(maxsplit=3)
                self.done, self.total = int(done), int(total)
            elif line.startswith(_SOURCES):
                self.sources |= set(line.split()[1:])
            elif line.startswith(_RESULT):
                self.done = self.total
                print(f"[{self.number}] {line.removeprefix(_RESULT).strip()}", flush=True)
            elif not line.startswith("========= COMPUTE-SANITIZER") and " 0 errors" not in line and line.strip():
                print(f"[{self.number}] {line.rstrip()}", flush=True)

    def finish(self) -> bool:
        """Whether there was an error, or a race in a kernel of ours."""
        status = self.process.wait()
        self._reader.join()
        not_ours = status == _ERROR and self.accused and all(name.startswith(_NOT_OURS) for name in self.accused)
        return bool(status and not not_ours)


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
    if not arguments.only:
        print(
            "no kernel of "
            f"{', '.join(sorted(_every_source().difference(*(s.sources for s in shards)))) or 'no source'} ran"
        )
    print(
        f"{arguments.tool}: {'errors in ' + ', '.join(map(str, failed)) if failed else 'no errors'}, "
        f"{time.monotonic() - start:.0f} s"
    )
    return bool(failed)


def _every_source() -> set[str]:
    folder = module.kernels_folder()
    return {str(path.relative_to(folder)) for path in folder.rglob("*.cu")}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", default="memcheck", help="memcheck, racecheck, initcheck, synccheck, or none")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--shard", help="be one of the processes: number/count")
    parser.add_argument("--dtypes", default="float64,float32,float16,bfloat16")
    parser.add_argument(
        "--only", default="", help="operations whose name holds one of these words, separated by commas"
    )
    parser.add_argument(
        "--once", action="store_true", help="leave out calls whose kernels all ran before, in whatever dtype"
    )
    parser.add_argument(
        "--large", action="store_true", help="the large calls alone; what the cases plan counts as seen"
    )
    parser.add_argument("--seconds", type=float, default=3600)
    arguments = parser.parse_args()
    if not arguments.shard:
        sys.exit(lead(arguments))
    number, count = map(int, arguments.shard.split("/"))
    run(number, count, arguments)


if __name__ == "__main__":
    main()
