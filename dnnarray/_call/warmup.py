"""`warmup`: compile ahead of the first call."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

from dnnarray._call.operation import find, operations
from dnnarray._errors import DTypeError, closest, fail
from dnnarray._spec import FLOAT64, FLOATING, as_dtype, name_of

_BAR = 24  # characters
_PAUSE = 5.0  # seconds between two lines of a log that nobody asked for


def warmup(*ops: Any, dtypes: Any = ("float32",), progress: bool | None = None) -> int:
    """Compile what the CPU engine has for these operations, and wait for it; later processes load it from disk.

    Without a warm-up the first large call starts the compiler in the background, and NumPy gives the answers until it
    is done. Here one process for each core compiles. Where Numba is not installed there is nothing to compile.

    Parameters
    ----------
    *ops : callable or str
        Public functions of dnnarray, or their names; none stands for all.
    dtypes : dtype or iterable of dtype, optional
        What the arrays will be of, by default float32. The half types compute in float32.
    progress : bool, optional
        Whether to show the progress on the standard error. On a terminal it is a bar, elsewhere (in a log) a line for
        each algorithm; with None (the default) a log gets a line every five seconds.

    Returns
    -------
    int
        How many algorithms are compiled now and can run.

    Raises
    ------
    OptionError
        One of `ops` is no operation.
    DTypeError
        One of `dtypes` is no floating dtype.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> dnn.warmup("one_hot")
    0
    """
    from dnnarray._cpu import compiled, engine

    chosen = [find(op) for op in ops] or list(operations().values())
    several = isinstance(dtypes, Iterable) and not isinstance(dtypes, str)
    arithmetic = {_arithmetic(dtype) for dtype in (dtypes if several else (dtypes,))}
    units = compiled.units([engine.methods(op) for op in chosen], sorted(arithmetic))
    if progress is False:
        return compiled.build(units)
    if not sys.stderr.isatty():
        return compiled.build(units, _Log(0.0 if progress else _PAUSE))
    if units:
        _draw(0, len(units), "")
    return compiled.build(units, _draw)


def _arithmetic(dtype: Any) -> str:
    try:
        found = as_dtype(dtype)
    except DTypeError:
        found = None
    if found not in FLOATING:
        fail(
            DTypeError,
            "warmup",
            "dtypes",
            repr(dtype),
            "float64, float32, float16 or bfloat16",
            closest(dtype, map(name_of, FLOATING)),
        )
    return "float64" if found == FLOAT64 else "float32"


class _Log:
    """Lines with at least so many seconds between two of them, and one at the end where there were others."""

    def __init__(self, pause: float) -> None:
        self._pause, self._last, self._begun = pause, time.monotonic(), not pause

    def __call__(self, done: int, total: int, outcome: str) -> None:
        now = time.monotonic()
        if self._begun if done == total else now - self._last >= self._pause:
            self._last, self._begun = now, True
            print(f"dnnarray: compiling {done}/{total} {outcome}", file=sys.stderr, flush=True)


def _draw(done: int, total: int, outcome: str) -> None:
    full = _BAR * done // max(total, 1)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rcompiling [{'#' * full}{'.' * (_BAR - full)}] {done}/{total} {outcome[:40]:40}{end}")
    sys.stderr.flush()
