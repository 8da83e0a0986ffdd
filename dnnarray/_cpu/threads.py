"""One small pool of threads for the whole CPU engine.

`run` cuts a range into one part per thread and calls a function on each part, which gives up the interpreter's lock for most of its time:
NumPy on large blocks, or a compiled kernel where OpenMP is not to be had. The caller works too; the others are persistent threads that sleep on
a lock. A second caller who comes while the pool is at work does its own parts alone: callers who bring threads of their own never start
more of them than there are cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dnnarray._cpu import blas
from dnnarray._options import current

GRAIN = 65536  # elements of a light operation below which a second thread costs more than it brings
WAKING = 24  # times as much work makes up for waking a thread that sleeps
LONG = 1 << 18  # elements of a NumPy call: shorter ones meet too often at the interpreter's lock, and on one thread gain nothing


@lru_cache(maxsize=1)
def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _environment() -> int:
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(int(told), cores()) if told.isdigit() and int(told) > 0 else cores()


def count() -> int:
    """Threads for a call made now: the option `threads`, else as many as the BLAS takes, else OMP_NUM_THREADS, else the cores."""
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
    """Elements of a block of an array of `size` for `each`: as many as make long calls, shared evenly by the threads, but `least`."""
    share = -(-size // worth(work // WAKING))
    return max(least, -(-share // max(-(-share // LONG), 1)))


def run(function: Callable[..., Any], total: int, *arguments: Any, work: int) -> None:
    """``function(start, stop, *arguments)`` over all of range(total), cut into one part per thread.

    For NumPy on large blocks; kernels have a faster way. What a part writes must not depend on where the parts begin and end.
    """
    wanted = worth(work // WAKING)
    if wanted == 1 or len(parts := split(total, wanted)) == 1 or not (_team or _pool.serve)(function, parts, arguments):
        function(0, total, *arguments)


def join(team: Callable[..., bool]) -> None:
    """Give parts to other threads from now on: ``team(function, parts, arguments)`` runs them, or says False where it is at work already."""
    global _team
    _team = team


def each(function: Callable[..., Any], items: Iterable[tuple[Any, ...]], *, work: int, products: bool = False) -> None:
    """``function(*item)`` for all items, which must be independent of each other, spread over threads as `run` does; NumPy warns nowhere.

    `products` says that they multiply matrices: side by side each of them takes one thread, and so does a call that is to take one thread.
    """
    listed = list(items)
    if len(listed) == 1:  # small arrays, whose calls have little time to lose
        function(*listed[0])
        return

    def some(start: int, stop: int) -> None:
        with np.errstate(all="ignore"):  # which every thread has for itself
            for item in listed[start:stop]:
                function(*item)

    alone = products and (count() == 1 or worth(work // WAKING) > 1)
    with blas.single_threaded() if alone else nullcontext():
        run(some, len(listed), work=work)


class _Helper:
    """A thread that waits for one part of a job at a time."""

    def __init__(self) -> None:
        self._go, self._done = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._done.acquire()
        self._job: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._serve, name="dnnarray", daemon=True).start()

    def start(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._job = function, arguments
        self._go.release()

    def wait(self) -> BaseException | None:
        self._done.acquire()
        error, self._error = self._error, None
        return error

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            assert self._job is not None
            (function, arguments), self._job = self._job, None
            try:
                function(*arguments)
            except BaseException as error:  # handed to the caller
                self._error = error
            del function, arguments  # no array is kept alive while waiting
            self._done.release()


class _Pool:
    def __init__(self) -> None:
        self._free = threading.Lock()
        self._helpers: list[_Helper] = []

    def serve(self, function: Callable[..., Any], parts: list[tuple[int, int]], arguments: tuple[Any, ...]) -> bool:
        """Run the parts, the last one on the caller's own thread; False where the pool is at work already."""
        if not self._free.acquire(blocking=False):
            return False
        waited = False
        try:
            while len(self._helpers) < len(parts) - 1:
                self._helpers.append(_Helper())
            started = self._helpers[: len(parts) - 1]
            for helper, part in zip(started, parts, strict=False):
                helper.start(function, (*part, *arguments))
            errors: list[BaseException | None] = []
            try:
                function(*parts[-1], *arguments)
            finally:
                errors += [helper.wait() for helper in started]
                waited = True
            for error in errors:
                if error is not None:
                    raise error
        finally:
            if not waited:  # interrupted by the user: these may still be at work, and the next job must not meet their answer
                self._helpers.clear()
            self._free.release()
        return True


_pool = _Pool()
_team: Callable[..., bool] | None = None  # that runs the compiled kernels, once there are any


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
