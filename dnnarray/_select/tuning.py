"""The tuning table: measured times per device on disk. Locked, merged and renamed, so that no writer loses another's
rows.

One JSON file per device. A file that is corrupted, of another schema or of another version is left alone and reported
once."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from dnnarray import _cache
from dnnarray._options import Options
from dnnarray._problems.base import Problem
from dnnarray._select.device import Device
from dnnarray._version import __version__

SCHEMA = 1
_LOCK_WAIT = 10.0  # seconds to wait for another writer
_STALE_LOCK = 60.0  # seconds after which a lock is taken for that of a killed process
_counter = itertools.count()
_loaded: dict[Path, dict[str, dict[str, float]] | None] = {}


def path_of(device: Device) -> Path:
    """The table of one device."""
    return _path(_cache.folder_name(), device.name)


@lru_cache(maxsize=64)
def _path(folder: str, name: str) -> Path:
    return Path(folder) / f"tuning_{slug(name)}.json"


def slug(name: str) -> str:
    """A device's name as it stands in the names of files."""
    return "".join(c if c.isalnum() else "_" for c in name).strip("_").lower()


def key_of(problem: Problem, device: Device, options: Options) -> str:
    """What a measurement is valid for: the problem, the device, what the options allow, and the version of this
    library."""
    allowed = (options.deterministic, options.workspace_limit, options.float32_precision)
    return hashlib.sha256(
        repr((SCHEMA, __version__, problem, device.name, device.units, allowed)).encode()
    ).hexdigest()[:32]


def measured(problem: Problem, device: Device, options: Options) -> dict[str, float] | None:
    """Milliseconds by algorithm for a problem, or None. Nothing is worked out where nothing was measured on this
    device."""
    table = _table(device)
    return table.get(key_of(problem, device, options)) if table else None


def lookup(device: Device, key: str) -> dict[str, float] | None:
    """Milliseconds by algorithm for a key, or None."""
    table = _table(device)
    return None if table is None else table.get(key)


def _table(device: Device) -> dict[str, dict[str, float]] | None:
    path = path_of(device)
    if path not in _loaded:
        _loaded[path] = _read(path)
    return _loaded[path]


def remember(device: Device, key: str, times: dict[str, float]) -> bool:
    """Add one measurement; False where the table cannot be written (it is foreign, or the folder is read-only)."""
    path = path_of(device)
    try:
        _cache.make_folder(path.parent)
        with _lock(path):
            table = _read(path)
            if table is None:
                return False
            table[key] = times
            _cache.write(path, json.dumps({"schema": SCHEMA, "rows": table}, indent=1, sort_keys=True).encode())
    except OSError as error:
        _report(path, f"cannot be written ({error.strerror or error})")
        return False
    _loaded[path] = table
    return True


def rows(path: Path) -> dict[str, dict[str, float]]:
    """What a table holds: milliseconds by algorithm for each key."""
    return _read(path) or {}


def forget_loaded() -> None:
    """Read the tables anew at the next look-up."""
    _loaded.clear()


def _read(path: Path) -> dict[str, dict[str, float]] | None:
    """The rows of a table, empty where there is none yet, None where the file is not ours to trust."""
    try:
        content = json.loads(_cache.own(path))
    except FileNotFoundError:
        return {}
    except PermissionError as error:
        _report(path, f"cannot be used ({error.strerror})")
        return None
    except (OSError, ValueError, RecursionError) as error:
        _report(path, f"cannot be read ({type(error).__name__})")
        return None
    if not _is_table(content):
        _report(path, f"is not a tuning table of schema {SCHEMA}")
        return None
    return content["rows"]


def _is_table(content: Any) -> bool:
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or not isinstance(content.get("rows"), dict):
        return False
    return all(isinstance(row, dict) and all(map(_is_time, row.values())) for row in content["rows"].values())


def _is_time(value: Any) -> bool:
    return (
        isinstance(value, (int, float)) and 0 <= value < math.inf
    )  # not NaN, which is no number of JSON but which Python reads


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One writer at a time, also across processes: an exclusively created file beside the table."""
    lock = path.with_suffix(".lock")
    deadline = time.monotonic() + _LOCK_WAIT
    while True:
        try:
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if _is_stale(lock):
                    _take_away(lock)
                    continue
            if time.monotonic() > deadline:
                raise TimeoutError(11, "another process holds the lock") from None
            time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()


def _is_stale(lock: Path) -> bool:
    return time.time() - lock.stat().st_mtime > _STALE_LOCK


def _take_away(lock: Path) -> None:
    """Remove the lock of a killed process. It is renamed first: one that another process has just made anew is found
    out and given back."""
    mine = lock.with_suffix(f".{os.getpid()}.{next(_counter)}.stale")
    os.rename(lock, mine)
    try:
        if not _is_stale(mine):
            os.link(mine, lock)
    finally:
        mine.unlink()


_reported: set[Path] = set()


def _report(path: Path, what: str) -> None:
    if path not in _reported:
        _reported.add(path)
        warnings.warn(
            f"dnnarray: the tuning table {path} {what}; it is left alone, and nothing is remembered there.",
            stacklevel=3,
        )
