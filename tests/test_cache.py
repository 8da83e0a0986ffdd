"""The caches on disk: their folders and owners, damage, full disks, the report on them."""

import errno
import os
import tempfile
import warnings
from pathlib import Path

import pytest

import dnnarray as dnn
from dnnarray import _cache
from dnnarray.__main__ import main
from dnnarray._select import Device, tuning
from tests.damage import DAMAGES

needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners on this system")
_DEVICE = Device("made-up CPU", "cpu", 4, {"float32": 1e9}, 1e9, 1e-6)
_KIND = _cache.KERNELS


@pytest.fixture(autouse=True)
def base(own_caches):
    return own_caches


def _stored(name="name", content=b"content"):
    _cache.store(_KIND, name, content)
    (found,) = (place / name for place in _cache.folders(_KIND) if (place / name).exists())
    return found


# --- where ------------------------------------------------------------------------------------------------------------


def test_a_relative_xdg_cache_home_is_ignored(tmp_path, monkeypatch):
    monkeypatch.delenv("DNNARRAY_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = "home/.cache/dnnarray"
    for value, expected in ((str(tmp_path / "xdg"), "xdg/dnnarray"), ("xdg", home), ("./xdg", home), ("", home)):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert _cache.folder() == tmp_path / expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _cache.folder() == tmp_path / "home/.cache/dnnarray"


def test_a_user_without_a_home_gets_a_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("DNNARRAY_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert _cache.folder().parent == tmp_path / "temporary"


def test_a_relative_folder_counts_from_the_working_directory_of_its_first_use(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", f"relative-{tmp_path.name}")
    monkeypatch.chdir(tmp_path)
    first = _cache.folder()
    monkeypatch.chdir("/")
    assert first == _cache.folder() == tmp_path / f"relative-{tmp_path.name}"


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_counts_as_absent_and_is_replaced(damage):
    path, other = _stored(), _stored("other", b"another content")
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole, other.read_bytes()))
    assert _cache.find(_KIND, "name") is None
    assert [survey.damaged for survey in _cache.survey(_KIND)] == [1]
    assert _stored().read_bytes() == whole
    assert _cache.find(_KIND, "name") == b"content"
    assert [survey.damaged for survey in _cache.survey(_KIND)] == [0]


# --- whose ------------------------------------------------------------------------------------------------------------

_FOREIGN = [0o722, 0o770, 0o707] if os.name == "posix" else []


@needs_owners
@pytest.mark.parametrize("mode", _FOREIGN)
@pytest.mark.parametrize("which", ["base", "folder", "file"])
def test_what_others_can_write_is_neither_read_nor_written(which, mode, base):
    path = _stored()
    target = {"base": base, "folder": path.parent, "file": path}[which]
    target.chmod(mode)
    assert _cache.find(_KIND, "name") is None
    assert str(target) in str(_cache.survey(_KIND)[0])
    if which != "file":
        before = path.read_bytes()
        _cache.store(_KIND, "name", b"new")  # goes to the temporary folder
        assert path.read_bytes() == before
        assert _cache.find(_KIND, "name") == b"new"
    target.chmod(0o700)
    assert _cache.find(_KIND, "name") == b"content"


@needs_owners
@pytest.mark.parametrize("which", ["base", "folder", "file"])
def test_what_another_user_owns_is_not_read(which, base, monkeypatch):
    path = _stored()
    target, found = {"base": base, "folder": path.parent, "file": path}[which], os.stat(path)
    refusal = _cache._refusal
    inode = target.stat().st_ino
    monkeypatch.setattr(_cache, "_refusal", lambda status: "no" if status.st_ino == inode else refusal(status))
    assert _cache.find(_KIND, "name") is None
    monkeypatch.setattr(_cache, "_refusal", refusal)
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid + 1)
    assert _cache.refusal(path) == "belongs to another user"
    assert _cache.find(_KIND, "name") is None


@needs_owners
def test_files_are_the_users_alone_whatever_the_umask(base):
    before = os.umask(0)
    try:
        path = _stored()
        assert tuning.remember(_DEVICE, "k", {"a": 1.0})
    finally:
        os.umask(before)
    for each in (base, path.parent, path, tuning.path_of(_DEVICE)):
        assert each.stat().st_mode & 0o077 == 0


