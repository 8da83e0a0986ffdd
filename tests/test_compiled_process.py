"""The process that compiles: nobody waits for it at the end, it outlives nothing, it leaves the program alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dnnarray as dnn
from dnnarray import _cache
from dnnarray._cpu.compiled import compiler
from dnnarray._cpu.compiled.crew import Crew, Job

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
needs_signals = pytest.mark.skipif(os.name != "posix", reason="needs the signals of POSIX")
_ROOT = Path(dnn.__file__).parents[1]

_HEAD = """
import sys, time, numpy as np, dnnarray as dnn
from dnnarray._cpu.compiled import compiler
def until(wanted):
    end = time.monotonic() + 120
    while not wanted():
        assert time.monotonic() < end
        time.sleep(0.01)
def worker():
    return compiler._background._members and compiler._background._members[0]._worker
x = np.random.default_rng(0).standard_normal((300, 400), dtype=np.float32)
image, weight = np.ones((4, 16, 28, 28), np.float32), np.ones((32, 16, 3, 3), np.float32)
"""
_CALLS = """
for _ in range(3):
    dnn.softsign(x), dnn.conv(image, weight, padding=1)
"""
_LAST = """
print(time.time(), flush=True)
"""
_AT_WORK = """
until(worker)
print(worker()._process.pid, flush=True)
"""


@pytest.fixture
def environment(tmp_path):
    return os.environ | {"PYTHONPATH": str(_ROOT), "DNNARRAY_CACHE_DIR": str(tmp_path / "cache"), "DNNARRAY_NUMBA": "1"}


def _run(code, environment, **more):
    """What a program prints, and how long it goes on after it has printed the time at its last line."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=200, **more)
    end = time.time()
    assert (done.returncode, done.stderr) == (0, "")
    *rest, last = done.stdout.split()
    return rest, end - float(last)


def _start(code, environment):
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


