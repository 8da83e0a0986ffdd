"""Threads that have kernels compiled, each by a process of its own.

LLVM cannot be interrupted and must not lose its process, but a process can be left: a program that ends waits for no
compiler. Nor does a compiler in another process take the interpreter's lock from the user's code. Imports Numba only
where no such process can be started; this process compiles then.
"""

from __future__ import annotations

import ctypes
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from dnnarray import _cache

_IDLE = 10.0  # seconds after which a process with nothing to do is ended
_GRACE = 0.05  # seconds that a process has to end by itself
_AGAIN = 0.01  # seconds between two tries to stop a thread
_BLAS_THREADS = "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"  # which a compiler has no use for
_START = """
import os, signal
parent = os.getppid()
signal.signal(signal.SIGINT, signal.SIG_IGN)
import json, sys
sys.path[:] = json.loads(sys.stdin.buffer.readline())
from dnnarray._cpu.compiled.worker import main
main({niceness}, parent)
"""


class Job(NamedTuple):
    """A kernel to be compiled: one of those of a driver, or all of them, for a dtype."""

    module: str
    driver: str
    dtype: str
    number: int | None = None


Compile = Callable[[Job], str | None]  # gives None, or why the kernel could not be compiled
Task = Callable[[Compile], None]


def told(error: Exception) -> str:
    """What the compiler said."""
    lines = str(error).strip().splitlines()
    return f"Numba could not compile it ({type(error).__name__}: {lines[-1] if lines else ''})"


def compile_here(job: Job) -> str | None:
    """Compile by this thread."""
    try:
        kernels = getattr(import_module(job.module), job.driver).kernels
        for kernel in kernels if job.number is None else (kernels[job.number],):
            kernel.build(job.dtype)
    except Exception as error:  # a compiler that this version of Numba cannot be: never in the way of an answer
        return told(error)
    return None


class Worker:
    """A process that compiles. Raises OSError where none can be started, or it has ended."""

    def __init__(self, niceness: int) -> None:
        import subprocess

        if getattr(sys, "frozen", False) or "py" not in Path(sys.executable or "").stem.lower():
            raise OSError("the executable of this process is no Python interpreter")
        environment = os.environ | dict.fromkeys(_BLAS_THREADS, "1") | {"DNNARRAY_CACHE_DIR": _cache.folder_name()}
        self._process: Any = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-c", _START.format(niceness=niceness)],
            bufsize=0,  # a buffer has a lock, which a fork may find taken
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            creationflags=getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) if niceness else 0,
        )
        try:
            self._send([path for path in sys.path if isinstance(path, str)])
        except OSError:
            self.end()
            raise

    def _send(self, message: Any) -> None:
        rest = json.dumps(message).encode() + b"\n"
        while rest:
            rest = rest[self._process.stdin.write(rest) :]

    def compile(self, job: Job) -> str | None:
        """Have kernels compiled and take over their machine code."""
        self._send(job)
        answer = json.loads(self._process.stdout.readline() or self._gone())
        from dnnarray._cpu.compiled import store  # Numba, not before there is something for it

        for name, size in answer["files"]:
            store.receive(name, self._read(size))
        return answer["error"]

    def _read(self, size: int) -> bytes:
        pieces = []
        while size:
            pieces.append(self._process.stdout.read(size) or self._gone())
            size -= len(pieces[-1])
        return b"".join(pieces)

    def _gone(self) -> Any:
        raise OSError("the process that compiles has ended")

    def close(self) -> None:
        """Tell it to end. Another thread may be waiting for its answer."""
        with suppress(OSError):
            self._process.stdin.close()

    def stop(self) -> int:
        """See to it that it ends, and give its exit status."""
        import subprocess

        self.close()
        try:
            return self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end(self) -> int:
        """The same, by the thread that would read an answer, or when there is none any more."""
        status = self.stop()
        self._process.stdout.close()
        return status

    def leave(self) -> None:
        """Forget it in a forked child, whose parent it works for."""
        self._process.returncode = 0
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


class _Member:
    """A thread, and its process while it has one."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._worker: Worker | None = None
        self.thread = threading.Thread(target=self._serve, name="dnnarray-compiler", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with suppress(SystemExit):  # of `stop`
            try:
                while (task := self._crew.next_task(self)) is not None:
                    task(self._compile)
                    self._crew.finished()
            finally:
                self._crew.left(self)
                self.end()

    def _compile(self, job: Job) -> str | None:
        if self._crew.closed:
            raise SystemExit
        if (worker := self._worker) is None:
            try:
                self._worker = worker = Worker(self._crew.niceness)
            except Exception:  # a system that starts no processes
                return compile_here(job)
        try:
            return worker.compile(job)
        except Exception:  # the other end of a pipe is closed, or this one
            self._worker = None
            return f"the process that compiles ended with status {worker.end()}"

    def close(self) -> None:
        if (worker := self._worker) is not None:
            worker.close()

    def end(self) -> None:
        if (worker := self._worker) is not None:
            worker.end()

    def stop(self) -> None:
        """Stop the process and the thread, whatever they are at."""
        self._stop_worker()
        self.thread.join(_AGAIN)
        while self.thread.is_alive():
            thread = ctypes.c_ulong(self.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))
            self._stop_worker()  # which it may have started just now
            self.thread.join(_AGAIN)
        self.end()

    def _stop_worker(self) -> None:
        if (worker := self._worker) is not None:
            worker.stop()

    def leave(self) -> None:
        if self._worker is not None:
            self._worker.leave()


class Crew:
    """Some threads, started when there is something to do and ended when there has been nothing for a while."""

    def __init__(self, size: Callable[[], int], niceness: int) -> None:
        self.niceness, self._size = niceness, size
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._members: list[_Member] = []
        self.closed = False

    def submit(self, task: Task) -> None:
        """Have ``task(compile)`` run by one of the threads. Raises RuntimeError where there can be none."""
        with self._lock:
            if self.closed:
                raise RuntimeError("this process is about to end")
            if len(self._members) < min(self._unfinished + 1, self._size()):
                self._members.append(_Member(self))
            self._unfinished += 1
            self._tasks.put(task)

    def next_task(self, member: _Member) -> Task | None:
        """What a member has to do next, None where it is to end."""
        if self.closed:
            return None
        try:
            return self._tasks.get(timeout=_IDLE)
        except queue.Empty:
            with self._lock:
                if not self._tasks.empty():  # from the last moment
                    return self._tasks.get()
                self._members.remove(member)  # the next task starts a thread
                return None

    def left(self, member: _Member) -> None:
        with self._lock, suppress(ValueError):
            self._members.remove(member)

    def finished(self) -> None:
        with self._lock:
            self._unfinished -= 1

    def close(self) -> None:
        """Leave everything as it is, for this process is about to end."""
        with self._lock:
            self.closed = True
            members = list(self._members)
        for member in members:
            member.close()
            self._tasks.put(None)  # to one that has nothing to do
        for member in members:
            member.stop()

    def leave(self) -> None:
        """Forget the threads and the processes in a forked child, which has none."""
        for member in self._members:
            member.leave()
        self._forget()
