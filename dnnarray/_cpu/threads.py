"""One small pool of threads for the whole CPU engine.

`run` cuts a range into one part per thread and calls a function on each part, which gives up the interpreter's lock for
most of its time: NumPy on large blocks. The caller works too; the others are persistent threads that sleep on a lock
until Numba has compiled a kernel, and then those of `compiled/team.py`. Whoever is free takes the next part, so that
the caller waits for no thread that has yet to wake. A second caller who comes while the pool is at work does its own
parts alone: callers who bring threads of their own never start more of them than there are cores."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dnnarray._cpu import blas
from dnnarray._options import current

GRAIN = 65536  # elements of a light operation below which a second thread costs more than it brings
WAKING = 24  # times as much work makes up for waking a thread that sleeps
MOST = 1024  # parts of anything, as many as the option `threads` allows
# elements of a NumPy call: shorter ones meet too often at the interpreter's lock, and on one thread gain nothing
LONG = 1 << 18
_LIMITS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


@lru_cache(maxsize=1)
def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _environment() -> int:
    told = (os.environ.get(name, "").partition(",")[0] for name in _LIMITS)
    return min(cores(), *(int(text) for text in told if text.isdigit() and int(text) > 0), MOST)


def count() -> int:
    """Threads for a call made now: the option `threads`, else the least of what the BLAS takes, OMP_NUM_THREADS,
    NUMBA_NUM_THREADS and the cores."""
    chosen = current().threads
    if chosen is not None:
        return chosen
    return min(blas.threads() or _environment(), _environment())


def split(total: int, parts: int) -> list[tuple[int, int]]:
    """range(total) in this many runs of nearly the same length, fewer where there is too little."""
    parts = max(min(parts, total), 1)
    bounds = [total * i // parts for i in range(parts + 1)]
    return list(pairwise(bounds))


def worth(work: int) -> int:
    """Threads for so much work, counted in elements of a light operation: none gets less than `GRAIN`."""
    return 1 if work < 2 * GRAIN else min(count(), work // GRAIN)


def grain(size: int, least: int, *, work: int) -> int:
    """Elements of a block of an array of `size` for `each`: as many as make long calls, shared evenly by the threads,
    but `least`."""
    share = -(-size // worth(work // WAKING))
    return max(least, -(-share // max(-(-share // LONG), 1)))


def run(function: Callable[..., Any], total: int, *arguments: Any, work: int) -> None:
    """``function(start, stop, *arguments)`` over all of range(total), cut into one part per thread.

    For NumPy on large blocks; kernels have a faster way. What a part writes must not depend on where the parts begin
    and end."""
    wanted = worth(work // WAKING)
    if wanted == 1 or len(parts := split(total, wanted)) == 1 or not (_team or _pool.serve)(function, parts, arguments):
        function(0, total, *arguments)


def join(team: Callable[..., bool]) -> None:
    """Give parts to other threads from now on: ``team(function, parts, arguments)`` runs them, or says False where it
    is at work already."""
    global _team
    _team = team


def each(function: Callable[..., Any], items: Iterable[tuple[Any, ...]], *, work: int) -> None:
    """``function(*item)`` for all items, which must be independent of each other, spread over threads as `run` does;
    NumPy warns nowhere."""
    listed = list(items)
    if len(listed) == 1:  # small arrays, whose calls have little time to lose
        function(*listed[0])
        return

    def some(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # which every thread has for itself
            for item in listed[start:stop]:
                function(*item)

    run(some, len(listed), work=work)


class _Job:
    """Parts, which are taken by whoever comes first."""

    def __init__(self, function: Callable[..., Any], parts: list[tuple[int, int]], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._open, self._count = parts[::-1], len(parts)
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work(self) -> None:
        """Run parts until there are no more."""
        while self._open:
            try:
                part = self._open.pop()
            except IndexError:  # another thread was faster
                return
            try:
                self._function(*part, *self._arguments)
                self._ended.put(None)
            except BaseException as error:  # handed to the caller
                self._ended.put(error)

    def wait(self) -> None:
        """Wait for the parts that others run, and raise what was raised in one."""
        for error in [self._ended.get() for _ in range(self._count)]:
            if error is not None:
                raise error

    def drop(self) -> None:
        """Have nobody begin with another part."""
        self._open.clear()


class _Helper:
    """A thread that sleeps until there is a job."""

    def __init__(self, pool: _Pool) -> None:
        self._pool, self._bell, self._called = pool, threading.Lock(), False
        self._bell.acquire()
        threading.Thread(target=self._serve, name="dnnarray", daemon=True).start()

    def wake(self) -> None:
        if not self._called:  # else it has yet to look for the job that it was woken for
            self._called = True
            self._bell.release()

    def _serve(self) -> None:
        while True:
            self._bell.acquire()
            self._called = False
            if (job := self._pool.job) is not None:
                job.work()
            del job  # no array is kept alive while it sleeps


class _Pool:
    def __init__(self) -> None:
        self._free = threading.Lock()
        self._helpers: list[_Helper] = []
        self.job: _Job | None = None

    def serve(self, function: Callable[..., Any], parts: list[tuple[int, int]], arguments: tuple[Any, ...]) -> bool:
        """Run the parts; False where the pool is at work already. Nobody waits for a thread that has not begun."""
        if not self._free.acquire(blocking=False):
            return False
        self.job = job = _Job(function, parts, arguments)
        try:
            self._hire(min(len(parts), cores()) - 1)
            for helper in self._helpers[: len(parts) - 1]:
                helper.wake()
            job.work()
            job.wait()
        finally:
            job.drop()
            self.job = None
            self._free.release()
        return True

    def _hire(self, count: int) -> None:
        """Have so many helpers, or as many threads as the process may start."""
        with suppress(RuntimeError):
            while len(self._helpers) < count:
                self._helpers.append(_Helper(self))


_pool = _Pool()
_team: Callable[..., bool] | None = None  # that runs the compiled kernels, once there are any


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
