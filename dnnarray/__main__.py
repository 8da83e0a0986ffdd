"""The command line: ``python -m dnnarray {info, check, explain}``."""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import dnnarray as dnn
from dnnarray._operation import Operation, operations
from dnnarray._spec import as_dtype

_WRONG = 2  # the exit code of a wrong command line, as argparse has it
_EXPLAIN = """\
explain shows which algorithm a call would run by, and why:

  python -m dnnarray explain conv 8,64,56,56:float32 64,64,3,3 --padding 1

One SHAPE[:DTYPE] for each array in the order of the function's signature, - for an array that is left out. A shape is its extents with
commas between them; () has none. Without a DTYPE an array has that of the first one, which has float32. Everything else is
--name value, where a value is a Python literal or else a text, and an array given by name is a SHAPE[:DTYPE] again."""


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
    try:
        print(_explain(chosen.op, chosen.rest))
    except (_CommandError, TypeError, ValueError, NotImplementedError, MemoryError, RuntimeError) as error:
        print("dnnarray: " + " ".join(str(error).split()), file=sys.stderr)
        return _WRONG
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dnnarray", description="Deep-learning primitives for any array.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{info,check,explain}")
    commands.add_parser("info", help="print versions, for bug reports")
    commands.add_parser("check", help="look for what keeps dnnarray from running right or fast; exit code 1 if there is a problem")
    raw = argparse.RawDescriptionHelpFormatter
    explain = commands.add_parser(
        "explain", help="show the choice of an algorithm for a call", description=_EXPLAIN, formatter_class=raw, usage="%(prog)s OP [ARRAY ...] [--NAME VALUE ...]"
    )  # fmt: skip
    explain.add_argument("op", help="name of a function of dnnarray")
    explain.add_argument("rest", nargs=argparse.REMAINDER, metavar="ARRAY, --NAME VALUE", help="arrays and options of the call")
    return parser


def _explain(name: str, rest: Sequence[str]) -> str:
    operation = _operation(name)
    texts, options = _split(rest)
    specs = [_spec(text) for text in texts]
    first = next((s for s in specs if s is not None), None)
    dtype = first.dtype.name if first is not None else "float32"
    arrays = [_spec(text, dtype) for text in texts]
    chosen = {n: _spec(text, dtype) if n in operation.arrays else _value(text) for n, text in options.items()}
    _require_all(operation, arrays, chosen)
    return str(dnn.explain(name, *arrays, **chosen))


def _operation(name: str) -> Operation:
    known = operations()
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {', '.join(close)}?" if close else "dir(dnnarray) lists them."
    raise _CommandError(f"no operation is called {name!r}; {hint}")


def _split(rest: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The arrays, and the options by name: ``--name value`` or ``--name=value``."""
    arrays, options = [], {}
    words = iter(rest)
    for word in words:
        if not word.startswith("--"):
            arrays.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        found = value if equals else next(words, None)
        if found is None:
            raise _CommandError(f"--{name} has no value; write --{name} VALUE.")
        options[name.replace("-", "_")] = found
    return arrays, options


def _spec(text: str, dtype: str = "float32") -> dnn.Spec | None:
    if text == "-":
        return None
    extents, _, named = text.partition(":")
    try:
        shape = tuple(int(n) for n in extents.strip("()").split(",") if n.strip())
    except ValueError:
        raise _CommandError(f"{text!r} is no array; write SHAPE[:DTYPE], for example 8,64,56,56:float32, or - for none.") from None
    return dnn.Spec(shape, as_dtype(named or dtype))


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _require_all(operation: Operation, arrays: Sequence[Any], options: dict[str, Any]) -> None:
    """Every required argument is there, and none that the command line has no words for."""
    parameters = inspect.signature(operation.function).parameters
    if operation.nested.intersection(operation.arrays) - {"grad"}:
        raise _CommandError(f"{operation.name} takes lists of arrays, which have no form here; call dnnarray.explain from Python.")
    given = {*operation.arrays[: len(arrays)], *options}
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise _CommandError(
                f"{operation.name}: {name} is missing; the call is {operation.name}{inspect.signature(operation.function)}."
            )


if __name__ == "__main__":
    sys.exit(main())
