"""Tensor maps as the driver encodes them: 128 bytes in memory of ours that follow the address of their array."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

from dnnarray._cuda.plan import TensorMap
from dnnarray._errors import DeviceError
from dnnarray._spec import BFLOAT16, FLOAT16, FLOAT32

BYTES = 128  # of a map
_TYPES = {
    FLOAT32: "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
    FLOAT16: "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    BFLOAT16: "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
}


@lru_cache(maxsize=1)
def _driver() -> Any:
    from cuda.bindings import driver

    return driver


class Encoded:
    """A map at a place in memory, for the address that it was last moved to: encoding costs several times what another address does."""

    def __init__(self, described: TensorMap, place: int) -> None:
        self._described, self._place = described, place
        self._map: Any = None

    def move(self, address: int) -> int:
        """Make the map that of the array at `address`, which is returned."""
        driver = _driver()
        if self._map is None:
            found = _checked(*encode(driver, self._described, address))
            ctypes.memmove(self._place, found.getPtr(), BYTES)
            self._map = driver.CUtensorMap(_ptr=self._place)
        else:
            (status,) = driver.cuTensorMapReplaceAddress(self._map, address)
            _checked(status, None)
        return address


def encode(driver: Any, m: TensorMap, address: int) -> tuple[Any, Any]:
    """(status, map) of the driver."""
    kind = getattr(driver.CUtensorMapDataType, _TYPES[m.dtype])
    shape, strides = [driver.cuuint64_t(n) for n in m.shape], [driver.cuuint64_t(n) for n in m.strides]
    steps = [driver.cuuint32_t(n) for n in m.steps or (1,) * len(m.shape)]
    how = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if m.corners is None:
        box = [driver.cuuint32_t(n) for n in m.box]
        return driver.cuTensorMapEncodeTiled(kind, len(shape), address, shape, strides, box, steps, *how)
    lower, upper = map(list, m.corners)
    return driver.cuTensorMapEncodeIm2col(kind, len(shape), address, shape, strides, lower, upper, *m.box, steps, *how)


def _checked(status: Any, found: Any) -> Any:
    if int(status):
        raise DeviceError(f"the driver does not take a tensor map ({status.name}).")
    return found
