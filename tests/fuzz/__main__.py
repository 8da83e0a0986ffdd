"""The command line of the fuzzer; see `tests.fuzz`."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections import Counter
from typing import Any

from dnnarray._call.operation import find, operations
from dnnarray._cpu import engine as cpu
from dnnarray._cpu.compiled import Compiled
from tests.compiled_first import prefer_compiled
from tests.fuzz.calls import ENGINES, Call, draw
from tests.fuzz.judge import judge
from tests.fuzz.memory import Card, Host
from tests.fuzz.snippet import simplified, text
from tests.fuzz.verdict import Verdict
from tests.fuzz.workers import Asked, Report, environment, run

_SHOWN = 3  # failures of one kind of one operation that are shown in full
_SHRUNK = 40  # that a worker makes simpler
_EVERY = 1.0  # seconds between a worker's counts


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description="Calls drawn at random, held to the float64 oracles."
    )
    parser.add_argument("--seconds", type=float, help="stop after so many seconds")
    parser.add_argument("--calls", type=int, help="stop after so many calls")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the first part of the IDs of the calls")
    parser.add_argument("--engine", choices=ENGINES, default="compiled")
    parser.add_argument(
        "--only", default="", help="operations whose names hold one of these words, with commas between them"
    )
    parser.add_argument("--jobs", type=int, help="worker processes; a core each, two on a card")
    parser.add_argument("--replay", metavar="ID", help="one call by its ID, in this process")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def place_of(engine: str) -> Any:
    """Where the arrays of an engine lie; compiled algorithms come first from now on where that is what is asked for."""
    if engine == "compiled":
        prefer_compiled()
    return Card() if engine == "cuda" else Host()


def _words(given: str) -> tuple[str, ...]:
    return tuple(filter(None, given.split(",")))


# --- a worker
# -----------------------------------------------------------------------------------------------------------


def work(arguments: argparse.Namespace) -> None:
    """Calls from a number on, in steps of the number of workers, each told of before it is made."""
    place, counts, last, shrunk = place_of(arguments.engine), _fresh(), time.monotonic(), 0
    for index in itertools.count(arguments.worker, arguments.jobs):
        if arguments.calls is not None and index >= arguments.calls:
            break
        call = draw(f"{arguments.seed}:{index}", arguments.engine, _words(arguments.only))
        if call is None:
            continue
        _tell({"at": index})
        verdict = judge(call, place)
        counts["kinds"][verdict.kind] += 1
        counts["ops"][f"{call.drawn.op} {call.mode}"] += 1
        if verdict.algorithm:
            counts["algorithms"][f"{call.operation.base} {verdict.algorithm}"] += 1
        if verdict.kind == "unverified":
            counts["reasons"][verdict.text] += 1
        if not verdict.good:
            shrunk += 1
            _tell({"failure": told(call, verdict, place, shrunk <= _SHRUNK)})
        if time.monotonic() - last > _EVERY:
            _tell(counts)
            counts, last = _fresh(), time.monotonic()
    _tell(counts | {"done": True})


def _fresh() -> dict[str, Any]:
    return {"kinds": Counter(), "ops": Counter(), "reasons": Counter(), "algorithms": Counter()}


def _tell(line: dict[str, Any]) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def told(call: Call, verdict: Verdict, place: Any, simplify: bool) -> dict[str, Any]:
    """A failure for the report."""
    simple = simplified(call, verdict, place) if simplify else call
    again = judge(simple, place)
    return {
        "id": call.id,
        "kind": verdict.kind,
        "op": call.drawn.op,
        "mode": call.mode,
        "algorithm": again.algorithm or verdict.algorithm,
        "dtype": call.dtype.name,
        "change": call.change,
        "text": again.text or verdict.text,
        "snippet": text(simple, again.algorithm),
    }


# --- the report
# ---------------------------------------------------------------------------------------------------------


def _line(report: Report, begun: float) -> str:
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(report.kinds.items()))
    return f"{report.calls:,} calls, {report.calls / (time.monotonic() - begun):.0f} a second: {kinds}"


class Failures:
    """Failures as they come: the first few of each kind in full."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._seen: Counter[tuple[Any, ...]] = Counter()

    def show(self, failure: dict[str, Any]) -> None:
        if (
            "op" not in failure and (call := draw(failure["id"], self._engine)) is not None
        ):  # the process died before it could say so
            failure |= {
                "op": call.drawn.op,
                "mode": call.mode,
                "dtype": call.dtype.name,
                "change": call.change,
                "snippet": text(call, None),
            }
        group = tuple(failure.get(n) for n in ("kind", "op", "mode", "algorithm"))
        self._seen[group] += 1
        if self._seen[group] <= _SHOWN:
            head = " ".join(str(failure[n]) for n in ("op", "mode", "algorithm", "dtype", "change") if failure.get(n))
            print(f"\n--- {failure['kind']} {failure['id']} {head}\n{failure['text']}\n{failure.get('snippet', '')}")
            print(f"again: python -m tests.fuzz --engine {self._engine} --replay {failure['id']}\n", flush=True)

    def sum_up(self) -> None:
        for group, count in self._seen.items():
            print(f"{count:6} x {' '.join(map(str, group))}")


def never(report: Report, asked: Asked) -> list[str]:
    """The algorithms on a processor that no call named, of the operations that were asked for."""
    if asked.engine == "cuda":
        return []
    bases = dict.fromkeys(
        op.base for op in operations().values() if not asked.words or any(word in op.name for word in asked.words)
    )
    methods = [(base, m) for base in bases for m in cpu.methods(find(base))]
    here = [f"{base} {m.name}" for base, m in methods if asked.engine == "compiled" or not isinstance(m.run, Compiled)]
    return sorted(set(here) - set(report.algorithms))


def _replay(arguments: argparse.Namespace) -> int:
    """One call, alone, told of in full."""
    place = place_of(arguments.engine)
    call = draw(arguments.replay, arguments.engine)
    assert call is not None
    print(text(call, None), flush=True)
    verdict = judge(call, place)
    if verdict.good:
        print(f"{verdict.kind} {verdict.text}")
    else:
        Failures(arguments.engine).show(told(call, verdict, place, True))
    return 0 if verdict.good else 1


def main() -> int:
    arguments = _arguments()
    if arguments.worker is not None:
        work(arguments)
        return 0
    if arguments.replay:
        wanted = environment(arguments.engine)
        if os.environ.get("DNNARRAY_NUMBA", "1") != wanted["DNNARRAY_NUMBA"]:
            os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]], wanted)
        return _replay(arguments)
    jobs = arguments.jobs or (2 if arguments.engine == "cuda" else len(os.sched_getaffinity(0)))
    seconds = 60.0 if arguments.seconds is None and arguments.calls is None else arguments.seconds
    asked, begun = (
        Asked(arguments.engine, arguments.seed, _words(arguments.only), seconds, arguments.calls, jobs),
        time.monotonic(),
    )
    failures = Failures(arguments.engine)
    report = run(asked, lambda so_far: print(_line(so_far, begun), flush=True), failures.show)
    failures.sum_up()
    print(f"algorithms by name: {len(report.algorithms)}; never: {', '.join(never(report, asked)) or 'none'}")
    print("not verified: " + ", ".join(f"{reason} {count:,}" for reason, count in report.reasons.most_common()))
    print(f"seed {arguments.seed}, {arguments.engine}: {_line(report, begun)}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
