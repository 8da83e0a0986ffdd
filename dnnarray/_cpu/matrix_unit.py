"""Whether this processor's matrix unit (AMX, tiles of bfloat16) may be used. Imports no Numba."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from functools import lru_cache
from pathlib import Path

from dnnarray._spec import FLOAT32

SUMMARY = "float32 in three pieces of bfloat16, multiplied by the processor's matrix unit (AMX)"
PRECISION = "highest"  # three pieces hold all bits of a float32, and the sums are short
DEPTH = 32  # of a tile, in steps
_SIDE = 16
_EFFICIENCY = 1.7  # of products of split matrices, where those of float32 vectors have about 1
_SPLITTING = 70  # operations that splitting an element is worth
_SUM = 8  # that writing a sum is
_FEATURES = "amx_tile", "amx_bf16"
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = (
    158,
    0x1023,
    18,
)  # of Linux on x86-64: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)


def missing() -> str | None:
    """Why the unit cannot be used in this process, or None."""
    named = any(name in os.environ for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"))
    if named and "+amx-bf16" not in os.environ.get("NUMBA_CPU_FEATURES", ""):
        return "the processor that NUMBA_CPU_NAME or NUMBA_CPU_FEATURES names has no matrix unit (amx-bf16)"
    return _found()


def refuses(dtype: str) -> str | None:
    """Why arithmetic in this dtype is not for the unit, or None."""
    return missing() if dtype == FLOAT32.name else f"{dtype}: the matrix unit multiplies float32 in pieces"


def tile_flops(rows: int, columns: int, depth: int) -> float:
    """What the products of whole tiles are worth, in operations of float32 vectors."""
    rows, columns, depth = (-(-size // side) * side for size, side in ((rows, _SIDE), (columns, _SIDE), (depth, DEPTH)))
    return 2 * rows * columns * depth / _EFFICIENCY


def product_flops(rows: int, columns: int, depth: int) -> float:
    """What a product of two matrices is worth, splitting both of them included."""
    return tile_flops(rows, columns, depth) + _SPLITTING * (rows + columns) * depth + _SUM * rows * columns


@lru_cache(maxsize=1)
def _found() -> str | None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the matrix unit (amx-bf16) is used on x86-64 under Linux alone"
    if not set(_FEATURES) <= _flags():
        return "this processor has no matrix unit (amx-bf16)"
    if ctypes.CDLL(None, use_errno=True).syscall(
        _ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA
    ):  # a process asks once, for all its threads
        return f"the system does not let this process use the matrix unit ({os.strerror(ctypes.get_errno())})"
    return None


def _flags() -> set[str]:
    """What the system says the first processor has."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            return next((set(line.split()) for line in lines if line.startswith("flags")), set())
    except OSError:
        return set()
