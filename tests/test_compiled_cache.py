"""Compiled kernels on disk: damage, owners, several writers, names of files, questions about them, and warm-ups."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import dnnarray as dnn
from dnnarray import _cache
from dnnarray._call import warmup as _warmup
from dnnarray._cpu.compiled import compiler
from tests.damage import DAMAGES

needs_numba = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
needs_owners = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no such owners on this system")
_PACKAGE = Path(dnn.__file__).parent


@pytest.fixture(autouse=True)
def base(own_caches):
    return own_caches


_NAMES = """
from dnnarray._cpu.compiled{package} import {module}
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
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_kernel_is_compiled_anew(damage, warm, base):
    shutil.copytree(warm, base)
    files = sorted((base / "kernels").iterdir())
    first = {path: path.read_bytes() for path in files}
    for path, other in zip(files, files[1:] + files[:1], strict=True):
        path.write_bytes(DAMAGES[damage](first[path], first[other]))
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
    code = _NAMES.format(package=".norm", module="planes", driver="layer_norm")
    first = _python(code)
    assert len(set(first)) == len(first)
    seeds = {tuple(_python(code, PYTHONHASHSEED=seed)) for seed in "123"}
    assert seeds == {tuple(first)}
    for variable, value in (("NUMBA_CPU_NAME", "generic"), ("NUMBA_CPU_FEATURES", "+sse2"), ("NUMBA_OPT", "1")):
        other = _python(code, **{variable: value})
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
    code = _NAMES.format(package="", module="dropout", driver="dropout")
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
from dnnarray._cpu.compiled.conv import plan
from dnnarray._cpu.compiled.conv.load import LANES
from dnnarray._cpu import threads
from dnnarray._cpu.philox import ROUNDS
import numpy as np
"""
    here = "dnnarray._cpu.compiled"
    inner = ("conv", "tile", "lanes", "conv.plan", "conv.load")
    assert list(_imported(source)) == [*(f"{here}.{name}" for name in inner), "dnnarray._cpu.philox"]


# --- what is known of it ----------------------------------------------------------------------------------------------

# The costs of two cores: with many, NumPy is predicted to be the fastest for so small an array.
_TWO_CORES = "from dnnarray._cpu import threads; threads.cores = lambda: 2\n"
_QUESTIONS = """
import sys, dnnarray as dnn
for rows in (3, 300):
    x = dnn.Spec((rows, 400), "float32")
    print("single_pass" in [a.name for a in dnn.algorithms("softsign", x)], sep="")
    print(str(dnn.explain("softsign", x)).splitlines()[-1].replace(" ", "_"))
print("numba" in sys.modules)
"""


@needs_numba
def test_questions_know_what_lies_on_disk(warm, base):
    cold = _python(_TWO_CORES + _QUESTIONS)
    assert cold[0::2] == ["False", "False", "False"]
    assert all("not_compiled_yet" in text for text in cold[1::2])
    shutil.copytree(warm, base)
    small, reason, large, text, _ = _python(_TWO_CORES + _QUESTIONS)
    assert large == "True"
    assert "not_compiled" not in text
    assert small == "False"  # as the call, for which nothing is loaded
    assert "compiled_before_and_not_loaded_yet" in reason


@needs_numba
def test_the_command_line_knows_what_lies_on_disk(warm, base):
    shutil.copytree(warm, base)
    command = _TWO_CORES + "import sys; from dnnarray.__main__ import main; sys.exit(main(sys.argv[1:] or {}))"
    explained = _python(command.format(["explain", "softsign", "300,400"]))
    assert explained[explained.index("*") + 1] == "single_pass"
    assert "single_pass" in _python(command.format(["bench", "softsign", "300,400"]))


@needs_numba
def test_a_measurement_by_the_command_line_has_everything_compiled():
    command = "from dnnarray.__main__ import main; main(['bench', 'softsign', '300,400'])"
    assert {"single_pass", "elementwise"} <= set(_python(command))


def _warmup_errors(code, **environment):
    process = _start(code, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.split(), err.splitlines()


@needs_numba
def test_a_warmup_tells_a_log_how_far_it_is():
    """Each algorithm once, whether it has been compiled or loaded, and every few seconds where nobody asked."""
    code = """
import dnnarray as dnn
from dnnarray._call import warmup as _warmup
print(dnn.warmup('softsign', 'softsign_backward'{}))
"""
    assert _warmup_errors(code.format(", progress=False")) == (["2"], [])
    for _ in range(2):
        out, err = _warmup_errors(code.format(", progress=True"))
        assert out == ["2"]
        told = {line.partition(" activation.softsign")[0] for line in err}
        assert told == {f"dnnarray: compiling {i}/2" for i in (1, 2)}
    assert _warmup_errors(code.format("").replace("print", "_warmup._PAUSE = 1e3; print")) == (["2"], [])
    assert _warmup_errors(code.format("").replace("print", "_warmup._PAUSE = 1e-9; print")) == (out, err)


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
    times = iter([0.0, 1.0, 6.0, 7.0, 8.0, 0.0, 1.0, 20.0])
    monkeypatch.setattr(_warmup, "time", SimpleNamespace(monotonic=lambda: next(times)))
    log = _warmup._Log(5.0)
    for done in (1, 2, 3, 4):
        log(done, 4, str(done))
    assert capsys.readouterr().err.splitlines() == ["dnnarray: compiling 2/4 2", "dnnarray: compiling 4/4 4"]
    log = _warmup._Log(5.0)
    for done in (1, 2):  # nothing to tell before it is done
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
