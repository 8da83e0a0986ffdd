"""`warmup`: compile ahead of the first call."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from dnnarray._errors import DTypeError, fail
from dnnarray._operation import find, operations
from dnnarray._spec import FLOAT64, FLOATING, as_dtype

_BAR = 24  # characters


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
        Tell on the standard error how far it is: by a bar on a terminal, elsewhere (a log) by a line for each algorithm.
        None (the default) does so on a terminal alone; ``python -m dnnarray warmup`` does so everywhere.

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
    terminal = sys.stderr.isatty()
    if not (terminal if progress is None else progress):
        return compiled.build(units)
    if terminal and units:
        _draw(0, len(units), "")
    return compiled.build(units, _draw if terminal else _log)


def _arithmetic(dtype: Any) -> str:
    try:
        found = as_dtype(dtype)
    except DTypeError:
        found = None
    if found not in FLOATING:
        fail(DTypeError, "warmup", "dtypes", repr(dtype), "float64, float32, float16 or bfloat16")
    return "float64" if found == FLOAT64 else "float32"


def _log(done: int, total: int, name: str) -> None:
    print(f"dnnarray: compiled {done}/{total} {name}", file=sys.stderr, flush=True)


def _draw(done: int, total: int, name: str) -> None:
    full = _BAR * done // max(total, 1)
    end = "\n" if done == total else ""
    sys.stderr.write(f"\rcompiling [{'#' * full}{'.' * (_BAR - full)}] {done}/{total} {name[:40]:40}{end}")
    sys.stderr.flush()
