"""The threads of the compiled kernels, which also run parts that are Python functions (NumPy on large blocks, matrix
products). Imports Numba.

A thread without work watches for it for a millisecond, then sleeps: what is started meanwhile begins at once. It gives
way to whoever else wants its core, and where it was off its core while it watched, other programs want it: for a while
nobody watches then. Parts are taken by whoever comes first, so that the caller waits for no thread that has not begun.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dnnarray._cpu import threads
from dnnarray._cpu.compiled import kernel
from dnnarray._cpu.compiled.atomic import (
    WORD,
    acquire_lock,
    add,
    call,
    give_way,
    load,
    relax,
    release_lock,
    replace,
    store,
    ticks,
)
from dnnarray._cpu.compiled.kernel import device, driver, native
from dnnarray._cpu.compiled.memory import ALIGNMENT, address, aligned

# Seconds: how long a thread watches for work, and the caller for the end of it; from which on one was off its core; how
# long nobody watches then.
_WATCH, _LINGER, _AWAY, _CROWD = 1e-3, 200e-6, 500e-6, 20e-3
_RESTS = 4  # of a core that watches, before it gives way to another thread
_MOST = threads.MOST

# A team in memory, in bytes: what is only read, what the caller writes, what all write; then a line for each thread,
# the first of which is the caller's, and a word for each part.
_LAUNCH, _WATCHES, _LINGERS, _GAP, _PAUSE, _HIRED, _CLAIMS = range(0, 7 * WORD, WORD)
_BUSY, _ENDED = ALIGNMENT, ALIGNMENT + WORD
_GENERATION, _FUNCTION, _CONTEXT, _PARTS = range(2 * ALIGNMENT, 2 * ALIGNMENT + 4 * WORD, WORD)
_LEFT, _CROWDED = 3 * ALIGNMENT, 4 * ALIGNMENT
_MEMBERS = 5 * ALIGNMENT
_ASLEEP, _BELL = 0, WORD  # of a thread


@device
def _member(team, index):
    return team + _MEMBERS + index * ALIGNMENT


@device
def _watch(team, word, value, until, limit, polite):
    """Whether a word became (or is no longer, as `until` says) a value while it was watched. `polite`: others may have
    the core meanwhile."""
    begin = last = ticks()
    if begin < load(team + _CROWDED):
        limit = 0
    while (load(word) == value) != until:
        for _ in range(_RESTS):
            relax()
        if polite:
            give_way()
        now = ticks()
        if now - last > load(team + _GAP):
            store(team + _CROWDED, now + load(team + _PAUSE))
            return False
        if now - begin > limit:
            return False
        last = now
    return True


@device
def _sleep(team, index, word, value, until):
    """Sleep until woken; not if the word is what is waited for already."""
    member = _member(team, index)
    store(member + _ASLEEP, 1)
    if (load(word) == value) == until and replace(member + _ASLEEP, 1, 0):
        return
    acquire_lock(load(member + _BELL), 1)  # also where somebody is about to wake this thread


@device
def _wake(team, index):
    member = _member(team, index)
    if load(member + _ASLEEP) and replace(member + _ASLEEP, 1, 0):
        release_lock(load(member + _BELL))


@device
def _wake_next(team, index, parts):
    """Each thread wakes two more."""
    for other in range(2 * index + 1, min(2 * index + 3, parts, load(team + _HIRED) + 1)):
        _wake(team, other)


@device
def _take(team, index, generation):
    """Run the parts that nobody has begun, first of all the thread's own. A word of a part is twice the job's number,
    and one more once somebody has the part."""
    parts = load(team + _PARTS)
    for number in range(parts):
        part = (index + number) % parts
        claim = team + load(team + _CLAIMS) + part * WORD
        if load(claim) == 2 * generation and replace(claim, 2 * generation, 2 * generation + 1):
            call(load(team + _FUNCTION), load(team + _CONTEXT), part)
            if add(team + _LEFT, -1) == 1:
                _wake(team, 0)


@native
def _work(index: int, team: int) -> None:
    """What a thread does, to the end of the process."""
    seen = 0
    while True:
        while not _watch(team, team + _GENERATION, seen, False, load(team + _WATCHES), True):
            _sleep(team, index, team + _GENERATION, seen, False)
        seen = load(team + _GENERATION)
        _wake_next(team, index, load(team + _PARTS))
        _take(team, index, seen)


@native
def _launch(parts: int, team: int, function: int, context: int, long: bool) -> bool:
    """Run ``function(context, part)`` for all parts and wait for them; nothing is done where the team is at work
    already.

    What is not `long` wakes nobody but behind other work, with more to be expected: waking takes longer than it helps.
    """
    if parts > _MOST or not replace(team + _BUSY, 0, 1):
        return False
    generation = load(team + _GENERATION) + 1
    for part in range(parts):
        store(team + load(team + _CLAIMS) + part * WORD, 2 * generation)
    store(team + _FUNCTION, function)
    store(team + _CONTEXT, context)
    store(team + _PARTS, parts)
    store(team + _LEFT, parts)
    store(team + _GENERATION, generation)
    now = ticks()
    if long or (now - load(team + _ENDED) < load(team + _WATCHES) and now > load(team + _CROWDED)):
        _wake_next(team, 0, parts)
    _take(team, 0, generation)
    while not _watch(team, team + _LEFT, 0, True, load(team + _LINGERS), False):
        _sleep(team, 0, team + _LEFT, 0, True)
    store(team + _ENDED, ticks())
    store(team + _BUSY, 0)
    return True


@native
def _clock() -> int:
    return ticks()


class _Team:
    """Threads and the memory by which they hear of work, which is never freed: the threads outlive the interpreter."""

    def __init__(self) -> None:
        self._most = threads.cores()
        claims = _MEMBERS + self._most * ALIGNMENT
        self._memory = aligned(1, claims // WORD + _MOST, np.dtype(np.int64))[0]
        self._memory[:] = 0
        self._hiring, self._hired = threading.Lock(), 0
        self.address = address(self._memory)
        self._set(_LAUNCH, _address_of(_launch))
        self._set(_CLAIMS, claims)
        for word, seconds in ((_WATCHES, _WATCH), (_LINGERS, _LINGER), (_GAP, _AWAY), (_PAUSE, _CROWD)):
            self._set(word, int(seconds * _rate()))
        self._set(_MEMBERS + _BELL, _bell())

    def _set(self, place: int, value: int) -> None:
        self._memory[place // WORD] = value

    def hire(self, parts: int) -> int:
        """Have threads for so many parts, the caller one of them and no more than there are cores; gives the team's
        address."""
        if self._hired < min(parts, self._most) - 1:
            with self._hiring:
                while self._hired < min(parts, self._most) - 1 and self._start(self._hired + 1):
                    self._hired += 1
                    self._set(_HIRED, self._hired)
        return self.address

    def _start(self, index: int) -> bool:
        self._set(_MEMBERS + index * ALIGNMENT + _BELL, _bell())
        try:
            threading.Thread(target=_serve, args=(self, index), name=f"dnnarray-{index}", daemon=True).start()
        except (
            RuntimeError
        ):  # the process has all the threads that it may have, or is about to end: those that are there do it
            return False
        return True


def _serve(team: _Team, index: int) -> None:
    _work.run(index, team.address)


def _bell() -> int:
    """A lock that is taken."""
    new, take = ctypes.pythonapi.PyThread_allocate_lock, ctypes.pythonapi.PyThread_acquire_lock
    new.restype, new.argtypes = ctypes.c_void_p, ()
    take.restype, take.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_int)
    lock = new()
    if not lock:
        raise MemoryError
    take(lock, 1)
    return lock


def _address_of(function: Any) -> int:
    """Of the machine code of what has been built for one signature."""
    (built,) = function.run.overloads.values()
    return built.library.get_pointer_to_function(built.fndesc.llvm_func_name)


@lru_cache(maxsize=1)
def _rate() -> float:
    """Ticks of a second."""
    first, begin = _moment()
    time.sleep(1e-3)
    last, end = _moment()
    return (last - first) / (end - begin)


def _moment() -> tuple[int, float]:
    """Both clocks at once: the closest of some readings, since a thread may lose its core between two."""
    readings = [(_clock.run(), time.perf_counter(), _clock.run()) for _ in range(10)]
    before, now, after = min(readings, key=lambda reading: reading[2] - reading[0])
    return (before + after) // 2, now


_Part = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
_current: _Team | None = None
_starting = threading.Lock()


def _team(parts: int) -> int:
    """The team with threads for so many parts."""
    global _current
    if _current is None:
        with _starting:
            _current = _current or _Team()
    return _current.hire(parts)


def serve(function: Callable[..., Any], parts: list[tuple[int, int]], arguments: tuple[Any, ...]) -> bool:
    """Run the parts; False where the team is at work already."""
    errors: list[BaseException] = []

    def run(context: int, part: int) -> None:
        try:
            function(*parts[part], *arguments)
        except BaseException as error:  # handed to the caller
            errors.append(error)

    called = _Part(run)
    served = _launch.run(len(parts), _team(len(parts)), ctypes.cast(called, ctypes.c_void_p).value, 0, True)
    if errors:
        raise errors[0]
    return served


@driver(_work, _launch, _clock)
def start() -> None:
    """Have this team do what is spread over threads from now on."""
    for each in start.kernels:
        each.build("float32")  # as every other dtype: they have no arrays
    kernel.join(_team)
    threads.join(serve)


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _current, _starting
    _current, _starting = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
