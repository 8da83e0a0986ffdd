"""The command line: ``dnnarray``, or ``python -m dnnarray``, with ``{info, check, warmup, bench, tune, record, explain,
cache}``."""

from __future__ import annotations

import argparse
import inspect
import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import dnnarray as dnn
from dnnarray import _cache
from dnnarray._call.arrays import engine_of
from dnnarray._call.introspect import Question, question
from dnnarray._call.operation import Operation, alike, operations
from dnnarray._call.written import read_lines, read_spec, read_value
from dnnarray._options import ENGINES, current
from dnnarray._select import Algorithm, rank, shipped, tuning

_OF_THE_COMMAND = ("device", "ship")
_WRONG = 2  # the exit code of a wrong command line, as argparse has it
_ABOUT = {
    "explain": "show which algorithm a call would run by, and why",
    "bench": "measure a call by every algorithm that may run it, on drawn data",
    "tune": "measure like bench and remember the times on disk, for all later processes",
}
_CALL = """\
  python -m dnnarray {command} conv 8,64,56,56:float32 64,64,3,3 --padding 1

One SHAPE[:DTYPE] for each array in the order of the function's signature, - for an array that is left out. A shape is
its extents with commas between them; () has none. Without a DTYPE an array has that of the first one, which has
float32. @0,2,3,1 behind it is the order of the axes in memory, the slowest first. Everything else is --name value,
where a value is a Python literal or else a text, and an array given by name is a SHAPE[:DTYPE] again (an integer alone
where the function takes one).

In the place of OP and all behind it, the name of a file with one such call in each line, as
`python -m dnnarray record` writes it:

  python -m dnnarray {command} calls.txt"""


_RECORD = """Run a Python script and add a line for each kind of call to dnnarray that its main thread makes to a file.
Calls whose arguments have no form on the command line (lists of arrays) are left out."""


