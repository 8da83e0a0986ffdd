"""The caches on disk: their folders and owners, damage, full disks, several writers, the names of kernels' files."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import dnnarray as dnn
from dnnarray import _cache, _warmup
from dnnarray.__main__ import main
from dnnarray._cpu.compiled import compiler
from dnnarray._select import Device, tuning

needs_numba = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners on this system")
_PACKAGE = Path(dnn.__file__).parent
_DEVICE = Device("made-up CPU", "cpu", 4, {"float32": 1e9}, 1e9, 1e-6)
_KIND = _cache.KERNELS


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch):
    """The folder of the caches, for the test alone; nothing else may be written to."""
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    tuning.forget_loaded()
    tuning._reported.clear()
    yield tmp_path / "cache"
    tuning.forget_loaded()


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

_DAMAGES = {
    "empty": lambda whole, other: b"",
    "truncated": lambda whole, other: whole[: len(whole) // 2],
    "less than a digest": lambda whole, other: whole[:7],
    "one byte missing": lambda whole, other: whole[:-1],
    "overwritten": lambda whole, other: os.urandom(len(whole)),
    "one bit": lambda whole, other: whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:],
    "another file": lambda whole, other: other,
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_file_counts_as_absent_and_is_replaced(damage):
    path, other = _stored(), _stored("other", b"another content")
    whole = path.read_bytes()
    path.write_bytes(_DAMAGES[damage](whole, other.read_bytes()))
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


# --- kernels ----------------------------------------------------------------------------------------------------------

_NAMES = """
from dnnarray._cpu.compiled import {module}
print("\\n".join(kernel.name(dtype) for kernel in {module}.{driver}.kernels for dtype in ("float32", "float64")))
"""
_WARM = """
import numpy as np, dnnarray as dnn
assert dnn.warmup("softsign") == 1
x = np.random.default_rng(0).standard_normal((300, 400), dtype=np.float32)
np.testing.assert_allclose(dnn.softsign(x), x / (1 + abs(x)), rtol=1e-6)
"""


def _start(code, package=_PACKAGE, **environment):
    variables = os.environ | {"PYTHONPATH": str(package.parent)} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", code], **pipes, text=True, env=variables, cwd=package.parent)


def _python(code, package=_PACKAGE, **environment):
    """What a fresh interpreter prints."""
    process = _start(code, package, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.split()


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache with the kernels of one operation."""
    base = tmp_path_factory.mktemp("warm") / "cache"
    _python(_WARM, DNNARRAY_CACHE_DIR=str(base))
    return base


@needs_numba
@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_kernel_is_compiled_anew(damage, warm, base):
    shutil.copytree(warm, base)
    files = sorted((base / "kernels").iterdir())
    first = {path: path.read_bytes() for path in files}
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        path.write_bytes(_DAMAGES[damage](first[path], first[other]))
    _python(_WARM)
    assert sorted((base / "kernels").iterdir()) == files
    for path in files:
        assert _cache.opened(path.name, path.read_bytes()) is not None


@needs_numba
@needs_owners
def test_a_kernel_that_others_could_have_written_is_not_run(warm, base):
    shutil.copytree(warm, base)
    witness = base / "was_run"
    payload = f"cos\nsystem\n(S'touch {witness}'\ntR.".encode()  # a pickle
    for path in (base / "kernels").iterdir():
        path.write_bytes(_cache.sealed(path.name, payload))
        path.chmod(0o666)
    _python(_WARM)
    assert not witness.exists()
    assert all(path.stat().st_mode & 0o077 == 0 for path in (base / "kernels").iterdir())  # replaced


@needs_numba
def test_a_full_disk_does_not_keep_a_kernel_from_running(base, tmp_path):
    full = "import os, errno\ndef replace(*paths): raise OSError(errno.ENOSPC, 'No space left')\nos.replace = replace\n"
    (tmp_path / "sitecustomize.py").write_text(full)  # in the process that compiles too
    _python(_WARM, PYTHONPATH=f"{tmp_path}{os.pathsep}{_PACKAGE.parent}", TMPDIR=str(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".kernel", ".tmp")]


@needs_numba
def test_two_processes_that_compile_the_same_at_once_do_no_harm(base):
    processes = [_start(_WARM) for _ in range(3)]
    for process in processes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    files = list((base / "kernels").iterdir())
    assert {path.suffix for path in files} == {".kernel"}
    assert all(_cache.opened(path.name, path.read_bytes()) is not None for path in files)


@needs_numba
def test_the_name_of_a_kernel_says_what_its_code_depends_on():
    first = _python(_NAMES.format(module="norm", driver="layer_norm"))
    assert len(set(first)) == len(first)
    seeds = {tuple(_python(_NAMES.format(module="norm", driver="layer_norm"), PYTHONHASHSEED=seed)) for seed in "123"}
    assert seeds == {tuple(first)}
    for variable, value in (("NUMBA_CPU_NAME", "generic"), ("NUMBA_CPU_FEATURES", "+sse2"), ("NUMBA_OPT", "1")):
        other = _python(_NAMES.format(module="norm", driver="layer_norm"), **{variable: value})
        assert not set(first) & set(other)


