"""What is known of a CUDA device: the facts for selection, and the ceilings measured on cards of its kind."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dnnarray._cuda.core.requirements import OLDEST_CAPABILITY
from dnnarray._errors import DeviceError
from dnnarray._select import Device
from dnnarray._spec import FLOAT64, HALF, name_of

_LAUNCH = 4e-6  # seconds between the host's call and the kernel's end for an empty kernel, as PyTorch and CuPy pay too

# Measured rates of whole GPUs by name (docs/development/findings/launch/device-rates.md). The rates of others are
# estimated from their units and clock.
_MEASURED = {
    "NVIDIA H200": {
        "float32": 50e12,
        "float64": 30e12,
        "tf32_mma": 393e12,
        "bfloat16_mma": 788e12,
        "float16_mma": 788e12,
        "copy": 4.2e12,
    },
}


@lru_cache(maxsize=64)
def facts(index: int) -> Device:
    """The device with this CUDA index."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(index)
    capability = properties["major"], properties["minor"]
    if capability < OLDEST_CAPABILITY:
        raise DeviceError(
            f"device {index} has compute capability {capability[0]}.{capability[1]}; 7.5 or newer is needed. Use "
            "another device "
            "(CUDA_VISIBLE_DEVICES), or the CPU engine with NumPy arrays."
        )
    name = properties["name"].decode()
    units, clock = properties["multiProcessorCount"], properties.get("clockRate", 1_500_000) * 1e3
    rates = dict(_MEASURED.get(name) or _estimated(units, clock, properties))
    bandwidth = rates.pop("copy")
    shared = properties["sharedMemPerBlockOptin"]
    return Device(name, "cuda", units, rates, bandwidth, _LAUNCH, capability, shared, properties["totalGlobalMem"])


def _estimated(units: int, clock: float, properties: dict) -> dict[str, float]:
    """Rates from the data sheet's formula: 128 float32 lanes a multiprocessor, two operations each; memory clock times
    bus width."""
    lanes = units * 128 * 2 * clock
    bus = properties.get("memoryClockRate", 1_000_000) * 1e3 * 2 * properties.get("memoryBusWidth", 256) / 8
    return {
        "float32": lanes,
        "float64": lanes / 32,
        "tf32_mma": lanes * 4,
        "bfloat16_mma": lanes * 8,
        "float16_mma": lanes * 8,
        "copy": 0.85 * bus,
    }


def architecture(device: Device) -> str:
    """What NVRTC compiles for: the exact architecture, with Hopper's own instructions where they exist."""
    major, minor = device.capability or OLDEST_CAPABILITY
    return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")


UNITS = {"highest": None, "high": "tf32_mma", "medium": "bfloat16_mma"}


def unit(dtype: np.dtype, precision: str) -> str | None:
    """The key into `Device.peak` of a matrix product."""
    return f"{name_of(dtype)}_mma" if dtype in HALF else None if dtype == FLOAT64 else UNITS[precision]


@lru_cache(maxsize=1)
def alone() -> bool:
    """Whether a process sees one device only, so that nobody needs to ask where an array is."""
    import cupy

    return bool(cupy.cuda.runtime.getDeviceCount() == 1)
