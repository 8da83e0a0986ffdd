"""`show_versions` and `check`: what is installed, and what keeps it from being right or fast."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

import numpy as np

from dnnarray import _cache
from dnnarray._cpu.engine import device
from dnnarray._records import frozen

_REQUIRED = {"numpy": (2, 1), "ml-dtypes": (0, 5)}
_PACKAGES = ("ml-dtypes", "array-api-compat")
_OPTIONAL = ("torch", "jax")
_CUPY = ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x")  # one library under the names of its wheels
_THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")

# The vector instructions that OpenBLAS uses on a core of this name (OPENBLAS_CORETYPE, lower case): 1 SSE, 2 AVX, 3
# AVX2, 4 AVX-512.
_CORE_LEVELS = {
    **dict.fromkeys(
        ("katmai", "coppermine", "northwood", "prescott", "banias", "atom", "core2", "penryn", "dunnington", "nehalem"),
        1,
    ),
    **dict.fromkeys(("athlon", "opteron", "opteron_sse3", "barcelona", "bobcat", "nano"), 1),
    **dict.fromkeys(("sandybridge", "bulldozer", "piledriver", "steamroller", "excavator"), 2),
    **dict.fromkeys(("haswell", "zen"), 3),
    **dict.fromkeys(("skylakex", "cooperlake", "sapphirerapids"), 4),
}
_LEVEL_NAMES = {1: "SSE", 2: "AVX", 3: "AVX2", 4: "AVX-512"}
# What NumPy calls the instruction sets of each level, in its different versions.
_FEATURES = {4: {"AVX512_SKX", "X86_V4"}, 3: {"AVX2", "X86_V3"}, 2: {"AVX"}}


@frozen
class Item:
    """One line of a report: what was looked at, whether it is well, what was found, how to mend it."""

    name: str
    ok: bool
    found: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{'ok     ' if self.ok else 'PROBLEM'}  {self.name}: {self.found}" + (
            f" {self.mend}" if self.mend else ""
        )


@frozen
class Report:
    """What `check` found.

    Attributes
    ----------
    items : tuple of Item
        One entry for each thing looked at: ``name``, ``ok``, ``found`` and ``mend``, what to do about it.
    """

    items: tuple[Item, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return all(item.ok for item in self.items)

    def __str__(self) -> str:
        return "\n".join(map(str, self.items))

    __repr__ = __str__


def show_versions() -> None:
    """Print the versions of dnnarray, of what it stands on, and of the libraries it can work with.

    For bug reports. Optional libraries are looked up, not imported.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> dnn.show_versions()
    dnnarray ...
    Python ...
    """
    from dnnarray import __version__

    rows = [
        ("dnnarray", __version__),
        ("Python", platform.python_version()),
        ("platform", platform.platform()),
        ("processor", device().name),
        ("numpy", f"{np.__version__} ({_blas()})"),
        *((name, _version(name) or "not installed") for name in _PACKAGES),
        ("cupy", _cupy() or "not installed"),
        *((name, _version(name) or "not installed") for name in _OPTIONAL),
        (
            "numba",
            _version("numba") or "not installed: pip install 'dnnarray[cpu]' brings compiled kernels for the CPU",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name.ljust(width)}  {text}")


def check() -> Report:
    """Look for what keeps dnnarray from running right or fast on this machine, and say how to mend it.

    Looked at are the versions of NumPy and ml_dtypes, the kind of processor that OpenBLAS is told to work for, the
    number of threads, the caches on disk, and on a machine with a CUDA device its driver, the devices, CuPy and the
    compiler of the kernels. A machine without a CUDA device, or without CuPy, is no problem: the CPU engine does the
    work.

    Returns
    -------
    Report
        Prints as a table; ``ok`` tells whether there is no problem, ``items`` holds the lines.

    Examples
    --------
    >>> import dnnarray as dnn
    >>> report = dnn.check()
    >>> [item.name for item in report.items]
    ['numpy', 'ml-dtypes', 'BLAS core type', 'threads', 'Numba', 'matrix unit', 'cache', 'CUDA']
    """
    versions = (_check_version(name, least) for name, least in _REQUIRED.items())
    machine = _check_core_type(), _check_threads(), _check_numba(), _check_matrix_unit()
    return Report((*versions, *machine, _check_cache(), *_check_cuda()))


def _version(package: str) -> str | None:
    from importlib import metadata  # 15 ms, which `import dnnarray` should not pay

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cupy() -> str | None:
    return next((f"{version} ({name})" for name in _CUPY if (version := _version(name))), None)


def _numpy_config() -> dict[str, Any]:
    return np.show_config(mode="dicts")  # type: ignore[return-value]  # a dict in this mode


def _blas() -> str:
    blas = _numpy_config().get("Build Dependencies", {}).get("blas", {})
    return f"BLAS: {blas.get('name', 'unknown')} {blas.get('version', '')}".rstrip()


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:2])


def _check_version(name: str, least: tuple[int, int]) -> Item:
    found, wanted = _version(name), ".".join(map(str, least))
    if found is None:
        return Item(name, False, "not installed.", f"pip install '{name}>={wanted}'.")
    if _numbers(found) < least:
        return Item(name, False, f"{found}, older than {wanted}.", f"pip install --upgrade '{name}>={wanted}'.")
    return Item(name, True, found)


def _processor_level() -> int:
    """The widest vector instructions of this processor, as a level of `_CORE_LEVELS`; 0 if it is no x86."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return 0
    extensions = _numpy_config().get("SIMD Extensions", {})
    found = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    return next((level for level, names in _FEATURES.items() if found & names), 1)