@needs_owners
@pytest.mark.parametrize("which", ["folder", "file"])
def test_a_tuning_table_that_others_can_write_is_left_alone(which, base):
    assert tuning.remember(_DEVICE, "k", {"a": 1.0})
    table = tuning.path_of(_DEVICE)
    before = table.read_bytes()
    (base if which == "folder" else table).chmod(0o777)
    tuning.forget_loaded()
    with pytest.warns(UserWarning, match="can be written by other users"):
        assert tuning.lookup(_DEVICE, "k") is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not tuning.remember(_DEVICE, "k", {"a": 2.0})
    assert table.read_bytes() == before


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("step", ["mkdir", "mkstemp", "replace"])
def test_a_disk_that_cannot_be_written_costs_nothing_else(step, fault, base, monkeypatch):
    path = _stored()

    def fail(*args, **kwargs):
        raise OSError(fault, os.strerror(fault))

    where = {"mkdir": Path, "mkstemp": tempfile, "replace": os}[step]
    monkeypatch.setattr(where, step, fail)
    _cache.store(_KIND, "other", b"new")
    assert _cache.find(_KIND, "other") is None
    assert _cache.find(_KIND, "name") == b"content"
    assert [p.name for p in path.parent.iterdir()] == ["name"]


def test_a_folder_that_can_only_be_read_is_read(base, monkeypatch):
    path = _stored()
    mkstemp = tempfile.mkstemp

    def fail(suffix, prefix, place):
        if Path(place) == path.parent:
            raise OSError(errno.EROFS, "Read-only file system")
        return mkstemp(suffix, prefix, place)

    monkeypatch.setattr(tempfile, "mkstemp", fail)
    Path(tempfile.gettempdir()).mkdir()
    _cache.store(_KIND, "other", b"new")
    assert _cache.find(_KIND, "name") == b"content"
    assert _cache.find(_KIND, "other") == b"new"


# --- how much ---------------------------------------------------------------------------------------------------------


def test_what_was_used_least_recently_goes_first(monkeypatch):
    monkeypatch.setattr(_cache, "LIMIT", 4 * (1000 + _cache._DIGEST))
    now = os.stat(_stored("a", bytes(1000))).st_mtime
    for i, name in enumerate("abcd"):
        os.utime(_stored(name, bytes(1000)), (now - 50000 + i, now - 50000 + i))
    assert _cache.find(_KIND, "a") is not None  # used now
    path = _stored("e", bytes(1000))
    assert sorted(p.name for p in path.parent.iterdir()) == ["a", "c", "d", "e"]


def test_what_killed_processes_left_goes_and_what_is_being_written_stays():
    place = _stored().parent
    old, new = place / "old.tmp", place / "new.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    _stored("other")
    assert not old.exists()
    assert new.exists()


# --- the command line and the report ----------------------------------------------------------------------------------


def _item():
    (item,) = (item for item in dnn.check().items if item.name == "cache")
    return item


def test_check_tells_size_damage_and_what_is_not_ours(base):
    assert _item().ok
    assert str(base) in _item().found
    path = _stored(content=bytes(200000))
    assert _item().ok
    assert f"{path.parent}: 1 files, 0.2 MB" in _item().found
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert not _item().ok
    assert "1 of them damaged" in _item().found
    assert "cache clear" in _item().mend
    if hasattr(os, "geteuid"):
        path.write_bytes(whole)
        path.chmod(0o666)
        assert not _item().ok
        assert f"{path} can be written by other users" in _item().found
        assert "chmod go-w" in _item().mend


def test_check_tells_of_tuning_tables_that_are_not_ours():
    assert tuning.remember(_DEVICE, "k", {"a": 1.0})
    assert _item().ok
    if hasattr(os, "geteuid"):
        tuning.path_of(_DEVICE).chmod(0o666)
        assert not _item().ok


def test_the_command_line_shows_and_clears_all(base, capsys):
    paths = [_stored(), _stored("other", b"x")]
    paths[0].write_bytes(b"damaged")
    (paths[0].parent / "left.tmp").write_bytes(b"")
    _cache.store(_cache.CUBINS, "machine-code", b"content")
    assert tuning.remember(_DEVICE, "k", {"a": 1.0})
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "1 measured calls" in shown
    assert f"{base / 'kernels'}: 2 files, 0.0 MB, 1 of them damaged" in shown
    assert f"{base / 'cubin'}: 1 files" in shown
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.count("removed") == 3
    assert not [p for p in base.rglob("*") if p.is_file()]
    assert main(["cache"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(base), "  no measured times"]


def test_the_command_line_says_what_cannot_be_removed(capsys, monkeypatch):
    _stored()

    def fail(path, missing_ok=False):
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "unlink", fail)
    assert main(["cache", "clear"]) == 1
    assert "cannot be removed (Permission denied)" in capsys.readouterr().out
