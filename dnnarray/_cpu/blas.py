"""The BLAS behind NumPy: its thread count, read so that ours follows it (and threadpoolctl), and held at one inside our
calls; products that are added."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

# OpenBLAS as NumPy's wheels name it, with 64- and 32-bit integers, and as distributions build it; each once to read and
# once to write.
_NAMES = (
    "scipy_openblas_{}_num_threads64_",
    "scipy_openblas_{}_num_threads",
    "openblas_{}_num_threads64_",
    "openblas_{}_num_threads",
)
_PRODUCTS = (
    ("scipy_cblas_sgemm64_", ctypes.c_int64),
    ("cblas_sgemm64_", ctypes.c_int64),
    ("cblas_sgemm", ctypes.c_int),
)  # and their integers
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112
_lock = threading.Lock()
_inside = 0  # regions that hold the BLAS at one thread now
_outside = 0  # what it is set to again at the end of the last of them


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    """Loading NumPy's own extension again finds the BLAS among what it is linked to."""
    try:
        return ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return None


@lru_cache(maxsize=1)
def _functions() -> tuple[Callable[[], int], Callable[[int], Any]] | None:
    """(get, set), or None where NumPy's BLAS is another one."""
    library = _library()
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


class _SingleThreaded:
    """A context in which matrix products take one thread. Contexts may overlap, also those of several threads; the last
    one to end sets the number back."""

    def __enter__(self) -> None:
        global _inside, _outside
        if (functions := _functions()) is None:
            return
        get, put = functions
        with _lock:
            if not _inside:
                _outside = get()
                if _outside != 1:
                    put(1)
            _inside += 1

    def __exit__(self, *error: object) -> None:
        global _inside
        if (functions := _functions()) is None:
            return
        with _lock:
            _inside -= 1
            if not _inside and _outside != 1:
                functions[1](_outside)


single_threaded = _SingleThreaded()


def _forget_regions() -> None:
    """A forked child has none of the threads that were inside, and may have met the lock in the hands of one."""
    global _lock, _inside
    _lock = threading.Lock()
    if _inside and (functions := _functions()) is not None:
        functions[1](_outside)
    _inside = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_regions)


# --- products that are added ------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _sgemm() -> Callable[..., None] | None:
    """``cblas_sgemm``, or None where it is not found."""
    library = _library()
    for name, integer in _PRODUCTS:
        function = getattr(library, name, None)
        if function is not None:
            number, pointer = ctypes.c_float, ctypes.c_void_p
            three = (integer,) * 3
            function.argtypes = (
                (ctypes.c_int,) * 3 + three + (number, pointer, integer, pointer, integer, number, pointer, integer)
            )
            function.restype = None
            return function
    return None


def _lying(a: np.ndarray) -> tuple[int, int] | None:
    """How a matrix lies for the BLAS, and the elements from row to row (from column to column of one that is
    transposed); None where it cannot say so."""
    (rows, columns), (down, along), size = a.shape, a.strides, a.itemsize
    if along == size and down % size == 0 and down >= columns * size:
        return _AS_IT_IS, down // size
    if down == size and along % size == 0 and along >= rows * size:
        return _TRANSPOSED, along // size
    return None


def taken(a: np.ndarray) -> np.ndarray:
    """The matrix in memory that the BLAS can take; a reversed one is copied, as `numpy.matmul` copies it too."""
    return a if _lying(a) is not None else np.ascontiguousarray(a)


def can_add(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> bool:
    """Whether `add_product` does it: float32 matrices whose memory the BLAS can take."""
    if not (a.dtype == b.dtype == out.dtype == np.float32 and a.ndim == b.ndim == out.ndim == 2) or _sgemm() is None:
        return False
    of_out = _lying(out)
    return _lying(a) is not None and _lying(b) is not None and of_out is not None and of_out[0] == _AS_IT_IS


def add_product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """out += a @ b, in place of a product of its own and a pass that adds it."""
    function, of_a, of_b, of_out = _sgemm(), _lying(a), _lying(b), _lying(out)
    assert function is not None
    assert of_a is not None
    assert of_b is not None
    assert of_out is not None
    (m, k), n = a.shape, b.shape[1]
    function(
        _ROW_MAJOR,
        of_a[0],
        of_b[0],
        m,
        n,
        k,
        1.0,
        a.ctypes.data,
        of_a[1],
        b.ctypes.data,
        of_b[1],
        1.0,
        out.ctypes.data,
        of_out[1],
    )
