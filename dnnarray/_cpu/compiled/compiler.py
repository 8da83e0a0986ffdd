"""What is compiled, what is not yet, and the one thread that compiles in the background. Imports Numba only on that thread or when told to wait."""

from __future__ import annotations

import atexit
import importlib
import os
import queue
import threading
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dnnarray._cpu.compiled import Compiled

NEW, PENDING, READY, FAILED = "new", "pending", "ready", "failed"
NOT_INSTALLED = "Numba is not installed: pip install 'dnnarray[cpu]'"
SWITCHED_OFF = "DNNARRAY_NUMBA=0 switches Numba off"
_STILL = "not compiled yet: it is compiled in the background once a call is large enough, or by dnnarray.warmup()"
_broken: str | None = None  # why an installed Numba cannot be imported
_units: dict[tuple[Compiled, str], Unit] = {}
_building = threading.RLock()  # Numba compiles one function at a time anyway
_tasks: queue.SimpleQueue[Unit] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_starting = threading.Lock()
_closing = False


@lru_cache(maxsize=1)
def _absent() -> str | None:
    """Why Numba is not to be had, or None."""
    if os.environ.get("DNNARRAY_NUMBA", "1") == "0":
        return SWITCHED_OFF
    try:
        return None if find_spec("numba") else NOT_INSTALLED
    except (ImportError, ValueError):  # a broken stand-in among the modules
        return NOT_INSTALLED


def missing() -> str | None:
    """Why nothing can be compiled here, or None."""
    return _broken or _absent()


def import_numba() -> str | None:
    """Import Numba, and say why where that fails."""
    global _broken
    if missing() is None:
        try:
            importlib.import_module("numba")
        except Exception as error:  # any fault of a foreign installation: NumPy does the work
            _broken = f"Numba is installed but cannot be imported ({type(error).__name__}: {error})"
    return missing()


def where() -> str:
    """Where the machine code is kept, in words; imports Numba."""
    folder = importlib.import_module("dnnarray._cpu.compiled.kernel").cache_folder()
    return "no folder can be written: kernels are compiled anew in each process" if folder is None else f"kernels are kept in {folder}"


class Unit:
    """The kernels of one driver for one dtype."""

    def __init__(self, run: Compiled, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        self.state, self.error = NEW, ""

    def reason(self) -> str | None:
        """Why it cannot run now, or None."""
        if self.state is READY:
            return None
        return self.error if self.state is FAILED else _STILL

    def request(self) -> None:
        """Have it compiled in the background, if nobody has asked before."""
        if self.state is NEW:
            self.state = PENDING
            _tasks.put(self)
            _start_thread()

    def wait(self) -> None:
        """Have it compiled now, by this thread."""
        if self.state in (NEW, PENDING):
            with _building:
                if self.state in (NEW, PENDING):
                    self._build()

    def _build(self) -> None:
        if (reason := import_numba() or self.run.target(self.dtype)) is not None:
            self.state, self.error = FAILED, reason
            return
        try:
            for kernel in self.run.function.kernels:
                kernel.build(self.dtype)
        except Exception as error:  # a compiler that this version of Numba cannot be: never in the way of an answer
            self.error = f"Numba could not compile it ({type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error) else ''})"
            self.state = FAILED
            return
        self.state = READY
        _start_team()


@lru_cache(maxsize=1)
def _start_team() -> None:
    """The threads of the kernels do everything that is spread over threads, once there are kernels; those that sleep go on with it where this fails."""
    with suppress(Exception):
        importlib.import_module("dnnarray._cpu.compiled.team").start()


def unit(run: Compiled, dtype: str) -> Unit:
    """The one unit of a driver and a dtype."""
    key = (run, dtype)
    found = _units.get(key)
    return found if found is not None else _units.setdefault(key, Unit(run, dtype))


def settle() -> None:
    """Have all that was asked for compiled now."""
    for each in list(_units.values()):
        if each.state is PENDING:
            each.wait()


def _start_thread() -> None:
    global _thread
    with _starting:
        if _thread is None and not _closing:
            _thread = threading.Thread(target=_serve, name="dnnarray-compiler", daemon=True)
            _thread.start()


def _serve() -> None:
    while not _closing:
        task = _tasks.get()
        if not _closing:
            task.wait()


@atexit.register
def _close() -> None:
    """Let the compiler finish the function that it is at: a process must not end under its feet."""
    global _closing
    _closing = True
    if _thread is not None:
        with _building:
            pass


def _forget_thread() -> None:
    """A forked child has no thread that compiles; what it waited for may be asked for again."""
    global _thread, _building, _tasks, _starting
    _thread, _building, _tasks, _starting = None, threading.RLock(), queue.SimpleQueue(), threading.Lock()
    for each in _units.values():
        if each.state is PENDING:
            each.state = NEW


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_thread)
