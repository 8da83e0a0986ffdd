"""How much memory this process may fill."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

# What a container is allowed, memory and swap: control groups 2 name them apart, control groups 1 their sum.
_LIMITS = (("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.swap.max"), ("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes",))


@lru_cache(maxsize=1)
def most() -> float:
    """Bytes that can ever be held at once: memory and swap of the machine, or of the container; infinity where the system does not tell.

    Systems that overcommit hand out any address and end the process when it is written to.
    """
    return min([_machine(), *(sum(map(_number, files)) for files in _LIMITS)])


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
