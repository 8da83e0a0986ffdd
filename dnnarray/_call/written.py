"""Calls as lines of text: what the command line takes, what `options(record=...)` writes and ``python -m dnnarray tune
FILE`` reads.

    conv 8,64,56,56:float32@0,2,3,1 64,64,3,3 --padding 1

A word for each array, SHAPE[:DTYPE][@ORDER], and everything else by name. ORDER lists the axes from the slowest to the
fastest in memory; without it the memory is in C order. A line that begins with ``#`` is a comment."""

from __future__ import annotations

import ast
import inspect
import shlex
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dnnarray._call.arrays import spec_of
from dnnarray._errors import ArrayTypeError, OptionError
from dnnarray._spec import Spec, as_dtype

if TYPE_CHECKING:
    from dnnarray._call.operation import Operation

_lock = threading.Lock()
_written: dict[str, set[str]] = {}
_unwritable: set[str] = set()


def write_spec(spec: Spec) -> str:
    """The word for an array; one whose memory is not dense is written as if it were in C order."""
    order = spec.axis_order() or tuple(range(spec.ndim))
    extents = ",".join(map(str, spec.shape)) or "()"
    turned = order != tuple(range(spec.ndim)) and spec.strides is not None
    return f"{extents}:{spec.dtype.name}" + ("@" + ",".join(map(str, order)) if turned else "")


def read_spec(word: str, dtype: str = "float32") -> Spec | None:
    """The array of a word, None for ``-``; `dtype` where it names none."""
    if word == "-":
        return None
    described, _, order = word.partition("@")
    extents, _, named = described.partition(":")
    try:
        shape = tuple(int(n) for n in extents.strip("()").split(",") if n.strip())
        axes = tuple(int(n) for n in order.split(",") if n.strip())
    except ValueError:
        raise OptionError(
            f"{word!r} is no array; write SHAPE[:DTYPE], for example 8,64,56,56:float32, with @0,2,3,1 behind it "
            "for the order of the axes "
            "in memory, or - for none."
        ) from None
    plain = Spec(shape, as_dtype(named or dtype))
    if not axes:
        return plain
    if sorted(axes) != list(range(len(shape))):
        raise OptionError(f"{word!r}: @{order} is no order of the {len(shape)} axes 0 to {len(shape) - 1}.")
    packed = Spec(tuple(shape[a] for a in axes), plain.dtype).c_strides
    return Spec(shape, plain.dtype, tuple(packed[axes.index(a)] for a in range(len(shape))))


def read_value(text: str) -> Any:
    """A Python literal, or else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def write_call(op: Operation, arrays: tuple[Any, ...], options: tuple[Any, ...]) -> str | None:
    """The line of a call, `options` in the order of ``op.static``; None where an argument has no form (lists of arrays,
    objects)."""
    if any(isinstance(a, (tuple, list)) for a in arrays):
        return None
    words: list[str] = []
    for i, (name, array) in enumerate(zip(op.arrays, arrays, strict=True)):
        if array is None:
            continue
        try:
            word = str(array) if type(array) is int else write_spec(spec_of(array))
        except ArrayTypeError:
            return None
        in_place = i == len(words) and type(array) is not int  # by name behind one that is left out
        words += [word] if in_place else [f"--{name}", word]
    for name, value in zip(op.static, options, strict=True):
        if _same(value, op.defaults[name]):
            continue
        text = value if isinstance(value, str) else repr(value).replace(" ", "")
        if not _same(read_value(text), value):
            return None
        words += [f"--{name}", text]
    required = (n for n in op.runtime if op.defaults[n] is inspect.Parameter.empty)
    return shlex.join([op.name, *words, *(w for n in required for w in (f"--{n}", "0"))])


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def record(path: str, op: Operation, arrays: tuple[Any, ...], options: tuple[Any, ...]) -> None:
    """Add the line of a call to a file, unless it is there. A file that cannot be written is reported once: the call
    itself went well."""
    line = write_call(op, arrays, options)
    with _lock:
        if line is None or path in _unwritable or line in (known := _written.setdefault(path, set())):
            return
        try:
            _append(path, line, known)
        except (OSError, UnicodeDecodeError) as error:
            _unwritable.add(path)
            warnings.warn(
                f"dnnarray: calls cannot be recorded to {path} ({error}); none are from now on.", stacklevel=2
            )


def _append(path: str, line: str, known: set[str]) -> None:
    """In one write, so that several processes may record to one file."""
    if not known and Path(path).is_file():
        known.update(read_lines(Path(path)))
    if line not in known:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        known.add(line)


def read_lines(path: Path) -> list[str]:
    """The calls of a file, without blank lines, comments and repeats."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
