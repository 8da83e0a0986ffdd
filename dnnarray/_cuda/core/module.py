"""Plan -> loaded kernel: digest, exact architecture, compile by NVRTC, cache on disk. The only file that knows where
kernels/ lies.

CuPy's own compile appends ``-arch=sm_90`` and its cache does not see our headers, so both are done here: the cubin's
name is a digest of the generated source, every file it includes, the options, the architecture and the version of the
compiler's package."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from dnnarray import _cache
from dnnarray._cuda.core.plan import Kernel
from dnnarray._cuda.core.requirements import problem, version_of
from dnnarray._errors import DeviceError

_OPTIONS = ("--std=c++17", "-default-device", "--fmad=true", "--extra-device-vectorization")
_SERIALISED = re.compile(r"C75\d\d")
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
_LONGEST_NAME = 120  # characters of a symbol in a file name, which file systems limit
_lock = threading.Lock()
_loaded: dict[tuple[int, Kernel], Any] = {}


def kernels_folder() -> Path:
    """The kernel sources: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[2]
    for candidate in (package / "_kernels", package.parent / "kernels"):
        if candidate.is_dir():
            return candidate
    raise DeviceError(
        f"the kernel sources are missing (looked for {package / '_kernels'}). Install dnnarray again: pip install "
        "--force-reinstall dnnarray"
    )


@lru_cache(maxsize=1024)
def _source(name: str) -> bytes:
    """A file of the kernels folder; the vocabulary is found under ``include/`` too, as the compiler finds it."""
    root = kernels_folder()
    path = root / name
    return (path if path.exists() else root / "include" / name).read_bytes()


@lru_cache(maxsize=1024)
def _reachable(name: str) -> tuple[str, ...]:
    """The file and all that it includes, directly or not."""
    found, open_ = {name: None}, [name]
    while open_:
        for included in _INCLUDE.findall(_source(open_.pop())):
            if (included := included.decode()) not in found:
                found[included] = None
                open_.append(included)
    return tuple(sorted(found))


@lru_cache(maxsize=1024)
def _files_digest(names: tuple[str, ...]) -> bytes:
    digest = hashlib.sha256()
    for name in sorted({file for start in names for file in _reachable(start)}):
        digest.update(name.encode() + b"\0" + _source(name) + b"\0")
    return digest.digest()


def digest(kernel: Kernel, architecture: str) -> str:
    """What the machine code depends on."""
    code = kernel.code().encode()
    files = tuple(name.decode() for name in _INCLUDE.findall(code))
    parts = (code, _files_digest(files), repr((_OPTIONS, architecture, _compilers())).encode())
    return hashlib.sha256(b"\0".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()[:40]


@lru_cache(maxsize=1)
def _compilers() -> tuple[str | None, ...]:
    """Versions of the packages that bring the compiler: to ask the compiler itself would load it, which takes longer
    than a kernel from the cache."""
    return tuple(map(version_of, ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "cuda-bindings")))


@lru_cache(maxsize=1)
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except Exception as error:
        reason = (
            problem()
            or f"NVRTC does not load ({type(error).__name__}: {error}). Install it beside CuPy: pip install "
            "'dnnarray[cuda13]'."
        )
        raise DeviceError(f"the kernels cannot be compiled. {reason}") from error
    return nvrtc


@lru_cache(maxsize=1)
def nvrtc_version() -> tuple[int, int]:
    _, major, minor = _nvrtc().nvrtcVersion()
    return int(major), int(minor)


def compile_kernel(kernel: Kernel, architecture: str) -> bytes:
    """The machine code for an architecture such as ``sm_90a``; needs no GPU."""
    return compile_with_log(kernel, architecture)[0]


def compile_with_log(kernel: Kernel, architecture: str, *more: str) -> tuple[bytes, str]:
    """The machine code, and what the compiler said; `more` are further options of the compiler."""
    nvrtc = _nvrtc()
    root = kernels_folder()
    _, program = nvrtc.nvrtcCreateProgram(kernel.code().encode(), f"{kernel.symbol}.cu".encode(), 0, [], [])
    try:
        options = [f"-arch={architecture}", f"-I{root}", f"-I{root / 'include'}", *_OPTIONS, *more]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
        log = _log(nvrtc, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise DeviceError(
                f"{kernel.symbol} does not compile for {architecture} with NVRTC {nvrtc_version()}:\n{log}"
            )
        if _SERIALISED.search(log):
            raise DeviceError(
                f"{kernel.symbol} for {architecture}: the compiler serialised its matrix instructions:\n{log}"
            )
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytes(size)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    """What the compiler said. It writes into a bytes object, which must be of our own: Python shares those of length 1,
    and an empty log has that."""
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    if size <= 1:
        return ""
    buffer = bytes(size)
    nvrtc.nvrtcGetProgramLog(program, buffer)
    return buffer.decode(errors="replace").strip("\0 \n")


def _name(kernel: Kernel, architecture: str) -> str:
    """Of the machine code in the disk cache."""
    return f"{kernel.symbol[:_LONGEST_NAME]}-{architecture}-{digest(kernel, architecture)}.cubin"


def cubin(kernel: Kernel, architecture: str) -> bytes:
    """The machine code, from the disk cache or compiled. A file that is cut short or changed is replaced."""
    name = _name(kernel, architecture)
    if (content := _cache.find(_cache.CUBINS, name)) is None:
        content = compile_kernel(kernel, architecture)
        _cache.store(_cache.CUBINS, name, content)
    return content


def load(kernels: Sequence[Kernel], device: int, architecture: str) -> list[Any]:
    """The kernels as CuPy functions of a device, ready to launch. Those that are not on disk are compiled side by
    side."""
    if any((device, kernel) not in _loaded for kernel in kernels):
        with _lock:
            new = [kernel for kernel in dict.fromkeys(kernels) if (device, kernel) not in _loaded]
            for kernel, content in zip(new, _cubins(new, architecture), strict=True):
                _loaded[device, kernel] = _function(kernel, content)
    return [_loaded[device, kernel] for kernel in kernels]


def _cubins(kernels: Sequence[Kernel], architecture: str) -> list[bytes]:
    stored = [_cache.find(_cache.CUBINS, _name(kernel, architecture)) for kernel in kernels]
    missing = [kernel for kernel, content in zip(kernels, stored, strict=True) if content is None]
    if len(missing) < 2:
        return [content or cubin(kernel, architecture) for kernel, content in zip(kernels, stored, strict=True)]
    from concurrent.futures import ThreadPoolExecutor  # not for those who have all on disk: 5 ms

    _nvrtc()  # an import, for which the threads would wait
    with ThreadPoolExecutor(
        min(len(missing), os.cpu_count() or 1)
    ) as threads:  # NVRTC works without the interpreter's lock
        compiled = dict(zip(missing, threads.map(partial(cubin, architecture=architecture), missing), strict=True))
    return [content or compiled[kernel] for kernel, content in zip(kernels, stored, strict=True)]


def _function(kernel: Kernel, content: bytes) -> Any:
    from cupy.cuda.function import Module

    module = Module()
    module.load(content)
    return module.get_function(kernel.symbol)
