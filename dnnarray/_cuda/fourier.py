"""Fourier transforms by cuFFT: a `Transform` of a plan as a call that takes the pointers of one call.

CuPy brings the library, but its plans own the memory that they work in; here that is part of the scratch memory, so the library is called directly.
"""

from __future__ import annotations

import weakref
from ctypes import CDLL, byref, c_int, c_longlong, c_size_t, c_void_p
from functools import lru_cache
from threading import Lock
from typing import Any

from dnnarray._cuda.plan import Transform
from dnnarray._cuda.requirements import machine
from dnnarray._errors import DeviceError

_R2C, _C2R = 0x2A, 0x2C  # cufftType
_NAMES = ("libcufft.so.12", "libcufft.so.11", "cufft64_12.dll", "cufft64_11.dll")


@lru_cache(maxsize=1)
def missing() -> str | None:
    """Why there is no cuFFT, or None; where there is no device, nothing is missing."""
    try:
        _library()
    except (ImportError, DeviceError):
        return (
            None if machine() is None else "cuFFT is not installed: pip install 'cupy-cuda13x[ctk]' (or the wheel of your CUDA) brings it"
        )
    return None


@lru_cache(maxsize=1)
def _library() -> Any:
    from cupy.cuda import cufft  # noqa: F401 - loads the library that fits

    for name in _NAMES:
        try:
            library = CDLL(name)
        except OSError:
            continue
        library.cufftMakePlanMany64.argtypes = [
            c_int, c_int, c_void_p, c_void_p, c_longlong, c_longlong, c_void_p, c_longlong, c_longlong, c_int, c_longlong, c_void_p,
        ]  # fmt: skip
        for function in (library.cufftExecR2C, library.cufftExecC2R):
            function.argtypes = [c_int, c_void_p, c_void_p]
        library.cufftSetStream.argtypes = library.cufftSetWorkArea.argtypes = [c_int, c_void_p]
        return library
    raise DeviceError(f"cuFFT was loaded by CuPy under none of the names {', '.join(_NAMES)}.")


def _checked(status: int) -> None:
    if status:
        raise DeviceError(f"a Fourier transform failed: cuFFT gave status {status}.")


class Fourier:
    """One planned batch of transforms."""

    def __init__(self, plan: Transform) -> None:
        self._places = tuple((a.index, a.offset) for a in (plan.source, plan.target, plan.work))
        library, handle, size = _library(), c_int(), c_size_t()
        _checked(library.cufftCreate(byref(handle)))
        weakref.finalize(self, library.cufftDestroy, handle)
        _checked(library.cufftSetAutoAllocation(handle, 0))
        lengths, kind = (c_longlong * len(plan.lengths))(*plan.lengths), _C2R if plan.inverse else _R2C
        _checked(library.cufftMakePlanMany64(handle, len(lengths), lengths, None, 1, 0, None, 1, 0, kind, plan.batch, byref(size)))
        self._own = _own_memory(size.value) if size.value > plan.work_bytes else None
        self._library, self._handle = library, handle
        self._run = library.cufftExecC2R if plan.inverse else library.cufftExecR2C
        self._lock = Lock()  # the handle holds stream and memory of one call at a time

    def __call__(self, stream: int, pointers: Any, extra: int) -> None:
        """Queue the transforms."""
        source, target, work = (pointers[index] + offset for index, offset in self._places)
        with self._lock:
            _checked(self._library.cufftSetStream(self._handle, stream))
            _checked(self._library.cufftSetWorkArea(self._handle, self._own.data.ptr if self._own is not None else work))
            _checked(self._run(self._handle, source, target))


def _own_memory(size: int) -> Any:
    """What the library works in where it asks for more than a plan has foreseen: kept as long as the plan."""
    import cupy

    return cupy.ndarray((size,), "uint8")
