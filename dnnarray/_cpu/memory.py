"""How much memory this process may fill."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container: control groups 2 and 1


@lru_cache(maxsize=1)
def most() -> float:
    """Bytes that can ever be held at once: the machine's memory and its swap, or what the container is allowed; infinity where the system does not tell.

    Systems that overcommit hand out any address and end the process when it is written to.
    """
    return min([_machine(), *(_number(path) for path in _LIMITS)])


def _machine() -> float:
    try:
        rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return sum(int(rows[name].split()[0]) * 1024 for name in ("MemTotal", "SwapTotal"))
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 2  # a system without /proc does not tell its swap
    except (AttributeError, OSError, ValueError):
        return float("inf")


def _number(path: str) -> float:
    """What the file holds; infinity where there is no such file or it says "max"."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return float("inf")
