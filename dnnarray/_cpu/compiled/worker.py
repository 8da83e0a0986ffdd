"""The process that compiles kernels for another one. Imports Numba.

It is told on its standard input what to compile, a line of JSON for each kernel, and answers with a line of JSON and
the files that it made. It writes them to the cache as well, and ends with its parent: at the end of the input, whatever
it is at, or when it finds itself with another parent.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import Any, BinaryIO, NoReturn

from dnnarray._cpu.compiled import store
from dnnarray._cpu.compiled.crew import Job, compile_here

_FORGOTTEN = 60.0  # seconds without a request; a parent ends its process sooner
_LOOK = 0.5  # seconds between two looks at the parent: where another process holds a copy of the pipe, it does not end


def main(niceness: int, parent: int) -> None:
    """Serve until the parent is gone, or has forgotten to end this process."""
    if hasattr(os, "nice"):
        os.nice(niceness)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is no answer
    requests: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    store.made = []
    while True:
        error = compile_here(Job(*requests.get(timeout=_FORGOTTEN)))
        head = {"error": error, "files": [(name, len(content)) for name, content in store.made]}
        answers.write(json.dumps(head).encode() + b"\n" + b"".join(content for _, content in store.made))
        answers.flush()
        store.made.clear()


def _listen(lines: BinaryIO, requests: queue.SimpleQueue[list[Any]]) -> None:
    for line in lines:
        requests.put(json.loads(line))
    _end()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    _end()


def _end() -> NoReturn:
    """LLVM cannot be interrupted, a process can; a file is finished first."""
    with store.writing:
        os._exit(0)
