"""What the CUDA engine needs of a machine, looked at without CuPy: the driver, the device, CuPy, the compiler.

`dnnarray.check` prints what is found here, and a CUDA array that cannot be served raises the first problem as an error.
"""

from __future__ import annotations

import ctypes
import sys
from importlib import metadata
from importlib.util import find_spec

from dnnarray._records import frozen

OLDEST_CAPABILITY = (7, 5)
_OLDEST_DRIVER = 12
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_WHEELS = {"cupy-cuda13x": 13, "cupy-cuda12x": 12, "cupy-cuda11x": 11, "cupy": None}  # CuPy's wheels, each for one CUDA


@frozen
class Finding:
    """One component: whether it will do, what was found, and the command that mends it. What is absent hinders only
    those who want it."""

    name: str
    ok: bool
    found: str
    mend: str = ""
    absent: bool = False


@frozen
class Machine:
    """What the driver tells: the CUDA version it supports, and the compute capability of each device."""

    driver: tuple[int, int]
    devices: tuple[tuple[int, int], ...]


def driver_library() -> ctypes.CDLL | None:
    """The driver's own library; None where there is none."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def machine() -> Machine | None:
    """The driver and its devices; None where there is no driver or it finds no device."""
    driver = driver_library()
    if driver is None:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    if (
        driver.cuInit(0)
        or driver.cuDriverGetVersion(ctypes.byref(version))
        or driver.cuDeviceGetCount(ctypes.byref(count))
        or not count.value
    ):
        return None
    capabilities = tuple((_attribute(driver, _MAJOR, i), _attribute(driver, _MINOR, i)) for i in range(count.value))
    return Machine((version.value // 1000, version.value % 1000 // 10), capabilities)


def _attribute(driver: ctypes.CDLL, attribute: int, index: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, index)
    return value.value


def findings(here: Machine) -> tuple[Finding, ...]:
    """Each component in the order in which the engine needs it."""
    return _driver(here), _devices(here), _cupy(here), _compiler(here)


def _driver(here: Machine) -> Finding:
    found = f"supports CUDA {here.driver[0]}.{here.driver[1]}"
    if here.driver[0] < _OLDEST_DRIVER:
        return Finding(
            "CUDA driver",
            False,
            f"{found}; {_OLDEST_DRIVER}.0 or newer is needed.",
            "Install NVIDIA's driver 525 or newer.",
        )
    return Finding("CUDA driver", True, found)


def _devices(here: Machine) -> Finding:
    named = ", ".join(f"sm_{major}{minor}" for major, minor in here.devices)
    old = [f"device {i} (sm_{c[0]}{c[1]})" for i, c in enumerate(here.devices) if c < OLDEST_CAPABILITY]
    found = f"{len(here.devices)} ({named})"
    if old:
        return Finding(
            "CUDA devices",
            False,
            f"{found}; {', '.join(old)} is older than sm_75, the least that is supported.",
            "Use another device (CUDA_VISIBLE_DEVICES), or the CPU engine with NumPy arrays.",
        )
    return Finding("CUDA devices", True, found)


def extra(here: Machine) -> str:
    """The extra of this package that fits the driver."""
    return "cuda13" if here.driver >= (13, 0) else "cuda12"


def _cupy(here: Machine) -> Finding:
    installed = {name: version for name in _WHEELS if (version := version_of(name))}
    mend = f"pip install 'dnnarray[{extra(here)}]'."
    if not installed:
        return Finding("CuPy", False, "not installed: the CPU engine only. For arrays on the device:", mend, True)
    found = ", ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) > 1:
        others = " ".join(name for name in installed if _WHEELS[name] != here.driver[0])
        return Finding(
            "CuPy", False, f"{found}: several at once overwrite each other.", f"pip uninstall {others}, then {mend}"
        )
    (name,) = installed
    built = _WHEELS[name]
    if built is not None and (built > here.driver[0] or built < _OLDEST_DRIVER):
        text = f"{found} is made for CUDA {built}, and the driver supports CUDA {here.driver[0]}.{here.driver[1]}."
        return Finding("CuPy", False, text, f"pip uninstall {name}, then {mend}")
    return Finding("CuPy", True, found)


def _compiler(here: Machine) -> Finding:
    """NVRTC through cuda-bindings: what compiles the kernels at their first use."""
    mend = f"pip install 'dnnarray[{extra(here)}]'."
    bindings = version_of("cuda-bindings")
    if bindings is None or find_spec("cuda.bindings") is None:
        return Finding(
            "NVRTC", False, "cuda-bindings is not installed, and kernels cannot be compiled without it:", mend, True
        )
    if int(bindings.partition(".")[0]) > here.driver[0]:
        text = (
            f"cuda-bindings {bindings} is newer than the driver, which supports CUDA {here.driver[0]}.{here.driver[1]}."
        )
        return Finding("NVRTC", False, text, mend)
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        return Finding("NVRTC", False, f"does not load ({type(error).__name__}: {error}).", mend)
    return Finding("NVRTC", True, f"{major}.{minor} (cuda-bindings {bindings})")


def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def problem() -> str:
    """What is wrong first, with the way to mend it; empty where everything is well."""
    here = machine()
    if here is None:
        return "there is no CUDA driver with a device on this machine. Install NVIDIA's driver, or use NumPy arrays."
    return next((f"{item.name}: {item.found} {item.mend}" for item in findings(here) if not item.ok), "")
