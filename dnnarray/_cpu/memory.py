"""How much memory this process may fill, and scratch memory."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

_LINE = 64  # bytes of a cache line
# What a container is allowed, memory and swap: control groups 2 name them apart, control groups 1 their sum.
_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.swap.max"),
    ("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes",),
)


@lru_cache(maxsize=1)
def most() -> float:
    """Bytes that can ever be held at once: memory and swap of the machine, or of the container; infinity where the
    system does not tell.

    Systems that overcommit hand out any address and end the process when it is written to.
    """
    return min([_machine(), *(sum(map(_number, files)) for files in _LIMITS)])


def scratch(size: int) -> np.ndarray:
    """So many bytes, uninitialised, from the first of a cache line on: an algorithm that wants lines need not take as
    much memory once more."""
    found = np.empty(size + _LINE - 1, np.uint8)
    first = -found.__array_interface__["data"][0] % _LINE
    return found[first : first + size]


def _machine() -> float:
    try:
        rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return sum(int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError, IndexError):  # a system without /proc
        return float("inf")


def _number(path: str) -> float:
    """What the file holds; infinity where there is no such file or it says "max"."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return float("inf")