def _check_core_type() -> Item:
    """OpenBLAS works for the core it is told of, even where the processor can do far more."""
    name, told = "BLAS core type", os.environ.get("OPENBLAS_CORETYPE", "")
    level, limit = _processor_level(), _CORE_LEVELS.get(told.lower())
    if not told:
        return Item(name, True, "chosen by the BLAS itself")
    if limit is not None and limit < level:
        found = (
            f"OPENBLAS_CORETYPE={told} keeps matrix products to {_LEVEL_NAMES[limit]} on a processor with "
            f"{_LEVEL_NAMES[level]}."
        )
        return Item(name, False, found, "Unset OPENBLAS_CORETYPE before Python starts.")
    return Item(name, True, f"OPENBLAS_CORETYPE={told}")


def _check_threads() -> Item:
    cores = device().units
    limits = {name: os.environ[name] for name in _THREAD_LIMITS if os.environ.get(name)}
    found = f"{cores} cores" + "".join(f", {name}={value}" for name, value in limits.items())
    over = [name for name, value in limits.items() if value.isdigit() and int(value) > cores]
    if over:
        return Item(
            "threads", False, f"{found}: more threads than cores.", f"Unset {' and '.join(over)}, or set {cores}."
        )
    return Item("threads", True, found)


_NUMBA_BRINGS = "Norms, activations, softmax, losses and pooling on the CPU take 2 to 20 times longer without it."


def _check_numba() -> Item:
    """Numba is no requirement, so that its absence is no problem; one that is there and cannot be imported is."""
    from dnnarray._cpu.compiled import compiler

    if (reason := compiler.missing()) == compiler.NOT_INSTALLED:
        return Item(
            "Numba",
            True,
            f"not installed: NumPy does the work. {_NUMBA_BRINGS}",
            "pip install 'dnnarray[cpu]' brings it.",
        )
    if reason == compiler.SWITCHED_OFF:
        return Item("Numba", True, f"{reason}: NumPy does the work. {_NUMBA_BRINGS}")
    if reason is None:
        reason = compiler.import_numba()
    if reason is not None:
        return Item("Numba", False, f"{reason}. {_NUMBA_BRINGS}", "pip install --upgrade 'dnnarray[cpu]'.")
    return Item("Numba", True, str(_version("numba")))


def _check_matrix_unit() -> Item:
    """Most processors have none, which is no problem."""
    from dnnarray._cpu import matrix_unit
    from dnnarray._cpu.compiled import compiler

    reason = compiler.missing() or matrix_unit.missing()
    return Item(
        "matrix unit", True, "used for products of float32 (Intel AMX)" if reason is None else f"not used: {reason}"
    )


def _check_cache() -> Item:
    """What lies on disk, and what of it is not used. A cache that is not there is no problem."""
    base = _cache.folder()
    found = [survey for kind in _cache.KINDS for survey in _cache.survey(kind)]
    looked_at = base, *base.glob("tuning_*.json")
    refused = [f"{path} {reason}" for path in looked_at if (reason := _cache.refusal(path)) is not None]
    text = "; ".join([*map(str, found), *refused]) or f"{base}: empty"
    if refused or any(survey.refused for survey in found):
        mend = "Take away what is not yours, and chmod go-w the rest."
        return Item("cache", False, f"{text}. What others own or can write is not used.", mend)
    if any(survey.damaged for survey in found):
        mend = "python -m dnnarray cache clear removes them."
        return Item("cache", False, f"{text}. They are made anew when they are wanted.", mend)
    return Item("cache", True, text)


def _check_cuda() -> tuple[Item, ...]:
    from dnnarray._cuda.core import requirements  # looks at the driver, which `import dnnarray` should not do

    here = requirements.machine()
    if here is None:
        return (Item("CUDA", True, "no CUDA device: CPU engine only"),)
    return tuple(Item(f.name, f.ok or f.absent, f.found, f.mend) for f in requirements.findings(here))
