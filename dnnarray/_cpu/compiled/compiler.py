"""What is compiled and what is not yet: units of kernels, compiled in the background or at once.

Imports Numba on other threads, or where the caller waits.
"""

from __future__ import annotations

import atexit
import importlib
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dnnarray import _cache
from dnnarray._cpu import threads
from dnnarray._cpu.compiled.crew import Compile, Crew, Job, Task, compile_here, told

if TYPE_CHECKING:
    from dnnarray._cpu.compiled import Compiled

NEW, PENDING, READY, FAILED = "new", "pending", "ready", "failed"
NOT_INSTALLED = "Numba is not installed: pip install 'dnnarray[cpu]'"
SWITCHED_OFF = "DNNARRAY_NUMBA=0 switches Numba off"
_STILL = "not compiled yet: it is compiled in the background once a call is large enough, or by dnnarray.warmup()"
_ON_DISK = "compiled before and not loaded yet: that is done once a call is large enough, or by dnnarray.warmup()"
_MOST_AT_ONCE = 16  # processes, each of some 300 MB
_broken: str | None = None  # why an installed Numba cannot be imported
_units: dict[tuple[Compiled, str], Unit] = {}
_loading = threading.RLock()
_background = Crew(lambda: 1, niceness=10)
_foreground = Crew(lambda: min(threads.cores(), _MOST_AT_ONCE), niceness=0)
_CREWS = _background, _foreground
Progress = Callable[[int, int, str], None]


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


class Unit:
    """The kernels of one driver for one dtype."""

    def __init__(self, run: Compiled, dtype: str) -> None:
        self.run, self.dtype = run, dtype
        self.state, self.error = NEW, ""
        self.on_disk = False  # as far as anybody has looked

    def reason(self) -> str | None:
        """Why it cannot run now, or None."""
        if self.state is READY:
            return None
        if self.state is FAILED:
            return self.error
        return _ON_DISK if self.on_disk else _STILL

    def outcome(self) -> str:
        """Its name, and why it cannot run where that is so."""
        name, reason = f"{self.run.module}.{self.run.driver} {self.dtype}", self.reason()
        return name if reason is None else f"{name}: left out, {reason}"

    def request(self) -> None:
        """Have it compiled in the background, if nobody has asked before."""
        if self.state is NEW:
            self.state = PENDING
            try:
                _background.submit(self._serve)
            except RuntimeError:  # no thread can be started: a later call may ask again
                self.state = NEW

    def wait(self) -> None:
        """Have it compiled now."""
        build([self])

    def load(self) -> dict[str, Job]:
        """Load what has been compiled, and say what has not been, by the names of its files.

        That is nothing where the unit is ready or never will be.
        """
        with _loading:
            if self.state in (READY, FAILED):
                return {}
            if (reason := import_numba() or self.run.target(self.dtype)) is not None:
                self.fail(reason)
                return {}
            try:
                absent = {kernel.name(job.dtype): job for kernel, job in self._kernels() if not kernel.load(job.dtype)}
            except Exception as error:  # a fault of this version of Numba: never in the way of an answer
                self.fail(told(error))
                return {}
            if not absent:
                self.state = READY
                _start_team()
            return absent

    def look(self) -> None:
        """Find out whether it has been compiled before, without loading it."""
        with _loading:
            if self.state is NEW and (import_numba() or self.run.target(self.dtype)) is None:
                self.on_disk = all(kernel.on_disk(job.dtype) for kernel, job in self._kernels())

    def fail(self, reason: str) -> None:
        with _loading:
            if self.state is not READY:
                self.state, self.error = FAILED, reason

    def _kernels(self) -> list[tuple[Any, Job]]:
        """Those of the driver, and what its threads need."""
        team = importlib.import_module("dnnarray._cpu.compiled.team")
        sources = (self.run.path, self.run.driver, self.dtype), (team.__name__, "start", "float32")
        found = zip(sources, (self.run.function.kernels, team.start.kernels), strict=True)
        return [(kernel, Job(*source, number)) for source, kernels in found for number, kernel in enumerate(kernels)]

    def _serve(self, compile_kernels: Compile) -> None:
        """What a thread of the background does.

        Numba is imported once there is something to load: the import and its end take as long as a short program.
        """
        if (reason := self.run.target(self.dtype)) is None and not _cache.holds(_cache.KERNELS, f"{self.run.module}."):
            reason = compile_kernels(Job(self.run.path, self.run.driver, self.dtype))
        if reason is None:
            reason = next(filter(None, map(compile_kernels, self.load().values())), None)
        if reason is not None:
            self.fail(reason)
        elif self.load():
            self.fail("what was compiled could not be loaded")


@lru_cache(maxsize=1)
def _start_team() -> None:
    """The threads of the kernels do everything that is spread over threads, once there are kernels.

    The threads that sleep go on with it where this fails.
    """
    with suppress(Exception):
        importlib.import_module("dnnarray._cpu.compiled.team").start()


def unit(run: Compiled, dtype: str) -> Unit:
    """The one unit of a driver and a dtype."""
    key = (run, dtype)
    found = _units.get(key)
    return found if found is not None else _units.setdefault(key, Unit(run, dtype))


def settle() -> None:
    """Have all that was asked for compiled now."""
    build([each for each in list(_units.values()) if each.state is PENDING])


def build(units: Sequence[Unit], progress: Progress = lambda done, total, outcome: None) -> int:
    """Have all of these compiled now; gives the number of those that can run.

    ``progress(done, total, outcome)`` is told of each that is loaded or compiled, or cannot be.
    """
    absent, done = dict[Unit, dict[str, Job]](), 0
    for each in units:
        if names := each.load():
            absent[each] = names
        else:
            progress(done := done + 1, len(units), each.outcome())
    waited = _Waited({name: job for names in absent.values() for name, job in names.items()})
    for name, reason in waited.results():
        for each in [each for each, names in absent.items() if names.pop(name, None)]:
            if reason is not None:
                each.fail(reason)
            if reason is not None or not absent[each]:
                each.load()
                del absent[each]
                progress(done := done + 1, len(units), each.outcome())
    return sum(each.state is READY for each in units)


class _Waited:
    """Kernels that a caller waits for, by the names of their files."""

    def __init__(self, jobs: dict[str, Job]) -> None:
        self._jobs, self._given_up = jobs, False
        self._results: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()

    def results(self) -> Iterator[tuple[str, str | None]]:
        """Have them compiled, and give the name of each as soon as it is, or why it could not be."""
        try:
            for name, job in self._jobs.items():
                self._submit(partial(self._compile, name, job))
            for _ in self._jobs:
                yield self._results.get()
        finally:
            self._given_up = True  # by an interrupted caller

    def _submit(self, task: Task) -> None:
        try:
            _foreground.submit(task)
        except RuntimeError:  # no thread can be started
            task(compile_here)

    def _compile(self, name: str, job: Job, compile_kernel: Compile) -> None:
        if not self._given_up:
            self._results.put((name, compile_kernel(job)))


@atexit.register
def _close() -> None:
    for crew in _CREWS:
        crew.close()


def _leave_to_parent() -> None:
    """A forked child has no thread that compiles; what it waited for may be asked for again."""
    global _loading
    _loading = threading.RLock()
    for crew in _CREWS:
        crew.leave()
    for each in _units.values():
        if each.state is PENDING:
            each.state = NEW


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
