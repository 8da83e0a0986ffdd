"""Machine code of kernels on disk: one file for each function and list of parameter types. Imports Numba.

The name of a file says all that the machine code depends on, so that nothing there is ever out of date: another
checkout, processor or version of Numba asks for other names. A worker hands over what it has compiled in the same form.
"""

from __future__ import annotations

import ast
import pickle
import sys
import threading
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps

from dnnarray import _cache
from dnnarray._version import __version__

SUFFIX = ".kernel"
_HERE = "dnnarray._cpu.compiled"
_LONGEST = 100  # characters of a function in a file name, which file systems limit
# Of Numba, that the code depends on.
_OPTIONS = "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "USING_SVML"
_received: dict[str, bytes] = {}  # from a worker, until it is loaded
made: list[tuple[str, bytes]] | None = None  # in a worker, what it has compiled and not yet handed over
writing = threading.Lock()  # held while a file is written


def have(dispatcher: Any, types: tuple[Any, ...], compile_too: bool) -> bool:
    """Whether a function is ready for these types: loaded, or compiled and stored where that is asked for."""
    with global_compiler_lock:
        if types in dispatcher.overloads:
            return True
        name = file_name(dispatcher, types)
        result = _load(dispatcher, name)
        if result is None and compile_too:
            result = dispatcher._compiler.compile(types, None)
            _keep(name, result)
        if result is None:
            return False
        dispatcher.add_overload(result)
        dispatcher.disable_compile()  # a call with other types is an error, nothing to compile for
    return True


def on_disk(dispatcher: Any, types: tuple[Any, ...]) -> bool:
    """Whether there is a file to load it from."""
    return _cache.find(_cache.KERNELS, file_name(dispatcher, types)) is not None


def receive(name: str, stored: bytes) -> None:
    """Take what a worker has compiled."""
    _received[name] = stored


def _load(dispatcher: Any, name: str) -> Any:
    content = _received.pop(name, None) or _cache.find(_cache.KERNELS, name)
    if content is None:
        return None
    context = dispatcher.targetctx
    context.refresh()
    result = CompileResult._rebuild(context, *pickle.loads(content))
    context.insert_user_function(result.entry_point, result.fndesc, [result.library])
    return result


def _keep(name: str, result: Any) -> None:
    content = dumps(result._reduce())
    with writing:
        _cache.store(_cache.KERNELS, name, content)
    if made is not None:
        made.append((name, content))


# --- names ------------------------------------------------------------------------------------------------------------


def file_name(dispatcher: Any, types: tuple[Any, ...]) -> str:
    function = dispatcher.py_func
    digest = sha256(_surroundings(dispatcher.targetctx.codegen().magic_tuple()))
    digest.update(_sources(_file_of(function)))
    for part in (types, _options(dispatcher), *_parts(function, set())):
        digest.update(repr(part).encode() + b"\0")
    readable = f"{function.__module__.removeprefix(_HERE + '.')}.{function.__qualname__}"
    return f"{readable[:_LONGEST]}-{digest.hexdigest()[:40]}{SUFFIX}"


@lru_cache(maxsize=4)
def _surroundings(target: tuple[str, ...]) -> bytes:
    """What all machine code depends on."""
    versions = __version__, numba.__version__, np.__version__, llvmlite.__version__, sys.implementation.cache_tag
    return repr((versions, target, [getattr(config, name, None) for name in _OPTIONS])).encode()


def _file_of(function: FunctionType) -> str:
    """The file that a function stands in, or that wrote its text."""
    return str(getattr(sys.modules[function.__module__], "__file__", ""))


@lru_cache
def _sources(path: str) -> bytes:
    """A digest of a file of kernels and the files of this package that it imports, directly or not."""
    found: dict[Path, bytes] = {}
    waiting = [Path(path)]
    while waiting:
        if (now := waiting.pop()) not in found and now.is_file():
            found[now], imported = _source(now)
            if Path(__file__).parent in now.parents or now == Path(path):
                waiting += imported
    return sha256(b"".join(source.name.encode() + b"\0" + found[source] for source in sorted(found))).digest()


@cache
def _source(path: Path) -> tuple[bytes, list[Path]]:
    """The digest of one file, and the files that it imports."""
    source = path.read_bytes()
    return sha256(source).digest(), list(map(_path_of, _imported(source)))


def _imported(source: bytes) -> Iterator[str]:
    """The modules of kernels that a file imports, and those that it takes numbers from."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (module := node.module or "").startswith("dnnarray."):
            names = [alias.name for alias in node.names]
            if _path_of(module).name == "__init__.py" and (module == _HERE or module.startswith(_HERE + ".")):
                yield from (f"{module}.{name}" for name in names)
            elif module.startswith(_HERE + ".") or any(name.isupper() for name in names):
                yield module


def _path_of(module: str) -> Path:
    path = Path(__file__).parents[3].joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _parts(function: FunctionType, seen: set[Any]) -> Iterator[Any]:
    """What the sources do not tell: which function it is, and what it and those it calls take from outside."""
    if function in seen:
        return
    seen.add(function)
    yield function.__module__, function.__qualname__, function.__code__.co_firstlineno, function.__code__.co_code
    yield from _numbers(function.__code__)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = [function.__globals__.get(name) for name in function.__code__.co_names]
    for value in (*cells, *named):
        if isinstance(value, Dispatcher):
            yield _options(value)
            yield from _parts(value.py_func, seen)
        elif isinstance(value, ModuleType) and value.__name__.startswith("dnnarray."):
            yield Path(str(value.__file__)).read_bytes()
        elif isinstance(value, (int, float, str, tuple)):
            yield value


def _options(dispatcher: Any) -> list[tuple[str, Any]]:
    """What Numba was asked for; a set has no order that two processes share."""
    options = dispatcher.targetoptions.items()
    return sorted((name, sorted(value) if isinstance(value, set) else value) for name, value in options)


def _numbers(code: CodeType) -> Iterator[Any]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _numbers(value)
        elif isinstance(value, (int, float, str)):
            yield value
