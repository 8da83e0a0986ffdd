"""Functions that the library writes as text. This module alone compiles them.

Their text can be read like that of any other function: `inspect.getsource`, tracebacks and debuggers find it in
`linecache`, where it stands under a file name of its own. Of each function's texts the latest `_MOST` are kept, so that
a process which meets new problems all the time stays within its memory."""

from __future__ import annotations

import builtins
import hashlib
import linecache
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, cast

_MOST = 1024
_lock = threading.Lock()
_codes: dict[tuple[str, str], dict[str, CodeType]] = {}  # by module and name of the function, then by text


def function(name: str, text: str, scope: dict[str, Any], module: str) -> Any:
    """The function `name` that `text` defines. It knows `scope` and Python's built-in functions, and belongs to
    `module`.

    Texts should hold names where they would differ in numbers alone: the code of a text is made once, and making it
    takes longer than anything else here."""
    space = globals_of(module) | scope
    exec(_code(module, name, text), space)  # noqa: S102 - the library writes these texts itself, of its own names
    return space[name]


def globals_of(module: str) -> dict[str, Any]:
    """What the globals of every function hold, and tools rely on."""
    return {"__builtins__": builtins, "__name__": module}


def stand_in(name: str, module: str, text: Callable[[], str], code: CodeType) -> CodeType:
    """`code` for a function that is to be written at its first call: who looks for its source finds what `text`
    gives."""
    file = f"<dnnarray {name}>"
    _show(file, _Later(text))
    return code.replace(co_filename=file, co_firstlineno=1, co_name=name, co_qualname=name)


def _code(module: str, name: str, text: str) -> CodeType:
    with _lock:
        known = _codes.setdefault((module, name), {})
        if text not in known:
            file = f"<dnnarray {name} {hashlib.sha256(f'{module} {text}'.encode()).hexdigest()[:16]}>"
            made = compile(text, file, "exec")
            while len(known) >= _MOST:
                linecache.cache.pop(known.pop(next(iter(known))).co_filename, None)
            _show(file, text.splitlines(keepends=True))
            known[text] = made
        return known[text]


def _show(file: str, lines: Sequence[str]) -> None:
    """Let tools find these lines. An entry without a time is never compared with a file."""
    linecache.cache[file] = (0, None, cast(list[str], lines), file)


class _Later(Sequence[str]):
    """The lines of a text that is written when somebody looks at it."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __len__(self) -> int:
        return len(self._lines())

    def __getitem__(self, index: Any) -> Any:
        return self._lines()[index]

    def _lines(self) -> list[str]:
        return self._text().splitlines(keepends=True)
