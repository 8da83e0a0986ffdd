"""Threads of the CPU engine as a process sees them: who is awake, who is woken, how a process ends, forks and is told
how many to take."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import dnnarray as dnn
from asv_bench import contention
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler

_WITH_NUMBA = pytest.param(
    "1", marks=pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
)
_NUMBA = pytest.mark.parametrize("numba", ["0", _WITH_NUMBA])
_ALONE = pytest.mark.skipif(threads.cores() < 2, reason="there is one core")
_MUCH = 1 << 40
# Calls that each wake every thread there is: kernels where Numba may compile them, products, parts that are Python
# functions, recurrent steps by NumPy.
_CALLS = """
import os, sys, threading, time
import numpy as np
import dnnarray as dnn
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler

x = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
sequence, weights = x[:640, :256].reshape(20, 32, 256), [(x[:512, :256].copy(), x[:512, :512].copy(), None, None)]
calls = [
    lambda: dnn.relu(x),
    lambda: dnn.softmax(x),
    lambda: dnn.linear(x, x),
    lambda: threads.run(lambda start, stop: None, 4, work=1 << 40),
    lambda: dnn.rnn(sequence, weights),
]
for _ in range(3):
    for call in calls:
        call()
    compiler.settle()
"""


def _run(code, **variables):
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"} | variables
    done = subprocess.run(
        [sys.executable, "-c", _CALLS + code], capture_output=True, text=True, env=environment, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.split()


@_NUMBA
def test_no_thread_is_busy_behind_a_call(numba):
    code = """
for call in calls:
    call()
    before = time.process_time()
    time.sleep(0.3)
    print(time.process_time() - before)
"""
    assert max(map(float, _run(code, DNNARRAY_NUMBA=numba))) < 0.005


@_ALONE
@_NUMBA
def test_the_engine_has_one_team(numba):
    """Numba's own threads are never started, and once there is a team those that sleep in Python are left alone."""
    code = """
for call in calls:
    call()
kernels = any(type(t).__name__ == "Thread" and t.name.startswith("dnnarray-1") for t in threading.enumerate())
with open("/proc/self/maps") as maps:
    print(kernels, "omppool" in maps.read())
print(threads._pool.job is None)
"""
    assert _run(code, DNNARRAY_NUMBA=numba) == [str(numba == "1"), "False", "True"]


@_NUMBA
@pytest.mark.parametrize("end", ["pass", "sys.exit()", "time.sleep(0.01)", "threading.Thread(target=calls[0]).start()"])
def test_a_process_ends_while_its_threads_watch_or_sleep(numba, end):
    assert _run(f"calls[0]()\nprint('done')\n{end}\n", DNNARRAY_NUMBA=numba) == ["done"]


@_NUMBA
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_team_of_its_own(numba):
    """Also one that was forked while another thread was at work."""
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
expected, stop = np.maximum(x, 0), threading.Event()

def work():
    while not stop.is_set():
        dnn.linear(x, x)

other = threading.Thread(target=work)
other.start()
children = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        right = all((dnn.relu(x) == expected).all() for _ in range(5))
        names = set()
        both = threading.Barrier(2, timeout=60)
        with dnn.options(threads=2):
            threads.run(lambda start, stop: (both.wait(), names.add(threading.get_ident())), 2, work=1 << 40)
        os._exit(0 if right and (len(names) == 2) else 1)
    children.append(child)
    time.sleep(0.01)
stop.set()
other.join()
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
    assert _run(code, DNNARRAY_NUMBA=numba) == ["0"] * 10


@pytest.mark.parametrize(
    "variables, count",
    [
        ({}, 2),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"NUMBA_NUM_THREADS": "1"}, 1),
        ({"OPENBLAS_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "0"}, 2),
    ],
)
def test_the_environment_says_how_many(variables, count):
    code = "from dnnarray._cpu import threads; print(threads.count())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"} | variables,
    )
    assert int(found.stdout) == min(count, threads.cores())


@_NUMBA
def test_more_threads_than_cores(numba):
    """Parts for as many as were asked for, by as many threads as there are cores."""
    code = """
with dnn.options(threads=8):
    right = all((dnn.relu(x) == np.maximum(x, 0)).all() for _ in range(20))
    seen = []
    threads.run(lambda start, stop: seen.append((start, stop)), 8, work=1 << 40)
ours = [t for t in threading.enumerate() if t.name.startswith("dnnarray") and t.name != "dnnarray-compiler"]
print(right, sorted(seen) == [(i, i + 1) for i in range(8)], len(ours) <= 2 * (threads.cores() - 1))
"""
    assert _run(code, DNNARRAY_NUMBA=numba) == ["True"] * 3


# --- the pool that sleeps ---------------------------------------------------------------------------------------------


def _parts(count):
    return [(i, i + 1) for i in range(count)]


def test_a_caller_waits_for_no_thread_that_has_not_begun(monkeypatch):
    pool, seen = threads._Pool(), []
    monkeypatch.setattr(threads._Helper, "wake", lambda helper: None)
    assert pool.serve(lambda start, stop: seen.append((start, stop, threading.get_ident())), _parts(5), ())
    assert sorted(seen) == [(i, i + 1, threading.get_ident()) for i in range(5)]


@_ALONE
def test_a_thread_that_wakes_too_late_does_nothing():
    pool, seen = threads._Pool(), []
    for number in range(200):
        assert pool.serve(lambda start, stop, n: seen.append((n, start)), _parts(2), (number,))
    time.sleep(0.05)
    assert sorted(seen) == [(n, i) for n in range(200) for i in range(2)]
    assert pool.job is None


@_ALONE
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_a_part_reaches_the_caller_of_the_pool(error):
    pool, both, ended = threads._Pool(), threading.Barrier(2, timeout=60), []

    def part(start, stop):
        both.wait()
        if start == 0:
            raise error("of a part")
        ended.append(start)

    with pytest.raises(error, match="of a part"):
        pool.serve(part, _parts(2), ())
    assert ended == [1]
    assert pool.serve(lambda start, stop: ended.append(start), _parts(2), ())


def test_a_process_that_may_start_no_thread_does_it_alone(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(threads, "cores", lambda: 4)
    seen = []
    assert threads._Pool().serve(lambda start, stop: seen.append(start), _parts(4), ())
    assert sorted(seen) == [0, 1, 2, 3]


# --- the benchmark ----------------------------------------------------------------------------------------------------


def test_both_libraries_train_the_same_network():
    pytest.importorskip("torch")
    ours, theirs = contention.step_of_ours(), contention.step_of_torch(1)
    losses = [(float(ours()), float(theirs())) for _ in range(5)]
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-4)
    assert losses[-1][0] < losses[0][0]
    with dnn.options(threads=1):
        assert np.isfinite(float(ours()))