@needs_numba
@pytest.mark.parametrize(
    ("changed", "old", "new"),
    [
        ("_cpu/compiled/dropout.py", "import", "import"),
        ("_cpu/compiled/philox.py", "import", "import"),  # imported
        ("_cpu/compiled/tile.py", "import", "import"),  # imported by what is imported
        ("_cpu/philox.py", "ROUNDS = 10", "ROUNDS = 9"),  # a number from outside of the kernels
    ],
)
def test_checkouts_share_a_cache_without_taking_each_others_kernels(changed, old, new, tmp_path):
    copy = tmp_path / "checkout" / "dnnarray"
    shutil.copytree(_PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    code = _NAMES.format(module="dropout", driver="dropout")
    here = _python(code)
    assert _python(code, copy) == here
    file = copy / changed
    source = file.read_text()
    file.write_text(source.replace(old, new) + "\n# changed\n")
    assert not set(_python(code, copy)) & set(here)
    assert _python(code) == here


@needs_numba
def test_imports_are_found_however_they_are_written():
    from dnnarray._cpu.compiled.store import _imported

    source = b"""
from dnnarray._cpu.compiled import (
    conv,
    tile as t,
)
from dnnarray._cpu.compiled.lanes import fill
from dnnarray._cpu import threads
from dnnarray._cpu.philox import ROUNDS
import numpy as np
"""
    here = "dnnarray._cpu.compiled"
    assert list(_imported(source)) == [f"{here}.conv", f"{here}.tile", f"{here}.lanes", "dnnarray._cpu.philox"]


# --- what is known of it ----------------------------------------------------------------------------------------------

_QUESTIONS = """
import sys, dnnarray as dnn
for rows in (3, 300):
    x = dnn.Spec((rows, 400), "float32")
    print("compiled" in [a.name for a in dnn.algorithms("softsign", x)], sep="")
    print(str(dnn.explain("softsign", x)).splitlines()[-1].replace(" ", "_"))
print("numba" in sys.modules)
"""


@needs_numba
def test_questions_know_what_lies_on_disk(warm, base):
    cold = _python(_QUESTIONS)
    assert cold[0::2] == ["False", "False", "False"]
    assert all("not_compiled_yet" in text for text in cold[1::2])
    shutil.copytree(warm, base)
    small, reason, large, text, _ = _python(_QUESTIONS)
    assert large == "True"
    assert "not_compiled" not in text
    assert small == "False"  # as the call, for which nothing is loaded
    assert "compiled_before_and_not_loaded_yet" in reason


@needs_numba
def test_the_command_line_knows_what_lies_on_disk(warm, base):
    shutil.copytree(warm, base)
    command = "import sys; from dnnarray.__main__ import main; sys.exit(main(sys.argv[1:] or {}))"
    explained = _python(command.format(["explain", "softsign", "300,400"]))
    assert explained[explained.index("*") + 1] == "compiled"
    assert "compiled" in _python(command.format(["bench", "softsign", "300,400"]))


@needs_numba
def test_a_measurement_by_the_command_line_has_everything_compiled():
    command = "from dnnarray.__main__ import main; main(['bench', 'softsign', '300,400'])"
    assert {"compiled", "elementwise"} <= set(_python(command))


def _warmup_errors(code, **environment):
    process = _start(code, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.split(), err.splitlines()


@needs_numba
def test_a_warmup_tells_a_log_how_far_it_is():
    """Each algorithm once, whether it has been compiled or loaded, and every few seconds where nobody asked."""
    code = "import dnnarray as dnn; from dnnarray import _warmup; print(dnn.warmup('softsign', 'softsign_backward'{}))"
    assert _warmup_errors(code.format(", progress=False")) == (["2"], [])
    for _ in range(2):
        out, err = _warmup_errors(code.format(", progress=True"))
        assert out == ["2"]
        assert {line.partition(" activation.softsign")[0] for line in err} == {f"dnnarray: compiling {i}/2" for i in (1, 2)}
    assert _warmup_errors(code.format("").replace("print", "_warmup._PAUSE = 1e3; print")) == (["2"], [])
    assert _warmup_errors(code.format("").replace("print", "_warmup._PAUSE = 0.0; print")) == (out, err)


@needs_numba
def test_a_log_tells_what_a_warmup_leaves_out():
    code = """
import dnnarray as dnn
from dnnarray._cpu import matrix_unit
matrix_unit.missing = lambda: "no unit here"
print(dnn.warmup("linear", progress=True))
"""
    out, err = _warmup_errors(code)
    assert out == ["0"]
    assert err
    assert all(line.endswith("float32: left out, no unit here") for line in err)


def test_a_log_has_pauses_and_ends_with_what_is_done(capsys, monkeypatch):
    times = iter([0.0, 1.0, 6.0, 7.0, 8.0, 0.0, 1.0, 2.0])
    monkeypatch.setattr(_warmup, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log = _warmup._Log(5.0)
    for done in (1, 2, 3, 4):
        log(done, 4, str(done))
    assert capsys.readouterr().err.splitlines() == ["dnnarray: compiling 2/4 2", "dnnarray: compiling 4/4 4"]
    log = _warmup._Log(5.0)
    for done in (1, 2):  # soon done: nothing to tell
        log(done, 2, str(done))
    assert capsys.readouterr().err == ""


@needs_numba
def test_the_command_line_warms_up(base):
    code = "from dnnarray.__main__ import main; raise SystemExit(main(['warmup', 'softsign', '--dtypes', {}]))"
    out, err = _warmup_errors(code.format("'float32', 'float64'"))
    assert out[0] == "2"
    assert [line.split()[2] for line in err] == ["1/2", "2/2"]
    assert len(list((base / "kernels").glob("activation.softsign-*"))) == 2
    process = _start(code.format("'int8'"))
    assert "int8" in process.communicate(timeout=60)[1]
    assert process.returncode == 2


@needs_numba
def test_a_warmup_takes_a_process_for_each_core():
    code = """
import dnnarray as dnn
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import crew
threads.cores = lambda: 3
made, started = [], crew.Worker.__init__
crew.Worker.__init__ = lambda worker, niceness: made.append(niceness) or started(worker, niceness)
print(dnn.warmup("softsign", "tanh", "relu"), *made)
"""
    assert _python(code) == ["3", "0", "0", "0"]