class _CommandError(Exception):
    """The command line makes no sense; the message says why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.command == "info":
        dnn.show_versions()
        return 0
    if chosen.command == "check":
        report = dnn.check()
        print(report)
        return 0 if report.ok else 1
    if chosen.command == "cache":
        return _caches(chosen.action)
    if chosen.command == "warmup":
        return _told(partial(_warmup, chosen.op, chosen.dtypes))
    if chosen.command == "record":
        return _told(lambda: _record(chosen.file, chosen.script, chosen.rest))
    command, samples = _COMMANDS[chosen.command], list[shipped.Sample]()
    if ship := getattr(chosen, "ship", None):
        command = partial(_tune, samples=samples)
    with dnn.options(specs_on=chosen.device):
        if chosen.op not in operations() and Path(chosen.op).is_file():
            code = _each(command, Path(chosen.op))
        else:
            code = _told(lambda: command(chosen.op, chosen.rest))
        return max(code, _told(partial(_ship, Path(ship), samples))) if ship else code


def _told(run: Callable[[], str]) -> int:
    """Print what a command gives, or in one line why it gives nothing."""
    try:
        print(run(), flush=True)
    except (
        _CommandError,
        TypeError,
        ValueError,
        ArithmeticError,
        NotImplementedError,
        MemoryError,
        RuntimeError,
        OSError,
    ) as error:
        print("dnnarray: " + " ".join(str(error).split()), file=sys.stderr)
        return _WRONG
    return 0


def _each(command: Callable[[str, Sequence[str]], str], file: Path) -> int:
    """The command for each call of a file; one that goes wrong does not stop the others."""
    lines = read_lines(file)
    codes = []
    for i, line in enumerate(lines, 1):
        print(f"[{i}/{len(lines)}] {line}", flush=True)
        codes.append(_told(partial(_from_line, command, line)))
    return max(codes, default=0)


def _from_line(command: Callable[[str, Sequence[str]], str], line: str) -> str:
    name, *rest = shlex.split(line)
    return command(name, rest)


def _record(file: str, script: str, rest: Sequence[str]) -> str:
    """Run a script as Python itself would, with a line in `file` for each kind of call that it makes."""
    if not Path(script).is_file():
        raise _CommandError(f"there is no script {script!r}.")
    old = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [script, *rest], str(Path(script).resolve().parent)
    try:
        with dnn.options(record=file):
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv, sys.path[0] = old
    return (
        f"{len(read_lines(Path(file))) if Path(file).exists() else 0} kinds of calls in {file}; python -m "
        f"dnnarray tune {file} measures them."
    )


def _parser() -> argparse.ArgumentParser:
    called = "dnnarray" if Path(sys.argv[0]).stem == "dnnarray" else "python -m dnnarray"
    parser = argparse.ArgumentParser(prog=called, description="Deep-learning primitives for any array.")
    parser.add_argument("--version", action="version", version=f"dnnarray {dnn.__version__}")
    names = "{info,check,warmup,bench,tune,record,explain,cache}"
    commands = parser.add_subparsers(dest="command", required=True, metavar=names)
    commands.add_parser("info", help="print versions, for bug reports")
    commands.add_parser(
        "check", help="look for what keeps dnnarray from running right or fast; exit code 1 if there is a problem"
    )
    cache = commands.add_parser(
        "cache", help="show what is kept on disk (measured times, compiled kernels), or clear it"
    )
    cache.add_argument(
        "action", nargs="?", choices=("show", "clear"), default="show", help="what to do; show by default"
    )
    warmup = commands.add_parser("warmup", help="compile the kernels of the CPU engine, a line for each algorithm")
    warmup.add_argument("op", nargs="*", metavar="OP", help="names of functions of dnnarray; none stands for all")
    warmup.add_argument("--dtypes", nargs="+", default=["float32"], metavar="DTYPE", help="float32 by default")
    record = commands.add_parser("record", help="run a script and write down its calls, for tune", description=_RECORD)
    record.add_argument("file", metavar="FILE", help="where the calls are added")
    record.add_argument("script", metavar="SCRIPT", help="a Python script")
    record.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the arguments of the script")
    for name, about in _ABOUT.items():
        command = commands.add_parser(
            name,
            help=about,
            description=f"{about}:\n\n{_CALL.format(command=name)}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            usage="%(prog)s [--device {cpu,cuda}] OP [ARRAY ...] [--NAME VALUE ...] | FILE",
        )
        command.add_argument(
            "--device", choices=ENGINES, default="cpu", help="the engine that is asked; cpu by default"
        )
        if name == "tune":
            command.add_argument(
                "--ship",
                metavar="FILE",
                help="write there by how much the model errs on this device, for each class of calls",
            )
        command.add_argument("op", metavar="OP", help="name of a function of dnnarray, or a file of calls")
        command.add_argument(
            "rest", nargs=argparse.REMAINDER, metavar="ARRAY, --NAME VALUE", help="arrays and options of the call"
        )
    return parser


def _explain(name: str, rest: Sequence[str]) -> str:
    arrays, options = _call(name, rest)
    return str(dnn.explain(name, *arrays, **options))


def _bench(name: str, rest: Sequence[str]) -> str:
    arrays, options = _call(name, rest)
    asked = question(name, tuple(arrays), options)
    asked.engine.make_ready(asked.operation, asked.problem)
    usable = [judged for judged in asked.rank() if judged.reason is None]
    times = asked.engine.measure(
        asked.operation, asked.problem, asked.arrays, asked.runtime, [j.method for j in usable]
    )
    rates = {n: (asked.problem.flops / ms / 1e6, asked.problem.bytes / ms / 1e6) for n, ms in times.items()}
    rows = [f"{n:<16} {ms:10.4g} ms {rates[n][0]:10.4g} GFLOP/s {rates[n][1]:10.4g} GB/s" for n, ms in times.items()]
    return "\n".join([f"{asked.problem.op}: {asked.problem.legend()}", *rows])


def _tune(name: str, rest: Sequence[str], samples: list[shipped.Sample] | None = None) -> str:
    arrays, options = _call(name, rest)
    measured = dnn.autotune(name, *arrays, **options)
    asked = question(name, tuple(arrays), options)
    if samples is not None:
        samples += _samples(asked, measured)
    print("\n".join(f"{a.name:<16} {a.measured_ms:10.4g} ms" for a in measured))
    if asked.measured() is None:  # a warning has said why
        mend = "python -m dnnarray cache clear takes away what cannot be read."
        raise _CommandError(f"nothing is remembered in {_cache.folder()}; {mend}")
    return f"remembered in {_cache.folder()}"


def _samples(asked: Question, measured: Sequence[Algorithm]) -> list[shipped.Sample]:
    """What the model says of a call, beside what was measured."""
    times = {a.name: a.measured_ms for a in measured if a.measured_ms is not None}
    judged = rank(asked.problem, shipped.bare(asked.engine.device()), current(), asked.engine.methods(asked.operation))
    found = [j.algorithm for j in judged if j.algorithm.name in times]
    return [shipped.Sample(shipped.class_of(asked.problem, a.name), a.predicted_ms, times[a.name]) for a in found]


def _ship(file: Path, samples: Sequence[shipped.Sample]) -> str:
    device = engine_of((), current().specs_on).device()
    factors = shipped.write(file, device, samples)
    return (
        f"{len(factors)} classes of calls on {device.name} in {file}; those of fewer than {shipped.FEWEST} calls "
        "are left out."
    )


_COMMANDS = {"explain": _explain, "bench": _bench, "tune": _tune}


def _warmup(names: Sequence[str], dtypes: Sequence[str]) -> str:
    ready = dnn.warmup(*names, dtypes=dtypes, progress=True)
    return f"{ready} algorithms are compiled, for all later processes too: python -m dnnarray cache shows where."


def _caches(action: str) -> int:
    """Show or clear measured times, kernels and machine code."""
    print(_cache.folder())
    tables = sorted(_cache.folder().glob("tuning_*.json"))
    faults = [_shown(f"{table.name}: ", partial(_table, table, action)) for table in tables]
    if not tables:
        print("  no measured times")
    for kind in _cache.KINDS:
        faults += [_shown("", partial(_stored, survey, kind, action)) for survey in _cache.survey(kind)]
    tuning.forget_loaded()
    return int(any(faults))


def _shown(name: str, tell: Callable[[], str]) -> bool:
    """Print a line on an entry of the cache; whether it could not be removed."""
    try:
        print(f"  {name}{tell()}")
    except OSError as error:
        print(f"  {name}cannot be removed ({error.strerror})")
        return True
    return False


def _table(table: Path, action: str) -> str:
    if action == "clear":
        table.unlink(missing_ok=True)
        return "removed"
    return f"{len(tuning.rows(table))} measured calls"


def _stored(survey: _cache.Survey, kind: str, action: str) -> str:
    if action == "clear":
        _cache.clear(kind)
        return f"{survey}: removed"
    return str(survey)


def _call(name: str, rest: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Arrays and options of the call that the command line describes."""
    operation = _operation(name)
    if {"-h", "--help"}.intersection(rest):
        raise _CommandError(
            f"the call is {name}{inspect.signature(operation.function)}; help({name}) in Python says more."
        )
    texts, options = _split(rest)
    specs = [read_spec(text) for text in texts]
    first = next((s for s in specs if s is not None), None)
    dtype = first.dtype.name if first is not None else "float32"
    arrays = [read_spec(text, dtype) for text in texts]
    chosen = {n: _named(operation, n, text, dtype) for n, text in options.items()}
    _require_all(operation, arrays, chosen)
    return arrays, chosen


