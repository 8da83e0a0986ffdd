"""The tuning table on disk: corrupted, foreign, read-only, several writers, a killed writer."""

import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest

import dnnarray as dnn
from dnnarray import _cache
from dnnarray._options import Options
from dnnarray._problems.base import Problem
from dnnarray._select import Device, tuning
from dnnarray._spec import Spec

DEVICE = Device("made-up CPU", "cpu", 4, {"float32": 1e9}, 1e9, 1e-6)
SPEC = Spec((2,), "float32")


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path))
    tuning.forget_loaded()
    tuning._reported.clear()
    yield
    tuning.forget_loaded()


def test_what_is_remembered_is_found_again_by_another_reader():
    assert tuning.lookup(DEVICE, "k") is None
    assert tuning.remember(DEVICE, "k", {"a": 1.0})
    tuning.forget_loaded()
    assert tuning.lookup(DEVICE, "k") == {"a": 1.0}
    assert [p.suffix for p in _cache.folder().iterdir()] == [".json"]


_NOT_OURS = {
    "half": "{half",
    "list": "[]",
    "schema": '{"schema": 0, "rows": {}}',
    "row": '{"schema": 1, "rows": {"k": "fast"}}',
    "empty": "",
    "nested": "[" * 100_000,
    "nan": '{"schema": 1, "rows": {"k": {"a": NaN}}}',
    "infinity": '{"schema": 1, "rows": {"k": {"a": Infinity}}}',
    "negative": '{"schema": 1, "rows": {"k": {"a": -1.0}}}',
}


@pytest.mark.parametrize("content", _NOT_OURS.values(), ids=_NOT_OURS)
def test_a_file_that_is_not_ours_is_left_alone_and_reported_once(content):
    path = tuning.path_of(DEVICE)
    path.write_text(content)
    with pytest.warns(UserWarning, match="left alone"):
        assert tuning.lookup(DEVICE, "k") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not tuning.remember(DEVICE, "k", {"a": 1.0})
    assert path.read_text() == content


def test_a_folder_that_cannot_be_made_is_reported(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DNNARRAY_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="cannot be"):
        assert not tuning.remember(DEVICE, "k", {"a": 1.0})


def test_a_full_disk_leaves_the_old_table(monkeypatch):
    tuning.remember(DEVICE, "k", {"a": 1.0})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        assert not tuning.remember(DEVICE, "other", {"a": 2.0})
    tuning.forget_loaded()
    assert tuning.lookup(DEVICE, "k") == {"a": 1.0}
    assert [p.suffix for p in _cache.folder().iterdir()] == [".json"]


def test_two_processes_lose_nothing(tmp_path):
    code = (
        "import sys; from dnnarray._select import Device, tuning\n"
        "d = Device('made-up CPU', 'cpu', 4, {'float32': 1e9}, 1e9, 1e-6)\n"
        "[tuning.remember(d, f'{sys.argv[1]}-{i}', {'a': 1.0}) for i in range(30)]\n"
    )
    environment = os.environ | {"DNNARRAY_CACHE_DIR": str(tmp_path)}
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)], env=environment) for n in range(3)]
    assert [w.wait() for w in writers] == [0, 0, 0]
    assert len(json.loads(tuning.path_of(DEVICE).read_text())["rows"]) == 90


def test_the_lock_of_a_killed_process_is_taken_over():
    lock = tuning.path_of(DEVICE).with_suffix(".lock")
    lock.write_text("")
    os.utime(lock, (0, 0))
    assert tuning.remember(DEVICE, "k", {"a": 1.0})
    assert not lock.exists()


def test_a_lock_that_was_just_made_anew_is_not_taken_away():
    lock = tuning.path_of(DEVICE).with_suffix(".lock")
    lock.write_text("another's")
    tuning._take_away(lock)
    assert lock.read_text() == "another's"
    os.utime(lock, (0, 0))
    tuning._take_away(lock)
    assert not list(_cache.folder().iterdir())


def test_the_key_depends_on_problem_device_and_what_the_options_allow():
    problem = Problem(op="op", inputs=(SPEC,), outputs=(SPEC,))
    other = Problem(op="op", inputs=(Spec((3,), "float32"),), outputs=(SPEC,))
    slower = Device("made-up CPU", "cpu", 2, {"float32": 1e9}, 1e9, 1e-6)
    base = tuning.key_of(problem, DEVICE, Options())
    assert base == tuning.key_of(problem, DEVICE, Options(telemetry=True))
    assert len({base, tuning.key_of(other, DEVICE, Options()), tuning.key_of(problem, slower, Options()),
                tuning.key_of(problem, DEVICE, Options(deterministic=True))}) == 4  # fmt: skip


def test_autotune_measures_every_candidate_and_the_next_call_follows_it(pytestconfig):
    if pytestconfig.getoption("--compiled"):
        pytest.skip("there the engine's measured times are made up")
    x = np.ones((1, 4, 9, 9), np.float32)
    w = np.ones((4, 4, 3, 3), np.float32)
    measured = dnn.autotune("conv", x, w)
    assert len(measured) > 1
    assert all(a.measured_ms > 0 for a in measured)
    tuning.forget_loaded()
    assert [a.name for a in dnn.algorithms("conv", x, w)] == [a.name for a in measured]
    assert "measured" in str(dnn.explain("conv", x, w))


def test_the_option_autotune_measures_once():
    x = np.ones((1, 3, 7, 7), np.float32)
    w = np.ones((2, 3, 3, 3), np.float32)
    with dnn.options(autotune=True):
        dnn.conv(x, w)
        first = {p: p.read_text() for p in _cache.folder().glob("*.json")}
        dnn.conv(x, w)
    assert first
    assert first == {p: p.read_text() for p in _cache.folder().glob("*.json")}
