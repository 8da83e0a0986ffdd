"""Launches that begin while the kernel before them ends (programmatic dependent launch), which CuPy has no call for.

Between two kernels of a stream the device idles for a microsecond or two: the second is fetched when the first has
ended. With this attribute the driver sends it as soon as every block of the first has called `let_next_kernel_begin`
(or has ended), and the second calls `after_previous_kernel` before it reads what the first has written
(``overlap.cuh``). A CUDA graph keeps that order of the two."""

from __future__ import annotations

from ctypes import POINTER, Structure, byref, c_char, c_int, c_uint, c_void_p, pointer
from functools import lru_cache
from typing import Any

import cupy

from dnnarray._cuda.core.plan import Plan
from dnnarray._cuda.core.requirements import driver_library

_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_LEAST = 90  # compute capability
_STREAMS = 64  # that a launch is remembered for


class _Attribute(Structure):
    """``CUlaunchAttribute``, whose value is a union of 64 bytes."""

    _fields_ = (("id", c_int), ("_pad", c_char * 4), ("value", c_int), ("_rest", c_char * 60))


class _Config(Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_memory")),
        ("stream", c_void_p),
        ("attributes", POINTER(_Attribute)),
        ("count", c_uint),
    )


@lru_cache(maxsize=1)
def send() -> Any:
    """``cuLaunchKernelEx``, which takes a description, the kernel, the address of the arguments' addresses, each as a
    `reference`, and None; None where the driver is older."""
    return getattr(driver_library(), "cuLaunchKernelEx", None)


def reference(address: int) -> Any:
    """An address as ctypes hands it on at once; it takes longer to convert three numbers than for all else."""
    return byref(c_char.from_address(address))


def possible() -> bool:
    """Whether the current device and its driver can."""
    return int(cupy.cuda.Device().compute_capability) >= _LEAST and send() is not None


class Described:
    """What the driver is told of a launch, by stream. The call in between, which writes none of it, may be any
    thread's."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.known: dict[
            int, Any
        ] = {}  # no class of its own with a `__missing__`: the interpreter looks up faster in a plain one

    def describe(self, stream: int) -> Any:
        """What stands in `known` from now on, unless that is full."""
        attribute = _Attribute(id=_SERIALIZATION, value=1)
        found = byref(
            _Config(*self._plan.grid, self._plan.block, 1, 1, self._plan.shared_memory, stream, pointer(attribute), 1)
        )
        if len(self.known) < _STREAMS:
            self.known[stream] = found
        return found
