"""The caches on disk: where they lie, whom they belong to, and how a file is written as a whole.

What lies in a cache is run (machine code, pickles) or believed (measured times), so one rule holds for all of them:
a folder or a file that another user owns or can write is not read and not written. A stored file begins with a digest
of its name and content: one that was cut short, overwritten or renamed counts as absent.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from dnnarray._records import frozen

KERNELS, CUBINS = KINDS = "kernels", "cubin"  # of stored files, by the names of their folders
LIMIT = 512 << 20  # bytes of a folder: those that were used least recently are removed beyond it
_DIGEST = hashlib.sha256().digest_size
_TOUCH = 3600.0  # seconds after which a use is noted again
_ABANDONED = 3600.0  # seconds after which a temporary file is taken for that of a killed process
_TEMPORARY = ".tmp"
_PRIVATE = 0o700
_SHOWN = 3  # files of a survey that are named


def folder() -> Path:
    """Where caches live: ``DNNARRAY_CACHE_DIR``, else the user's cache folder."""
    return Path(folder_name())


def folder_name() -> str:
    """The same as a text.

    A relative ``DNNARRAY_CACHE_DIR`` counts from the working directory of its first use, a relative ``XDG_CACHE_HOME``
    is ignored.
    """
    if configured := os.environ.get("DNNARRAY_CACHE_DIR"):
        return _absolute(configured)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG Base Directory Specification
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "dnnarray") if os.path.isabs(base) else _temporary()  # a user without a home


@lru_cache(maxsize=16)
def _absolute(path: str) -> str:
    return os.path.abspath(path)


def _temporary() -> str:
    """This user's folder among the temporary files."""
    return os.path.join(tempfile.gettempdir(), f"dnnarray-{os.getuid() if hasattr(os, 'getuid') else 'user'}")


def folders(kind: str) -> list[Path]:
    """The folders of a kind of cache, in the order in which they are tried: the second is among the temporary files."""
    bases = [folder_name()]
    with contextlib.suppress(OSError):  # nor is there any place for temporary files
        bases.append(_temporary())
    return [Path(base) / kind for base in dict.fromkeys(bases)]


def refusal(path: Path) -> str | None:
    """Why a folder or a file is not to be used, or None: also for one that does not exist."""
    try:
        return _refusal(os.stat(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _refusal(found: os.stat_result) -> str | None:
    if hasattr(os, "geteuid"):  # elsewhere the user's own folder is private
        if found.st_uid != os.geteuid():
            return "belongs to another user"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return "can be written by other users"
    return None


def own(path: Path) -> bytes:
    """What lies in a file. Raises OSError where there is none, or it or its folder is not to be used."""
    with open(path, "rb") as file:
        reason = refusal(path.parent) or _refusal(os.fstat(file.fileno()))
        if reason is not None:
            raise PermissionError(errno.EPERM, reason)
        return file.read()


def sealed(name: str, content: bytes) -> bytes:
    """What is stored under a name."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest() + content


def opened(name: str, stored: bytes) -> bytes | None:
    """The content of what is stored under a name, None where that is damaged."""
    content = stored[_DIGEST:]
    return content if stored == sealed(name, content) else None


def write(path: Path, stored: bytes) -> None:
    """Replace a file as a whole. Raises OSError where that cannot be, and then leaves nothing behind."""
    handle, temporary = tempfile.mkstemp(_TEMPORARY, "", path.parent)  # for this user alone
    try:
        with open(handle, "wb") as file:
            file.write(stored)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_folder(path: Path) -> None:
    """Have a folder of one's own. Raises OSError where there can be none, or it is another's."""
    path.mkdir(_PRIVATE, parents=True, exist_ok=True)
    if (reason := refusal(path)) is not None:
        raise PermissionError(errno.EPERM, reason)


def find(kind: str, name: str) -> bytes | None:
    """What is stored under a name in a kind of cache; None where it is absent, damaged or not this user's own."""
    for place in folders(kind):
        with contextlib.suppress(OSError):
            if refusal(place.parent) is None and (content := opened(name, own(place / name))) is not None:
                _note_use(place / name)
                return content
    return None


def holds(kind: str, beginning: str) -> bool:
    """Whether the name of a stored file begins like this."""
    return any(file.path.name.startswith(beginning) for place in folders(kind) for file in _listed(place))


def _note_use(path: Path) -> None:
    """Not more often than is of use: it writes to the disk."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _TOUCH:
            os.utime(path)


def store(kind: str, name: str, content: bytes) -> None:
    """Keep it for later processes. A full or read-only disk costs these the work to make it again, and nothing else."""
    for place in folders(kind):
        with contextlib.suppress(OSError):
            make_folder(place.parent)
            make_folder(place)
            write(place / name, sealed(name, content))
            _make_room(place)
            return


class _Stored(NamedTuple):
    used: float
    size: int
    path: Path


def _listed(place: Path) -> list[_Stored]:
    found = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has just removed it
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(_Stored(status.st_mtime, status.st_size, Path(entry.path)))
    return sorted(found)


def _make_room(place: Path) -> None:
    """Remove what was used least recently, and what killed processes have left."""
    listed = _listed(place)
    size = sum(file.size for file in listed)
    for file in listed:
        abandoned = file.path.suffix == _TEMPORARY and time.time() - file.used > _ABANDONED
        if size > LIMIT or abandoned:
            size -= file.size
            with contextlib.suppress(OSError):
                file.path.unlink()


@frozen
class Survey:
    """What lies in the folder of a kind of cache."""

    place: Path
    files: int
    size: int
    damaged: int
    refused: tuple[str, ...]  # what is not used, and why

    def __str__(self) -> str:
        parts = [f"{self.place}: {self.files} files, {self.size / 1e6:.1f} MB"]
        if self.damaged:
            parts.append(f"{self.damaged} of them damaged")
        parts += self.refused[:_SHOWN]
        if len(self.refused) > _SHOWN:
            parts.append(f"and {len(self.refused) - _SHOWN} more")
        return ", ".join(parts)


def survey(kind: str) -> list[Survey]:
    """The folders of a kind of cache that there are."""
    return [_surveyed(place) for place in folders(kind) if place.is_dir()]


def _surveyed(place: Path) -> Survey:
    files = [file for file in _listed(place) if file.path.suffix != _TEMPORARY]
    looked_at = (place.parent, place, *(file.path for file in files))
    refused = [f"{path} {reason}" for path in looked_at if (reason := refusal(path)) is not None]
    damaged = sum(_is_damaged(file.path) for file in files)
    return Survey(place, len(files), sum(file.size for file in files), damaged, tuple(refused))


def _is_damaged(path: Path) -> bool:
    try:
        return opened(path.name, path.read_bytes()) is None
    except OSError:
        return True


def clear(kind: str) -> None:
    """Remove all files of a kind of cache. Raises OSError where one cannot be removed."""
    for place in folders(kind):
        for file in _listed(place):
            file.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            place.rmdir()  # to be made anew, for this user alone