def _named(operation: Operation, name: str, text: str, dtype: str) -> Any:
    if name not in operation.arrays or (name in operation.numbers and text.lstrip("-").isdigit()):
        return read_value(text)
    return read_spec(text, dtype)


def _operation(name: str) -> Operation:
    known = operations()
    if name in known:
        return known[name]
    raise _CommandError(f"no operation is called {name!r}. {alike(name)}")


def _split(rest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arrays, and the options by name: ``--name value`` or ``--name=value``."""
    arrays, options = [], {}
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            arrays.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        if name in _OF_THE_COMMAND:
            raise _CommandError(f"--{name} is no option of the call; write it before the operation's name.")
        found = value if equals else next(words, None)
        if found is None:
            raise _CommandError(f"--{name} has no value; write --{name} VALUE.")
        options[name.replace("-", "_")] = found
    return arrays, options


def _require_all(operation: Operation, arrays: Sequence[Any], options: dict[str, Any]) -> None:
    """Every required argument is there, and none that the command line has no words for."""
    parameters = inspect.signature(operation.function).parameters
    if operation.nested.intersection(operation.arrays) - {"grad"}:
        raise _CommandError(
            f"{operation.name} takes lists of arrays, which have no form here; call dnnarray.explain from Python."
        )
    given = {*operation.arrays[: len(arrays)], *options}
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise _CommandError(
                f"{operation.name}: {name} is missing; the call is "
                f"{operation.name}{inspect.signature(operation.function)}."
            )


if __name__ == "__main__":
    sys.exit(main())
