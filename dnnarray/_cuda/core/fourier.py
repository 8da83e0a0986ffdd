"""Fourier transforms by cuFFT: a `Transform` of a plan as a call that takes the pointers of one call.

CuPy brings the library, but its plans own the memory that they work in; here that is part of the scratch memory, so the
library is called directly."""

from __future__ import annotations

import weakref
from ctypes import CDLL, byref, c_int, c_longlong, c_size_t, c_void_p
from functools import lru_cache
from threading import Lock
from typing import Any

from dnnarray._cuda.core.plan import Transform
from dnnarray._cuda.core.requirements import machine
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
            None
            if machine() is None
            else "cuFFT is not installed: pip install 'cupy-cuda13x[ctk]' (or the wheel of your CUDA) brings it"
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
            c_int,
            c_int,
            c_void_p,
            c_void_p,
            c_longlong,
            c_longlong,
            c_void_p,
            c_longlong,
            c_longlong,
            c_int,
            c_longlong,
            c_void_p,
        ]
        for function in (library.cufftExecR2C, library.cufftExecC2R):
            function.argtypes = [c_int, c_void_p, c_void_p]
        library.cufftSetStream.argtypes = library.cufftSetWorkArea.argtypes = [c_int, c_void_p]
        return library
    raise DeviceError(f"cuFFT was loaded by CuPy under none of the names {', '.join(_NAMES)}.")


def _checked(status: int) -> None:
    if status:
        raise DeviceError(f"a Fourier transform failed: cuFFT gave status {status}.")


class _Batch:
    """The library's plan of a batch of transforms, for one device: any number of steps may share it."""

    def __init__(self, lengths: tuple[int, ...], batch: int, inverse: bool) -> None:
        self.library, self.handle, size = _library(), c_int(), c_size_t()
        _checked(self.library.cufftCreate(byref(self.handle)))
        weakref.finalize(self, self.library.cufftDestroy, self.handle)
        _checked(self.library.cufftSetAutoAllocation(self.handle, 0))
        extents, kind = (c_longlong * len(lengths))(*lengths), _C2R if inverse else _R2C
        _checked(
            self.library.cufftMakePlanMany64(
                self.handle, len(lengths), extents, None, 1, 0, None, 1, 0, kind, batch, byref(size)
            )
        )
        self.work_bytes = size.value
        self.run = self.library.cufftExecC2R if inverse else self.library.cufftExecR2C
        self.lock = Lock()  # the plan holds stream and memory of one call at a time


@lru_cache(maxsize=256)
def _batch(device: int, lengths: tuple[int, ...], batch: int, inverse: bool) -> _Batch:
    return _Batch(lengths, batch, inverse)


class Fourier:
    """One planned batch of transforms."""

    def __init__(self, plan: Transform) -> None:
        import cupy

        self._places = tuple((a.index, a.offset) for a in plan.arrays)
        self._batch = _batch(cupy.cuda.runtime.getDevice(), plan.lengths, plan.batch, plan.inverse)
        # Where the library asks for more than the plan has foreseen: kept as long as the plan.
        needed = self._batch.work_bytes
        self._own = cupy.ndarray((needed,), "uint8") if needed > plan.work_bytes else None

    def __call__(self, stream: int, pointers: Any, extra: int) -> None:
        """Queue the transforms."""
        batch, (source, target, work) = self._batch, (pointers[index] + offset for index, offset in self._places)
        with batch.lock:
            _checked(batch.library.cufftSetStream(batch.handle, stream))
            _checked(batch.library.cufftSetWorkArea(batch.handle, work if self._own is None else self._own.data.ptr))
            _checked(batch.run(batch.handle, source, target))