def _is_gone(pid, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{pid}/stat")
        if status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True  # ended; its adopted parent has not looked yet
        time.sleep(0.02)
    return False


def _files(tmp_path):
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


_USED = "import numba; numba.njit(lambda: 1)()"
_MOMENTS = {  # and what the interpreter has to clear away then without dnnarray
    "at once": ("", ""),
    "when the process has been started": ("until(worker)", ""),
    "while Numba is imported there": ("until(worker); time.sleep(0.4)", ""),
    "while it compiles": ("until(worker); time.sleep(2)", ""),
    "when Numba has begun to be imported here": ("until(lambda: 'numba' in sys.modules)", _USED),
    "when kernels are ready": ("until(lambda: any(u.state == 'ready' for u in compiler._units.values()))", _USED),
    "when nothing is left to do": ("compiler.settle()", _USED),
}


_TRIES = 6  # a busy machine may keep a process from its core for longer than the limit, though not every time


@pytest.mark.parametrize("moment", _MOMENTS)
def test_a_program_ends_when_it_is_done(moment, environment, tmp_path):
    """Within half a second, beyond what the interpreter needs to clear away the same program without compiled kernels.

    An ending within the limit proves it alone, so that only a longer one is compared with the program without kernels.
    """
    when, cleared = _MOMENTS[moment]
    plain, later = [], []
    for i in range(_TRIES):
        cold = environment | {"DNNARRAY_CACHE_DIR": str(tmp_path / "cache" / str(i))}
        later.append(_run(_HEAD + _CALLS + when + _LAST, cold)[1])
        if min(later) < 0.5:
            break
        plain.append(_run(_HEAD + _CALLS + cleared + _LAST, environment | {"DNNARRAY_NUMBA": "0"})[1])
    assert min(later) - min(plain, default=0.0) < 0.5
    assert {path.suffix for path in _files(tmp_path)} <= {".kernel"}
    assert all(_cache.opened(path.name, path.read_bytes()) is not None for path in _files(tmp_path))


def test_a_first_call_imports_no_numba(environment):
    (found, _) = _run(_HEAD + _CALLS + "print('numba' in sys.modules)" + _LAST, environment)
    assert found == ["False"]


@needs_signals
@pytest.mark.parametrize("end", ["normal", "killed", "os._exit", "with a forked copy"])
def test_the_process_ends_with_its_parent(end, environment, tmp_path):
    ways = {
        "normal": "",
        "killed": "time.sleep(100)",
        "os._exit": "import os; os._exit(0)",
        "with a forked copy": "import os\nif os.fork() == 0: print(os.getpid(), flush=True)\ntime.sleep(100)",
    }
    parent = _start(_HEAD + _CALLS + _AT_WORK + ways[end], environment)
    worker = int(parent.stdout.readline())
    copy = int(parent.stdout.readline()) if end == "with a forked copy" else None
    if end in ("killed", "with a forked copy"):
        time.sleep(1)
        parent.kill()
    assert _is_gone(worker)
    if copy is not None:
        os.kill(copy, signal.SIGKILL)
    parent.communicate(timeout=60)
    assert {path.suffix for path in _files(tmp_path)} <= {".kernel"}


@needs_signals
def test_where_pipes_are_open_elsewhere_the_process_looks_at_its_parent(environment):
    """A copy by other means than Python's own does not close its end."""
    fork = "import ctypes\nif ctypes.CDLL(None).fork() == 0:\n    ctypes.CDLL(None).pause()\n"
    parent = _start(_HEAD + _CALLS + _AT_WORK + fork + "print(0, flush=True); time.sleep(100)", environment)
    worker = int(parent.stdout.readline())
    parent.stdout.readline()
    parent.kill()
    assert _is_gone(worker)
    subprocess.run(["pkill", "-P", str(parent.pid)], check=False)
    parent.stdout.close()
    parent.wait()


def test_the_users_script_runs_once_and_its_folder_is_not_the_working_directory(environment, tmp_path):
    """A module of the working directory is none of the program's where its script lies elsewhere."""
    script, elsewhere = tmp_path / "script" / "script.py", tmp_path / "elsewhere"
    script.parent.mkdir()
    elsewhere.mkdir()
    for name in ("json", "signal", "numba", "queue", "numpy"):
        (elsewhere / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    once = "open('runs', 'a').write('x')\nassert __name__ == '__main__'\n"
    script.write_text(once + _HEAD + "print(dnn.warmup('softsign'))")
    where = {"env": environment, "cwd": elsewhere}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200, **where)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert (elsewhere / "runs").read_text() == "x"
    assert not (tmp_path / "imported").exists()


@needs_signals
def test_a_process_that_dies_is_told_and_another_takes_its_place(environment):
    kill = """
import os, signal
until(worker)
os.kill(worker()._process.pid, signal.SIGKILL)
until(lambda: any(unit.state == 'failed' for unit in compiler._units.values()))
(unit,) = compiler._units.values()
assert 'ended with status -9' in str(dnn.explain('softsign', x)), dnn.explain('softsign', x)
dnn.softsign(x)
print(dnn.warmup('relu'))
"""
    assert _run(_HEAD + "dnn.softsign(x)" + kill + _LAST, environment)[0] == ["1"]


@needs_signals
def test_an_interrupt_from_the_keyboard_does_not_end_the_process(environment):
    interrupt = """
import os, signal
until(worker); time.sleep(1)
os.kill(worker()._process.pid, signal.SIGINT)
compiler.settle()
print(*(unit.state for unit in compiler._units.values()))
"""
    assert _run(_HEAD + "dnn.softsign(x)" + interrupt + _LAST, environment)[0] == ["ready"]


@pytest.mark.parametrize("executable", ["None", "''", "'/usr/bin/false'", "'/nowhere/python'"])
def test_without_an_interpreter_to_start_kernels_are_compiled_here(executable, environment):
    code = f"sys.executable = {executable}\nprint(dnn.warmup('softsign'))"
    assert _run(_HEAD + code + _LAST, environment)[0] == ["1"]


def test_a_program_that_is_its_own_interpreter_is_not_started_again(environment):
    assert _run(_HEAD + "sys.frozen = True\nprint(dnn.warmup('softsign'))" + _LAST, environment)[0] == ["1"]


def test_a_fault_of_the_compiler_is_told(monkeypatch):
    crew, found = Crew(lambda: 1, niceness=0), []
    done = __import__("threading").Event()

    def task(compile_kernels):
        found.append(compile_kernels(Job("dnnarray._cpu.compiled.activation", "no_such_driver", "float32", 0)))
        done.set()

    crew.submit(task)
    assert done.wait(60)
    crew.close()
    assert "AttributeError" in found[0]
    assert "no_such_driver" in found[0]
    with pytest.raises(RuntimeError):
        crew.submit(task)


def test_a_crew_starts_no_more_threads_than_it_has_tasks_and_lets_them_go(monkeypatch):
    import threading

    from dnnarray._cpu.compiled import crew as module

    monkeypatch.setattr(module, "_IDLE", 0.05)
    crew, seen, gate = Crew(lambda: 3, niceness=0), set(), threading.Barrier(3)

    def task(compile_kernels):
        gate.wait(30)
        seen.add(threading.get_ident())

    for _ in range(3):
        crew.submit(task)
    end = time.monotonic() + 30
    while crew._members and time.monotonic() < end:
        time.sleep(0.01)
    assert len(seen) == 3
    assert not crew._members
    crew.submit(lambda compile_kernels: seen.clear())
    while seen and time.monotonic() < end:
        time.sleep(0.01)
    assert not seen
    crew.close()


def test_another_dtype_is_loaded_while_kernels_are_at_work(environment):
    """No call meets a function of Numba that is about to take other types."""
    code = """
import threading
dnn.warmup("softsign")
right, wrong, stop = dnn.softsign(x).tobytes(), [], threading.Event()
def call():
    while not stop.is_set():
        try:
            if dnn.softsign(x).tobytes() != right: wrong.append("other bits")
        except Exception as error:
            wrong.append(repr(error))
callers = [threading.Thread(target=call) for _ in range(2)]
for caller in callers: caller.start()
dnn.warmup("softsign", dtypes="float64")
stop.set()
for caller in callers: caller.join()
print(len(wrong), *wrong[:3])
"""
    assert _run(_HEAD + code + _LAST, environment)[0] == ["0"]
