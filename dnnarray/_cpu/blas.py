"""The thread count of the BLAS behind NumPy: read, so that ours follows it (and threadpoolctl), and held at one inside our own threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

# OpenBLAS as NumPy's wheels name it, with 64- and 32-bit integers, and as distributions build it; each once to read and once to write.
_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
_lock = threading.Lock()
_inside = 0  # regions that hold the BLAS at one thread now
_outside = 0  # what it is set to again at the end of the last of them


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """(get, set), or None where NumPy's BLAS is another one. Loading NumPy's own extension again finds the BLAS among what it is linked to."""
    try:
        library = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        get, put = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if get is not None and put is not None:
            get.restype, get.argtypes = ctypes.c_int, ()
            put.restype, put.argtypes = None, (ctypes.c_int,)
            return get, put
    return None


def threads() -> int | None:
    """How many threads a matrix product takes outside of our regions; None where the BLAS does not say."""
    if _inside:
        return _outside
    functions = _functions()
    return None if functions is None else functions[0]()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Matrix products take one thread inside: for work that is itself spread over threads. Regions may overlap; the last one to end sets it back."""
    functions = _functions()
    if functions is None:
        yield
        return
    _enter(*functions)
    try:
        yield
    finally:
        _leave(functions[1])


def _enter(get: Callable[[], int], put: Callable[[int], Any]) -> None:
    global _inside, _outside
    with _lock:
        if not _inside:
            _outside = get()
            if _outside != 1:
                put(1)
        _inside += 1


def _leave(put: Callable[[int], Any]) -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside and _outside != 1:
            put(_outside)
