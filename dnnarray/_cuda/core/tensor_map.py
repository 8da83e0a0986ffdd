"""Tensor maps as the driver encodes them: 128 bytes in memory of ours that follow the address of their array.

The driver's functions are called as they are: to import all of its bindings takes as long as the rest of a first
convolution."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from typing import Any

from dnnarray._cuda.core.plan import TensorMap
from dnnarray._cuda.core.requirements import driver_library
from dnnarray._errors import DeviceError
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32, INT32

BYTES = 128  # of a map
_TYPES = {INT32: 3, FLOAT16: 6, FLOAT32: 11, BFLOAT16: 9}  # CUtensorMapDataType; float32 is rounded to TF32 on the way
# CU_TENSOR_MAP_INTERLEAVE_NONE, _SWIZZLE_NONE, _32B, _64B or _128B, _L2_PROMOTION_L2_128B or _256B,
# _FLOAT_OOB_FILL_NONE
_HOW = {0: (0, 0, 3, 0), 32: (0, 1, 2, 0), 64: (0, 2, 2, 0), 128: (0, 3, 3, 0)}
_BEGIN = (
    c_void_p,
    c_int,
    c_uint32,
    c_void_p,
    c_void_p,
    c_void_p,
)  # the map, the element's type, axes, address, extents, strides


@lru_cache(maxsize=1)
def _driver() -> CDLL:
    library = driver_library()
    assert library is not None  # CuPy has launched by it
    library.cuTensorMapEncodeTiled.argtypes = (*_BEGIN, c_void_p, c_void_p, *(c_int,) * 4)
    library.cuTensorMapEncodeIm2col.argtypes = (
        *_BEGIN,
        c_void_p,
        c_void_p,
        c_uint32,
        c_uint32,
        c_void_p,
        *(c_int,) * 4,
    )
    library.cuTensorMapReplaceAddress.argtypes = (c_void_p, c_void_p)
    library.cuGetErrorName.argtypes = (c_int, c_void_p)
    return library


class Encoded:
    """A map at a place in memory, for the address that it was last moved to: encoding costs several times what another
    address does."""

    def __init__(self, described: TensorMap, place: int) -> None:
        self._described, self._place = described, place
        self._encoded = False

    def move(self, address: int) -> int:
        """Make the map that of the array at `address`, which is returned."""
        driver = _driver()
        if self._encoded:
            status = driver.cuTensorMapReplaceAddress(self._place, address)
        else:
            status = encode(driver, self._described, self._place, address)
        if status:
            raise DeviceError(f"the driver does not take a tensor map ({_name(driver, status)}).")
        self._encoded = True
        return address


def encode(driver: Any, m: TensorMap, place: int, address: int) -> int:
    """Write the map to `place`; the status of the driver."""
    first = (place, _TYPES[m.dtype], len(m.shape), address, _numbers(c_uint64, m.shape), _numbers(c_uint64, m.strides))
    steps = _numbers(c_uint32, m.steps or (1,) * len(m.shape))
    if m.corners is None:
        return int(driver.cuTensorMapEncodeTiled(*first, _numbers(c_uint32, m.box), steps, *_HOW[m.row]))
    lower, upper = (_numbers(c_int, corner) for corner in m.corners)
    return int(driver.cuTensorMapEncodeIm2col(*first, lower, upper, *m.box, steps, *_HOW[m.row]))


def _numbers(kind: Any, numbers: Sequence[int]) -> Any:
    return (kind * len(numbers))(*numbers)


def _name(driver: Any, status: int) -> str:
    name = c_char_p()
    driver.cuGetErrorName(status, byref(name))
    return (name.value or b"unknown").decode()
