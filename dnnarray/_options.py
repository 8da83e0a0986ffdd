"""`dnn.options`: settings of the current context. A ContextVar keeps threads and asyncio tasks apart."""

from __future__ import annotations

import operator
import os
import re
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import Any
from weakref import WeakValueDictionary

from dnnarray._errors import OptionError, closest, fail, fail_choice

PRECISIONS = ("highest", "high", "medium")
ENGINES = ("cpu", "cuda")
_CHOICES = {"float32_precision": PRECISIONS, "specs_on": ENGINES}
_MOST_THREADS = 1024
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@dataclass(frozen=True, eq=False)
class Options:
    """The settings in force. Compared by identity: one object per distinct setting keeps look-ups cheap.

    `observed` says whether a call must be looked at from outside (counted, timed, written down, or its arrays checked).
    """

    deterministic: bool = False
    autotune: bool = False
    workspace_limit: int | None = None
    float32_precision: str = "highest"
    telemetry: bool = False
    check_finite: bool = False
    threads: int | None = None
    specs_on: str = "cpu"
    record: str | None = None
    observed: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "observed", self.telemetry or self.check_finite or self.record is not None)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, those of other processes too, are the one object of these settings."""
        return _restored, tuple(getattr(self, n) for n in _NAMES)


# what is in force or remembered somewhere keeps itself alive
_interned: WeakValueDictionary[tuple[Any, ...], Options] = WeakValueDictionary()
_interning = threading.Lock()
CURRENT: ContextVar[Options] = ContextVar("dnnarray_options")
# What to go back to at the end of each ``with`` block; in the context too, so that threads can share an `options`
# object.
_outer: ContextVar[tuple[Options, ...]] = ContextVar("dnnarray_outer_options", default=())
_NAMES = tuple(f.name for f in fields(Options) if f.init)


def _intern(options: Options) -> Options:
    with _interning:
        return _interned.setdefault(tuple(getattr(options, n) for n in _NAMES), options)


def _restored(*values: Any) -> Options:
    return _intern(Options(*values))


def changed_options(options: Options, changes: dict[str, Any]) -> Options:
    """The one object of these settings with some of them changed."""
    return _intern(replace(options, **changes))


DEFAULT = _intern(Options())


def current() -> Options:
    """The options of this context."""
    return CURRENT.get(DEFAULT)


def parse_bytes(op: str, value: Any) -> int | None:
    """``None``, a number of bytes, or a text such as ``"256MB"`` (powers of ten) or ``"256MiB"`` (powers of two)."""
    expected = 'None, a number of bytes of 0 or more, or a text such as "256MB"'
    if value is None:
        return None
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d{1,30})(?:\.(\d{1,30}))?\s*([A-Za-z]*)\s*", value)
        if not match or match[3].upper() not in _UNITS:
            fail(OptionError, op, "workspace_limit", repr(value), expected)
        part = match[2] or ""
        return int(match[1] + part) * _UNITS[match[3].upper()] // 10 ** len(part)
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = -1
    if number < 0:
        fail(OptionError, op, "workspace_limit", repr(value), expected)
    return number


def _parse_path(op: str, value: Any) -> str | None:
    """``None``, or the absolute path of a file whose folder is there."""
    if value is None:
        return None
    try:
        path = os.path.abspath(os.fsdecode(value))
    except TypeError:
        path = ""
    if not path or not os.path.isdir(os.path.dirname(path)) or os.path.isdir(path):
        fail(OptionError, op, "record", repr(value), "None or the name of a file in a folder that exists")
    return path


def _parse_threads(op: str, value: Any) -> int | None:
    """``None``, or an integer of 1 to 1024."""
    if value is not None and not (type(value) is int and 0 < value <= _MOST_THREADS):
        fail(OptionError, op, "threads", repr(value), f"None, or an integer of 1 to {_MOST_THREADS}")
    return value


_PARSED = {"workspace_limit": parse_bytes, "record": _parse_path, "threads": _parse_threads}


def _checked(op: str, changes: dict[str, Any]) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in _NAMES:
            fail(OptionError, op, "the option name", repr(name), f"one of {', '.join(_NAMES)}", closest(name, _NAMES))
        if name in _CHOICES:
            if not (isinstance(value, str) and value in _CHOICES[name]):
                fail_choice(op, name, value, _CHOICES[name])
        elif name not in _PARSED and not isinstance(value, bool):
            fail(OptionError, op, name, repr(value), "True or False")
    return {name: _PARSED[name](op, value) if name in _PARSED else value for name, value in changes.items()}


class options:  # noqa: N801 - a context manager that is called like a function
    """Change settings for the calls inside a ``with`` block.

    Parameters
    ----------
    deterministic : bool
        Only algorithms whose result is the same bits from run to run. On a CUDA device the bits do not depend on the
        addresses either: an array that does not begin at a multiple of 16 bytes is copied to one that does. On the CPU
        they may differ between arrays that begin at other addresses modulo 64 bytes.
    autotune : bool
        Measure the candidates the first time a problem is met and remember the winner on disk.
    workspace_limit : int, str or None
        Most scratch memory an algorithm may take: bytes, or a text such as ``"256MB"``; None for no limit.
    float32_precision : {"highest", "high", "medium"}
        float32 arithmetic: float32-accurate, TF32, bfloat16.
    telemetry : bool
        Count and time every call; see `dnnarray.telemetry`.
    check_finite : bool
        Raise `FloatingPointError` where an input or an output holds NaN or infinity.
    threads : int or None
        Threads that a call on the CPU takes at the most, no more than there are cores. None follows the BLAS of NumPy,
        and with it ``threadpoolctl`` and ``OPENBLAS_NUM_THREADS``, and takes no more than ``OMP_NUM_THREADS`` and
        ``NUMBA_NUM_THREADS``. They are the engine's own: during a call the BLAS takes one thread.
    specs_on : {"cpu", "cuda"}
        The engine that `infer`, `algorithms`, `autotune` and `explain` ask about calls described by `Spec` alone.
    record : path or None
        Add a line for each kind of call to this file, in the words of the command line: what ``python -m dnnarray tune
        FILE`` reads.

    Raises
    ------
    OptionError
        A name or a value is not one of these. Nothing is changed then.

    Examples
    --------
    >>> import dnnarray as dnn, numpy as np
    >>> with dnn.options(deterministic=True):
    ...     y = dnn.relu(np.array([-1.0, 2.0]))
    >>> y
    array([0., 2.])
    """

    def __init__(self, **changes: Any) -> None:
        self._changes = _checked("options", changes)

    def __enter__(self) -> Options:
        old = current()
        new = changed_options(old, self._changes)
        _outer.set((*_outer.get(), old))
        CURRENT.set(new)
        return new

    def __exit__(self, *exc: object) -> None:
        *rest, old = _outer.get()
        _outer.set(tuple(rest))
        CURRENT.set(old)


def set_options(**changes: Any) -> Options:
    """Change settings for the rest of this context (this thread, this task) and return those now in force.

    Parameters
    ----------
    **changes
        The names and values of `options`.

    Returns
    -------
    Options
        All settings in force, as attributes.

    Raises
    ------
    OptionError
        A name or a value is not allowed. Nothing is changed then.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> dnn.set_options(workspace_limit="256MB").workspace_limit
    256000000
    >>> dnn.set_options(workspace_limit=None).workspace_limit is None
    True
    """
    new = changed_options(current(), _checked("set_options", changes))
    CURRENT.set(new)
    return new
