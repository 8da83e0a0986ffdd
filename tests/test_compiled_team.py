"""The threads of compiled kernels, when they run parts that are Python functions."""

import importlib
import os
import threading
import time

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray._cpu import threads
from dnnarray._cpu.compiled import compiler

pytestmark = pytest.mark.skipif(compiler.missing() is not None, reason="Numba is not installed")
_MUCH = 1 << 40


@pytest.fixture(autouse=True)
def team():
    found = pytest.importorskip("dnnarray._cpu.compiled.team")
    compiler._start_team()
    if threads.cores() < 2:
        pytest.skip("there is one core")
    with dnn.options(threads=2):
        yield found


def _parts(count):
    return [(i, i + 1) for i in range(count)]


def test_every_part_runs_once_with_its_arguments(team):
    seen = []
    assert team.serve(lambda *given: seen.append(given), [(0, 3), (3, 5), (5, 5)], ("more",))
    assert sorted(seen) == [(0, 3, "more"), (3, 5, "more"), (5, 5, "more")]


def test_what_is_spread_runs_on_the_kernels_threads():
    names, both = set(), threading.Barrier(2, timeout=30)

    def part(start, stop):
        both.wait()
        names.add(threading.current_thread().name)

    threads.run(part, 2, work=_MUCH)
    assert names == {threading.current_thread().name, "dnnarray-1"}


def test_a_thread_keeps_what_it_has_for_itself():
    """As memory that is used again: a thread that Python has not made would lose it at the end of each part."""
    own, both = threading.local(), threading.Barrier(2, timeout=30)
    counts = []

    def part(start, stop):
        both.wait()
        own.count = getattr(own, "count", 0) + 1
        counts.append(own.count)

    for _ in range(5):
        threads.run(part, 2, work=_MUCH)
    assert sorted(counts) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_reaches_the_caller_when_all_parts_have_ended(team, error):
    ended = []

    def part(start, stop):
        if start == 0:
            raise error("of a part")
        ended.append(start)

    with pytest.raises(error, match="of a part"):
        threads.run(part, 2, work=_MUCH)
    assert ended == [1]
    assert team.serve(lambda start, stop: ended.append(start), _parts(2), ())


def test_parts_that_spread_work_themselves():
    """Do it in one piece: there are no more cores to be had."""
    found = []

    def inner(start, stop):
        found.append((start, stop, threading.get_ident()))

    def part(start, stop):
        threads.run(inner, 4, work=_MUCH)

    threads.run(part, 2, work=_MUCH)
    assert [(start, stop) for start, stop, _ in found] == [(0, 4), (0, 4)]


def test_callers_with_threads_of_their_own():
    """Each gets its own answer, whoever has the team."""
    a = np.random.default_rng(0).standard_normal((600, 500)).astype(np.float32)
    expected = a.astype(np.float64) @ a.T
    wrong = []

    def call():
        for _ in range(20):
            if not np.allclose(dnn.linear(a, a), expected, atol=1e-3):
                wrong.append(True)

    callers = [threading.Thread(target=call) for _ in range(6)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_again():
    threads.run(lambda start, stop: None, 2, work=_MUCH)
    child = os.fork()
    if child == 0:
        seen = []
        threads.run(lambda start, stop: seen.append((start, stop)), 2, work=_MUCH)
        os._exit(0 if sorted(seen) == [(0, 1), (1, 2)] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- kernels ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counting():
    """Kernels that count how often each element is met, one of them from the end of its parts to the beginning every
    other time, and one that fails."""
    return importlib.import_module("tests.kernels_of_tests")


@pytest.mark.parametrize("count", [2, 3, 8, 1024])
@pytest.mark.parametrize("total", [2, 3, 17, 1000, 99991])
def test_a_kernel_meets_every_element_once(counting, total, count):
    seen = np.zeros(total, np.float32)
    with dnn.options(threads=count):
        for each in (counting.count, counting.count_backwards, counting.count_backwards):
            each(total, seen, 2, 0.5, True, work=_MUCH)
    np.testing.assert_array_equal(seen, 3)


def test_an_error_in_a_part_of_a_kernel_reaches_the_caller(counting, team):
    seen = np.zeros(1000, np.float32)
    for _ in range(3):
        with pytest.raises(ValueError, match="of a kernel"):
            counting.fail(1000, seen, work=_MUCH)
    counting.count(1000, seen, 2, 0.5, True, work=_MUCH)
    assert (seen == 1).all()


def test_kernels_of_many_callers(counting):
    """Whoever finds the team at work does it alone."""
    wrong = []

    def call():
        for _ in range(300):
            seen = np.zeros(5000, np.float32)
            with dnn.options(threads=3):
                counting.count(5000, seen, 2, 0.5, True, work=_MUCH)
            if (seen != 1).any():
                wrong.append(seen)

    callers = [threading.Thread(target=call) for _ in range(5)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not wrong


def test_kernels_inside_of_parts(counting):
    seen = np.zeros((2, 5000), np.float32)
    threads.run(lambda start, stop: counting.count(5000, seen[start], 2, 0.5, True, work=_MUCH), 2, work=_MUCH)
    assert (seen == 1).all()


def test_a_caller_waits_for_no_thread_that_has_not_begun(counting, team, monkeypatch):
    """As on a machine whose other cores are all taken."""
    monkeypatch.setattr(team, "_current", team._Team())
    monkeypatch.setattr(team._Team, "_start", lambda self, index: False)
    seen = np.zeros(1000, np.float32)
    counting.count(1000, seen, 2, 0.5, True, work=_MUCH)
    assert (seen == 1).all()
    who = []
    threads.run(lambda start, stop: who.append(threading.get_ident()), 2, work=_MUCH)
    assert who == [threading.get_ident()] * 2


def test_threads_that_sleep_are_woken(team):
    both, names = threading.Barrier(2, timeout=60), []

    def part(start, stop):
        both.wait()
        names.append(threading.current_thread().name)

    for pause in (0, 1e-5, 1e-4, 1e-3, 0.05):
        for _ in range(10):
            threads.run(part, 2, work=_MUCH)
            time.sleep(pause)
    assert names.count("dnnarray-1") == 50
